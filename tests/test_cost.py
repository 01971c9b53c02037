"""Cost: the published measurements that the model must reproduce, the split of an iteration, sums, and the report."""

import json

import pytest

from nkijax.cost import UNROLLS, Cost, cost
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory
from nkijax.program import Program
from tests.by_hand import Accumulate, Copy, Hand, dynamic, tile, unrolled
from tests.test_timeline import BARRIER, nested, work_us

V = Engine.vector
MIB = 2**20

# ---- calibration: aws-neuron-sdk issue 1411, trn1, 64 tiles [128, 2048] float32


@pytest.mark.parametrize(
    "program, trips, measured_us, tolerance",
    [
        (unrolled(64), (), 483, 0.03),
        (dynamic(), (64,), 1147, 0.03),
        (dynamic(tiles=4), (16,), 653, 0.08),
        (dynamic(), (16,), 16 * 17.90, 0.03),
        (dynamic(counter=True), (16,), 16 * 18.27, 0.05),
    ],
    ids=["range", "fori_loop", "four tiles", "16 iterations", "while_loop"],
)
def test_published_measurements(program: Program, trips, measured_us: float, tolerance: float):
    assert cost(program, trips).total_us == pytest.approx(measured_us, rel=tolerance)


def test_while_costs_a_little_more_than_for():
    extra = cost(dynamic(counter=True), (1,)).total_us - cost(dynamic(), (1,)).total_us
    assert extra == pytest.approx(18.27 - 17.92, abs=0.1)


# ---- held-out measurements on other kernels


@pytest.mark.parametrize("tiles, columns, measured_us", [(200, 1, 378), (100, 2, 186)])
def test_vector_add_on_trn2_is_bound_by_its_dma_count(tiles: int, columns: int, measured_us: float):
    """c = a + b in 600 or 300 small DMAs.  Source: github.com/xaviergonzalez/asst4-trainium2."""
    hand = Hand(TRN2)
    a, b, c = (hand.hbm(tiles * 128, columns) for _ in range(3))
    body = []
    for k in range(tiles):
        rows, (x, y, z) = (128 * k, 128 * k + 128), (hand.buffer((128, columns)) for _ in range(3))
        body += [Copy(x, a.slice(0, *rows)), Copy(y, b.slice(0, *rows)), hand.work(z, [x, y], V)]
        body.append(Copy(c.slice(0, *rows), z))
    assert cost(hand.program(*body), ()).total_us == pytest.approx(measured_us, rel=0.05)


def test_small_rows_bind_the_first_matmuls_of_the_trn1_tutorial():
    """The kernel with hoisted loads moves 4.43 GB, in rows of 1 KiB, in 42.96 ms."""
    hand = Hand()
    x = hand.hbm(128, 4096)
    loads = [Copy(hand.buffer((128, 512), dtype="bfloat16"), x.slice(1, 0, 512).reinterpret("bfloat16"), 1024)]
    size = loads[0].cycles(TRN1).bytes
    found = cost(hand.program(*loads * 500), ()).total_us
    assert found == pytest.approx(size * 500 / 4.43e9 * 42.96e3, rel=0.01)


def test_a_matmul_on_trn2_keeps_the_tensor_engine_busy():
    """Published: 28.16 ms busy of 28.30."""
    hand = Hand(TRN2)
    x, body = hand.buffer((128, 512)), []
    for _ in range(40):
        psum, y = hand.buffer((128, 512), Memory.psum), hand.buffer((128, 512))
        body += [Accumulate(psum, x) for _ in range(16)] + [hand.work(y, [psum], V)]
    found = cost(hand.program(*body), ())
    assert found.busy_us["tensor"] / found.static_us > 0.99


# ---- an iteration


def test_the_split_of_an_iteration():
    (loop,) = cost(dynamic(), (64,)).loops
    dma = 0.87 + 0.65 + MIB / 278.7e3 + 0.32
    compute = (2048 + 222) / 1.4e3 + 0.03 + (2048 + 161) / 1.12e3 + 0.03
    assert (loop.fill_us, loop.steady_us, loop.drain_us) == pytest.approx((dma, compute, dma))
    assert loop.barrier_us == BARRIER
    assert loop.us_per_iteration == pytest.approx(2 * dma + compute + BARRIER)
    assert (loop.site, loop.trips, loop.total_us) == ("kernel.py:7", 64, pytest.approx(64 * loop.us_per_iteration))


