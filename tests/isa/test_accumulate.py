"""When a matmul adds: decisions at trace time, and run-time state, against the per-element rule of the machine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax.errors import Unsupported
from nkijax.isa.accumulate import Accumulation, MatmulFacts, resolve_accumulate
from nkijax.isa.move import Memset
from nkijax.machine import TRN2, Memory
from nkijax.trace import Recorder
from nkijax.view import Buffer, View
from tests.isa.harness import tile

P, F = 2, 6


class Matmuls(Recorder):
    """A recorder of matmuls alone, without operands: what each resolves to."""

    def psum(self, shape: tuple[int, ...] = (P, F)) -> View:
        return View.whole(self.allocate(shape, "float32", Memory.psum))

    def touch(self, dst: View) -> None:
        """Another instruction writes `dst`."""
        self.emit(Memset(dst, 0))

    def matmul(self, dst: View, accumulate: bool | None = None) -> Accumulation:
        resolved = resolve_accumulate(self, dst, accumulate)
        for instruction in resolved.before:
            self.emit(instruction)
        self.touch(dst)
        return resolved

    @contextmanager
    def loop(self) -> Iterator[None]:
        """The body of a dynamic loop."""
        turns = self.turns("loop", 0, 2, 1)
        next(turns)
        yield
        next(turns, None)


def decision(resolved) -> tuple:
    return resolved.accumulate, resolved.written is not None, len(resolved.before)


OVERWRITE, ADD = (False, False, 0), (True, False, 0)


# ---- decisions


def test_fresh_and_whole_adds_to_zeros():
    r = Matmuls("test", TRN2)
    dst = r.psum((P, 2, 3))
    whole = dst.permute((0, 2, 1))
    assert [decision(r.matmul(v)) for v in (whole, dst, dst.reshape((P, 6)))] == [ADD] * 3
    assert r.zeros == {dst.buffer}


def test_fresh_but_touched_or_partial_overwrites():
    r = Matmuls("test", TRN2)
    touched, dst = r.psum(), r.psum()
    r.touch(touched)
    assert [decision(r.matmul(v)) for v in (touched, touched, dst.slice(1, 0, 3), dst.slice(1, 3, 6), dst)] == [
        *(OVERWRITE, ADD),
        *(OVERWRITE, OVERWRITE, ADD),
    ]
    assert not r.zeros


def test_halves_by_partition():
    r = Matmuls("test", TRN2)
    dst = r.psum((4, 6))
    halves = [dst.slice(0, 0, 2), dst.slice(0, 2, 4)]
    assert [decision(r.matmul(v)) for v in (*halves, dst)] == [OVERWRITE, OVERWRITE, ADD]


def test_overlap_asks_the_state_once_told():
    r = Matmuls("test", TRN2)
    dst = r.psum()
    r.matmul(dst.slice(1, 0, 3))
    mixed = r.matmul(dst.slice(1, 2, 5))
    assert decision(mixed) == (True, True, 1) and mixed.addend == dst.slice(1, 2, 5)
    assert mixed.written is not None
    assert mixed.written == View(mixed.written.buffer, 2, (F, 1), (P, 3), "bool")
    (told,) = mixed.before
    assert told == Memset(View(mixed.written.buffer, 0, (F, 1), (P, 3), "bool"), True)
    assert mixed.written.buffer in r.zeros
    assert decision(r.matmul(dst.slice(1, 2, 5))) == ADD
    assert decision(r.matmul(dst.slice(1, 4, 6))) == (True, True, 0)
    assert decision(r.matmul(dst)) == ADD


def test_explicit_flags():
    r = Matmuls("test", TRN2)
    dst = r.psum()
    assert decision(r.matmul(dst, False)) == OVERWRITE
    assert decision(r.matmul(dst, True)) == ADD
    assert decision(r.matmul(dst)) == ADD
    assert decision(r.matmul(dst, False)) == OVERWRITE
    with pytest.warns(UserWarning, match="accumulate: True adds to PSUM that no matmul has written"):
        assert decision(r.matmul(r.psum(), True)) == ADD
    assert not r.zeros


def test_a_loop_body_may_run_again_and_may_not_run():
    r = Matmuls("test", TRN2)
    outside, known = r.psum(), r.psum()
    r.matmul(known)
    with r.loop():
        inside = r.psum()
        assert [decision(r.matmul(v)) for v in (known, inside, inside)] == [ADD] * 3
        assert [decision(r.matmul(v)) for v in (outside, outside)] == [(True, True, 0), ADD]
    assert [decision(r.matmul(v)) for v in (known, outside, outside)] == [ADD, (True, True, 0), ADD]
    assert inside.buffer in r.zeros and outside.buffer not in r.zeros


def test_a_loop_warns_of_nothing_that_an_earlier_turn_may_have_written():
    r = Matmuls("test", TRN2)
    outside = r.psum()
    with r.loop():
        assert decision(r.matmul(outside, True)) == (True, False, 1)
        assert decision(r.matmul(outside, False)) == OVERWRITE


def test_what_a_state_was_told_in_a_loop_is_told_again_after_it():
    r = Matmuls("test", TRN2)
    dst = r.psum()
    r.matmul(dst.slice(1, 0, 3))
    with r.loop():
        assert decision(r.matmul(dst.slice(1, 3, 5))) == (True, True, 1)
    after = r.matmul(dst.slice(1, 2, 5))
    assert decision(after) == (True, True, 1)
    assert after.before[0].writes()[0].shape == (P, 3)


def test_the_state_lives_as_long_as_its_tensor():
    r = Matmuls("test", TRN2)
    with r.loop():
        dst = r.psum()
        with r.loop():
            written = r.matmul(dst).written
    assert written is not None
    assert (written.buffer.depth, written.buffer.scope) == (dst.buffer.depth, dst.buffer.scope) == (1, 0)
    assert written.buffer.memory is Memory.state and written.buffer in r.zeros


def test_run_time_destinations_ask_the_state():
    r = Matmuls("test", TRN2)
    dst = r.psum()
    moved = dst.shifted(1, tile((1, 1), "int32"), 2)
    first = r.matmul(moved)
    assert decision(first) == (True, True, 0)
    assert first.written is not None and first.written.dynamic == moved.dynamic
    assert decision(r.matmul(moved)) == (True, True, 0)
    assert decision(r.matmul(dst)) == (True, True, 0)
    assert decision(r.matmul(moved)) == ADD


def test_dtypes_of_different_sizes_share_facts_but_no_state():
    r = Matmuls("test", TRN2)
    dst = r.psum()
    assert decision(r.matmul(dst.reinterpret("bfloat16"), False)) == OVERWRITE
    assert decision(r.matmul(dst)) == ADD
    message = "accumulate: None cannot tell whether .* was written"
    first, second = r.psum(), r.psum()
    with r.loop():
        with pytest.raises(Unsupported, match=message):
            r.matmul(first.reinterpret("bfloat16"))
        assert decision(r.matmul(first.reinterpret("bfloat16"), False)) == OVERWRITE
        assert decision(r.matmul(first)) == ADD
        r.matmul(second.slice(1, 0, 2))
        with pytest.raises(Unsupported, match=message):
            r.matmul(second.reinterpret("bfloat16"), False)
    with pytest.raises(Unsupported, match=message):
        r.matmul(first)


def test_the_usual_case_costs_next_to_nothing():
    r = Matmuls("test", TRN2)
    dst = r.psum((128, 512))
    r.matmul(dst)
    start = time.perf_counter()
    for _ in range(1000):
        resolve_accumulate(r, dst, None)
    assert time.perf_counter() - start < 0.1  # about 1 us each on an idle core
    assert r.facts(MatmulFacts).of(dst.buffer).bytes is None


# ---- the machine's rule, element by element, on random programs with dynamic loops


@dataclass
class Op:
    """A matmul that yields `value` everywhere, or with accumulate "fill" another instruction's write."""

    buffer: int
    window: tuple[int, int, int]
    accumulate: bool | None | str
    run_time: int | None
    value: float


