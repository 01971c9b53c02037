"""Block tensors: tiles of their own, or patterns on one buffer."""

import numpy as np
import pytest

import nkijax
from nkijax import KernelError, Unsupported
from nkijax.dialects.neuronxcc import compiler as ncc
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl

from .test_emit import X, ran


def test_block_dimensions():
    def body(x):
        t = nl.ndarray((2, 3, nl.par_dim(6), 8), dtype=nl.float32)
        assert t.shape == (2, 3, 6, 8) and t[1].shape == (3, 6, 8) and t[1][2].shape == (6, 8)
        for i in nl.affine_range(2):
            for j in nl.affine_range(3):
                t[i, j] = nl.load(x)
                t[i][j][:, 0] = 10 * i + j
        assert t.partition == 2 and t[0].partition == 1 and "float32[3, 6, 8] in sbuf" in repr(t[0])
        with pytest.raises(KernelError, match="x: must be a tile"):
            nl.exp(t[0])
        with pytest.raises(KernelError, match=r"dimension 1: index range \[3, 3\] exceed dimension size of 3"):
            nl.copy(t[0, 3])
        with pytest.raises(KernelError, match="exceeds the block dimensions"):
            t[2]
        u = nl.ndarray((nl.par_dim(6), 6), dtype=nl.float32)
        for i in range(2):
            for j in range(3):
                u[:, 3 * i + j] = t[i, j, :, 0]
        return u

    assert (ran(body) == [0, 1, 2, 10, 11, 12]).all()


def test_placed_block_tensors():
    def body(x):
        t = nl.ndarray(
            (4, nl.par_dim(6), 8), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2,))
        )
        assert t.shape == (4, 6, 8) and t.dtype == np.float32 and t.ndim == 3 and t.buffer is nl.sbuf
        for i in range(4):
            t[i] = nl.load(x)
            t[i, :, 0] = i
        with pytest.raises(KernelError, match=r"dimension 0: index range \[4, 4\] exceed dimension size of 4"):
            nl.copy(t[4])
        with pytest.raises(Unsupported, match="which tile of a tensor with given places"):
            t[nl.zeros((1, 1), dtype=nl.int32)]
        two = nl.ndarray((2, 2, nl.par_dim(6), 8), dtype=nl.float32, buffer=ncc.psum.mod_alloc(base_bank=0))
        with pytest.raises(KernelError, match="slices or index grids, not both"):
            two[0:1, nl.arange(2)[None, :]]
        with pytest.raises(KernelError, match=r"a block tensor takes a number, or one of its shape \(1, 2, 6, 8\)"):
            two[0:1] = nl.load(x)
        return t[0]  # tile 2 came to the same place

    assert (ran(body)[:, 0] == 2).all()


