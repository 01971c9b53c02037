"""What a program costs on a NeuronCore: above all what each dynamic loop costs, whose iterations never overlap.

Every number comes from a model of the engines (`nkijax.schedule`) with the facts of the target (`nkijax.machine`);
nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nkijax.machine import Engine, Memory, Target
from nkijax.program import Program, instructions
from nkijax.schedule import partition_bytes
from nkijax.timeline import LoopRun, Model, Stretch, Timed
from nkijax.view import Buffer

UNROLLS = (2, 4, 8)
UNROLL_LIMIT = 20_000  # instructions of an unrolled body beyond which unrolling further is not tried
LARGEST = 4  # tensors that are named at a peak


@dataclass(frozen=True)
class Unrolled:
    """What a dynamic loop would cost with `copies` iterations in one body: us a (former) iteration, and in all."""

    copies: int
    us_per_iteration: float
    total_us: float


@dataclass(frozen=True)
class LoopCost:
    """One dynamic loop, all its visits together; us of one iteration is fill + steady + drain + barrier.

    `fill_us` passes before the first compute instruction starts, `drain_us` after the last one's result.
    `outer` is the site of the dynamic loop around it ("" for none), whose time includes this one's.
    """

    site: str
    trips: int
    us_per_iteration: float
    fill_us: float
    steady_us: float
    drain_us: float
    barrier_us: float
    total_us: float
    unrolled: tuple[Unrolled, ...]
    outer: str = ""

    def __str__(self) -> str:
        name = f"{self.site}, inside {self.outer}" if self.outer else self.site
        lines = [
            f"loop {name}: {self.trips:,} trips x {self.us_per_iteration:.2f} us = {self.total_us:,.1f} us",
            f"  an iteration: fill {self.fill_us:.2f} + steady {self.steady_us:.2f} + drain {self.drain_us:.2f}"
            f" + barrier {self.barrier_us:.2f} us; no iteration overlaps the next",
        ]
        for u in self.unrolled if self.trips else ():
            gain = self.us_per_iteration / u.us_per_iteration if u.us_per_iteration else 1.0
            lines.append(
                f"  {u.copies} iterations a body: {u.us_per_iteration:.2f} us each, {u.total_us:,.1f} us in all"
                f" ({gain:.2f}x as fast)"
            )
        return "\n".join(lines)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1024:,.4g} KiB" if size_bytes >= 1024 else f"{size_bytes} B"


@dataclass(frozen=True)
class Occupancy:
    """The most bytes of a partition of a memory in use at once, of how many, and its largest (name, bytes)."""

    peak_bytes: int
    capacity_bytes: int
    largest: tuple[tuple[str, int], ...]

    @property
    def over_bytes(self) -> int:
        """What does not fit; the times then pretend that it did."""
        return max(0, self.peak_bytes - self.capacity_bytes)

    def __str__(self) -> str:
        names = ", ".join(f"{name} {_size(size)}" for name, size in self.largest)
        text = f"peak {_size(self.peak_bytes)} of {_size(self.capacity_bytes)} a partition"
        text += f" ({names})" if names else ""
        return f"{text}; DOES NOT FIT, {self.over_bytes:,} bytes too many" if self.over_bytes else text


@dataclass(frozen=True)
class Cost:
    """What one run of a kernel costs.  Times in us; `total_us` is static + loops (outermost) + fixed.

    `busy_us` is how long each engine is taken; of `dma` how long bytes flow.  `instructions` counts executions.
    """

    target: Target
    total_us: float
    static_us: float
    fixed_us: float
    loops: tuple[LoopCost, ...]
    busy_us: dict[str, float]
    instructions: int
    dma_instructions: int
    dma_bytes: int
    hbm_read_bytes: int
    hbm_written_bytes: int
    sbuf: Occupancy
    psum: Occupancy
    cores: int = 1

    def to_json(self) -> dict:
        """The fields as plain data, ready for `json.dump`, with the target's name."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        out["target"] = self.target.name
        out["loops"] = [{**vars(loop), "unrolled": [vars(u) for u in loop.unrolled]} for loop in self.loops]
        out["sbuf"], out["psum"] = vars(self.sbuf), vars(self.psum)
        return out

    def __str__(self) -> str:
        loops_us = max(0.0, self.total_us - self.static_us - self.fixed_us)
        lines = [
            f"{self.total_us:,.1f} us on {self.target.name}: {loops_us:,.1f} in dynamic loops,"
            f" {self.static_us:,.1f} outside, {self.fixed_us:,.1f} fixed"
            + (f"; {self.cores} cores side by side, counts of the busier one" if self.cores > 1 else "")
        ]
        lines += ["  " + line for loop in self.loops for line in str(loop).splitlines()]
        share = 100 / self.total_us if self.total_us else 0.0
        engines = sorted(self.busy_us.items(), key=lambda item: -item[1])
        busy = ", ".join(f"{name} {us:,.1f} us ({us * share:.0f} %)" for name, us in engines if us)
        lines.append(f"  busy: {busy or 'nothing'}")
        rate = (self.hbm_read_bytes + self.hbm_written_bytes) / self.total_us / 1e3 if self.total_us else 0.0
        lines.append(
            f"  HBM: {self.hbm_read_bytes / 2**20:,.2f} MiB read, {self.hbm_written_bytes / 2**20:,.2f} written,"
            f" {rate:.1f} GB/s; {self.instructions:,} instructions, {self.dma_instructions:,} of them DMA"
        )
        lines += [f"  SBUF: {self.sbuf}", f"  PSUM: {self.psum}"]
        barrier = self.target.facts["barrier_us"]
        if self.loops and barrier.status != "documented":
            lines.append(f"  The barrier of {barrier.value:g} us is {barrier.status} ({barrier.source}).")
        return "\n".join(lines)


