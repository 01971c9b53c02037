"""Predicates as tiles of flags."""

import numpy as np
import pytest

from nkijax import Unsupported
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.masks import affine_pattern, predicate_tile
from nkijax.dialects.neuronxcc.predicate import region
from nkijax.dialects.neuronxcc.tensor import face

from .test_emit import ran


def test_a_tile_of_flags():
    def body(x):
        i, j, k = nl.mgrid[0:6, 0:4, 0:3]
        return face(predicate_tile(region((i > j + k) | (k == j), (6, 4, 3))))

    i, j, k = np.indices((6, 4, 3))
    assert (ran(body).reshape(6, 4, 3) == ((i > j + k) | (k == j))).all()


def test_patterns_merge_dimensions():
    i, j, k = nl.mgrid[0:6, 0:4, 0:3]
    assert affine_pattern(5 * i + 3 * j + k + 2, (6, 4, 3)) == (5, ((1, 12),))
    assert affine_pattern(i + j - k, (6, 4, 3)) == (1, ((1, 4), (-1, 3)))
    a, b, c, d, e, f = nl.mgrid[0:2, 0:2, 0:2, 0:2, 0:2, 0:2]
    with pytest.raises(Unsupported, match="at most 4"):
        affine_pattern(a + b - c + d - e + f, (2, 2, 2, 2, 2, 2))
