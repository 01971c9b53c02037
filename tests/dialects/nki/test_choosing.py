"""where and gather_flattened."""

import jax
import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.language as nl
from tests.dialects.nki.tiles import COLUMN, X, Y, ran, refused

CONDITION = (X > 0).astype(np.float32) * 2.5


def test_where():
    """Not zero is true; x and y are tiles, columns or numbers."""
    got = ran(
        lambda c, x, y, col: (
            nl.where(c, x, y), nl.where(c, 1.5, y), nl.where(c, x, -2), nl.where(c, 3, 4.0), nl.where(c, col, x),
            nl.where(nl.less(x, y), x, y),
        ),
        CONDITION, X, Y, COLUMN, both=True,
    )  # fmt: skip
    true = CONDITION != 0
    want = [(X, Y), (1.5, Y), (X, -2), (3, 4), (np.broadcast_to(COLUMN, X.shape), X)]
    for g, (x, y) in zip(got, want, strict=False):
        np.testing.assert_array_equal(g, np.where(true, x, y).astype(np.float32))
    np.testing.assert_array_equal(got[-1], np.minimum(X, Y))


def test_what_counts_as_true():
    c = np.array([[0.0, -0.0, np.nan, 0.25, -1.0]], np.float32)
    assert ran(lambda c: nl.where(c, 1.0, 0.0), c).tolist() == [[0, 0, 1, 1, 1]]
    i = np.array([[0, 5, -1]], np.int32)
    assert ran(lambda c: nl.where(c, 1, 0), i).tolist() == [[0, 1, 1]]


def test_dtypes():
    h, i = X.astype(ml_dtypes.bfloat16), np.full((4, 6), 2**24 + 1, np.int32)
    got = ran(
        lambda c, x, h, i: (
            nl.where(c, h, x), nl.where(c, x, h), nl.where(c, i, i), nl.where(c, x, 7.0, dtype=nl.int32),
            nl.where(c, 2.0, 1.0, dtype=nl.int32),
        ),
        CONDITION, X, h, i,
    )  # fmt: skip
    assert [g.dtype.name for g in got] == ["bfloat16", "float32", "int32", "int32", "int32"]
    np.testing.assert_array_equal(got[2], i, "bit for bit")
    np.testing.assert_array_equal(got[3], np.where(CONDITION != 0, np.rint(X), 7))


def test_where_keeps_nan_out():
    """NaN of the side that is not taken reaches neither the value nor the gradient."""
    bad = np.where(CONDITION != 0, X, np.nan).astype(np.float32)

    def kernel(c, x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.where(nl.load(c), nl.load(x), 0.0))
        return out

    f = nkijax.function(kernel)
    np.testing.assert_array_equal(f(CONDITION, bad), np.where(CONDITION != 0, X, 0))
    np.testing.assert_array_equal(jax.grad(lambda x: f(CONDITION, x).sum())(bad), CONDITION != 0)


def test_rules_of_where():
    assert refused(lambda x: nl.where(1, x, x), X) == "nki.language.where condition: must be a tile, got 1"
    words = "must have the shape (4, 6) of condition, or one element a partition"
    for name, call in (("y", lambda c, x: nl.where(c, c, x)), ("x", lambda c, x: nl.where(c, x, c))):
        assert f"where {name}: {words}" in refused(call, X, X[:, :3])


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int16])
def test_gather_flattened(dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 2, 5)).astype(np.float32)
    at = rng.integers(0, 10, (4, 7)).astype(dtype)
    f = nl.gather_flattened
    got, low = ran(lambda x, i: (f(x, i), f(x, indices=i, dtype=nl.bfloat16)), x, at, both=True)
    want = np.take_along_axis(x.reshape(4, 10), at.astype(np.int64), 1)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(low, want.astype(ml_dtypes.bfloat16))


def test_rules_of_gather_flattened():
    i = np.zeros((4, 2), np.int32)
    assert "axis: must be 0; data is flattened, got 1" in refused(lambda x, i: nl.gather_flattened(x, i, 1), X, i)
    assert "indices: must have an integer dtype, got float32" in refused(lambda x: nl.gather_flattened(x, x), X)
    assert "nki.language.gather_flattened: " in refused(lambda x, i: nl.gather_flattened(x, i), X, i[:2])
