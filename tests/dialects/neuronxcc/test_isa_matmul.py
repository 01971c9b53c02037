"""nc_matmul as kernels spell it."""

import ml_dtypes
import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.isa.matmul import NcMatmul
from nkijax.machine import Memory
from nkijax.program import instructions
from tests.dialects.neuronxcc.running import close, computed, ran

RNG = np.random.default_rng(0)
S = RNG.standard_normal((16, 8)).astype(np.float32)
M = RNG.standard_normal((16, 12)).astype(np.float32)


def test_product():
    close(computed(lambda s, m: nisa.nc_matmul(s, m), S, M), S.T @ M, 1e-5)
    three = RNG.standard_normal((16, 3, 4)).astype(np.float32)
    want = np.einsum("km,kab->mab", S, three)
    close(computed(lambda s, m: nisa.nc_matmul(s, m, is_moving_onezero=True), S, three), want, 1e-5)


def test_its_result_is_float32_in_psum():
    seen = []
    low = S.astype(ml_dtypes.bfloat16)
    nkijax.trace(lambda s, m: seen.append(nisa.nc_matmul(nl.load(s), nl.load(m))), low, low)
    assert (seen[0].buffer, seen[0].dtype) == (Memory.psum, np.float32)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.int8, np.int32, np.float16])
def test_operands_of_two_kinds(kind):
    other = np.round(M).astype(kind)
    close(computed(lambda s, m: nisa.nc_matmul(s, m), S, other), S.T @ other.astype(np.float32), 1e-5)


def test_operands_in_psum():
    eye = np.eye(16, dtype=np.float32)
    close(
        computed(lambda e, s, m: nisa.nc_matmul(nisa.nc_matmul(e, s), nisa.nc_matmul(e, m)), eye, S, M), S.T @ M, 1e-5
    )


def accumulating(s, m):
    out = nl.ndarray((8, 12), dtype=np.float32, buffer=nl.shared_hbm)
    acc = nl.zeros((8, 12), dtype=np.float32, buffer=nl.psum)
    stationary, moving = nl.load(s), nl.load(m)
    for k in nl.affine_range(4):
        acc += nisa.nc_matmul(stationary[4 * k : 4 * k + 4, :], moving[4 * k : 4 * k + 4, :])
    nl.store(out, acc)
    return out


def test_accumulation_is_the_matmuls_own():
    close(nkijax.run(accumulating, S, M), S.T @ M, 1e-5)
    program = nkijax.trace(accumulating, S, M, rolled=False)
    matmuls = [i for i in instructions(program.body) if isinstance(i, NcMatmul)]
    assert len(matmuls) == 4 and all(i.accumulate for i in matmuls)
    assert not any(type(i).__name__ == "TensorTensor" for i in instructions(program.body))


# ---- masks


def test_a_mask_on_the_result():
    def kernel(s, m):
        out = nl.ndarray((8, 12), dtype=np.float32, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0:8, 0:12]
        tile = nl.full((8, 12), 7.0, dtype=np.float32)
        tile[i, j] = nisa.nc_matmul(nl.load(s), nl.load(m), mask=(i < 5) & (j < 9))
        nl.store(out, tile)
        return out

    i, j = np.mgrid[0:8, 0:12]
    close(ran(kernel, S, M), np.where((i < 5) & (j < 9), S.T @ M, 7), 1e-5)


def test_a_mask_on_the_stationarys_free_dimension():
    def kernel(s, m):
        out = nl.ndarray((8, 12), dtype=np.float32, buffer=nl.shared_hbm)
        acc = nl.zeros((8, 12), dtype=np.float32, buffer=nl.psum)
        acc += nisa.nc_matmul(nl.load(s), nl.load(m), mask=nl.arange(8)[None, :] < 5)
        nl.store(out, acc)
        return out

    close(nkijax.run(kernel, S, M), np.where(np.arange(8)[:, None] < 5, S.T @ M, 0), 1e-5)