class _Tally:
    """Counts over everything that one core executes, named as in `Cost`."""

    def __init__(self, core: int) -> None:
        self.core = core
        self.busy_us = {e.name: 0.0 for e in Engine if e is not Engine.unknown}
        self.instructions = self.dma_instructions = 0
        self.dma_bytes = self.hbm_read_bytes = self.hbm_written_bytes = 0

    @property
    def counts(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "core"}

    def add(self, timed: Timed, times: int) -> None:
        for _, piece in timed.pieces:
            if isinstance(piece, Stretch):
                self._add_stretch(piece, times)
            else:
                self.add(piece.body, piece.total_trips)

    def _add_stretch(self, stretch: Stretch, times: int) -> None:
        jobs = [job for job in stretch.jobs if job.core == self.core]
        for job in jobs:
            self.busy_us[job.engine.name] += times * job.hold_us
            self.busy_us[Engine.dma.name] += times * job.flow_us
            self.dma_instructions += times * job.is_dma
            self.dma_bytes += times * job.bytes
            self.hbm_read_bytes += times * job.hbm_read_bytes
            self.hbm_written_bytes += times * job.hbm_written_bytes
        self.instructions += times * len(jobs)


def cost(program: Program, trips: Sequence[int]) -> Cost:
    """What an unrolled program costs, when dynamic loop `ident` turned `trips[ident]` times in the whole run.

    Of several cores, the counts are those of the busiest one.
    """
    model = Model(program, trips)
    target = program.target
    main = model.main
    tallies = [_Tally(core) for core in range(program.cores)]
    for tally in tallies:
        tally.add(main, 1)
    busiest = max(tallies, key=lambda tally: sum(tally.counts["busy_us"].values()))
    fixed_us = target.value("fixed_us")
    return Cost(
        target=target,
        total_us=main.us + fixed_us,
        static_us=sum(piece.us for _, piece in main.pieces if isinstance(piece, Stretch)),
        fixed_us=fixed_us,
        loops=_loops(model),
        sbuf=_occupancy(main, Memory.sbuf, target.sbuf_partition_bytes),
        psum=_occupancy(main, Memory.psum, target.psum_partition_bytes),
        cores=program.cores,
        **busiest.counts,
    )


def _occupancy(timed: Timed, memory: Memory, capacity_bytes: int) -> Occupancy:
    peak = timed.peaks[memory]
    largest = sorted(peak.buffers, key=partition_bytes, reverse=True)[:LARGEST]
    return Occupancy(peak.bytes, capacity_bytes, tuple((_name(b), partition_bytes(b)) for b in largest))


def _name(buffer: Buffer) -> str:
    return buffer.name or f"{buffer.memory.value}{buffer.index}"


def _runs(timed: Timed, outer: str = "") -> Iterator[tuple[LoopRun, str]]:
    """Every dynamic loop in program order, with the site of the one around it."""
    for _, piece in timed.pieces:
        if isinstance(piece, LoopRun):
            yield piece, outer
            yield from _runs(piece.body, piece.loop.site)


def _loops(model: Model) -> tuple[LoopCost, ...]:
    sites: dict[str, list[tuple[LoopRun, str]]] = {}
    for run, outer in _runs(model.main):
        sites.setdefault(run.loop.site, []).append((run, outer))
    return tuple(_loop_cost(model, site, [run for run, _ in of], of[0][1]) for site, of in sites.items())


def _loop_cost(model: Model, site: str, runs: Sequence[LoopRun], outer: str) -> LoopCost:
    """The loops of one site together: averages weighted by trips.  Unrolling is tried on the busiest of them."""
    trips = sum(run.total_trips for run in runs)

    def mean(of: Sequence[float]) -> float:
        if not trips:
            return sum(of) / len(of)
        return sum(x * run.total_trips for x, run in zip(of, runs, strict=True)) / trips

    spans = [run.body.busy() or (0.0, run.body.us) for run in runs]
    fill, drain = mean([a for a, _ in spans]), mean([r.body.us - b for r, (_, b) in zip(runs, spans, strict=True)])
    barrier_us = runs[0].barrier_us
    body = mean([run.body.us for run in runs])
    us = body + barrier_us
    busiest = max(runs, key=lambda run: run.total_trips)
    size = sum(1 for _ in instructions(busiest.loop.body))
    unrolled = []
    for copies in UNROLLS:
        if copies * size <= UNROLL_LIMIT:
            each = model.unrolled_us(busiest, copies) / copies
            unrolled.append(Unrolled(copies, each, trips * each))
    steady = body - fill - drain
    return LoopCost(site, trips, us, fill, steady, drain, barrier_us, trips * us, tuple(unrolled), outer)
