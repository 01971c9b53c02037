"""Reductions and what is made of them, against NumPy."""

import numpy as np
import pytest

from nkijax import KernelError
from nkijax.dialects.neuronxcc import language as nl

from .test_emit import COLUMN, ROW, X, ran

Z = np.random.default_rng(0).standard_normal((6, 4, 2, 3)).astype(np.float32)


@pytest.mark.parametrize("name", ["max", "min", "sum", "prod", "mean", "var"])
@pytest.mark.parametrize("axis", [1, -1, (1, 2), [1, 3], (2,), (1, 2, 3)], ids=str)
def test_axes(name, axis):
    axes = tuple(axis) if isinstance(axis, list) else axis
    for keepdims in (False, True):
        got = ran(lambda x, keep=keepdims: getattr(nl, name)(nl.load(x), axis, keepdims=keep), Z)
        want = getattr(np, name)(Z, axis=axes, keepdims=keepdims)
        np.testing.assert_allclose(got, want.reshape(*want.shape, *[1] * (got.ndim - want.ndim)), rtol=1e-5, atol=1e-6)
        assert got.ndim >= 2


def test_all():
    got = ran(lambda x: nl.all(nl.greater(nl.load(x), 4), 1))
    assert (got[:, 0] == (X > 4).all(1)).all()


def test_hidden_lanes_are_left_out():
    i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
    low = -X
    got = ran(lambda x: nl.max(nl.load(x), 1, mask=(j < 5) & (i < 4)), low)
    assert (got[:4, 0] == low[:4, :5].max(1)).all() and not got[4:].any()
    got = ran(lambda x: nl.max(nl.load(x), 1, mask=j >= i), low)
    assert (got[:, 0] == np.where(COLUMN >= ROW, low, -np.inf).max(1)).all()
    got = ran(lambda x: nl.sum(nl.load(x)[j < 3], 1))
    assert (got[:, 0] == X[:, :3].sum(1)).all()
    got = ran(lambda x: nl.mean(nl.load(x), 1, mask=j < 4))
    np.testing.assert_allclose(got[:, 0], X[:, :4].sum(1) / 8)


def test_made_of_reductions():
    e = np.exp(X / 9 - (X / 9).max(1, keepdims=True))
    np.testing.assert_allclose(ran(lambda x: nl.softmax(nl.load(x) / 9.0, 1)), e / e.sum(1, keepdims=True), rtol=1e-5)
    w = np.arange(8, dtype=np.float32)[None]
    got = ran(lambda x, w: nl.rms_norm(nl.load(x), nl.load(w), axis=1, n=8, epsilon=1e-6), X, w)
    np.testing.assert_allclose(got, X / np.sqrt((X * X).mean(1, keepdims=True) + 1e-6) * w, rtol=1e-5)


def test_loop_reductions():
    def body(x):
        t, column = nl.ndarray((6, 8), dtype=nl.float32), nl.zeros((6, 2), dtype=nl.float32)
        i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
        for k in nl.affine_range(4):
            t[i, j] = nl.loop_reduce(nl.load(x), op=np.add, loop_indices=[k], mask=i < k + 2)
            column[:, 1] = nl.loop_reduce(nl.load(x[:, k]), op=nl.add, loop_indices=[k], mask=k < 3)
        t[:, 0:2] = column
        return t

    count = np.minimum(4, 5 - np.maximum(ROW, 1))
    want = X * count
    want[:, 0], want[:, 1] = 0, X[:, :3].sum(1)
    assert (ran(body) == want).all()


def test_refused():
    with pytest.raises(KernelError, match="nl.sum axis: must be free dimensions"):
        ran(lambda x: nl.sum(nl.load(x), 0))
    with pytest.raises(KernelError, match="nl.max x: must be a tile"):
        ran(lambda x: nl.max(x, 1))
