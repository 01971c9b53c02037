"""How each repeat runs: all turns at once, or one after another.

The turns of a repeat may run at once (*batch*) when each storage that they share is only read, or written in disjoint
places, or rewritten as a whole before it is read in every turn (*private*), or only added to by contracting
instructions (*sums*: the turns become terms of one longer contraction).  Anything else runs as a *scan*.  All tests
here work on offset tables; none knows an instruction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nkijax import dtypes
from nkijax.program import Loop, LoopLeaf, Node, Program, Repeat
from nkijax.storage import Access, Family, Layout, Path
from nkijax.tables import steps

LOOPS = ("auto", "scan", "vmap", "unroll")
BATCH_BYTES = 1 << 30  # what the locals of batched turns may take together


@dataclass(frozen=True)
class Streams:
    """What a scan need not carry: reads that become its inputs, writes that become its outputs (`families`)."""

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    families: frozenset[Family] = frozenset()


@dataclass(eq=False)
class Plan:
    """For each batched repeat, by id: the storages that are private to a turn, and those that sum over the turns.

    `varying` are those that differ from turn to turn.  For each scanned one its `streams`; for every repeat and loop
    the shared storages that are `written` below it,"""

    private: dict[int, set[Family]] = field(default_factory=dict)
    sums: dict[int, set[Family]] = field(default_factory=dict)
    streams: dict[int, Streams] = field(default_factory=dict)
    written: dict[int, set[Family]] = field(default_factory=dict)
    varying: dict[int, set[Family]] = field(default_factory=dict)
    lookups: set[int] = field(default_factory=set)

    def is_batch(self, repeat: Repeat) -> bool:
        return id(repeat) in self.private

    def is_kept(self, a: Access) -> bool:
        """Whether it reads storage that the innermost scan or loop around it leaves alone, the same in all turns."""
        for node in reversed(a.path):
            if isinstance(node, Repeat) and self.is_batch(node):
                continue
            moves = a.index is not None or isinstance(node, Repeat) and steps(a.table, axis(a, node)).any()
            return not (moves or a.family.is_local_to(node) or a.family in self.written[id(node)])
        return False


def plan(program: Program, layout: Layout, loops: str = "auto") -> Plan:
    """Decide for every repeat; `loops` is "auto", "scan" (never at once) or "vmap" (whenever possible).

    With "unroll" the program is to be the flat one, without repeats.
    """
    if loops not in LOOPS:
        raise ValueError(f"loops: must be one of {', '.join(LOOPS)}, got {loops!r}")
    out = Plan()
    _decide(program.body, layout, out, loops, ())
    return out


def _decide(nodes: Sequence[Node], layout: Layout, out: Plan, loops: str, around: tuple[Repeat, ...]) -> None:
    """Decide for the repeats among `nodes` and in them; those of `around` run at once."""
    for node in nodes:
        if not isinstance(node, Repeat | Loop | LoopLeaf):
            continue
        shared = _shared(node, layout)
        out.written[id(node)] = {f for f, accesses in shared.items() if any(a.writes for a in accesses)}
        inner = around
        if isinstance(node, Repeat) and node.counts is None and loops != "scan" and not _has_loop(node.body):
            room = BATCH_BYTES if loops == "auto" else math.inf
            found = _independent(node, shared, layout)
            if found and _bytes(node, around, layout, *found, out) <= room:
                out.private[id(node)], out.sums[id(node)] = found
                inner = (*around, node)
        _decide(node.body, layout, out, loops, inner)
        if isinstance(node, Repeat) and not out.is_batch(node):
            out.streams[id(node)] = streams = _streams(node, shared, out)
            kept = (a for f in shared.keys() - out.written[id(node)] for a in shared[f] if a not in streams.reads)
            if any(2 * a.view.size <= a.family.slots * a.view.storage_size for a in kept):
                out.lookups.add(id(node))


def _streams(repeat: Repeat, shared: dict[Family, list[Access]], out: Plan) -> Streams:
    """The accesses of a scan that move by a fixed step and lie in its own body, not in that of a loop below it."""
    reads: list[Access] = []
    writes: list[Access] = []
    for family, accesses in shared.items():
        steady = [a for a in accesses if _is_steady(a, repeat, out)]
        if not any(a.writes for a in accesses):
            room = 2 * family.slots * family.buffer.size
            reads += [a for a in steady if _turns_below(a, repeat) * a.view.size <= room]
        elif repeat.counts is None and len(steady) == len(accesses) and not any(a.reads for a in accesses):
            writes += accesses if _disjoint(repeat, accesses) else []
    return Streams(tuple(reads), tuple(writes), frozenset(a.family for a in writes))


def _is_steady(a: Access, repeat: Repeat, out: Plan) -> bool:
    below = a.path[a.path.index(repeat) + 1 :]
    if a.index is not None or not all(isinstance(n, Repeat) and out.is_batch(n) for n in below):
        return False
    skips = a.writes and not isinstance(a.owner, Loop) and a.owner.skips()
    return not skips and bool(_step(a, repeat))


def _turns_below(a: Access, repeat: Repeat) -> int:
    return math.prod(r.count for r in a.repeats[a.repeats.index(repeat) :])


def _has_loop(nodes: Sequence[Node]) -> bool:
    return any(isinstance(n, Loop | LoopLeaf) or isinstance(n, Repeat) and _has_loop(n.body) for n in nodes)


def _shared(node: Repeat | Loop | LoopLeaf, layout: Layout) -> dict[Family, list[Access]]:
    """The accesses below `node` to storage that outlives one of its turns, by storage, in program order."""
    shared: dict[Family, list[Access]] = {}
    for a in layout.inside[id(node)]:
        if not a.family.is_local_to(node):
            shared.setdefault(a.family, []).append(a)
    return shared


def _bytes(
    repeat: Repeat, around: tuple[Repeat, ...], layout: Layout, private: set[Family], sums: set[Family], out: Plan
) -> int:
    """What the turns of `repeat` and of the batched ones around it hold together.

    A storage has a copy for each turn only of those repeats whose turns differ in it; an operand of a contraction over
    the turns that is the same in all of them is repeated.
    """
    out.varying[id(repeat)] = varying = _varying(repeat, layout, private)
    batch = (*around, repeat)

    def copies(family: Family) -> int:
        return math.prod(r.count for r in batch if family in out.varying[id(r)])

    families = {a.family for a in layout.inside[id(repeat)] if a.family.is_local_to(repeat)} | private
    total = sum(copies(f) * f.slots * f.buffer.size * dtypes.size(f.buffer.dtype) for f in families)
    for a in layout.inside[id(repeat)] if sums else ():
        record = a.owner
        steady = a.reads and not _step(a, repeat) and a.family not in varying
        if steady and not isinstance(record, Loop) and a.operand in record.contracts:
            total += repeat.count * copies(a.family) * a.view.size * dtypes.size(a.view.dtype)
    return total


def _varying(repeat: Repeat, layout: Layout, private: set[Family]) -> set[Family]:
    """The storages of a turn that differ from turn to turn: what comes from moving places, and all made of it."""
    found: set[Family] = set()
    bounds = [b for b in layout.bound.values() if repeat in b.path]
    size = -1
    while size < len(found):
        size = len(found)
        for b in bounds:
            reads = [x for a in b.accesses.values() for x in ((a, a.index) if a.reads else (a.index,)) if x]
            moves = any(_step(x, repeat) or x.family in found for x in reads)
            if moves or any(steps(t, _axis(b.path, repeat)).any() for t in b.immediates.values()):
                found |= {a.family for a in b.accesses.values() if a.writes}
    return {f for f in found if f.is_local_to(repeat) or f in private}


def _independent(
    repeat: Repeat, shared: dict[Family, list[Access]], layout: Layout
) -> tuple[set[Family], set[Family]] | None:
    """(private, sums) if the turns may run at once, else None."""
    private, sums = set(), set()
    for a in layout.inside[id(repeat)]:
        if any(steps(counts, axis(a, repeat)).any() for counts in _ragged(a, repeat)):
            return None
        if a.family.is_local_to(repeat):
            if _step(a, repeat) != 0 or a.index is not None and a.index.family.is_local_to(repeat):
                return None
        elif _step(a, repeat) is None or a.index is not None and (a.writes or a.index.family.is_local_to(repeat)):
            return None
        elif a.index is not None and _step(a.index, repeat) != 0:
            return None
    for family, accesses in shared.items():
        if not any(a.writes for a in accesses) or _disjoint(repeat, accesses):
            continue
        if any(_step(a, repeat) != 0 for a in accesses):
            return None
        if all(_adds(a) for a in accesses):
            sums.add(family)
        elif _rewritten(repeat, accesses):
            private.add(family)
        else:
            return None
    return private, sums


def _ragged(a: Access, repeat: Repeat) -> list[np.ndarray]:
    """The counts of the ragged repeats between `repeat` and the access."""
    return [r.counts for r in a.repeats[axis(a, repeat) + 1 :] if r.counts is not None]


def axis(a: Access, repeat: Repeat) -> int:
    """Which axis of the access's tables counts the turns of `repeat`."""
    return _axis(a.path, repeat)


