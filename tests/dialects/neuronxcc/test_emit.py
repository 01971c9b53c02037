"""Results under masks, assignment, and copies that are spared."""

import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import jit, simulate_kernel
from nkijax.dialects.neuronxcc import language as nl

X = np.arange(1, 49, dtype=np.float32).reshape(6, 8)
ROW, COLUMN = np.indices(X.shape)


def ran(body, *arrays, shape=None):
    """The tile that `body(*tensors)` gives."""

    def kernel(*tensors):
        nl.arange(1)
        tile = body(*tensors)
        out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile[...])
        return out

    return simulate_kernel(kernel, *(arrays or (X,)))


def text(body, *arrays):
    """The instructions of `body(*tensors)`."""

    def kernel(*tensors):
        nl.arange(1)
        body(*tensors)

    return [str(i).split("(")[0] for i in nkijax.trace(jit(kernel), *(arrays or (X,)), rolled=False).body]


def grid():
    return nl.arange(6)[:, None], nl.arange(8)[None, :]


MASKS = [
    (lambda i, j: (i < 3) & (j >= 2), (ROW < 3) & (COLUMN >= 2)),
    (lambda i, j: i >= j, ROW >= COLUMN),
    (lambda i, j: (i > j) | (j > 5), (ROW > COLUMN) | (COLUMN > 5)),
    (lambda i, j: (i == j) & (i != 2), (ROW == COLUMN) & (ROW != 2)),
    (lambda i, j: i > 9, ROW > 9),
    (lambda i, j: True, ROW >= 0),
    (lambda i, j: False, ROW < 0),
]


@pytest.mark.parametrize("mask, want", MASKS)
def test_lanes_that_a_mask_hides_read_zero_and_are_not_written(mask, want):
    got = ran(lambda x: nl.square(nl.load(x), mask=mask(*grid())))
    assert (got == np.where(want, X * X, 0)).all()

    def assigned(x):
        t = nl.full((6, 8), -1, dtype=nl.float32)
        t[...] = nl.square(nl.load(x), mask=mask(*grid()))
        return t

    assert (ran(assigned) == np.where(want, X * X, -1)).all()

    def added(x):
        t = nl.full((6, 8), -1, dtype=nl.float32)
        t[...] += nl.square(nl.load(x), mask=mask(*grid()))
        return t

    assert (ran(added) == np.where(want, X * X - 1, -1)).all()


@pytest.mark.parametrize("mask, want", MASKS)
def test_operands_with_predicates(mask, want):
    def masked(x):
        t = nl.load(x)
        t[mask(*grid())] = 0.5
        return t

    assert (ran(masked) == np.where(want, 0.5, X)).all()
    got = ran(lambda x: nl.exp(nl.load(x)[mask(*grid())]))
    np.testing.assert_allclose(got, np.where(want, np.exp(X), 0), rtol=1e-6)


def test_ranks_and_factors():
    wide = np.arange(6 * 4 * 2, dtype=np.float32).reshape(6, 4, 2)

    def body(x, y, column, row):
        t = nl.load(y)
        t[...] = nl.load(x)  # (6, 8) into (6, 4, 2)
        t[:, 1, :] = nl.load(column)  # (6, 1) is repeated
        u = nl.ndarray((6, 8), dtype=nl.float32)
        u[...] = t
        u[:, 0:2] = nl.load(row)[0:1, 0:2]  # one partition is repeated
        return u

    column, row = np.arange(6, dtype=np.float32)[:, None], np.array([[7, 8]], np.float32)
    want = X.copy()
    want[:, 2:4], want[:, 0:2] = column, row
    assert (ran(body, X, wide, column, row) == want).all()
    with pytest.raises(KernelError, match="does not fit"):
        ran(lambda x: nl.load(x).__setitem__(slice(None), nl.load(x[0:6, 0:3])))


def test_a_copy_is_spared_where_the_result_is_fresh():
    def fresh(x):
        t = nl.ndarray((6, 16), dtype=nl.bfloat16)
        t[:, 0:8] = nl.load(x)
        t[:, 8:16] = nl.exp(t[:, 0:8], dtype=nl.float32)

    assert text(fresh) == ["DmaCopy", "Activate"]

    def late(x):
        t, a = nl.ndarray((6, 8), dtype=nl.float32), nl.load(x)
        b = nl.exp(a)
        nl.exp(b)
        t[...] = b

    assert text(late) == ["DmaCopy", "Activate", "Activate", "TensorCopy"]

    def narrow(x):
        t = nl.ndarray((6, 8), dtype=nl.float32)
        t[...] = nl.exp(nl.load(x), dtype=nl.bfloat16)  # it rounds

    assert text(narrow) == ["DmaCopy", "Activate", "TensorCopy"]


def test_a_matmul_accumulates_by_itself():
    def body(x):
        t, total = nl.load(x), nl.zeros((8, 8), dtype=nl.float32, buffer=nl.psum)
        for _ in nl.affine_range(3):
            total += nl.matmul(t, t, transpose_x=True)
        total[...] += nl.matmul(t, t, transpose_x=True)
        return nl.copy(total)

    assert text(body) == ["DmaCopy"] + ["NcMatmul"] * 4 + ["TensorCopy"]
    np.testing.assert_allclose(ran(body), 4 * X.T @ X, rtol=1e-6)


def test_a_product_that_was_added_can_be_used_again():
    def body(x):
        t, total = nl.load(x), nl.zeros((8, 8), dtype=nl.float32, buffer=nl.psum)
        product = nl.matmul(t, t, transpose_x=True)
        total += product
        return total + product

    np.testing.assert_allclose(ran(body), 2 * X.T @ X, rtol=1e-6)


def test_numbers_and_arrays():
    def body(x):
        t = nl.ndarray((6, 8), dtype=nl.int8)
        t[...] = 300  # the nearest that fits
        t[0, :] = True
        t[:, 7] = np.arange(6, dtype=np.int8)[:, None]
        return t

    want = np.full((6, 8), 127, np.int8)
    want[0], want[:, 7] = 1, np.arange(6)
    assert (ran(body) == want).all()
    with pytest.raises(KernelError, match="value: must be"):
        ran(lambda x: nl.load(x).__setitem__(..., "one"))


def test_eager_gives_the_same():
    def kernel(x):
        i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
        out = nl.ndarray((8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((6, 8), dtype=x.dtype)
        t[...] = nl.square(nl.load(x), mask=i >= j)
        total = nl.zeros((8, 8), dtype=nl.float32, buffer=nl.psum)
        total += nl.matmul(t, t, transpose_x=True)
        nl.store(out, total)
        return out

    np.testing.assert_allclose(nkijax.run(jit(kernel), X, eager=True), nkijax.run(jit(kernel), X), rtol=1e-6)
