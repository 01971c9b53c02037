"""Cores that meet: their programs are joined stretch by stretch, and a core that stays away is an error."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
import pytest

from nkijax.cores import check_trips, core_of, joined, side_by_side
from nkijax.cost import cost
from nkijax.errors import KernelError
from nkijax.isa.collectives import AllReduce
from nkijax.isa.elementwise import TensorScalar, TensorTensor
from nkijax.isa.move import DmaCopy, Memset, TensorCopy
from nkijax.isa.operators import ALU
from nkijax.isa.register import RegisterLoad, RegisterStore
from nkijax.isa.sync import CoreBarrier, SendRecv
from nkijax.lower import lower
from nkijax.machine import TRN2, Engine, Memory, Work
from nkijax.program import EVERY_CORE, In, Instruction, Loop, Out, instructions
from nkijax.roll import roll, unroll
from nkijax.timeline import chrome_trace, schedule
from nkijax.trace import Recorder
from nkijax.view import View


@dataclass(frozen=True)
class Meet(Instruction):
    """A meeting at which nothing happens."""

    dst: Out
    src: In
    ident: int = 0
    api = "meet"

    @property
    def queue(self):
        return Engine.sync

    def check(self, target):
        pass

    def run(self, read):
        return (read(self.src),)

    def cycles(self, target):
        return Work(1, 0)

    def meets(self):
        return self.ident


def record(kernel):
    r = Recorder("kernel", TRN2, programs=2)
    t = View.whole(r.allocate((4, 4), "float32", Memory.sbuf))
    return r.record(lambda: kernel(r, t) or [])


def test_stretches_alternate_between_meetings():
    def kernel(r, t):
        r.emit(Memset(t, 0.0))
        r.emit(Meet(t, t))
        r.emit(Memset(t, 1.0))

    body = record(kernel).body
    assert [(type(n).__name__, n.core) for n in body] == [
        ("Memset", 0),
        ("Memset", 1),
        ("Meet", 0),
        ("Meet", 1),
        ("Memset", 0),
        ("Memset", 1),
    ]


def test_programs_that_never_meet_follow_one_another():
    assert joined([["a", "b"], ["c"]]) == ["a", "b", "c"]


def test_what_cores_do_alike_in_every_turn_is_one_repeat():
    def kernel(r, x):
        other = 1 - r.program_id
        for i in range(4):
            scratch, mine, theirs = (
                View.whole(r.allocate((4, 4), "float32", m)) for m in (Memory.shared_hbm, Memory.sbuf, Memory.sbuf)
            )
            r.emit(DmaCopy(mine, x.select(0, i)))
            r.emit(DmaCopy(scratch, mine)) if r.program_id else None
            r.emit(CoreBarrier(scratch, (0, 1)))
            r.emit(DmaCopy(theirs, scratch))
            r.emit(TensorTensor(mine, mine, theirs, ALU["add"]))
            r.emit(SendRecv(mine, theirs, other, other, 0))
            r.emit(DmaCopy(x.select(0, i), theirs)) if r.program_id else None
        return [x]

    r = Recorder("kernel", TRN2, programs=2)
    x = r.argument((4, 4, 4), "float32", "x", True)
    program = r.record(lambda: kernel(r, x))
    rolled = roll(program)
    data = np.random.default_rng(0).random((4, 4, 4), np.float32)
    np.testing.assert_array_equal(lower(rolled).function(data).outputs[0], 2 * data)
    assert len(list(instructions(program.body))) == 44 and len(list(instructions(rolled.body))) == 15, "one turn peeled"
    assert [core_of(n) for n in program.body[:5]] == [0, 1, 1, 0, 1], "the flat program, which is costed, knows cores"


def test_a_core_that_stays_away_is_an_error():
    def kernel(r, t):
        for _ in range(2 - r.program_id):
            r.emit(Meet(t, t))

    with pytest.raises(KernelError, match="meet: every core must reach it at the same point, core 1 reaches nothing"):
        record(kernel)


def test_cores_that_meet_in_another_order_are_an_error():
    def kernel(r, t):
        r.emit(Meet(t, t, r.program_id))

    with pytest.raises(KernelError, match="core 1 reaches meet at"):
        record(kernel)


# ---- meetings inside dynamic loops


def exchange(turns):
    """Adds up, in each turn of a loop that `turns(recorder, n, body)` emits, what the other core has."""

    def kernel(r, x, n):
        pid, other = r.program_id, 1 - r.program_id
        mine, theirs = (View.whole(r.allocate((2, 3), "float32", Memory.sbuf)) for _ in range(2))
        r.emit(DmaCopy(mine, x.select(0, pid)))

        def body(i):
            r.emit(SendRecv(mine, theirs, other, other, 0))
            r.emit(TensorTensor(mine, mine, theirs, ALU["add"]))
            if pid:
                r.emit(TensorCopy(theirs, mine))
                r.emit(TensorScalar(mine, theirs, ALU["add"], 1.0))

        turns(r, n, body)
        r.emit(DmaCopy(x.select(0, pid), mine))
        return [x]

    r = Recorder("kernel", TRN2, programs=2)
    x, n = r.argument((2, 2, 3), "float32", "x", True), r.argument((2, 1), "int32", "n", True)
    return r.record(lambda: kernel(r, x, n))


def exchanged(x, turns):
    for _ in range(turns):
        x = np.stack([x[0] + x[1], x[0] + x[1] + 1])
    return x


def loaded(r, n):
    register = r.register()
    r.emit(RegisterLoad(register, n.slice(0, r.program_id, r.program_id + 1)))
    return register


def static(r, n, body):
    for i in r.turns("loop", 2 * r.program_id, 3 + 2 * r.program_id, 1):
        body(i)


def counting(r, n, body):
    for i in r.turns("loop", 0, loaded(r, n), 1):
        body(i)


def conditional(r, n, body):
    left = View.whole(r.allocate((1, 1), "int32", Memory.sbuf))
    r.emit(DmaCopy(left, n.slice(0, r.program_id, r.program_id + 1)))

    def turn(i):
        body(i)
        r.emit(TensorScalar(left, left, ALU["subtract"], 1))
        after = r.register()
        r.emit(RegisterLoad(after, left))
        return after

    r.repeat_while("loop", loaded(r, n), turn)


def nested(r, n, body):
    for _ in r.turns("outer", 0, 2, 1):
        static(r, n, body)


X = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


@pytest.mark.parametrize(
    "turns, n, count", [(static, 0, 3), (counting, 3, 3), (counting, 0, 0), (conditional, 2, 2), (nested, 0, 6)]
)
@pytest.mark.parametrize("max_trips", [None, 4])
def test_cores_meet_in_every_turn(turns, n, count, max_trips):
    program = exchange(turns)
    lowered = lower(roll(program), max_trips)
    result = jax.jit(lowered.function)(X, np.full((2, 1), n, np.int32))
    lowered.check(np.asarray(result.error))
    np.testing.assert_array_equal(result.outputs[0], exchanged(X, count))
    trips = np.asarray(result.trips).tolist()
    check_trips(program, trips)
    assert trips == ([2, 6, 2, 6] if turns is nested else [count, count])
    assert unroll(roll(program)) == program


def test_one_loop_stands_for_both_cores():
    program = exchange(counting)
    (loop,) = (n for n in program.body if isinstance(n, Loop))
    assert f"for {loop.register!r}, {loop.registers[0]!r} in range(" in str(program)
    assert (loop.ident, loop.idents, len(loop.bounds)) == (0, (1,), 2)
    assert [(type(i).__name__, i.core) for i in loop.body] == [
        ("Swap", EVERY_CORE),
        ("TensorTensor", 0),
        ("TensorTensor", 1),
        ("TensorCopy", 1),
        ("TensorScalar", 1),
    ]


def test_each_core_sees_its_own_count():
    def kernel(r, x):
        t = View.whole(r.allocate((1, 1), "int32", Memory.sbuf))
        for i in r.turns("loop", 3 * r.program_id, 3 * r.program_id + 4, 2):
            r.emit(Meet(t, t))
            r.emit(RegisterStore(t, i))
        r.emit(DmaCopy(x.slice(0, r.program_id, r.program_id + 1), t))
        return [x]

    r = Recorder("kernel", TRN2, programs=2)
    x = r.argument((2, 1), "int32", "x", True)
    program = r.record(lambda: kernel(r, x))
    result = jax.jit(lower(program).function)(np.zeros((2, 1), np.int32))
    np.testing.assert_array_equal(result.outputs[0], [[2], [5]])


@pytest.mark.parametrize("turns, n, after", [(counting, [2, 3], 2), (conditional, [1, 3], 1), (conditional, [0, 3], 0)])
@pytest.mark.parametrize("order", [1, -1])
def test_cores_that_part_in_a_loop_are_an_error(turns, n, after, order):
    lowered = lower(exchange(turns))
    result = jax.jit(lowered.function)(X, np.array(n[::order], np.int32)[:, None])
    with pytest.raises(KernelError, match=f"must turn equally often, got one that stops after {after} turns"):
        lowered.check(np.asarray(result.error))


def test_a_constant_number_of_turns_is_compared_while_tracing():
    def uneven(r, n, body):
        for i in r.turns("loop", 0, 3 + r.program_id, 1):
            body(i)

    with pytest.raises(KernelError, match="must turn as often as core 0, 3 times, core 1 turns 4 times"):
        exchange(uneven)


def test_a_core_that_stays_out_of_the_loop_is_an_error():
    def once(r, n, body):
        if r.program_id:
            body(None)
        else:
            static(r, n, body)

    with pytest.raises(KernelError, match="dynamic loop in which cores meet: .* core 1 reaches nki.isa.sendrecv at"):
        exchange(once)


def test_loops_without_a_meeting_stay_with_their_core():
    def kernel(r, t):
        for _ in r.turns("loop", 0, 2, 1):
            r.emit(Memset(t, 0.0))

    body = record(kernel).body
    assert [(n.registers, core_of(n)) for n in body] == [((), 0), ((), 1)]
    (both,) = side_by_side(body, 2)  # as the cost model takes them
    assert [i.core for i in both.body] == [0, 1] and both.registers == (body[1].register,)


def test_a_collective_in_a_loop_is_done_once_for_both_cores():
    r = Recorder("kernel", TRN2, programs=2)
    x = r.argument((2, 3), "float32", "x", True)

    def kernel():
        y = View.whole(r.allocate((2, 3), "float32", Memory.shared_hbm))
        for _ in r.turns("loop", 0, 3, 1):
            r.emit(AllReduce((x,), (y,), ((0, 1),), ALU["add"], axis="rank"))
            r.emit(DmaCopy(x.select(0, r.program_id), y.select(0, r.program_id)))
        return [x]

    program = r.record(kernel)
    (loop,) = program.body
    assert [(type(i).__name__, i.core) for i in loop.body] == [
        ("AllReduce", EVERY_CORE),
        ("DmaCopy", 0),
        ("DmaCopy", 1),
    ]
    ranks = np.stack([X[0], X[1]])
    (got,) = jax.vmap(lower(program).function, axis_name="rank")(ranks).outputs
    np.testing.assert_array_equal(got, np.stack([4 * ranks.sum(0)] * 2))


# ---- what cores cost that run side by side


def work(r, free):
    """One instruction of the vector engine, whose time grows with `free`."""
    t = View.whole(r.allocate((1, free), "float32", Memory.sbuf))
    r.emit(TensorScalar(t, t, ALU["add"], 1.0))


def us(kernel, trips=()):
    return cost(record(kernel), trips).total_us


def test_two_cores_take_the_time_of_the_slower_one():
    slow, fast = us(lambda r, t: work(r, 9000)), us(lambda r, t: work(r, 3000))
    assert us(lambda r, t: work(r, 9000 if r.program_id else 3000)) == slow > fast


@pytest.mark.parametrize("second, wait", [((9000, 3000), 6000), ((3000, 9000), 0)])
def test_cores_wait_for_each_other_where_they_meet(second, wait):
    """First core 1 is the slower one; then core 0, or core 1 again."""

    def kernel(r, t, meet):
        work(r, (3000, 9000)[r.program_id])
        if meet:
            r.emit(CoreBarrier(t, (0, 1), Engine.vector))
        work(r, second[r.program_id])

    apart, together = (us(lambda r, t, meet=meet: kernel(r, t, meet)) for meet in (False, True))
    elements = us(lambda r, t: work(r, 9000)) - us(lambda r, t: work(r, 9000 - wait))
    assert together - apart == pytest.approx(elements + TRN2.min_issue_cycles / 1e3 / TRN2.ghz(Engine.vector))


def test_an_iteration_takes_the_time_of_the_slower_core():
    def kernel(r, t, sizes):
        for _ in r.turns("loop", 0, 5, 1):
            r.emit(CoreBarrier(t, (0, 1), Engine.vector))
            work(r, sizes[r.program_id])

    costs = [
        cost(record(lambda r, t, s=s: kernel(r, t, s)), [5, 5]) for s in ((3000, 3000), (3000, 9000), (9000, 9000))
    ]
    fast, mixed, slow = (c.loops[0] for c in costs)
    assert fast.us_per_iteration < mixed.us_per_iteration == slow.us_per_iteration
    assert mixed.trips == 5 and len(costs[1].loops) == 1
    assert costs[1].instructions == 10 and costs[1].cores == 2
    assert costs[1].busy_us == costs[2].busy_us  # of the busier one


def test_rows_say_which_core():
    rows = schedule(exchange(counting), [1, 1])
    swaps = [row for row in rows if row.name == "Swap"]
    assert sorted(row.core for row in swaps) == [0, 1]
    assert swaps[0].start_us == swaps[1].start_us
    assert {e["pid"] for e in chrome_trace(rows)["traceEvents"]} == {0, 1}