def test_unrolling_is_what_the_unrolled_kernel_costs():
    (loop,) = cost(dynamic(), (64,)).loops
    assert [u.copies for u in loop.unrolled] == list(UNROLLS)
    for u in loop.unrolled:
        by_hand = cost(dynamic(tiles=u.copies), (64 // u.copies,))
        assert u.total_us == pytest.approx(by_hand.total_us)
        assert u.us_per_iteration == pytest.approx(by_hand.total_us / 64)


def test_unrolling_a_while_loop_helps_as_much():
    (counted,), (plain,) = cost(dynamic(counter=True), (64,)).loops, cost(dynamic(), (64,)).loops
    assert counted.unrolled[1].us_per_iteration == pytest.approx(plain.unrolled[1].us_per_iteration, rel=0.02)


def test_a_body_without_compute_is_all_steady():
    hand = Hand()
    body = [Copy(hand.buffer((128, 64), depth=1), hand.hbm(128, 64))]
    (loop,) = cost(hand.program(hand.loop(body)), (3,)).loops
    assert (loop.fill_us, loop.drain_us) == (0, 0) and loop.steady_us == pytest.approx(1.67 + 32768 / 278.7e3)


# ---- sums


def test_total_is_static_and_outermost_loops_and_fixed():
    program, trips = nested(outer=10, inner=30)
    found = cost(program, trips)
    outer, inner = found.loops
    assert (outer.site, outer.trips, outer.outer) == ("k.py:1", 10, "")
    assert (inner.site, inner.trips, inner.outer) == ("k.py:2", 30, "k.py:1")
    assert inner.total_us == pytest.approx(30 * (work_us(2048) + BARRIER))
    assert outer.total_us == pytest.approx(10 * (2 * work_us(1024) + BARRIER) + inner.total_us)
    assert found.static_us == pytest.approx(2 * work_us(512))
    assert found.total_us == pytest.approx(found.static_us + outer.total_us + found.fixed_us)


@pytest.mark.parametrize("target, fixed_us", [(TRN1, 0), (TRN2, 9.4), (TRN3, 9.4)])
def test_fixed_time(target, fixed_us):
    found = cost(Hand(target).program(), ())
    assert found.total_us == found.fixed_us == fixed_us
    assert found.instructions == 0 and found.loops == ()


def test_zero_trips_cost_nothing_and_are_reported():
    found = cost(dynamic(), (0,))
    assert found.total_us == 0 and found.instructions == 0 and found.dma_bytes == 0
    assert found.loops[0].trips == 0 and found.loops[0].us_per_iteration == pytest.approx(17.92, abs=0.01)
    assert "0 trips" in str(found)


def test_counts_are_of_executions():
    program, trips = nested(outer=10, inner=30)
    found = cost(program, trips)
    assert found.instructions == 2 + 2 * 10 + 30
    assert found.busy_us["vector"] == pytest.approx((2 * 512 + 2 * 10 * 1024 + 30 * 2048) / 1.12e3)
    moved = cost(dynamic(), (64,))
    assert (moved.instructions, moved.dma_instructions) == (256, 128)
    assert moved.hbm_read_bytes == moved.hbm_written_bytes == 64 * MIB and moved.dma_bytes == 128 * MIB
    assert moved.busy_us["dma"] == pytest.approx(128 * MIB / 278.7e3)
    assert moved.busy_us["gpsimd"] == pytest.approx(128 * 0.87)


def test_loops_of_one_site_are_one_row():
    hand = Hand()

    def body(free):
        return [hand.work(hand.buffer((128, free), depth=1), [], V)]

    program = hand.program(hand.loop(body(512)), hand.loop(body(1024)))
    (loop,) = cost(program, (10, 30)).loops
    assert loop.trips == 40
    assert loop.total_us == pytest.approx(10 * work_us(512) + 30 * work_us(1024) + 40 * BARRIER)
    assert loop.us_per_iteration == pytest.approx(loop.total_us / 40)


def test_occupancy():
    hand = Hand()
    x, out = hand.hbm(128, 2048), hand.hbm(128, 2048)
    found = cost(hand.program(*tile(hand, x, out)), ())
    assert (found.sbuf.peak_bytes, found.sbuf.capacity_bytes, found.sbuf.over_bytes) == (16384, 192 * 1024, 0)
    assert found.sbuf.largest == (("t", 8192), ("e", 8192)) and found.psum.peak_bytes == 0


def test_what_does_not_fit_is_said():
    hand = Hand()
    tiles = [hand.buffer((128, 256 * 100), name=f"big{k}") for k in range(2)]
    program = hand.program(*(hand.work(t, [], V) for t in tiles), hand.work(tiles[0], tiles, V))
    found = cost(program, ())
    assert found.sbuf.over_bytes == 8 * 1024
    assert "big0 100 KiB, big1 100 KiB); DOES NOT FIT, 8,192 bytes too many" in str(found)


# ---- the report


def test_the_report_names_each_loop():
    text = str(cost(dynamic(), (64,)))
    assert text.startswith("1,146.8 us on trn1: 1,146.8 in dynamic loops, 0.0 outside, 0.0 fixed\n")
    assert "loop kernel.py:7: 64 trips x 17.92 us = 1,146.8 us" in text
    assert "fill 5.60 + steady 3.65 + drain 5.60 + barrier 3.06 us; no iteration overlaps the next" in text
    assert "4 iterations a body: 9.62 us each, 615.4 us in all (1.86x as fast)" in text
    assert "The barrier of 3.06 us is fitted" in text
    assert "loop k.py:2, inside k.py:1: 30 trips" in str(cost(*nested(10, 30)))
    assert "barrier" not in str(cost(unrolled(2), ()))


def test_json():
    found = cost(*nested(10, 30))
    data = json.loads(json.dumps(found.to_json()))
    assert data["target"] == "trn1" and data["total_us"] == found.total_us
    assert [loop["site"] for loop in data["loops"]] == ["k.py:1", "k.py:2"]
    assert data["loops"][0]["unrolled"][0]["copies"] == 2
    assert set(data) == set(Cost.__dataclass_fields__)


def test_other_facts_give_other_costs():
    free = cost(dynamic(target=TRN1.assume("free", barrier_us=0)), (64,))
    assert free.total_us == pytest.approx(cost(dynamic(), (64,)).total_us - 64 * BARRIER)