def _axis(path: Path, repeat: Repeat) -> int:
    return [n for n in path if isinstance(n, Repeat)].index(repeat)


def _step(a: Access, repeat: Repeat) -> int | None:
    """How far the access moves from turn to turn, in elements; None when that is not one constant."""
    steps = np.diff(a.table, axis=axis(a, repeat))
    return int(steps.flat[0]) if (steps == steps.flat[0]).all() else None


def _adds(a: Access) -> bool:
    """Whether the access is the destination, or the addend, of a contracting instruction."""
    record = a.owner
    return not isinstance(record, Loop) and record.contracting() and a.operand not in record.contracts


def _rewritten(repeat: Repeat, accesses: Sequence[Access]) -> bool:
    """Whether no turn sees what another wrote: nothing is read, or only what the turn itself wrote first."""
    if any(a.index is not None for a in accesses) or accesses[0].family.buffer.memory.is_hbm:
        return False  # copies of an HBM tensor would be too many bytes
    reads = [a for a in accesses if a.reads]
    if not reads:
        return True
    first = accesses[0]
    if first.path[-1] is not repeat or any(a.owner is first.owner for a in reads):
        return False
    whole = first.family.slots == 1 and first.view.size == first.view.storage_size and first.view.is_contiguous()
    return whole or all(_same_place(a, first) for a in reads)


