"""Bounds of run-time positions, against NumPy; static ones are in test_subscript and test_memory."""

import numpy as np
import pytest

from nkijax import Unsupported
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.tensor import operand

from .test_subscript import inside

X = np.arange(7 * 6, dtype=np.float32).reshape(7, 6)

GRIDS = {  # positions of 7 rows by a number and a grid of 4, of which a mask hides the ends
    "behind": lambda i, p: i - 2 + p,
    "downwards": lambda i, p: 4 - i + 3 * (p - 1),
    "both downwards": lambda i, p: 8 - 2 * i - p,
    "far lanes hidden": lambda i, p: i + 4 * (p - 1),
    "a stride": lambda i, p: 2 * i + p,
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_position_must_be_inside(name):
    """On both sides, of the lanes that a mask leaves, also where a slice past the end is subscripted."""
    position = GRIDS[name]
    k = np.arange(1, 3)

    @jit
    def kernel(x, at):
        i, p, f = nl.load(at)[0, 0].as_index(), nl.arange(4)[:, None], nl.arange(6)[None, :]
        out, m = nl.zeros((2, 4, 6), dtype=x.dtype, buffer=nl.shared_hbm), (p > 0) & (p < 3)
        nl.store(out[0], nl.load(x[position(i, p), f], mask=m))
        nl.store(out[1], nl.load(x[1:20][position(i, p), f], mask=m))
        return out

    for i in range(-2, 10):
        first = position(i, k)
        if first.min() >= 0 and first.max() < len(X) - 1:
            got = kernel(X, np.array([[i]], np.int32))
            assert (got[0, 1:3] == X[first]).all() and (got[1, 1:3] == X[1:][first]).all()
        else:
            with pytest.raises(IndexError, match="out of bounds"):
                kernel(X, np.array([[i]], np.int32))


def test_two_numbers():
    """Each is bounded on both sides; where a mask alone keeps one inside, that is refused."""

    @jit
    def kernel(x, at):
        t = nl.load(at)
        i, j = t[0, 0].as_index(), t[0, 1].as_index()
        return nl.load(x[i - 1, nl.ds(j - 2, 4)].reshape((1, 4)))

    for i, j in np.ndindex(9, 6):
        if 1 <= i <= 7 and 2 <= j <= 4:
            assert (kernel(X, np.array([[i, j]], np.int32)) == X[i - 1, j - 2 : j + 2]).all()
        elif (i, j) in ((0, 2), (8, 2), (1, 1), (1, 5)):
            with pytest.raises(IndexError, match="out of bounds"):
                kernel(X, np.array([[i, j]], np.int32))

    def body(x):
        i, j = (nl.full((1, 1), k, dtype=nl.int32).as_index() for k in (1, 2))
        operand(x[i, j + 3 + nl.arange(4)])

    with pytest.raises(Unsupported, match="several run-time indices share"):
        inside(body, X)
