"""Rolling: `unroll(roll(p)) == p`, and how far the loops of real kernels fold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax.isa.move import DmaCopy, Memset, TensorCopy
from nkijax.machine import TRN2, Memory
from nkijax.program import Repeat, instructions
from nkijax.roll import roll, unroll
from nkijax.trace import Recorder
from nkijax.view import View
from tests.programs import Maker


def record(kernel, shape=(1024, 64)):
    r = Recorder("test", TRN2)
    x = r.argument(shape, "float32", "x", False)
    return r.record(lambda: kernel(r, x) or [x])


def tile(r, shape=(128, 64)):
    return View.whole(r.allocate(shape, "float32", Memory.sbuf))


@pytest.mark.parametrize("many", [0, 400])
@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_unroll_is_the_inverse(many, random):
    program = Maker(random).make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nkijax.roll.MANY", many)
        assert unroll(roll(program)) == program


def test_a_tile_loop_folds_to_one_turn():
    def kernel(r, x):
        for i in range(8):
            t = tile(r)
            r.emit(DmaCopy(t, x.slice(0, i * 128, i * 128 + 128)))
            r.emit(DmaCopy(x.slice(0, i * 128, i * 128 + 128), t))

    rolled = roll(record(kernel))
    (repeat,) = rolled.body
    assert isinstance(repeat, Repeat) and repeat.count == 8 and len(repeat.body) == 2


def test_names_of_their_own_keep_no_turns_apart():
    def kernel(r, x):
        for i in range(8):
            t = tile(r)
            r.emit(DmaCopy(t, x.slice(0, i * 128, i * 128 + 128), name=f"load_{i}"))
            r.emit(DmaCopy(x.slice(0, i * 128, i * 128 + 128), t, name=f"store_{i}"))

    program = record(kernel)
    (repeat,) = roll(program).body
    assert isinstance(repeat, Repeat) and repeat.count == 8 and len(repeat.body) == 2
    assert unroll(roll(program)) == program and [i.name for i in program.body[:4:2]] == ["load_0", "load_1"]


@pytest.mark.parametrize("turns", [4, 64])
def test_the_rolled_size_does_not_depend_on_the_turns(turns):
    def kernel(r, x):
        for i in range(turns):
            for _ in range(turns):
                t = tile(r)
                r.emit(DmaCopy(t, x.slice(0, 0, 128)))
                r.emit(Memset(t, float(i)))

    assert len(list(instructions(roll(record(kernel)).body))) == 2


def test_nested_tile_loops_fold_to_nested_repeats():
    def kernel(r, x):
        for i in range(2):
            for k in range(3):
                r.emit(DmaCopy(tile(r, (128, 16)), x.slice(0, i * 256, i * 256 + 128).slice(1, k * 16, k * 16 + 16)))

    (outer,) = roll(record(kernel)).body
    assert isinstance(outer, Repeat) and outer.count == 2
    (inner,) = outer.body
    assert isinstance(inner, Repeat) and inner.count == 3


def test_peeled_turns_and_lists_of_tiles():
    def kernel(r, x):
        tiles = [tile(r) for _ in range(4)]
        r.emit(Memset(tiles[0], 0.0))
        for t in tiles:
            r.emit(DmaCopy(t, x.slice(0, 0, 128)))
        for i in range(6):  # a double buffer
            r.emit(TensorCopy(tiles[i % 2], tiles[2 + i % 2]))

    program = record(kernel)
    rolled = roll(program)
    assert len(list(instructions(rolled.body))) <= 4
    assert unroll(rolled) == program


def test_what_differs_in_more_than_numbers_stays_apart():
    def kernel(r, x):
        t = tile(r)
        for n in (16, 32, 64):
            r.emit(DmaCopy(t.slice(1, 0, n), x.slice(0, 0, 128).slice(1, 0, n)))

    assert not any(isinstance(n, Repeat) for n in roll(record(kernel)).body)


def causal(r, x, turns=6):
    """Turn i: a tile from x, i + 1 additions into it, and back; a row of x each."""
    for i in range(turns):
        t = tile(r, (128, 16))
        r.emit(DmaCopy(t, x.slice(0, 0, 128).slice(1, 0, 16)))
        for k in range(i + 1):
            r.emit(TensorCopy(t.slice(1, k, k + 1), t.slice(1, k + 1, k + 2)))
        r.emit(DmaCopy(x.slice(0, 128, 256).slice(1, 0, 16), t))


def test_counts_that_grow_fold_to_a_ragged_repeat():
    program = record(causal)
    rolled = roll(program)
    outer = rolled.body[-1]
    assert isinstance(outer, Repeat) and outer.count == 5 and outer.counts is None
    _, inner, _ = outer.body
    assert isinstance(inner, Repeat) and inner.count == 6 and inner.counts is not None
    assert inner.counts.tolist() == [2, 3, 4, 5, 6]
    assert "repeat 2..6:" in str(rolled) and unroll(rolled) == program


def test_ragged_repeats_fold_like_others():
    def heads(r, x):
        for _ in range(3):
            causal(r, x)

    program = record(heads)
    (outer,) = roll(program).body
    assert isinstance(outer, Repeat) and outer.count == 3
    middle = outer.body[-1]
    assert isinstance(middle, Repeat) and isinstance(middle.body[1], Repeat)
    counts = middle.body[1].counts
    assert counts is not None and counts.tolist() == [[2, 3, 4, 5, 6]] * 3
    assert unroll(roll(program)) == program


def test_counts_without_a_progression_stay_apart():
    def kernel(r, x):
        for n in (2, 5, 3, 7):
            t = tile(r)
            for _ in range(n):
                r.emit(DmaCopy(t, x.slice(0, 0, 128)))
            r.emit(Memset(t, 0.0))

    program = record(kernel)
    assert len(program.body) == 21 and len(roll(program).body) == 8 and unroll(roll(program)) == program


def test_a_turn_begins_where_its_tiles_do():
    def kernel(r, x):
        r.emit(DmaCopy(x.slice(0, 0, 128), tile(r)))  # what ends a turn, once more before the first
        for i in range(4):
            t = tile(r)
            r.emit(Memset(t, float(i)))
            r.emit(DmaCopy(x.slice(0, 128 * i, 128 * i + 128), t))

    _, repeat = roll(record(kernel)).body
    assert isinstance(repeat, Repeat) and repeat.count == 4 and isinstance(repeat.body[0].instruction, Memset)


@pytest.fixture
def loosely(monkeypatch):
    """Roll every program as those are of which much would be left."""
    monkeypatch.setattr("nkijax.roll.MANY", 0)


def test_large_programs_have_ragged_repeats_of_any_counts(loosely):
    def kernel(r, x):
        for n in (2, 5, 1, 7):  # where it is one, they stand alone
            t = tile(r)
            for k in range(n):
                r.emit(TensorCopy(t.slice(1, k, k + 1), t.slice(1, k + 1, k + 2)))
                r.emit(Memset(t.slice(1, k, k + 1), 0.0))
            r.emit(DmaCopy(x.slice(0, 0, 128), t))

    program = record(kernel)
    rolled = roll(program)
    (outer,) = rolled.body
    assert isinstance(outer, Repeat) and outer.count == 4
    inner, _ = outer.body
    assert isinstance(inner, Repeat) and inner.counts is not None and inner.counts.tolist() == [2, 5, 1, 7]
    assert unroll(rolled) == program


def test_ragged_repeats_of_ragged_ones(loosely):
    def kernel(r, x):
        for turns in (4, 6, 3):
            causal(r, x, turns)
            r.emit(Memset(tile(r), 0.0))

    program = record(kernel)
    assert len(list(instructions(roll(program).body))) == 4 and unroll(roll(program)) == program


def test_no_repeat_of_one_turn_is_left(loosely):
    def kernel(r, x):
        t = tile(r)
        for _ in range(3):
            r.emit(Memset(t, 0.0))
        r.emit(DmaCopy(t, x.slice(0, 0, 128)))
        r.emit(Memset(t, 0.0))

    assert [type(n).__name__ for n in roll(record(kernel)).body] == ["Repeat", "DmaCopy", "Memset"]


@pytest.mark.parametrize("many", [0, 400])
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 3), max_size=4), st.integers(1, 3))
def test_unroll_is_the_inverse_of_any_counts(many, counts, steps, heads):
    def kernel(r, x):
        for _ in range(heads):
            for n in (*counts, *(2 + i * s for s in steps for i in range(4))):
                t = tile(r, (128, 16))
                for k in range(n):
                    r.emit(TensorCopy(t.slice(1, k, k + 1), t.slice(1, k + 1, k + 2)))
                r.emit(DmaCopy(x.slice(0, 0, 128).slice(1, 0, 16), t))

    program = record(kernel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nkijax.roll.MANY", many)
        assert unroll(roll(program)) == program
