"""Data movement, matmul and registers as kernels spell them; numbers of the entries are tested beside them."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
EAGER = pytest.mark.parametrize("eager", [False, True])


def refused(kernel, *args, **options):
    with pytest.raises(KernelError) as error:
        nkijax.trace(kernel, *(args or (X,)), **options)
    assert error.value.site.startswith(__file__), error.value
    return error.value.message


@EAGER
def test_copies(eager):
    def kernel(x):
        out = nl.ndarray((12,), nl.bfloat16, buffer=nl.shared_hbm)
        tile = nl.ndarray((3, 4), nl.float32)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(dst=tile[0:1, 0:2], src=x[2:3, 2:4], oob_mode=nisa.oob_mode.skip, name="corner")
        narrow = nl.ndarray((3, 2, 2), nl.bfloat16)
        nisa.tensor_copy(narrow, tile, engine=nisa.vector_engine, dtype=nl.bfloat16)
        nisa.memset(narrow[1], np.float32(0.5))
        nisa.dma_copy(out, narrow)
        return out

    want = X.copy()
    want[0, 0:2], want[1] = X[2, 2:4], 0.5
    result = nkijax.run(kernel, X, eager=eager)
    assert result.dtype.name == "bfloat16"
    np.testing.assert_array_equal(result.astype(np.float32), want.reshape(-1))


@EAGER
def test_predicated_copy_and_transposes(eager):
    def kernel(x, mask):
        out = nl.ndarray((4, 3), nl.float32, buffer=nl.shared_hbm)
        tile, chosen = nl.load(x), nl.load(mask)
        nisa.tensor_copy_predicated(tile, 9.0, chosen, reverse_pred=True)
        turned = nl.ndarray((4, 3), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(turned, tile)
        back = nl.ndarray((3, 4), nl.float32)
        nisa.nc_transpose(back, turned, engine=nisa.engine.vector)
        nisa.dma_copy(x, back)
        again = nl.ndarray((4, 3), nl.float32)
        nisa.dma_transpose(again, x, axes=[1, 0])
        nisa.dma_copy(out, again)
        return out

    mask = (X % 2).astype(np.uint8)
    np.testing.assert_array_equal(nkijax.run(kernel, X.copy(), mask, eager=eager), np.where(mask, X, 9).T)


@EAGER
def test_dma_compute(eager):
    """A sum into SBUF, then read-modify-writes by rows: a gather, which skips row 9, and a scatter."""

    def kernel(table, rows):
        out = nl.ndarray((3, 4), nl.float32, buffer=nl.shared_hbm)
        tile, index = nl.ndarray((3, 4), nl.float32), nl.load(rows)
        nisa.dma_compute(tile, [table[0:3], table[1:4], table[0:3]], nl.add)
        nisa.dma_compute(out, (tile,), reduce_op=nl.add, scales=[1.0])
        gathered = table.vector_select(0, index)
        nisa.dma_compute(dst=tile, srcs=[tile, gathered], reduce_op=nl.add, oob_mode=nisa.oob_mode.skip, name="rows")
        nisa.dma_compute(gathered, [tile, gathered], nl.add, unique_indices=True, oob_mode=nisa.oob_mode.skip)
        return out

    table, rows = np.arange(20, dtype=np.float32).reshape(5, 4), np.array([[4], [9], [0]], np.int32)
    first = 2 * table[0:3] + table[1:4]
    changed = table.copy()
    changed[[4, 0]] += first[[0, 2]] + table[[4, 0]]
    given = table.copy()
    np.testing.assert_array_equal(nkijax.run(kernel, given, rows, eager=eager), first)
    np.testing.assert_array_equal(given, changed)


def test_dma_compute_refuses():
    assert "srcs[1]: must be a tensor, got 1.0" in refused(lambda x: nisa.dma_compute(nl.load(x), [x, 1.0], nl.add))
    assert "reduce_op: must be nl.add, got multiply" in refused(lambda x: nisa.dma_compute(x, [x], nl.multiply))
    with pytest.raises(
        KernelError, match=r"dma_compute srcs: run-time index out of bounds: must be in \[0, 3\), got 5"
    ):

        def kernel(x, rows):
            tile = nl.load(x)
            nisa.dma_compute(tile, [tile, x.vector_select(0, nl.load(rows))], nl.add)

        nkijax.run(kernel, X.copy(), np.array([[0], [5], [1]], np.int32))


def test_enums_are_members():
    def call(function, **arguments):
        def kernel(x):
            tile = nl.load(x)
            function(tile, tile, **arguments)

        return refused(kernel)

    assert "engine: must be a member of nki.isa.engine, got 5" in call(nisa.tensor_copy, engine=5)
    assert "oob_mode: must be a member of nki.isa.oob_mode, got 0" in call(nisa.dma_copy, oob_mode=0)
    assert "dge_mode: must be a member of nki.isa.dge_mode, got 'swdge'" in call(nisa.dma_copy, dge_mode="swdge")
    assert "engine: must be one of ['vector', 'scalar', 'gpsimd'], got tensor" in call(
        nisa.tensor_copy, engine=nisa.engine.tensor
    )


def test_unknown_keywords_are_pythons_errors():
    for call in (
        lambda: nisa.dma_copy(None, None, mask=1),
        lambda: nisa.tensor_tensor(None, None, None, None, dtype=nl.float32),
        lambda: nisa.nc_matmul(None, None, None, mask=None),
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            call()


# ---- nc_matmul


def product(k, m, n, steps=1, **arguments):
    def kernel(a, b):
        out = nl.ndarray((m, n), nl.float32, buffer=nl.shared_hbm)
        dst = nl.ndarray((m, n), nl.float32, buffer=nl.psum)
        for _ in range(steps):
            nisa.nc_matmul(dst, nl.load(a), nl.load(b), **arguments)
        nl.store(out, nl.copy(dst))
        return out

    rng = np.random.default_rng(0)
    return kernel, rng.standard_normal((k, m), np.float32), rng.standard_normal((k, n), np.float32)


@EAGER
def test_trap_7_matmul_accumulates_since_the_allocation(eager):
    for steps, arguments, times in ((1, {}, 1), (3, {}, 3), (3, {"accumulate": False}, 1)):
        kernel, a, b = product(64, 32, 48, steps, **arguments)
        np.testing.assert_allclose(nkijax.run(kernel, a, b, eager=eager), times * (a.T @ b), rtol=1e-5, atol=1e-5)


@EAGER
def test_case_19_matmul_into_overlapping_windows(eager):
    """What is written twice adds, what is written first is set: a convolution's windows."""

    def kernel(ones):
        out = nl.ndarray((1, 6), nl.float32, buffer=nl.shared_hbm)
        dst, tile = nl.ndarray((1, 6), nl.float32, buffer=nl.psum), nl.load(ones)
        nisa.nc_matmul(dst[:, 0:4], tile[:, 0:1], tile)
        nisa.nc_matmul(dst[:, 2:6], tile[:, 0:1], tile)
        nl.store(out, nl.copy(dst))
        return out

    result = nkijax.run(kernel, np.ones((128, 4), np.float32), eager=eager)
    np.testing.assert_array_equal(result, [[128, 128, 256, 256, 128, 128]])


