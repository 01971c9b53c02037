"""Instructions that move, fill, index or transpose, as kernels spell them."""

import ml_dtypes
import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.machine import Memory
from tests.dialects.neuronxcc.running import close, computed, ran

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 6)).astype(np.float32)
Y = RNG.standard_normal((8, 6)).astype(np.float32)
EYE = np.eye(8, dtype=np.float32)


# ---- copies


def test_tensor_copy():
    close(computed(lambda x: nisa.tensor_copy(x, dtype=nl.bfloat16), X), X.astype(ml_dtypes.bfloat16))
    close(computed(lambda x: nisa.tensor_copy(x, engine=nisa.vector_engine), X), X)
    close(computed(lambda e, x: nisa.tensor_copy(nisa.nc_matmul(e, x)), EYE, X), X)


def test_a_copy_is_a_snapshot():
    def emit(x):
        tile = nl.ndarray((8, 6), dtype=np.float32)
        tile[...] = x
        copy = nisa.tensor_copy(tile)
        tile[...] = 0
        return copy

    close(computed(emit, X), X)


def test_dynamic_copies():
    def kernel(x, at):
        out = nl.ndarray((8, 2), dtype=np.float32, buffer=nl.shared_hbm)
        moved = nl.zeros((8, 6), dtype=np.float32)
        there = nl.ndarray((8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        tile, index = nl.load(x), nl.load(at)
        nl.store(out, nisa.tensor_copy_dynamic_src(tile[:, nl.ds(index, 2)]))
        nisa.tensor_copy_dynamic_dst(dst=moved[:, nl.ds(index, 2)], src=tile[:, 0:2])
        nl.store(there, moved)
        return out, there

    out, there = ran(kernel, X, np.array([[3]], np.int32))
    close(out, X[:, 3:5])
    close(there[:, 3:5], X[:, :2])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
def test_tensor_copy_predicated(dtype, reverse):
    flags = (X > 0).astype(dtype)

    def emit(x, y, p, src):
        nisa.tensor_copy_predicated(src=src, dst=y, predicate=p, reverse_pred=reverse)
        return y

    chosen = (X > 0) != reverse
    close(computed(lambda x, y, p: emit(x, y, p, x), X, Y, flags), np.where(chosen, X, Y))
    close(computed(lambda x, y, p: emit(x, y, p, 3.0), X, Y, flags), np.where(chosen, 3, Y))


@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_copy_predicated_under_a_mask(reverse):
    flags = (X > 0).astype(np.uint8)

    def emit(x, y, p):
        i, j = nl.mgrid[0:8, 0:6]
        nisa.tensor_copy_predicated(src=x, dst=y, predicate=p, reverse_pred=reverse, mask=i >= j)
        return y

    close(computed(emit, X, Y, flags), np.where(((X > 0) != reverse) & np.tri(8, 6).astype(bool), X, Y))


# ---- DMA


def test_dma_copy_between_any_memories():
    def kernel(x, eye):
        outs = [nl.ndarray((8, 6), dtype=d, buffer=nl.shared_hbm) for d in (np.float32, nl.bfloat16, np.float32)]
        tile = nl.ndarray((8, 6), dtype=np.float32)
        acc = nl.ndarray((8, 6), dtype=np.float32, buffer=nl.psum)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=outs[0][0:4], src=tile[0:4])
        nisa.dma_copy(dst=outs[0][4:8], src=nisa.nc_matmul(nl.load(eye), tile)[4:8])
        nisa.dma_copy(dst=outs[1], src=x, dge_mode=nisa.dge_mode.swdge)
        nisa.dma_copy(dst=acc, src=x)
        nisa.dma_copy(dst=outs[2], src=acc)
        return tuple(outs)

    first, second, third = ran(kernel, X, EYE)
    close(first, X)
    close(second, X.astype(ml_dtypes.bfloat16))
    close(third, X)


def test_dma_copy_under_a_mask_addresses_nothing_outside():
    def kernel(x):
        out = nl.zeros((5, 6), dtype=np.float32, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0:8, 0:6]
        tile = nl.ndarray((8, 6), dtype=np.float32)
        nisa.dma_copy(dst=tile[i, j], src=x[i, j])
        nisa.dma_copy(dst=out[i, j], src=tile[i, j], mask=i < 5)
        return out

    close(ran(kernel, X), X[:5])


def test_dma_copy_adds():
    def kernel(x, y):
        out = nl.zeros((8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x, dst_rmw_op=np.add)
        nisa.dma_copy(dst=out, src=nl.load(y), dst_rmw_op=np.add)
        nisa.dma_copy(dst=out, src=nl.load(y), dst_rmw_op=np.maximum)
        return out

    close(ran(kernel, X, Y), np.maximum(X + Y, Y))


def test_dma_copy_skips_rows_that_are_not_there():
    def kernel(x, at):
        out = nl.ndarray((8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        tile = nl.full((8, 6), 7.0, dtype=np.float32)
        rows, j = nl.load(at), nl.arange(6)[None, :]
        nisa.dma_copy(dst=tile, src=x[rows, j], oob_mode=nisa.oob_mode.skip)
        nl.store(out, tile)
        return out

    at = np.array([0, -1, 3, 8, 2, 100, 7, 1], np.int32)[:, None]
    want = np.where((at >= 0) & (at < 8), X[np.clip(at[:, 0], 0, 7)], 7)
    close(ran(kernel, X, at), want)


def test_offloaded_copies_and_sums():
    def kernel(x, y):
        copy = nl.ndarray((8, 6), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        total = nl.zeros((8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        tile, third = nl.ndarray((8, 6), dtype=np.float32), nl.ndarray((8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        nisa._tiled_offloaded_memcpy(src=x, dst=copy)
        nisa._tiled_offloaded_fma(x[:, 0:3], y[:, 0:3], scales=[2.0, 0.5], dst=total[:, 3:6])
        nisa._tiled_offloaded_fma(x, y, nl.load(x), scales=[1.0, 1.0, 1.0], dst=tile.as_tile())
        nl.store(third, tile)
        return copy, total, third

    copy, total, third = ran(kernel, X, Y)
    close(copy, X.astype(ml_dtypes.bfloat16))
    close(total, np.concatenate([np.zeros((8, 3)), 2 * X[:, :3] + 0.5 * Y[:, :3]], axis=1))
    close(third, X + Y + X)


def test_an_offloaded_sum_of_many_rows():
    big = RNG.standard_normal((3, 100, 4)).astype(np.float32)

    def kernel(x):
        out = nl.ndarray((3, 100, 4), dtype=np.float32, buffer=nl.shared_hbm)
        nisa._tiled_offloaded_fma(x, x, scales=[1.0, 1.0], dst=out)
        return out

    close(ran(kernel, big), 2 * big)
    with pytest.raises(KernelError, match="scales"):
        nkijax.trace(lambda x: nisa._tiled_offloaded_fma(x, x, scales=[1.0], dst=x), big)


# ---- constants and indices


def test_memset():
    assert (computed(lambda: nisa.memset((4, 3), 2, np.int32)) == 2).all()
    assert (computed(lambda: nisa.memset(shape=(nl.par_dim(4), 3), value=1, dtype=nl.bfloat16)) == 1).all()

    def masked():
        i, j = nl.mgrid[0:4, 0:3]
        return nisa.memset((4, 3), 5.0, np.float32, mask=i < 2)

    close(computed(masked), np.where(np.arange(4)[:, None] < 2, 5, 0) * np.ones((1, 3)))


def test_iota():
    i, j = np.mgrid[0:4, 0:6]
    expr = lambda: nisa.iota(nl.arange(4)[:, None] * 10 + nl.arange(6)[None, :] - 3, dtype=nl.int32)  # noqa: E731
    np.testing.assert_array_equal(computed(expr), 10 * i + j - 3)
    np.testing.assert_array_equal(computed(lambda: nisa.iota(nl.arange(5)[None, :], np.uint32)), np.arange(5)[None])
    np.testing.assert_array_equal(computed(lambda: nisa.iota(nl.arange(5)[:, None], np.float32)), np.arange(5)[:, None])
    assert computed(lambda: nisa.iota(7, np.int32)).tolist() == [[7]]
    moved = computed(lambda x: nisa.iota(nl.arange(5)[None, :] + x, np.int32), np.array([[3]], np.int32))
    np.testing.assert_array_equal(moved, np.arange(3, 8)[None])
    three = computed(lambda: nisa.iota(nl.mgrid[0:2, 0:3, 0:4][1] * 5 + nl.mgrid[0:2, 0:3, 0:4][2], np.int32))
    np.testing.assert_array_equal(three, np.indices((2, 3, 4))[1][:1] * 5 + np.indices((2, 3, 4))[2][:1])


def selected(pred, *, value=-5.0, **options):
    def emit(x):
        i, j = nl.mgrid[0:8, 0:6]
        return nisa.affine_select(pred(i, j), x, value, **options)

    return computed(emit, X)


def test_affine_select():
    i, j = np.mgrid[0:8, 0:6]
    close(selected(lambda i, j: i >= j), np.where(i >= j, X, -5))
    close(selected(lambda i, j: (i >= j) & (i - j < 4)), np.where((i >= j) & (i - j < 4), X, -5))
    close(selected(lambda i, j: (i > 5) | (j > i)), np.where((i > 5) | (j > i), X, -5))
    close(selected(lambda i, j: j < 3), np.where(j < 3, X, -5))
    close(selected(lambda i, j: i >= 0), X)
    close(selected(lambda i, j: i < 0), np.full((8, 6), -5))
    close(selected(lambda i, j: True), X)
    close(selected(lambda i, j: False), np.full((8, 6), -5))
    with pytest.raises(KernelError, match="must align from the left"):
        nkijax.trace(lambda x: nisa.affine_select(nl.arange(5)[:, None] > 2, nl.load(x), 0.0), X)
    low = np.where(i >= j, X, -9984).astype(ml_dtypes.bfloat16)
    close(selected(lambda i, j: i >= j, value=-9984.0, dtype=nl.bfloat16), low)


def test_affine_select_is_one_instruction_wherever_its_predicate_holds():
    """So that the turns of a causal loop fold."""

    def kernel(x):
        out = nl.ndarray((6, 8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0:8, 0:6]
        for k in nl.affine_range(6):  # nowhere, somewhere, everywhere
            nl.store(out[k], nisa.affine_select(i + 4 * (k - 3) >= j, nl.load(x), -1.0))
        return out

    (repeat,) = nkijax.trace(kernel, X).body
    assert repeat.count == 6 and len(repeat.body) == 3
    i, j = np.mgrid[0:8, 0:6]
    close(ran(kernel, X), np.stack([np.where(i + 4 * (k - 3) >= j, X, -1) for k in range(6)]))


def test_affine_select_of_psum_under_a_mask():
    def kernel(x, eye, y):
        out = nl.ndarray((8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        tile = nl.load(y)
        i, j = nl.mgrid[0:8, 0:6]
        tile[i, j] = nisa.affine_select(i >= j, nisa.nc_matmul(nl.load(eye), nl.load(x)), 0.0, mask=(i > 2) & (j > 0))
        nl.store(out, tile)
        return out

    i, j = np.mgrid[0:8, 0:6]
    close(ran(kernel, X, EYE, Y), np.where((i > 2) & (j > 0), np.where(i >= j, X, 0), Y))


# ---- transposes


def test_nc_transpose():
    close(computed(lambda x: nisa.nc_transpose(x), X), X.T)
    close(computed(lambda x: nisa.nc_transpose(x, engine=nisa.vector_engine), X), X.T)
    three = RNG.standard_normal((8, 3, 2)).astype(np.float32)
    close(computed(lambda x: nisa.nc_transpose(x), three), three.reshape(8, 6).T)
    low = X.astype(ml_dtypes.bfloat16)
    assert computed(lambda x: nisa.nc_transpose(x, dtype=np.float32), low).dtype == np.float32
    bits = RNG.integers(0, 2**32, (8, 6), dtype=np.uint32)
    np.testing.assert_array_equal(computed(lambda x: nisa.nc_transpose(x), bits), bits.T)


def test_nc_transpose_memories():
    places = []
    nkijax.trace(lambda x: places.append(nisa.nc_transpose(nl.load(x)).buffer), X)
    nkijax.trace(lambda x: places.append(nisa.nc_transpose(nl.load(x), engine=nisa.vector_engine).buffer), X)
    assert places == [Memory.psum, Memory.sbuf]


def test_the_mask_of_a_transpose_is_on_its_input():
    def emit(x):
        i, j = nl.mgrid[0:8, 0:6]
        return nisa.nc_transpose(x, mask=(i < 5) & (j < 4))

    i, j = np.mgrid[0:8, 0:6]
    close(computed(emit, X), np.where((i < 5) & (j < 4), X, 0).T)


def test_dma_transpose():
    for shape, axes in (((8, 6), (1, 0)), ((4, 3, 5), (2, 1, 0)), ((4, 2, 3, 5), (3, 1, 2, 0))):
        data = RNG.standard_normal(shape).astype(np.float32)
        close(computed(lambda x, a=axes: nisa.dma_transpose(x, axes=a), data), data.transpose(axes))
    with pytest.raises(KernelError, match="2, 3 or 4 dimensions"):
        nkijax.trace(lambda x: nisa.dma_transpose(x), np.ones(4, np.float32))
