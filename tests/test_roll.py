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


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_unroll_is_the_inverse(random):
    program = Maker(random).make()
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
