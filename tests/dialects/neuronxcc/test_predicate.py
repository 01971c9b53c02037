"""Regions of masks, against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.predicate import Predicate, as_predicate, conjunction, everywhere, region

SHAPE = (5, 6)


def holds(predicate, shape):
    """A predicate's truth at every position."""
    out = np.zeros(shape, bool)
    for at in np.ndindex(*shape):
        out[at] = predicate.decided(tuple((i, i + 1) for i in at))
    return out


def lanes(where):
    """Which lanes a region keeps."""
    out = np.zeros(where.shape, bool)
    out[tuple(slice(*b) for b in where.box)] = True
    return out if where.rest is None else out & holds(where.rest, where.shape)


def test_boxes():
    i, j = nl.arange(5)[:, None], nl.arange(6)[None, :]
    assert region(None, SHAPE).full and region(True, SHAPE).full and region(np.bool_(True), SHAPE).full
    assert region(False, SHAPE).empty and region(i > 9, SHAPE).empty and region(i < 9, SHAPE).full
    where = region((i < 3) & (2 * j >= 3), SHAPE)
    assert where.box == ((0, 3), (2, 6)) and where.rest is None and where.box_shape == (3, 4)
    assert region(i == 2, SHAPE).box == ((2, 3), (0, 6))
    assert region((i < 3) | (i > 9), SHAPE).box == ((0, 3), (0, 6))
    diagonal = region((i > j) & (j < 3), SHAPE)
    assert diagonal.box == ((1, 5), (0, 3)) and diagonal.rest is not None


def test_a_mask_aligns_from_the_left():
    i = nl.arange(5)[:, None]
    assert region(i < 2, (5, 6, 7)).box == ((0, 2), (0, 6), (0, 7))
    with pytest.raises(KernelError, match="must align from the left"):
        region(nl.arange(4)[:, None] < 2, SHAPE)


def test_python_truth_and_bools():
    p = nl.arange(5)[:, None] < 2
    assert (
        bool(p)
        and (p if p else None) is p
        and region(p & False, SHAPE).empty
        and region(True & p, SHAPE).box[0] == (0, 2)
    )
    assert region(p | True, SHAPE).full and conjunction(None, True).decided(()) is True
    with pytest.raises(KernelError, match="mask: must be"):
        as_predicate("all")


RUN_TIME = {
    "a tile against a grid": lambda t, i: nl.arange(5)[:, None] < t,
    "a tile": lambda t, i: t > 2,
    "a dynamic loop's index": lambda t, i: nl.arange(5)[:, None] + 2 * i < 4,
    "both": lambda t, i: (i * 5 + nl.arange(5)[:, None] < t) & (nl.arange(6)[None, :] < 3),
}


@pytest.mark.parametrize("mask", RUN_TIME)
@pytest.mark.parametrize("use", ["load", "store", "instruction", "subscript"])
def test_what_only_the_run_knows_is_no_mask(mask, use):
    """NKI's err_unsupported_expression_in_mask: masks are known at compile time; static loop indices are ints here."""

    def kernel(x, n):
        t = nl.load(n)
        for i in nl.sequential_range(t):
            m, tile = RUN_TIME[mask](t, i), nl.load(x)
            if use == "load":
                nl.load(x, mask=m)
            elif use == "store":
                nl.store(x, tile, mask=m)
            elif use == "instruction":
                nl.exp(tile, mask=m)
            else:
                tile[m if mask != "a tile" else nl.arange(6)[None, :] < 3][:, i]

    with pytest.raises(
        KernelError, match="must be affine in index grids, static loop indices and program_id, got what"
    ):
        nkijax.trace(jit(kernel), np.zeros(SHAPE, np.float32), np.array([[2]], np.int32))


@st.composite
def predicates(draw, depth=2):
    if depth and draw(st.booleans()):
        one, two = draw(predicates(depth=depth - 1)), draw(predicates(depth=depth - 1))
        return one & two if draw(st.booleans()) else one | two
    i, j = nl.arange(SHAPE[0])[:, None], nl.arange(SHAPE[1])[None, :]
    c = st.integers(-3, 3)
    form = draw(c) * i + draw(c) * j + draw(st.integers(-8, 8))
    return {"<": form < 0, ">=": form >= 0, "==": form == 0, "!=": form != 0}[
        draw(st.sampled_from(["<", ">=", "==", "!="]))
    ]


@settings(max_examples=300, deadline=None)
@given(predicates())
def test_a_region_keeps_what_the_mask_keeps(mask: Predicate):
    want = holds(mask, SHAPE)
    assert (lanes(region(mask, SHAPE)) == want).all()
    assert (holds(~mask, SHAPE) == ~want).all()


def test_everywhere():
    assert everywhere((2, 3)).full and not everywhere((2, 3)).empty
