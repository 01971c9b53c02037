"""Two run-time indices in one address, against NumPy."""

import numpy as np
import pytest

from nkijax import KernelError, Unsupported
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import jit, simulate_kernel
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.pattern import _joined
from nkijax.dialects.neuronxcc.runtime import total
from nkijax.view import Dynamic

from .test_subscript import inside

X = np.arange(3 * 4 * 5 * 6, dtype=np.float32).reshape(3, 4, 5, 6)
TWO = np.array([[2, 3]], np.int32)


def test_two_numbers():
    def kernel(x, at):
        out, t = nl.zeros((3, 5, 6), dtype=x.dtype, buffer=nl.shared_hbm), nl.load(at)
        i, j = t[0, 0], t[0, 1]
        nl.store(out[0], nl.load(x[i, j]))
        nl.store(out[1, 0:5], nl.load(x[i][j, 0:5]))  # one after the other
        nl.store(out[2, 0:2, 0:2], nl.load(x[1, i, nl.ds(j, 2), 0:2]))
        return out

    got = jit(kernel)(X, TWO)
    assert (got[0] == X[2, 3]).all() and (got[1] == X[2, 3]).all() and (got[2, :2, :2] == X[1, 2, 3:5, :2]).all()


@pytest.mark.parametrize("bad", [[[3, 0]], [[0, 4]], [[-1, 3]]], ids=str)
def test_each_must_be_inside(bad):
    """Also where their sum is an address inside the tensor."""

    def kernel(x, at):
        t = nl.load(at)
        return nl.load(x[t[0, 0], t[0, 1]])

    with pytest.raises(IndexError, match="out of bounds"):
        simulate_kernel(kernel, X, np.array(bad, np.int32))


ROWS = np.array([[1], [3], [4], [0]], np.int32)


def test_rows_and_a_number():
    def kernel(x, rows, at):
        out = nl.full((2, 4, 6), -1, dtype=x.dtype, buffer=nl.shared_hbm)
        r, t, f = nl.load(rows), nl.load(at), nl.arange(6)[None, :]
        tile = nl.full((4, 6), -1, dtype=x.dtype)
        nisa.dma_copy(dst=tile, src=x[2, r, t[0, 0], f], oob_mode=nisa.oob_mode.skip)  # 4 is no row of it
        nl.store(out[0], tile)
        nl.store(out[1, 0:2], nl.load(x[r[0:2], nl.load(rows)[1:3], 0, f], mask=nl.arange(2)[:, None] < 1))
        return out

    first = np.where(ROWS < 4, X[2, ROWS[:, 0] % 4, 2], -1)
    got = jit(kernel)(X, ROWS, TWO)
    assert (got[0] == first).all()
    assert (got[1, 0] == X[1, 3, 0]).all() and (got[1, 1:] == -1).all()  # 3, hidden by the mask, is no index either


def test_two_index_tiles_name_a_row_together():
    def kernel(x, rows, at):
        r, c = nl.load(rows), nl.load(at)
        return nl.load(x[0, r, c, nl.arange(6)[None, :]])

    rows, columns = ROWS % 4, np.array([[4], [0], [2], [1]], np.int32)
    assert (simulate_kernel(kernel, X, rows, columns) == X[0, rows[:, 0], columns[:, 0]]).all()


def test_nested_dynamic_loops_count_together():
    def kernel(x, n):
        out, t = nl.zeros((12, 6), dtype=x.dtype, buffer=nl.shared_hbm), nl.load(n)
        for i in nl.sequential_range(t[0, 0]):
            for j in nl.sequential_range(t[0, 1]):
                nl.store(out[i * 4 + j], nl.load(x[i, j, 0]))
        return out

    want = np.zeros((12, 6), np.float32)
    want.reshape(3, 4, 6)[:2, :3] = X[:2, :3, 0]
    assert (jit(kernel)(X, TWO) == want).all()


def test_where_run_time_indices_of_rows_may_stand():
    """NKI's err_indirect_indices_free_dim, and the one element that on-chip tensors take."""
    rows = lambda n: nl.ndarray((n, 1), dtype=nl.int32)  # noqa: E731
    with pytest.raises(KernelError, match="must be on the partition dimension, the first of the result"):
        inside(lambda x: x[0:2, rows(4), 0], X)
    with pytest.raises(KernelError, match="must be on the partition dimension, the first of the result"):
        inside(lambda x: x[rows(3), 0][nl.arange(3)[None, :], nl.arange(2)[:, None]], X)
    with pytest.raises(KernelError, match="a tile takes run-time indices of one element, got one for each row"):
        inside(lambda x: nl.load(x[0, :, :, 0])[nl.arange(4)[:, None], rows(4)], X)
    with pytest.raises(KernelError, match="takes part in no product or quotient"):
        inside(lambda x: (nl.arange(4)[:, None] + rows(1).as_index()) // 3, X)


def test_sums_and_what_is_refused():
    def body(x):
        i, j = (nl.full((1, 1), k, dtype=nl.int32) for k in (5, 7))
        one = i.as_index() * 3 + j.as_index() * 2 - i.as_index() * 3
        assert one.moving[1] == 1 and total([one.moving]).dtype == "int32"
        down = Dynamic(i.raw, -1, 4)
        with pytest.raises(Unsupported, match="must count upwards"):
            _joined(down, down)

    inside(body, X)
