"""Index objects, against NumPy arrays of the same integers."""

import operator

import numpy as np
import pytest

from nkijax import KernelError
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.index import Index, Irregular, axis_index, ds, extents_of, predicate_of
from nkijax.dialects.neuronxcc.predicate import Predicate, region
from nkijax.dialects.neuronxcc.regions import truth


def values(index):
    """The integers of an index, in its shape."""
    grids = np.indices(index.extents)
    parts = (c * g for c, g in zip(index.coefficients, grids, strict=True))
    return index.constant + sum(parts, np.zeros(index.extents, int))


def test_ranks_align_from_the_left():
    a, b = nl.arange(4)[:, None, None], nl.arange(3)[None, :]
    assert (a + b).shape == (4, 3, 1)
    assert (values(a * 3 + b)[:, :, 0] == np.arange(12).reshape(4, 3)).all()
    assert (nl.arange(128)[:,] + nl.arange(1)[None, :]).shape == (128, 1)
    with pytest.raises(KernelError, match="agree from the left"):
        operator.add(a, nl.arange(3)[:, None])


def test_arithmetic():
    i = nl.arange(6)[:, None]
    assert (values(2 * i + 1 - i)[:, 0] == np.arange(6) + 1).all()
    assert (values(np.int64(5) - i)[:, 0] == 5 - np.arange(6)).all() and (values(-i)[:, 0] == -np.arange(6)).all()
    assert (values(i * np.int32(3))[:, 0] == 3 * np.arange(6)).all()
    assert (values((4 * i + 3) // 4) == values(i)).all() and (values((4 * i + 3) % 4) == 3).all()


def test_comparisons_are_predicates():
    i, j = nl.arange(4)[:, None], nl.arange(3)[None, :]
    for p, want in [
        (i < 2, lambda a, b: a < 2),
        (i >= j, lambda a, b: a >= b),
        (2 > i, lambda a, b: a < 2),
        (i <= j + 1, lambda a, b: a <= b + 1),
        (i == j, lambda a, b: a == b),
        (i != 1, lambda a, b: a != 1),
        ((i < 2) & (j > 0), lambda a, b: (a < 2) & (b > 0)),
        ((i < 1) | (j > 1), lambda a, b: (a < 1) | (b > 1)),
        (~((i < 2) & (j > 0)), lambda a, b: (a >= 2) | (b <= 0)),
    ]:
        assert isinstance(p, Predicate)
        for a in range(4):
            for b in range(3):
                cell = region(p, (4, 3)).rest, ((a, a + 1), (b, b + 1))
                assert p.mapped(lambda f: _over(f, (4, 3))).decided(cell[1]) == want(a, b), (a, b)
    assert (i == None) is False and (i != None) is True  # noqa: E711


def _over(form, shape):
    pad = (0,) * (len(shape) - len(form.coefficients))
    return Index((*form.coefficients, *pad), shape, form.constant)


def test_irregular_grids():
    """Quotients, remainders and products, and what is computed with them."""
    i, j = nl.arange(6)[:, None], nl.arange(4)[None, :]
    a, b = np.arange(6)[:, None], np.arange(4)[None, :]
    for got, want in [
        (i // 4, a // 4),
        ((i - 3) % 4, (a - 3) % 4),
        ((4 * i + j) // 5 + j, (4 * a + b) // 5 + b),
        (7 - (i * j) * 2, 7 - 2 * a * b),
        ((i // 2) * (j % 3), (a // 2) * (b % 3)),
        (nl.arange(6) // 4 + j, a // 4 + b),
        ((i // 4)[:, 0] % 2, a[:, 0] // 4 % 2),
    ]:
        assert isinstance(got, Irregular) and got.shape == want.shape and (got.values == want).all()
    for got, want in [(i // 4 >= 1, a // 4 >= 1), ((i + j) % 3 == 0, (a + b) % 3 == 0), (2 > i // 2, a // 2 < 2)]:
        there = region(got, (6, 4))
        lanes = np.zeros((6, 4), bool)
        lanes[tuple(slice(*x) for x in there.box)] = True if there.rest is None else truth(there.rest, there.box)
        assert (lanes == want).all()
    even = Irregular(np.arange(0, 6, 2)).as_affine()
    assert even is not None and (even.coefficients, even.constant) == ((2,), 0)
    assert (i // 4).as_affine() is None and "over (6, 1)" in repr(i // 4)


def test_a_region_is_a_mask_again():
    i, j = nl.arange(8)[:, None], nl.arange(9)[None, :]
    for mask in (i < 3, (i < 3) & (j >= 4), i >= j, (i < 6) & (j > i)):
        there = region(mask, (8, 9))
        assert region(predicate_of(there), (8, 9)).box == there.box
    assert axis_index(1, (8, 9)).coefficients == (0, 1)


def test_extents_and_slices():
    assert extents_of((4, 1), (1, 3), ()) == (4, 3)
    assert (ds(3, np.int64(4)).start, ds(3, np.int64(4)).size) == (3, 4)