def test_a_mask_that_fits_both_is_on_what_the_stationary_hides():
    square = M[:, :8]
    first = nl.arange(8)[None, :] < 5
    rows = np.where(np.arange(8)[:, None] < 5, S.T @ square, 0)
    close(computed(lambda s, m: nisa.nc_matmul(s[first], m, mask=first), S, square), rows, 1e-5)
    columns = np.where(np.arange(8)[None, :] < 5, S.T @ square, 0)
    close(computed(lambda s, m: nisa.nc_matmul(s, m, mask=first), S, square), columns, 1e-5)


def test_predicates_on_operands():
    poisoned = S.copy()
    poisoned[10:] = np.nan

    def contracted(s, m):
        k, _ = nl.mgrid[0:16, 0:8]
        return nisa.nc_matmul(s[k < 10], m)

    close(computed(contracted, poisoned, M), S[:10].T @ M[:10], 1e-5)

    def kernel(s, m):
        out = nl.ndarray((8, 12), dtype=np.float32, buffer=nl.shared_hbm)
        k, j = nl.mgrid[0:16, 0:12]
        tile = nl.full((8, 12), 7.0, dtype=np.float32)
        tile[...] = nisa.nc_matmul(nl.load(s), nl.load(m)[j < 9][k < 10])
        nl.store(out, tile)
        return out

    close(ran(kernel, S, M), np.where(np.arange(12) < 9, S[:10].T @ M[:10], 7), 1e-5)

    def diagonal(s, m):
        k, i = nl.mgrid[0:16, 0:8]
        return nisa.nc_matmul(s[k >= i], m)

    close(computed(diagonal, S, M), (S * np.tri(16, 8)).T @ M, 1e-5)


def test_masks_on_several_free_dimensions():
    """Of the stationary, by a mask on the result, on its own free dimensions, and on those of both operands."""

    def kernel(s, m):
        i, j, k = nl.arange(2)[None, :, None], nl.arange(4)[None, None, :], nl.mgrid[0:8, 0:12]
        out = nl.ndarray((3, 8, 12), dtype=np.float32, buffer=nl.shared_hbm)
        a, b = nl.load(s).reshape((16, 2, 4)), nl.load(m).reshape((16, 3, 4))
        t = nl.full((8, 3, 12), 7.0, dtype=np.float32)
        t[:, 0] = nisa.nc_matmul(a, nl.load(m), mask=k[0] + k[1] < 9)
        t[:, 1] = nisa.nc_matmul(a, nl.load(m), mask=(i < 1) & (j > 0))
        t[:, 2] = nisa.nc_matmul(a[j != 2], b[nl.arange(3)[None, :, None] <= j])
        for n in range(3):
            nl.store(out[n], t[:, n])
        return out

    row, column = np.mgrid[0:8, 0:12]
    wants = [row + column < 9, (row < 4) & (row % 4 > 0), (row % 4 != 2) & (column // 4 <= column % 4)]
    for got, want in zip(nkijax.run(kernel, S, M), wants, strict=True):
        close(got, np.where(want, S.T @ M, 7), 1e-5)


def test_a_mask_that_hides_everything():
    close(computed(lambda s, m: nisa.nc_matmul(s, m, mask=False), S, M), np.zeros((8, 12)))


# ---- double rows


def test_double_row():
    s = RNG.integers(-3, 4, (128, 2, 64)).astype(ml_dtypes.float8_e4m3)
    m = RNG.integers(-3, 4, (128, 2, 96)).astype(ml_dtypes.float8_e4m3)
    emit = lambda s, m: nisa.nc_matmul(s, m, perf_mode="double_row_gen3")  # noqa: E731
    want = np.einsum("krm,krn->mn", s.astype(np.float32), m.astype(np.float32))
    np.testing.assert_array_equal(computed(emit, s, m, target="trn2"), want)
    with pytest.raises(KernelError, match=r"double_row operands must be \(K, 2, …\)"):
        nkijax.trace(lambda s: emit(nl.load(s), nl.load(s)), S.astype(ml_dtypes.float8_e4m3), target="trn2")
