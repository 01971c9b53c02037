"""A whole program on the engines: stretches of instructions, and dynamic loops between them.

A dynamic loop is a barrier in its surroundings, and each of its iterations starts from empty queues and ends with an
all-engine barrier: trips × (body + barrier).  A loop inside a loop has its average number of trips.
Two cores run side by side, wait for each other where they meet, and take the iterations of their loops together.
Source of the barrier: aws-neuron-sdk issue 1411.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from nkijax.cores import side_by_side
from nkijax.hazards import Regions
from nkijax.machine import Engine, Memory
from nkijax.program import EVERY_CORE, Instruction, Loop, Node, Program
from nkijax.schedule import ON_CHIP, RINGS, Claims, Job, Key, Timing, job, partition_bytes, simulate
from nkijax.view import Buffer

LOOPS = "loops"
COMPUTE = (Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd)
LANES = (LOOPS, *(e.name for e in (*COMPUTE, Engine.sync)), *RINGS)
SHOWN_TRIPS = 2  # iterations of each dynamic loop that a schedule spells out


@dataclass(frozen=True)
class Stretch:
    """Instructions without a dynamic loop between them, and their times from the start of the stretch."""

    jobs: tuple[Job, ...]
    timing: Timing

    @property
    def us(self) -> float:
        return self.timing.us

    def busy(self) -> tuple[float, float] | None:
        """From the first issue of a compute engine to the last result of one, in us.

        Where something is loaded, the first one is the first that reads it: a counter or a memset does no work yet.
        """
        at = [k for k, made in enumerate(self.jobs) if made.engine in COMPUTE and not made.is_dma]
        if not at:
            return None
        loaded = {access.region.buffer for made in self.jobs if made.is_dma for access in made.writes}
        fed = [k for k in at if any(access.region.buffer in loaded for access in self.jobs[k].reads)]
        return min(self.timing.issue_us[k] for k in fed or at), max(self.timing.done_us[k] for k in at)


@dataclass(frozen=True)
class LoopRun:
    """A dynamic loop: `trips` each time that it is reached (on average), `total_trips` in the whole run.

    `depth` dynamic loops are open in its body; the buffers `outside` stay alive around it.
    """

    loop: Loop
    depth: int
    trips: float
    total_trips: int
    body: Timed
    barrier_us: float
    outside: tuple[Buffer, ...]

    @property
    def us(self) -> float:
        return self.trips * (self.body.us + self.barrier_us)

    def busy(self) -> tuple[float, float] | None:
        return (0.0, self.us) if self.us else None


@dataclass(frozen=True)
class Peak:
    """The most bytes of a partition that are alive at once, and the buffers that they are."""

    bytes: int
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class Timed:
    """A list of nodes with its times: each piece and its start in us, and the peak of each memory on chip."""

    pieces: tuple[tuple[float, Stretch | LoopRun], ...]
    us: float
    peaks: dict[Memory, Peak]

    def busy(self) -> tuple[float, float] | None:
        """From the first issue of a compute engine (or nested loop) to the last result of one, in us."""
        spans = [(start + b[0], start + b[1]) for start, piece in self.pieces if (b := piece.busy()) is not None]
        return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else None


class Model:
    """The times of a program, given how often each dynamic loop turned in all (`trips`, by the loop's ident).

    The program must be unrolled: instructions and dynamic loops only.
    """

    def __init__(self, program: Program, trips: Sequence[int]) -> None:
        self.target = program.target
        self._cores = program.cores
        self._trips = [int(n) for n in trips]
        self._regions = Regions()
        self._jobs: dict[int, tuple[Job, ...]] = {}  # of an instruction: one of each core that executes it
        self._homes: dict[Buffer, int] = {}  # the core of a buffer on chip
        self._outer: dict[int, tuple[Buffer, ...]] = {}  # buffers on chip of a loop that are not its body's own
        self._loops: dict[int, LoopRun] = {}
        self._edges: dict[int, list[int]] = {}
        for consumer, producer in program.edges:
            self._edges.setdefault(id(consumer), []).append(id(producer))
        body = side_by_side(program.body, program.cores) if program.cores > 1 else program.body
        self._collect(body, 0)
        self.main = self._time(body, 0, 1, ())

    def _collect(self, nodes: Sequence[Node], depth: int) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                for register in (node.register, *node.registers):
                    self._regions.of(register, True)
                if not 0 <= int(node.ident) < len(self._trips):
                    raise ValueError(f"trips: no trip count for loop {int(node.ident)} at {node.site}")
                self._collect(node.body, depth + 1)
                used = (b for inner in node.body for b in self._buffers(inner) if b.depth <= depth)
                self._outer[id(node)] = tuple(dict.fromkeys(used))
            elif isinstance(node, Instruction):
                self._jobs[id(node)] = self._jobs_of(node)
            else:
                raise TypeError(f"cost: takes an unrolled program, got a {type(node).__name__}")

    def _jobs_of(self, instruction: Instruction) -> tuple[Job, ...]:
        made = job(instruction, self.target, self._regions)
        if self._cores == 1:
            return (made,)
        if instruction.core != EVERY_CORE:
            self._homes.update(dict.fromkeys(made.buffers, instruction.core))
            return (replace(made, core=instruction.core),)
        return (made, *(replace(made, core=k, reads=(), writes=(), buffers=()) for k in range(1, self._cores)))

    def _buffers(self, node: Node) -> tuple[Buffer, ...]:
        return self._outer[id(node)] if isinstance(node, Loop) else self._jobs[id(node)][0].buffers

    def unrolled_us(self, run: LoopRun, copies: int) -> float:
        """One iteration of a loop, in us, if its body held `copies` of itself before the barrier."""
        return self._time(run.loop.body, run.depth, run.total_trips, run.outside, copies).us + run.barrier_us

    def _time(
        self, nodes: Sequence[Node], depth: int, runs: int, outside: tuple[Buffer, ...], copies: int = 1
    ) -> Timed:
        """The times of `nodes`, which `depth` dynamic loops surround and which execute `runs` times in all."""
        steps = [(node, turn) for turn in range(copies) for node in nodes]
        lives = self._lives(steps, depth)
        censuses = [
            _Census(
                {key: life for key, life in lives.items() if self._homes.get(key[0], 0) == core},
                len(steps),
                [b for b in outside if self._homes.get(b, 0) == core],
            )
            for core in range(self._cores)
        ]
        pieces: list[tuple[float, Stretch | LoopRun]] = []
        now, first = 0.0, 0

        def add(piece: Stretch | LoopRun) -> None:
            nonlocal now
            pieces.append((now, piece))
            now += piece.us

        for p, (node, _) in enumerate(steps):
            if isinstance(node, Loop):
                if p > first:
                    add(self._stretch(steps[first:p], first, depth, censuses))
                add(self._loop(node, depth, runs, tuple(b for census in censuses for b in census.alive_at(p))))
                first = p + 1
        if len(steps) > first:
            add(self._stretch(steps[first:], first, depth, censuses))
        inner = [piece.body.peaks for _, piece in pieces if isinstance(piece, LoopRun)]
        peaks = {
            m: max([*(census.peak(m) for census in censuses), *(p[m] for p in inner)], key=lambda p: p.bytes)
            for m in ON_CHIP
        }
        return Timed(tuple(pieces), now, peaks)

    def _lives(self, steps: Sequence[tuple[Node, int]], depth: int) -> dict[Key, tuple[int, int]]:
        """The first and the last step of each buffer on chip that is allocated in these steps."""
        lives: dict[Key, tuple[int, int]] = {}
        for p, (node, turn) in enumerate(steps):
            for buffer in self._buffers(node):
                if buffer.depth >= depth:
                    key = (buffer, turn)
                    lives[key] = (lives[key][0] if key in lives else p, p)
        return lives

    def _stretch(
        self, steps: Sequence[tuple[Node, int]], first: int, depth: int, censuses: Sequence[_Census]
    ) -> Stretch:
        jobs: list[Job] = []
        turns: list[int] = []
        born: dict[int, list[Key]] = {}
        dead: dict[int, list[Key]] = {}
        for k, (node, turn) in enumerate(steps, first):
            for census in censuses:
                if k in census.born:
                    born.setdefault(len(jobs), []).extend(census.born[k])
                if k in census.dead:
                    dead.setdefault(len(jobs), []).extend(census.dead[k])
            jobs += self._jobs[id(node)]
            turns += [turn] * len(self._jobs[id(node)])
        capacity = {Memory.sbuf: self.target.sbuf_partition_bytes, Memory.psum: self.target.psum_partition_bytes}
        free = {m: capacity[m] - max(census.alive_bytes(m, first) for census in censuses) for m in ON_CHIP}
        claims = Claims(free, born, dead, self._homes)
        partners = _partners(jobs) if self._cores > 1 else {}
        timing = simulate(jobs, turns, self._regions, depth, claims, self.target, self._edges, partners)
        return Stretch(tuple(jobs), timing)

    def _loop(self, loop: Loop, depth: int, runs: int, outside: tuple[Buffer, ...]) -> LoopRun:
        run = self._loops.get(id(loop))
        if run is None:
            total = self._trips[int(loop.ident)]
            body = self._time(loop.body, depth + 1, total, outside)
            trips = total / runs if runs else 0.0
            run = LoopRun(loop, depth + 1, trips, total, body, self.target.value("barrier_us"), outside)
            self._loops[id(loop)] = run
        return run


def _partners(jobs: Sequence[Job]) -> dict[int, int]:
    """The jobs of two cores that start together, each with the other: neighbours, as programs are joined."""
    found: dict[int, int] = {}
    for k, (a, b) in enumerate(pairwise(jobs)):
        meets = a.instruction.meets()
        same = a.instruction is b.instruction or (meets is not None and meets == b.instruction.meets())
        if a.core != b.core and same and k not in found:
            found |= {k: k + 1, k + 1: k}
    return found


class _Census:
    """Who is alive at which step: the buffers of these steps, and those from `outside` all the time."""

    def __init__(self, lives: dict[Key, tuple[int, int]], count: int, outside: Sequence[Buffer]) -> None:
        self._lives, self._outside = lives, outside
        self.born: dict[int, list[Key]] = {}
        self.dead: dict[int, list[Key]] = {}
        change = {m: [0] * (count + 1) for m in ON_CHIP}
        for buffer in outside:
            change[buffer.memory][0] += partition_bytes(buffer)
        for key, (first, last) in lives.items():
            self.born.setdefault(first, []).append(key)
            self.dead.setdefault(last, []).append(key)
            change[key[0].memory][first] += partition_bytes(key[0])
            change[key[0].memory][last + 1] -= partition_bytes(key[0])
        self._bytes = {m: list(accumulate(change[m])) for m in ON_CHIP}

    def alive_at(self, step: int) -> tuple[Buffer, ...]:
        return (*self._outside, *(key[0] for key, (first, last) in self._lives.items() if first <= step <= last))

    def alive_bytes(self, memory: Memory, step: int) -> int:
        """Bytes of a partition that are alive when `step` starts, before its own buffers are."""
        own = sum(partition_bytes(b) for b, _ in self.born.get(step, ()) if b.memory is memory)
        return self._bytes[memory][step] - own

    def peak(self, memory: Memory) -> Peak:
        most = max(self._bytes[memory])
        at = self._bytes[memory].index(most)
        return Peak(most, tuple(b for b in self.alive_at(at) if b.memory is memory) if most else ())


@dataclass(frozen=True)
class Row:
    """One bar of the schedule.  `lane` is an engine, a DMA ring or "loops"; `done_us` is when its result is there.

    A DMA has two bars: its trigger on the engine that issues it, and its bytes in a ring.
    """

    lane: str
    name: str
    site: str
    start_us: float
    end_us: float
    done_us: float
    bytes: int = 0
    core: int = 0


def schedule(program: Program, trips: Sequence[int]) -> list[Row]:
    """The schedule of an unrolled program, sorted by start; `trips` as for `Model`.

    Of each dynamic loop the first two iterations are spelled out; one bar in the lane "loops" stands for the others.
    """
    rows: list[Row] = []
    _spell(Model(program, trips).main, 0.0, rows.append)
    return sorted(rows, key=lambda row: (row.start_us, -row.end_us))


def _spell(timed: Timed, origin: float, put: Callable[[Row], None]) -> None:
    for start, piece in timed.pieces:
        if isinstance(piece, Stretch):
            _spell_stretch(piece, origin + start, put)
        else:
            _spell_loop(piece, origin + start, put)


def _spell_loop(run: LoopRun, now: float, put: Callable[[Row], None]) -> None:
    site, end = run.loop.site, now + run.us
    shown = min(int(run.trips), SHOWN_TRIPS)
    for k in range(shown):
        body_end = now + run.body.us
        done = body_end + run.barrier_us
        put(Row(LOOPS, f"iteration {k}", site, now, done, done))
        _spell(run.body, now, put)
        put(Row(LOOPS, "barrier", site, body_end, done, done))
        now = done
    if run.trips > shown:
        put(Row(LOOPS, f"{run.trips - shown:g} more iterations", site, now, end, end))


def _spell_stretch(stretch: Stretch, origin: float, put: Callable[[Row], None]) -> None:
    timing = stretch.timing
    for k, made in enumerate(stretch.jobs):
        inst = made.instruction
        name = inst.name or type(inst).__name__
        start, end, done = origin + timing.issue_us[k], origin + timing.free_us[k], origin + timing.done_us[k]
        if made.is_dma:
            first, last = timing.flow_us[k]
            put(Row(made.engine.name, f"trigger {name}", inst.site, start, end, end, core=made.core))
            put(Row(made.lane, name, inst.site, origin + first, origin + last, done, made.bytes, made.core))
        else:
            put(Row(made.engine.name, name, inst.site, start, end, done, core=made.core))


def chrome_trace(rows: Sequence[Row]) -> dict:
    """A trace of rows for chrome://tracing or Perfetto, ready for `json.dump`; times in us, rounded to ns.

    Each core is a process.
    """
    events: list[dict] = [
        {"ph": "M", "pid": core, "tid": tid, "name": "thread_name", "args": {"name": lane}}
        for core in sorted({0, *(row.core for row in rows)})
        for tid, lane in enumerate(LANES)
    ]
    for row in rows:
        start, end = round(row.start_us, 3), round(row.end_us, 3)
        args = {"site": row.site, "done_us": round(row.done_us, 3)}
        if row.bytes:
            args["bytes"] = row.bytes
        tid, dur = LANES.index(row.lane), round(end - start, 3)
        events.append({"ph": "X", "pid": row.core, "tid": tid, "name": row.name, "ts": start, "dur": dur, "args": args})
    return {"traceEvents": events, "displayTimeUnit": "ns"}
