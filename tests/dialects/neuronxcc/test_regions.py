"""Regions of results, lane by lane."""

import numpy as np
from hypothesis import given, settings

from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.predicate import Predicate, region
from nkijax.dialects.neuronxcc.regions import flattened, permuted, projected, truth

from .test_predicate import SHAPE, holds, lanes, predicates


@settings(max_examples=200, deadline=None)
@given(predicates())
def test_what_is_left_of_a_mask(mask: Predicate):
    want, where = holds(mask, SHAPE), region(mask, SHAPE)
    assert (np.broadcast_to(truth(mask, ((0, 5), (0, 6))), SHAPE) == want).all()
    assert (lanes(projected(where, (0, -1), (5, 1))) == want.any(1, keepdims=True)).all()
    assert (lanes(projected(where, (-1, 1), (1, 6))) == want.any(0, keepdims=True)).all()
    assert (lanes(permuted(where, (1, 0))) == want.T).all()


def test_a_reduction_that_keeps_two_axes():
    shape = (3, 4, 2)
    i, j, k = nl.mgrid[0:3, 0:4, 0:2]
    mask = (i == j) & (k >= 1) | (j == 3)
    kept = holds(mask, shape).any(2)
    assert (lanes(projected(region(mask, shape), (0, 1), (3, 4))) == kept).all()


def test_boxes_stay_boxes():
    i, j = nl.arange(5)[:, None], nl.arange(6)[None, :]
    where = projected(region((i < 3) & (j < 2), SHAPE), (0, -1), (5, 1))
    assert where.box == ((0, 3), (0, 1)) and where.rest is None
    assert projected(region((i < 3) & (j <= i), SHAPE), (0, -1), (5, 1)).rest is None
    assert projected(region(False, SHAPE), (0, -1), (5, 1)).empty


@settings(max_examples=100, deadline=None)
@given(predicates())
def test_merged_dimensions(mask: Predicate):
    """A mask on (P, 3, 2) whose second form is that of (P, 6)."""
    i, j, k = nl.mgrid[0:5, 0:3, 0:2]
    parts = [i, 2 * j + k]
    three = mask.mapped(lambda form: form.compose(parts, 3, (5, 3, 2)))
    assert (lanes(flattened(region(three, (5, 3, 2)), 1)) == holds(mask, SHAPE)).all()
