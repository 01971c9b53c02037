"""Whole programs: loops between stretches, who is alive when, the rows of a schedule and its trace."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax.machine import TRN1, Engine, Memory
from nkijax.program import Repeat
from nkijax.timeline import LANES, LoopRun, Model, Stretch, chrome_trace, schedule
from tests.by_hand import Copy, Hand, dynamic, tile, unrolled

V, S = Engine.vector, Engine.scalar
BARRIER = TRN1.value("barrier_us")


def work_us(free: int) -> float:
    """One vector instruction, from issue to token."""
    return (max(free, 64) + 161) / 1.12e3 + 0.03


def nested(outer: int, inner: int) -> tuple:
    """work 512; loop { work 1024; loop { work 2048 } work 1024 }; work 512, and the trips of the two loops."""
    hand = Hand()

    def work(free, depth):
        return hand.work(hand.buffer((128, free), name=f"x{free}", depth=depth), [], V)

    deep = hand.loop([work(2048, 2)], site="k.py:2")
    wide = hand.loop([work(1024, 1), deep, work(1024, 1)], site="k.py:1")
    return hand.program(work(512, 0), wide, work(512, 0)), (inner, outer)


def test_a_loop_is_trips_times_body_and_barrier():
    program, trips = nested(outer=10, inner=30)
    inner = work_us(2048) + BARRIER
    body = 2 * work_us(1024) + 3 * inner  # three inner trips an outer one
    assert Model(program, trips).main.us == pytest.approx(2 * work_us(512) + 10 * (body + BARRIER))


def test_average_trips_need_not_be_whole():
    program, trips = nested(outer=4, inner=6)
    (_, _), (_, loop), (_, _) = Model(program, trips).main.pieces
    assert isinstance(loop, LoopRun) and loop.trips == 4
    assert [piece.trips for _, piece in loop.body.pieces if isinstance(piece, LoopRun)] == [1.5]


@pytest.mark.parametrize("trips", [(0, 0), (0, 5)])
def test_zero_trips(trips):
    program, _ = nested(0, 0)
    body = 2 * work_us(1024)
    assert Model(program, trips).main.us == pytest.approx(2 * work_us(512) + trips[1] * (body + BARRIER))


def test_nothing_overlaps_a_loop():
    hand = Hand()
    x, t = hand.hbm(128, 2048), hand.buffer((128, 2048))
    load = Copy(t, x)
    alone = Model(hand.program(load), ()).main.us
    loop = hand.loop([hand.work(hand.buffer((128, 512), depth=1), [], V)])
    around = Model(hand.program(load, loop, load), (2,)).main.us
    assert around == pytest.approx(2 * alone + 2 * (work_us(512) + BARRIER))


def test_only_unrolled_programs_with_all_trips():
    hand = Hand()
    work = hand.work(hand.buffer((128, 64)), [], V)
    with pytest.raises(TypeError, match="unrolled program, got a Repeat"):
        Model(hand.program(Repeat(2, (work,))), ())
    with pytest.raises(ValueError, match="no trip count for loop 0 at kernel.py:7"):
        Model(hand.program(hand.loop([work])), ())


def test_busy_starts_with_the_first_loaded_data():
    hand = Hand()
    x, count = hand.hbm(128, 2048), hand.buffer((1, 1))
    body = [hand.work(count, [], V), *tile(hand, x, hand.hbm(128, 2048))]
    piece = Model(hand.program(*body), ()).main.pieces[0][1]
    assert isinstance(piece, Stretch)
    assert piece.busy() == (piece.timing.issue_us[2], piece.timing.done_us[3])
    assert Model(hand.program(body[1]), ()).main.busy() is None


def kib(hand: Hand, n: int, depth: int = 0, memory: Memory = Memory.sbuf):
    return hand.buffer((128, n * 256), memory, name=f"{n} KiB", depth=depth)


def test_peaks_count_who_is_alive():
    hand = Hand()
    a, b, c, p = kib(hand, 3), kib(hand, 5), kib(hand, 7), kib(hand, 2, memory=Memory.psum)
    body = [hand.work(a, [], V), hand.work(b, [a], V), hand.work(p, [b], V), hand.work(c, [p], V), hand.work(c, [c], V)]
    peaks = Model(hand.program(*body), ()).main.peaks
    assert (peaks[Memory.sbuf].bytes, peaks[Memory.psum].bytes) == (8 * 1024, 2 * 1024)
    assert [buffer.name for buffer in peaks[Memory.sbuf].buffers] == ["3 KiB", "5 KiB"]


def test_what_a_loop_uses_from_outside_lives_all_its_time():
    hand = Hand()
    carried, own, after = kib(hand, 3), kib(hand, 5, depth=1), kib(hand, 6)
    loop = hand.loop([hand.work(own, [carried], V), hand.work(carried, [own], V)])
    program = hand.program(hand.work(carried, [], V), loop, hand.work(after, [], V), hand.work(after, [after], V))
    peak = Model(program, (3,)).main.peaks[Memory.sbuf]
    assert peak.bytes == 8 * 1024 and {buffer.name for buffer in peak.buffers} == {"3 KiB", "5 KiB"}


def test_space_around_a_loop_is_taken():
    """The body may use what is left: 192 - 180 KiB, so one tile of 8 KiB at a time."""
    hand = Hand()
    big, x = kib(hand, 180), hand.hbm(512, 2048)
    tiles = [hand.buffer((128, 2048), name="t", depth=1) for _ in range(2)]
    loads = [Copy(t, x.slice(0, 0, 128)) for t in tiles]
    uses = [hand.work(hand.buffer((128, 64), depth=1), [t], V) for t in tiles]
    body = [loads[0], uses[0], loads[1], uses[1]]
    model = Model(hand.program(hand.work(big, [], V), hand.loop(body), hand.work(big, [big], V)), (1,))
    run = model.main.pieces[1][1]
    assert isinstance(run, LoopRun)
    stretch = run.body.pieces[0][1]
    assert isinstance(stretch, Stretch)
    assert stretch.timing.issue_us[2] == stretch.timing.done_us[1]


def test_unrolling_a_body_gives_each_copy_its_own_tiles():
    model = Model(dynamic(), (64,))
    run = model.main.pieces[0][1]
    assert isinstance(run, LoopRun)
    four = Model(dynamic(tiles=4), (16,)).main.pieces[0][1]
    assert isinstance(four, LoopRun)
    assert model.unrolled_us(run, 1) == pytest.approx(run.body.us + BARRIER)
    assert model.unrolled_us(run, 4) == pytest.approx(four.body.us + BARRIER)


def test_unrolling_respects_what_is_carried():
    hand = Hand()
    carried = hand.buffer((128, 512))
    model = Model(hand.program(hand.loop([hand.work(carried, [carried], V)])), (8,))
    run = model.main.pieces[0][1]
    assert isinstance(run, LoopRun)
    assert model.unrolled_us(run, 4) == pytest.approx(4 * work_us(512) + BARRIER)


def test_rows_of_a_stretch():
    rows = schedule(unrolled(2), ())
    assert [row.lane for row in rows[:2]] == ["sync", "sync"] and rows[0].name == "trigger load"
    load = next(row for row in rows if row.lane == "dma loads")
    assert (load.start_us, load.end_us, load.done_us) == pytest.approx((1.35, 1.35 + 2**20 / 278.7e3, 5.432), abs=1e-3)
    assert load.bytes == 2**20
    exp = next(row for row in rows if row.lane == "scalar")
    assert (exp.name, exp.start_us) == ("e", load.done_us) and exp.done_us > exp.end_us


def test_rows_show_two_iterations_and_one_bar_for_the_others():
    program, trips = nested(outer=10, inner=30)
    rows = schedule(program, trips)
    bars = [(row.name, row.site) for row in rows if row.lane == "loops"]
    assert bars.count(("iteration 0", "k.py:1")) == bars.count(("8 more iterations", "k.py:1")) == 1
    assert bars.count(("iteration 1", "k.py:2")) == bars.count(("1 more iterations", "k.py:2")) == 2
    assert bars.count(("barrier", "k.py:1")) == 2
    assert max(row.end_us for row in rows) == pytest.approx(Model(program, trips).main.us, abs=0.2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.integers(0, 12))
def test_the_trace_is_json_and_its_bars_nest(outer, inner):
    program, trips = nested(outer, inner if outer else 0)
    trace = json.loads(json.dumps(chrome_trace(schedule(program, trips))))
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert list(names.values()) == list(LANES)
    bars = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X"}
    for tid in names:
        open_until: list[float] = []
        for bar in (b for b in bars if b["tid"] == tid):  # sorted by start, the longer one first
            assert bar["dur"] >= 0
            while open_until and open_until[-1] <= bar["ts"] + 1e-6:
                open_until.pop()
            assert not open_until or bar["ts"] + bar["dur"] <= open_until[-1] + 2e-3
            open_until.append(bar["ts"] + bar["dur"])