@EAGER
def test_matmul_in_a_dynamic_loop(eager):
    def kernel(a, b, n):
        out = nl.ndarray((32, 48), nl.float32, buffer=nl.shared_hbm)
        dst = nl.ndarray((32, 48), nl.float32, buffer=nl.psum)
        left, right = nl.load(a), nl.load(b)
        nl.fori_loop(0, n, lambda i: nisa.nc_matmul(dst, left, right) and None)
        nl.store(out, nl.copy(dst))
        return out

    _, a, b = product(64, 32, 48)
    np.testing.assert_allclose(nkijax.run(kernel, a, b, 3, eager=eager), 3 * (a.T @ b), rtol=1e-5, atol=1e-5)


def test_trap_14_matmul_perf_mode_by_name():
    def kernel(a, b, mode):
        dst = nl.ndarray((32, 48), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst, nl.load(a), nl.load(b), perf_mode=mode)

    _, a, b = product(64, 32, 48)
    nkijax.trace(kernel, a, b, "none")
    nkijax.trace(kernel, a, b, nisa.matmul_perf_mode.none)
    assert "must be a member of nki.isa.matmul_perf_mode, got 'quad'" in refused(kernel, a, b, "quad")
    assert "must be fp8 with perf_mode.double_row" in refused(kernel, a, b, "double_row")


def test_matmul_limits():
    kernel, a, b = product(64, 32, 48)
    assert "contraction dimension mismatch: stationary[0]=64 != moving[0]=32" in refused(kernel, a, b[:32])

    def into_sbuf(a):
        tile = nl.load(a)
        nisa.nc_matmul(nl.ndarray((32, 32), nl.float32), tile, tile)

    assert "dst must be in ['psum'], got sbuf" in refused(into_sbuf, a)


# ---- registers


@EAGER
def test_registers(eager):
    def kernel(n):
        out = nl.zeros((4, 1), nl.int32, buffer=nl.shared_hbm)
        tile = nl.load(n)
        a, b, c = nisa.register_alloc(), nisa.register_alloc(np.int64(7)), nisa.register_alloc(tile)
        nisa.register_load(a, n[0])
        nisa.register_store(out[0], a)
        nisa.register_store(out[1], b)
        nisa.register_store(dst=out[2], src=c)
        nisa.register_move(dst=a, src=-5)
        nisa.register_move(b, a)
        nisa.register_store(out[3], b)
        return out

    result = nkijax.run(kernel, np.array([[42]], np.int32), eager=eager)
    np.testing.assert_array_equal(result[:, 0], [42, 7, 42, -5])


def test_registers_that_are_refused():
    assert "dst: must be a register, got sbuf" in refused(lambda x: nisa.register_move(nl.load(x), 1))
    assert "src: must be a register or an integer, got 0.5" in refused(
        lambda x: nisa.register_move(nisa.register_alloc(), 0.5)
    )
    assert "src: must have exactly one element" in refused(lambda x: nisa.register_load(nisa.register_alloc(), x))
    assert "src: must be a tensor, got 1" in refused(lambda x: nisa.register_load(nisa.register_alloc(), 1))
    assert "got register" in refused(lambda x: nisa.memset(nisa.register_alloc(), 1))