def _same_place(a: Access, b: Access) -> bool:
    """Whether two accesses of one turn have the same addresses."""
    same = (a.view.strides, a.view.shape, a.view.dtype) == (b.view.strides, b.view.shape, b.view.dtype)
    return same and bool((a.table == b.table.reshape(b.table.shape + (1,) * (a.table.ndim - b.table.ndim))).all())


def _disjoint(repeat: Repeat, accesses: Sequence[Access]) -> bool:
    """Whether every turn stays in a window of its own: no address of one turn belongs to another.

    All accesses move by the same step c.  Addresses are split at M, the common divisor of all larger strides: what is
    below M must fit in c, and the n windows side by side in M.
    """
    step = _step(accesses[0], repeat)
    width = dtypes.size(accesses[0].view.dtype)
    if not step or any(a.index is not None for a in accesses):
        return False
    parts = []
    for a in accesses:
        own = dtypes.size(a.view.dtype)
        if (_step(a, repeat) or 0) * own != step * width:
            return False
        base, dims = _footprint(a, repeat, own)
        parts.append((base, dims, own))
    step = abs(step) * width
    large = [s for _, dims, _ in parts for s, n in dims if s > step and n > 1]
    modulus = math.gcd(*large) if large else 1 << 62
    low = np.min([base % modulus for base, _, _ in parts], axis=0)
    high = np.max(
        [base % modulus + own - 1 + sum(s * (n - 1) for s, n in dims if s <= step) for base, dims, own in parts], axis=0
    )
    spread = high - low
    return bool((spread < step).all() and (low + (repeat.count - 1) * step + spread < modulus).all())


def _footprint(a: Access, repeat: Repeat, width: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """One turn's addresses in bytes: the least base (over the outer repeats), and (stride, count) pairs."""
    at = axis(a, repeat)
    table = a.table * width
    dims = [(s * width, n) for s, n in zip(a.view.strides, a.view.shape, strict=True) if s]
    for inner in reversed(range(at + 1, table.ndim)):
        steps = np.diff(table, axis=inner)
        spread = int((table.max(axis=inner) - table.min(axis=inner)).max())
        if spread:
            affine = (steps == steps.flat[0]).all()
            dims.append((abs(int(steps.flat[0])), table.shape[inner]) if affine else (1, spread + 1))
        table = table.min(axis=inner)
    return table.min(axis=at), dims
