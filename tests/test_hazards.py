"""Regions, conflicts and on-chip space."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax import dtypes
from nkijax.hazards import Hazards, Regions, Space, view_box
from nkijax.machine import Memory
from nkijax.view import View
from tests.by_hand import Hand


def test_boxes():
    x = Hand().buffer((128, 4, 64))  # float32: 256 bytes in the last dimension
    assert view_box(x) == ((0, 127), (0, 3), (0, 255))
    assert view_box(x.slice(0, 3, 7)) == ((3, 6), (0, 3), (0, 255))
    assert view_box(x.slice(1, 1, 2).slice(2, 8, 16)) == ((0, 127), (1, 1), (32, 63))
    assert view_box(x.slice(2, 1, 64, 2)) == ((0, 127), (0, 3), (4, 255))
    assert view_box(x.reinterpret("bfloat16").slice(2, 2, 4)) == ((0, 127), (0, 3), (4, 7))
    assert view_box(x.flatten_dims(1, 2).slice(1, 64, 192)) == ((0, 127), (1, 2), (0, 255))


def test_the_box_of_a_run_time_index_is_its_reach():
    hand = Hand()
    x, i = hand.hbm(512, 64), hand.register()
    assert view_box(x.shifted(0, i, 128)) == ((0, 511), (0, 255))
    assert view_box(x.shifted(0, i, 128), reach=False) == ((0, 127), (0, 255))
    assert view_box(x.slice(1, 0, 32).shifted(0, i, 1)) == ((0, 511), (0, 127))


@st.composite
def views(draw, x: View) -> View:
    """A view of `x` by a few steps of the algebra."""
    view = x
    for _ in range(draw(st.integers(0, 3))):
        dim = draw(st.integers(0, view.ndim - 1))
        start = draw(st.integers(0, view.shape[dim] - 1))
        end = draw(st.integers(start + 1, view.shape[dim]))
        view = view.slice(dim, start, end, draw(st.integers(1, 3)))
        if draw(st.booleans()):
            view = view.permute(draw(st.permutations(range(view.ndim))))
    return view


def touched(view: View) -> set[int]:
    """Every byte that a view without a run-time index touches."""
    unit = dtypes.size(view.dtype)
    at = sum((s * i for s, i in zip(view.strides, np.indices(view.shape), strict=True)), np.array(view.offset))
    return {int(a) * unit + b for a in np.ravel(at) for b in range(unit)}


def held(view: View) -> set[int]:
    """Every byte in the box of a view."""
    sizes = (*view.buffer.shape[:-1], view.buffer.shape[-1] * dtypes.size(view.buffer.dtype))
    ranges = [range(a, b + 1) for a, b in view_box(view)]
    return {int(np.ravel_multi_index(i, sizes)) for i in itertools.product(*ranges)}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_box_holds_all_that_its_view_touches(data):
    x = Hand().hbm(*data.draw(st.sampled_from([(6, 5), (3, 1, 4), (2, 3, 4), (7,)])))
    view = data.draw(views(x))
    assert touched(view) <= held(view)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_near_is_every_overlapping_box_with_a_write(data):
    x = Hand().hbm(6, 5)
    regions = Regions()
    made = [data.draw(views(x)) for _ in range(data.draw(st.integers(1, 6)))]
    found = [regions.of(v, data.draw(st.booleans())).region for v in made]
    for (v, a), (w, b) in itertools.product(zip(made, found, strict=True), repeat=2):
        near = any(other is b for other in regions.near(a))
        assert near == ((a.written or b.written) and bool(held(v) & held(w)))


def follow(*accesses: tuple[str, list[View], list[View]], turns=(), depth=0) -> list[tuple[set[int], set[int]]]:
    regions = Regions()
    found = [
        (lane, [regions.of(v, False) for v in reads], [regions.of(v, True) for v in writes])
        for lane, reads, writes in accesses
    ]
    hazards = Hazards(regions, depth)
    turns = turns or [0] * len(found)
    return [hazards.visit(k, *found[k], turn=turns[k]) for k in range(len(found))]


def test_raw_war_and_waw():
    x = Hand().buffer((128, 8))
    assert follow(("a", [], [x]), ("b", [x], []))[1] == ({0}, set())
    assert follow(("a", [x], []), ("b", [], [x]))[1] == ({0}, set())
    assert follow(("a", [], [x]), ("b", [], [x]))[1] == ({0}, set())
    assert follow(("a", [x], []), ("b", [x], []))[1] == (set(), set())


def test_a_lane_keeps_all_orders_but_raw():
    x = Hand().buffer((128, 8))
    assert follow(("a", [], [x]), ("a", [x], []))[1] == ({0}, set())
    assert follow(("a", [x], []), ("a", [], [x]))[1] == (set(), {0})
    assert follow(("a", [], [x]), ("a", [], [x]))[1] == (set(), {0})


def test_disjoint_boxes_do_not_conflict():
    x = Hand().hbm(256, 64)
    left, right, top = x.slice(1, 0, 32), x.slice(1, 32, 64), x.slice(0, 0, 128)
    assert follow(("a", [], [left]), ("b", [right], []))[1] == (set(), set())
    assert follow(("a", [], [left]), ("b", [top], []))[1] == ({0}, set())
    # After a write of the whole, a reader of a part follows the whole and its own part.
    assert follow(("a", [], [left]), ("b", [], [x]), ("c", [left], []))[2][0] >= {1}


def test_run_time_addresses():
    hand = Hand()
    x, i, j = hand.hbm(1024, 64).reshape((4, 256, 64)), hand.register(), hand.register()
    top, bottom = x.select(0, i).slice(0, 0, 128), x.select(0, i).slice(0, 128, 256)
    assert follow(("a", [], [top]), ("b", [bottom], []))[1] == (set(), set())  # one index, apart
    assert follow(("a", [], [top]), ("b", [x.select(0, j).slice(0, 128, 256)], []))[1] == ({0}, set())
    assert follow(("a", [], [top]), ("b", [], [i]), ("c", [bottom], []))[2] == ({0}, set())  # the index has changed
    assert follow(("a", [], [top]), ("b", [x.slice(0, 1, 2)], []))[1] == ({0}, set())


def test_rows_that_move_one_by_one_may_meet():
    hand = Hand()
    x, rows = hand.hbm(512, 64), hand.buffer((128, 1), dtype="int32")
    even, odd = (x.slice(0, k, 512, 2).vector_select(0, rows) for k in (0, 1))
    assert follow(("a", [], [even]), ("b", [odd], []))[1] == ({0}, set())
    left, right = (x.slice(1, k, k + 32).vector_select(0, rows) for k in (0, 32))
    assert follow(("a", [], [left]), ("b", [right], []))[1] == (set(), set())


def test_an_index_that_was_mixed_is_any():
    hand = Hand()
    x, i, j = hand.hbm(1024, 64).reshape((4, 256, 64)), hand.register(), hand.register()
    top, bottom = (lambda r: x.select(0, r).slice(0, 0, 128)), (lambda r: x.select(0, r).slice(0, 128, 256))
    assert follow(("a", [], [top(j)]), ("a", [], [top(i)]), ("b", [bottom(i)], []))[2] == ({1}, set())
    assert follow(("a", [top(j)], []), ("a", [top(i)], []), ("b", [], [bottom(i)]))[2] == ({1}, set())


def test_copies_of_a_body():
    hand = Hand()
    x, i = hand.hbm(512, 64), hand.register()
    own, shared = hand.buffer((128, 8), depth=1), hand.buffer((128, 8))
    moved = x.shifted(0, i, 128)

    def second(reads, writes):
        return follow(("a", [], writes), ("b", reads, []), turns=(0, 1), depth=1)[1][0]

    assert second([own], [own]) == set()
    assert second([shared], [shared]) == {0}
    assert second([moved], [moved]) == set()
    assert second([x.slice(0, 0, 9)], [moved]) == {0}  # a static address meets the run-time ones of all copies
    assert second([moved], [x.slice(0, 0, 9)]) == {0}
    assert second([i], [i]) == set()


def test_space_is_fresh_first_then_the_longest_dead():
    space = Space(20)
    assert space.take(8) == [] and space.take(8) == []
    space.give(8, {"a": 1})
    space.give(8, {"b": 2})
    assert space.take(8) == [{"a": 1}]  # 4 fresh bytes, and 4 of the first
    assert space.take(8) == [{"a": 1}, {"b": 2}]


def test_space_lends_what_does_not_fit():
    space = Space(8)
    assert space.take(8) == [] and space.take(8) == []
    space.give(8, {"a": 1})  # pays back
    assert space.take(4) == []
    space.give(8, {"b": 2})
    assert space.take(4) == [{"b": 2}]
    negative = Space(-4)
    negative.give(8, {"a": 1})
    assert negative.take(4) == [{"a": 1}]


@pytest.mark.parametrize("memory", [Memory.register, Memory.state])
def test_what_has_no_address_is_a_dependence_too(memory):
    r = Hand().buffer((1,), memory, dtype="int32")
    assert follow(("sync", [], [r]), ("dma", [r], []))[1] == ({0}, set())