@dataclass
class LoopOp:
    """A dynamic loop; its body allocates one more PSUM buffer."""

    trips: int
    body: list


ops = st.builds(
    Op,
    buffer=st.sampled_from([0, 0, 1, 2]),
    window=st.sampled_from([(0, F, 1), (0, F, 1), (0, 3, 1), (3, F, 1), (2, 5, 1), (0, F, 2), (1, 2, 1)]),
    accumulate=st.sampled_from([None, None, None, None, False, True, "fill"]),
    run_time=st.sampled_from([None, None, None, None, 0, 1, 2]),
    value=st.integers(1, 1000).map(float),
)
programs = st.recursive(
    st.lists(ops, min_size=3, max_size=6),
    lambda body: st.lists(ops | st.builds(LoopOp, trips=st.integers(0, 2), body=body), min_size=3, max_size=6),
    max_leaves=10,
)


@dataclass
class Turns:
    """A recorded loop."""

    trips: int
    scope: int
    body: list


class Machine:
    """Records a program once, runs the record, and beside it does what the machine does."""

    def __init__(self):
        self.recorder = Matmuls("test", TRN2)
        self.memory: dict[Buffer, np.ndarray] = {}
        self.flags: dict[Buffer, np.ndarray] = {}
        self.truth: dict[Buffer, np.ndarray] = {}
        self.registers: dict[View, int] = {}

    def record(self, program: list, buffers: list[View]) -> list:
        out: list = []
        for op in program:
            if isinstance(op, LoopOp):
                with self.recorder.loop():
                    local = self.recorder.psum()
                    out.append(Turns(op.trips, local.buffer.scope, self.record(op.body, [*buffers, local])))
            else:
                out.append(self.record_op(op, buffers[-1 - op.buffer % len(buffers)]))
        return out

    def record_op(self, op: Op, whole: View) -> tuple:
        view = whole.slice(1, *op.window)
        if op.run_time is not None:
            index = tile((1, 1), "int32")
            self.registers[index] = op.run_time
            view = whole.shifted(1, index, min(view.free, F - 2))
        if op.accumulate == "fill":
            self.recorder.touch(view)
            return view, op.value
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return view, op.value, op.accumulate, self.recorder.matmul(view, op.accumulate)

    def at(self, arrays: dict[Buffer, np.ndarray], view: View) -> np.ndarray:
        """The elements of a view, as a NumPy view."""
        if view.buffer not in arrays:
            kind = np.bool_ if arrays is self.flags or view.dtype == "bool" else np.float32
            zero = kind is np.bool_ or (view.buffer in self.recorder.zeros and arrays is self.memory)
            arrays[view.buffer] = np.full(P * F, 0 if zero else np.nan, kind)
        moved = self.registers[view.dynamic.index] * view.dynamic.stride if view.dynamic else 0
        array = arrays[view.buffer]
        steps = tuple(s * array.itemsize for s in view.strides)
        return np.ndarray(view.shape, array.dtype, array, (view.offset + moved) * array.itemsize, steps)

    def run(self, record: list) -> None:
        for entry in record:
            if isinstance(entry, Turns):
                for _ in range(entry.trips):
                    for arrays in (self.memory, self.flags, self.truth):
                        for b in [b for b in arrays if b.scope == entry.scope]:
                            del arrays[b]
                    self.run(entry.body)
            elif len(entry) == 2:
                for arrays in (self.memory, self.truth):
                    self.at(arrays, entry[0])[...] = entry[1]
            else:
                self.run_matmul(*entry)

    def run_matmul(self, view: View, value: float, accumulate: bool | None, resolved: Accumulation) -> None:
        truth, flags = self.at(self.truth, view), self.at(self.flags, view)
        add = flags if accumulate is None else accumulate
        truth[...] = np.where(add, truth + value, value)
        flags[...] = True
        for memset in resolved.before:
            self.at(self.memory, memset.dst)[...] = memset.value
        got, add = self.at(self.memory, view), resolved.accumulate
        if resolved.written is not None:
            add = self.at(self.memory, resolved.written).copy()
            self.at(self.memory, resolved.written)[...] = True
        got[...] = np.where(add, got + value, value)
        np.testing.assert_array_equal(got, truth)


@settings(max_examples=150, deadline=None)
@given(programs)
def test_any_program_accumulates_element_by_element(program):
    machine = Machine()
    machine.run(machine.record(program, [machine.recorder.psum()]))
