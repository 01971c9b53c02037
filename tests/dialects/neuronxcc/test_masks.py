"""Predicates as tiles of flags."""

import numpy as np
import pytest

from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.masks import affine_pattern, predicate_tile
from nkijax.dialects.neuronxcc.predicate import region
from nkijax.dialects.neuronxcc.tensor import face

from .test_emit import ran, text


def test_a_tile_of_flags():
    def body(x):
        i, j, k = nl.mgrid[0:6, 0:4, 0:3]
        return face(predicate_tile(region((i > j + k) | (k == j), (6, 4, 3))))

    i, j, k = np.indices((6, 4, 3))
    assert (ran(body).reshape(6, 4, 3) == ((i > j + k) | (k == j))).all()


@pytest.mark.parametrize("shape", [(6, 40, 1, 1, 1, 1), (2, 2, 2, 2, 2, 2)], ids=str)
def test_what_takes_many_selections_is_data(shape):
    """Many comparisons, or more free dimensions than an instruction has."""

    def flags(i, j):
        mask = i == j
        for k in range(20):
            mask = mask | (j == i + 2 * k)
        return mask

    def body(x):
        i, j, *_ = nl.mgrid[tuple(slice(0, n) for n in shape)]
        return face(predicate_tile(region(flags(i, j), shape))).reshape((shape[0], -1))

    i, j, *_ = np.indices(shape)
    assert (ran(body) == flags(i, j).reshape(shape[0], -1)).all()
    assert text(body) == ["DmaCopy"]


def test_patterns_merge_dimensions():
    i, j, k = nl.mgrid[0:6, 0:4, 0:3]
    assert affine_pattern(5 * i + 3 * j + k + 2, (6, 4, 3)) == (5, ((1, 12),))
    assert affine_pattern(i + j - k, (6, 4, 3)) == (1, ((1, 4), (-1, 3)))
    a, b, c, d, e, f = nl.mgrid[0:2, 0:2, 0:2, 0:2, 0:2, 0:2]
    assert affine_pattern(a + b - c + d - e + f, (2, 2, 2, 2, 2, 2)) is None


def test_more_dimensions_than_a_pattern_has():
    """Indices and selections are then data."""
    shape = (2, 2, 3, 2, 2, 2)

    def numbers(a, b, c, d, e, f):
        return a + 2 * b - c + 3 * d - e + f

    def body(x):
        form = numbers(*nl.mgrid[tuple(slice(0, n) for n in shape)])
        tile = nisa.affine_select(form > 1, nisa.iota(form, nl.float32), -9.0, mask=form < 5)
        return nl.add(tile, form).reshape((2, -1))

    want = numbers(*np.indices(shape))
    assert (ran(body) == (np.where(want < 5, np.where(want > 1, want, -9), 0) + want).reshape(2, -1)).all()