def test_index_objects_and_slices_over_placed_blocks():
    def body(x):
        t = nl.ndarray(
            (3, nl.par_dim(6), 4), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(3,))
        )
        b, p, f = nl.arange(3)[None, :, None], nl.arange(6)[:, None, None], nl.arange(4)[None, None, :]
        t[b, p, f] = nl.load(x[p, f])  # the partitions first, then blocks
        t[1:3, :, 0] = 7
        t[0:1][0][:, 1] = 8
        t[0:2, :, 3] = t[1:3, :, 0]
        t[b + 2, p, f] = nl.square(t[0 * b, p, f], mask=b < 1)  # blocks 3 and 4 are hidden
        return t[2 - b, p, f // 2]

    want = np.repeat(X[:, None, :4], 3, 1)
    want[:, 1:, 0], want[:, 0, 1], want[:, :2, 3] = 7, 8, 7
    want[:, 2] = want[:, 0] ** 2
    assert (ran(body).reshape(6, 3, 4) == want[:, ::-1, [0, 0, 1, 1]]).all()


@pytest.mark.parametrize("make", [nl.ndarray, nl.zeros, nl.ones])
def test_index_objects_over_blocks(make):
    def body(x):
        t = make((3, nl.par_dim(6), 4), dtype=nl.float32)
        b, p, f = nl.arange(3)[None, :, None], nl.arange(6)[:, None, None], nl.arange(4)[None, None, :]
        t[b, p, f] = nl.load(x[p, f])  # the partitions first, then blocks
        t[1][:, 0] = 7
        t[2, 0:6, 3][...] = 9
        return t[b, p, f]

    want = np.repeat(X[:, None, :4], 3, 1)
    want[:, 1, 0], want[:, 2, 3] = 7, 9
    assert (ran(body).reshape(6, 3, 4) == want).all()


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("make", [nl.ndarray, nl.zeros, nl.ones])
def test_tiles_by_ints_and_then_by_index_objects(make, eager):
    """Views that were taken before share what the whole tensor holds."""

    def kernel(x):
        out = nl.ndarray((6, 12), dtype=x.dtype, buffer=nl.shared_hbm)
        t = make((3, nl.par_dim(6), 4), dtype=nl.float32)
        t[1] = nl.load(x[:, 0:4])
        early, bits = t[1, :, 2], t.view(nl.int32)[1]
        b, p, f = nl.arange(3)[None, :, None], nl.arange(6)[:, None, None], nl.arange(4)[None, None, :]
        t[b, p, f] = nl.add(t[b, p, f], 1.0)
        early[...] = 50
        bits[:, 0] = 0x3F800000  # 1.0
        t[0, 0:2, 1:4] = t[1, 0:2, 1:4]
        nl.store(out, nl.copy(t[b, p, f]).reshape((6, 12)))
        return out

    want = np.full((6, 3, 4), 1.0 + (make is nl.ones), np.float32)
    want[:, 1] = X[:, :4] + 1
    want[:, 1, 2], want[:, 1, 0] = 50, 1
    want[:2, 0, 1:] = want[:2, 1, 1:]
    assert (nkijax.run(jit(kernel), X, eager=eager) == want.reshape(6, 12)).all()


def test_a_tensor_that_is_one_buffer_lives_as_long_as_its_tiles():
    def kernel(x, n):
        t, b = nl.zeros((2, nl.par_dim(6), 8), dtype=nl.float32), nl.arange(2)[None, :, None]
        i, j = nl.arange(6)[:, None, None], nl.arange(8)[None, None, :]
        for _ in nl.sequential_range(nl.load(n)):
            t[b, i, j] = nl.add(t[b, i, j], 1.0)
        return nl.copy(t[1])

    assert (jit(kernel)(X, np.array([[3]], np.int32)) == 3).all()


def test_a_filled_tensor_in_one_buffer_keeps_its_fill():
    def body(x):
        t = nl.full((3, nl.par_dim(6), 4), 5, dtype=nl.float32)
        return nl.copy(t[nl.arange(3)[None, :], nl.arange(6)[:, None], 1])

    assert (ran(body) == 5).all()


def test_views_of_block_tensors():
    def body(x):
        t = nl.ndarray((2, nl.par_dim(6), 8), dtype=nl.float32)
        for k in range(2):
            t.reshape((2, 6, 2, 4))[k, :, 1, :] = nl.load(x[:, 0:4])
        assert t.view(nl.int8).shape == (2, 6, 32) and t[1].view(nl.bfloat16).dtype == nl.bfloat16
        t.view(nl.int32)[1, :, 0] = 0x3F800000  # 1.0
        return t[1]

    want = np.zeros_like(X)
    want[:, 4:], want[:, 0] = X[:, :4], 1
    assert (ran(body) == want).all()


def test_tiles_roll_as_a_family():
    def kernel(x):
        out = nl.ndarray((4, 6, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((4, nl.par_dim(6), 8), dtype=x.dtype)
        for i in nl.affine_range(4):
            t[i] = nl.load(x)
        for i in nl.affine_range(4):
            nl.store(out[i], t[i])
        return out

    assert [type(n).__name__ for n in nkijax.trace(jit(kernel), X).body] == ["Repeat", "Repeat"]
    assert (jit(kernel)(X) == X).all()


def test_another_dtype_shares_the_bytes():
    def body(x):
        t = nl.ndarray((2, nl.par_dim(6), 4), dtype=nl.float32)
        t[0] = nl.load(x[:, 0:4])
        t.view(nl.int32)[1][...] = nl.copy(t.view(nl.int32)[0])
        return nl.copy(t[1])

    assert (ran(body) == X[:, :4]).all()


def test_a_tile_that_is_not_there_may_be_named_under_a_mask_that_hides_all():
    def body(x):
        t = nl.zeros((2, nl.par_dim(6), 4), dtype=nl.float32)
        for i in nl.affine_range(2):
            t[i + 1, :, 0:4] = nl.load(x[:, 0:4], mask=i + 1 < 2)
        return nl.copy(t[1])

    assert (ran(body) == X[:, :4]).all()


def test_a_tile_that_is_not_there_adds_nothing_under_such_a_mask():
    def body(x):
        t, sums = nl.zeros((2, nl.par_dim(6), 8), dtype=nl.float32), nl.zeros((6, 8), dtype=nl.float32)
        tile = nl.load(x)
        for i in nl.affine_range(4):
            t[i, :, 0:8] += nl.copy(tile, mask=i < 2)
            sums[...] = nl.add(sums, t[i, 0:6, 0:8], mask=i < 2)
        with pytest.raises(KernelError, match=r"dimension 0: index range \[3, 3\] exceed dimension size of 2"):
            nl.copy(t[3])
        return sums

    assert (ran(body) == 2 * X).all()
