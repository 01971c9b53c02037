"""The engine model in closed form: one instruction, chains, overlap, bandwidth, software rings, space."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax.hazards import Regions
from nkijax.machine import TRN1, TRN2, Engine, Memory, Transfer
from nkijax.program import Instruction
from nkijax.schedule import LOADS, ON_CHIP, SOFTWARE, STORES, Claims, Job, Timing, job, simulate
from tests.by_hand import Accumulate, Contract, Copy, Hand, Op

V, S, T, G = Engine.vector, Engine.scalar, Engine.tensor, Engine.gpsimd
SEM = 0.03
V_GHZ, S_GHZ, T_GHZ = 1.12e3, 1.4e3, 2.8e3  # cycles per us on trn1
MIB = 2**20


def engine_us(cycles: float, engine: Engine) -> float:
    return cycles / TRN1.ghz(engine) / 1e3


def run(hand: Hand, *instructions: Instruction, claims: Claims | None = None) -> Timing:
    regions = Regions()
    jobs = [job(i, hand.target, regions) for i in instructions]
    claims = claims or Claims(dict.fromkeys(ON_CHIP, 1 << 40))
    return simulate(jobs, [0] * len(jobs), regions, 0, claims, hand.target)


def test_one_instruction():
    hand = Hand()
    x = hand.buffer((128, 2048))
    t = run(hand, hand.work(x, [], V))
    assert t.issue_us == [0]
    assert t.free_us == [pytest.approx(2048 / V_GHZ)]
    assert t.us == t.done_us[0] == pytest.approx((2048 + 161) / V_GHZ + SEM)


def test_nothing():
    assert run(Hand()).us == 0


def test_a_chain_waits_for_tokens_and_independent_work_does_not():
    hand = Hand()
    a, b, c = (hand.buffer((128, 512)) for _ in range(3))
    chain = run(hand, hand.work(a, [], S), hand.work(b, [a], S), hand.work(c, [b], V))
    step = (512 + 222) / S_GHZ + SEM
    assert chain.issue_us == pytest.approx([0, step, 2 * step])
    free = run(hand, hand.work(a, [], S), hand.work(b, [], S), hand.work(c, [], S))
    assert free.issue_us == pytest.approx([0, 512 / S_GHZ, 1024 / S_GHZ])


def test_two_engines_overlap():
    hand = Hand()
    a, b = hand.buffer((128, 512)), hand.buffer((128, 2048))
    t = run(hand, hand.work(a, [], S), hand.work(b, [], V))
    assert t.issue_us == [0, 0] and t.us == t.done_us[1]


def test_an_engine_completes_in_order():
    hand = Hand()
    a, b = hand.buffer((128, 512)), hand.buffer((128, 512))
    t = run(hand, Op((a,), (), V, 100, 5000), Op((b,), (), V, 100, 0))
    assert t.done_us[1] == t.done_us[0]


def test_war_and_waw_wait_across_engines_and_not_within_one():
    hand = Hand()
    a, b = hand.buffer((128, 2048)), hand.buffer((128, 2048))
    slow = (2048 + 161) / V_GHZ + SEM
    assert run(hand, hand.work(b, [a], V), hand.work(a, [], S)).issue_us[1] == pytest.approx(slow)
    assert run(hand, hand.work(a, [], V), hand.work(a, [], S)).issue_us[1] == pytest.approx(slow)
    assert run(hand, hand.work(b, [a], V), hand.work(a, [], V)).issue_us[1] == pytest.approx(2048 / V_GHZ)


@pytest.mark.parametrize("add", [Accumulate, lambda psum, x: Contract(psum, x, psum.slice(0, 0, 128))])
def test_accumulation_runs_back_to_back_and_its_reader_waits_for_the_last(add):
    hand = Hand()
    psum, x, y = hand.buffer((128, 512), Memory.psum), hand.buffer((128, 512)), hand.buffer((128, 512))
    t = run(hand, *(add(psum, x) for _ in range(4)), hand.work(y, [psum], V))
    assert t.issue_us[:4] == pytest.approx([k * 512 / T_GHZ for k in range(4)])
    assert t.issue_us[4] == t.done_us[3] == pytest.approx((4 * 512 + 400) / T_GHZ + SEM)


def test_parts_of_a_tile_are_independent():
    hand = Hand()
    a, b = hand.buffer((128, 1024)), hand.buffer((128, 512))
    left, right = a.slice(1, 0, 512), a.slice(1, 512, 1024)
    assert run(hand, hand.work(left, [], V), hand.work(b, [right], S)).issue_us[1] == 0
    assert run(hand, hand.work(left, [], V), hand.work(b, [a], S, free=512)).issue_us[1] > 0


def static_us(size_bytes: int) -> float:
    return 0.35 + 1.0 + size_bytes / 278.7e3 + 0.32


def test_a_static_load():
    hand = Hand()
    x, t = hand.hbm(128, 2048), hand.buffer((128, 2048))
    timing = run(hand, Copy(t, x))
    assert timing.us == pytest.approx(static_us(MIB))
    assert timing.free_us == [0.35] and timing.flow_us[0] == pytest.approx((1.35, 1.35 + MIB / 278.7e3))


def test_who_triggers_what():
    hand = Hand()
    x, t, r = hand.hbm(512, 64), hand.buffer((128, 64)), hand.register()

    def of(copy):
        made = job(copy, TRN1, Regions())
        return made.engine, made.lane, made.hbm_read_bytes, made.hbm_written_bytes

    size = 128 * 64 * 4
    assert of(Copy(t, x.slice(0, 0, 128))) == (Engine.sync, LOADS, size, 0)
    assert of(Copy(x.slice(0, 0, 128), t)) == (G, STORES, 0, size)
    assert of(Copy(x.slice(0, 0, 128), x.slice(0, 128, 256))) == (G, STORES, size, size)
    assert of(Copy(t, x.shifted(0, r, 128))) == (G, SOFTWARE, size, 0)
    assert of(Copy(x.shifted(0, r, 128), t)) == (G, SOFTWARE, 0, size)


def test_rings_share_the_bandwidth_and_are_first_in_first_out():
    hand = Hand()
    x, out = hand.hbm(384, 2048), hand.hbm(128, 2048)
    a, b, y = (hand.buffer((128, 2048)) for _ in range(3))
    flow = MIB / 278.7e3
    pair = run(hand, Copy(a, x.slice(0, 0, 128)), Copy(out, y))
    # The store may start its issue interval, 0.35 us, after the load; both then go at half speed.
    assert pair.flow_us[0] == pytest.approx((1.35, 1.35 + 2 * flow - 0.35))
    assert pair.flow_us[1] == pytest.approx((1.70, 1.35 + 2 * flow))
    line = run(hand, Copy(a, x.slice(0, 0, 128)), Copy(b, x.slice(0, 128, 256)))
    assert line.flow_us[1] == pytest.approx((1.35 + flow, 1.35 + 2 * flow))


def test_small_rows_take_longer():
    hand = Hand()
    x, t = hand.hbm(128, 2048), hand.buffer((128, 2048))
    assert run(hand, Copy(t, x, row_bytes=1024)).us == pytest.approx(1.67 + MIB / 103.5e3)


@pytest.mark.parametrize("target, interval", [(TRN1, 0.35), (TRN2, 0.60)])
def test_small_dmas_are_an_issue_interval_apart(target, interval):
    hand = Hand(target)
    x, out, t = hand.hbm(128, 1), hand.hbm(128, 1), hand.buffer((128, 1))
    copies = [Copy(hand.buffer((128, 1)), x) if k % 2 else Copy(out, t) for k in range(40)]
    starts = sorted(first for first, _ in run(hand, *copies).flow_us.values())
    assert [b - a for a, b in zip(starts, starts[1:], strict=False)] == pytest.approx([interval] * 39)


def software(hand: Hand, tiles: int) -> list[Instruction]:
    """Load, work, store of `tiles` tiles at one run-time index."""
    shape, body = (8, tiles * 128, 512), []
    x, out = (hand.hbm(shape[0] * shape[1], 512).reshape(shape).select(0, hand.register()) for _ in range(2))
    for k in range(tiles):
        t, y = hand.buffer((128, 512)), hand.buffer((128, 512))
        rows = (128 * k, 128 * k + 128)
        body += [
            Copy(t, x.slice(0, *rows), name=f"L{k}"),
            hand.work(y, [t], V),
            Copy(out.slice(0, *rows), y, name=f"S{k}"),
        ]
    return body


def order(instructions: list[Instruction], timing: Timing) -> list[str]:
    """The DMAs in the order in which they were issued."""
    issued = sorted((timing.issue_us[k], i.name or "") for k, i in enumerate(instructions) if isinstance(i, Copy))
    return [name for _, name in issued]


def test_a_software_load():
    hand = Hand()
    t = run(hand, software(hand, 1)[0])
    assert t.free_us == [0.87] and t.us == pytest.approx(0.87 + 0.65 + 128 * 512 * 4 / 278.7e3 + 0.32)


def test_a_software_load_goes_ahead_of_one_store():
    hand = Hand()
    body = software(hand, 3)
    assert order(body, run(hand, *body)) == ["L0", "L1", "S0", "L2", "S1", "S2"]


def test_two_loads_a_tile_both_go_ahead():
    hand = Hand()
    w = hand.hbm(8, 128, 512).select(0, hand.register())
    body = software(hand, 2)
    body.insert(4, Copy(hand.buffer((128, 512)), w, name="L1b"))
    assert order(body, run(hand, *body)) == ["L0", "L1", "L1b", "S0", "S1"]


def test_a_load_of_what_the_store_wrote_stays_behind():
    hand = Hand()
    x, i = hand.hbm(1024, 512), hand.register()
    t, y = hand.buffer((128, 512)), hand.buffer((128, 512))
    body = [Copy(x.shifted(0, i, 128), y, name="S"), Copy(t, x.shifted(0, i, 128), name="L")]
    timing = run(hand, *body)
    assert order(body, timing) == ["S", "L"] and timing.issue_us[1] == timing.done_us[0]


def test_a_load_into_the_tile_that_the_store_reads_stays_behind():
    hand = Hand()
    x, out, i, y = hand.hbm(1024, 512), hand.hbm(1024, 512), hand.register(), hand.buffer((128, 512))
    body = [Copy(out.shifted(0, i, 128), y, name="S"), Copy(y, x.shifted(0, i, 128), name="L")]
    timing = run(hand, *body)
    assert order(body, timing) == ["S", "L"] and timing.issue_us[1] == 0.87  # the ring itself keeps this order


def test_a_load_stays_behind_what_another_engine_puts_after_the_store():
    """S, then scalar work that waits for S, then scalar work whose result the load needs: no deadlock."""
    hand = Hand()
    x, out, i, j = hand.hbm(1024, 512), hand.hbm(1024, 512), hand.register(), hand.register()
    t, y, index = hand.buffer((128, 512)), hand.buffer((128, 512)), hand.buffer((1, 1), dtype="int32")
    body = [
        Copy(out.shifted(0, i, 128), y, name="S"),
        hand.work(y, [], S),  # WAR
        hand.work(index, [], S),
        hand.register_load(j, index),
        Copy(t, x.shifted(0, j, 128), name="L"),
    ]
    assert order(body, run(hand, *body)) == ["S", "L"]


def test_gpsimd_work_is_not_passed():
    hand = Hand()
    body = software(hand, 2)
    assert order(body, run(hand, *body)) == ["L0", "L1", "S0", "S1"]
    body.insert(3, hand.work(hand.buffer((128, 64)), [], G))
    assert order(body, run(hand, *body)) == ["L0", "S0", "L1", "S1"]


def test_a_run_time_address_waits_for_its_register():
    hand = Hand()
    x, t, r, n = hand.hbm(512, 64), hand.buffer((128, 64)), hand.register(), hand.buffer((1, 1), dtype="int32")
    timing = run(hand, hand.work(n, [], V), hand.register_load(r, n), Copy(t, x.shifted(0, r, 128)))
    small = (64 + 161) / V_GHZ + SEM
    assert timing.issue_us == pytest.approx([0, small, small + 0.068 + SEM])


def claims(hand: Hand, free_bytes: int, *lives: tuple[int, int]) -> Claims:
    born, dead = {}, {}
    for buffer, (first, last) in zip(hand.buffers, lives, strict=True):
        born.setdefault(first, []).append((buffer, 0))
        dead.setdefault(last, []).append((buffer, 0))
    return Claims({Memory.sbuf: free_bytes, Memory.psum: 16384}, born, dead)


def test_a_first_write_waits_for_space():
    hand = Hand()
    a, b, c = (hand.buffer((128, 512)) for _ in range(3))  # 2 KiB each
    body = [hand.work(a, [], V), hand.work(b, [a], V), hand.work(c, [], S)]
    lives = (0, 1), (1, 1), (2, 2)
    roomy = run(hand, *body, claims=claims(hand, 6144, *lives))
    tight = run(hand, *body, claims=claims(hand, 4096, *lives))
    assert roomy.issue_us[2] == 0
    assert tight.issue_us[2] == tight.done_us[1]


def test_what_cannot_fit_does_not_wait():
    hand = Hand()
    a, b, c = (hand.buffer((128, 512)) for _ in range(3))
    body = [hand.work(a, [], V), hand.work(b, [a], V), hand.work(c, [a, b], V)]
    tight = run(hand, *body, claims=claims(hand, 1000, (0, 2), (1, 2), (2, 2)))
    assert tight.issue_us == run(hand, *body).issue_us


@st.composite
def bodies(draw) -> tuple[Hand, list[Instruction]]:
    """Random instructions over few buffers, so that almost all depend on one another."""
    hand = Hand(draw(st.sampled_from([TRN1, TRN2])))
    tiles = [hand.buffer((128, 64), memory) for memory in (Memory.sbuf,) * 4 + (Memory.psum,)]
    hbm = [hand.hbm(512, 64) for _ in range(2)]
    registers = [hand.register() for _ in range(2)]
    tile, register = st.sampled_from(tiles), st.sampled_from(registers)

    def part(view):
        start = draw(st.sampled_from([0, 32]))
        return view.slice(1, start, start + 32) if draw(st.booleans()) else view

    def far(size):
        view = draw(st.sampled_from(hbm))
        return view.shifted(0, draw(register), size) if draw(st.booleans()) else view.slice(0, 128, 128 + size)

    body: list[Instruction] = []
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["work", "work", "add", "load", "load", "store", "store", "register"]))
        if kind == "work":
            body.append(hand.work(part(draw(tile)), [part(draw(tile))], draw(st.sampled_from([V, S, G]))))
        elif kind == "add":
            body.append(Accumulate(tiles[4], draw(tile)))
        elif kind == "load":
            body.append(Copy(draw(tile), far(128)))
        elif kind == "store":
            body.append(Copy(far(128), draw(tile)))
        else:
            body.append(hand.register_load(draw(register), draw(tile).slice(0, 0, 1).slice(1, 0, 1)))
    return hand, body


@settings(max_examples=120, deadline=None)
@given(bodies(), st.sampled_from([0, 500, 1 << 20]))
def test_never_a_deadlock_and_always_in_order(case, free_bytes):
    hand, body = case
    regions = Regions()
    jobs = [job(i, hand.target, regions) for i in body]
    lives: dict = {}
    for k, made in enumerate(jobs):
        for buffer in made.buffers:
            lives[buffer] = (lives[buffer][0] if buffer in lives else k, k)
    born, dead = {}, {}
    for buffer, (first, last) in lives.items():
        born.setdefault(first, []).append((buffer, 0))
        dead.setdefault(last, []).append((buffer, 0))
    timing = simulate(
        jobs, [0] * len(jobs), regions, 0, Claims(dict.fromkeys(ON_CHIP, free_bytes), born, dead), hand.target
    )
    check(jobs, timing)


def check(jobs: list[Job], timing: Timing) -> None:
    assert all(done > 0 for done in timing.done_us)  # each has run
    assert set(timing.flow_us) == {k for k, made in enumerate(jobs) if made.is_dma}
    for engine in Engine:  # one at a time
        spans = sorted((timing.issue_us[k], timing.free_us[k]) for k, made in enumerate(jobs) if made.engine is engine)
        assert all(a[1] <= b[0] + 1e-9 for a, b in zip(spans, spans[1:], strict=False))
    for k, made in enumerate(jobs):  # a value is there before it is read
        writers = [
            j
            for j in range(k)
            for w in jobs[j].writes
            for r in made.reads
            if w.region is r.region and not w.region.dynamic
        ]
        assert all(timing.done_us[j] <= timing.issue_us[k] + 1e-9 for j in writers)
    flowing = sum(made.flow_us for made in jobs)
    assert timing.us >= flowing - 1e-9


def test_the_payload_is_what_the_instruction_says():
    hand = Hand()
    copy = Copy(hand.buffer((128, 64)), hand.hbm(128, 64))
    assert copy.cycles(TRN1) == Transfer(32768, 8192)
    assert job(copy, TRN1, Regions()).bytes == 32768


def test_an_edge_is_waited_for_like_data():
    hand = Hand()
    a, b, c = (hand.work(hand.buffer((128, 512)), [], e) for e in (V, S, V))
    regions = Regions()
    jobs = [job(i, hand.target, regions) for i in (a, b, c)]
    claims = Claims(dict.fromkeys(ON_CHIP, 1 << 40))
    free = simulate(jobs, [0] * 3, regions, 0, claims, hand.target)
    bound = simulate(jobs, [0] * 3, regions, 0, claims, hand.target, {id(b): [id(a)], id(c): [id(b)]})
    assert free.issue_us[1] == 0 and bound.issue_us[1:] == [free.done_us[0], bound.done_us[1]]
    assert bound.done_us[1] == pytest.approx(free.done_us[0] + (512 + 222) / S_GHZ + SEM)
