"""Where the buffers of a rolled program live: families, homes and offset tables.

Buffers that take turns in one operand position form a *family*: one array with a slot for each.  A buffer whose every
use lies in one turn of a repeat is local to that turn; its *home* is the innermost such place, and families share
theirs, so that a slot is counted within a turn.  What remains of an operand is a table of offsets into its family's
array, with one axis for each enclosing repeat.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nkijax.program import Instruction, Leaf, Loop, LoopLeaf, Node, Program, Repeat
from nkijax.view import Buffer, View

Path = tuple[Repeat | Loop | LoopLeaf, ...]


@dataclass(eq=False)
class Access:
    """One operand of one node: a view whose buffer and offset vary over the repeats of `path`.

    `buffers` and `offsets` have one axis for each `Repeat` of the path.  After `Layout` is made, `family` is the
    storage and `table` the offsets into it, in elements of the view's dtype; turns that a ragged repeat leaves out have
    entries that go on like those before.
    """

    view: View
    path: Path
    buffers: np.ndarray
    offsets: np.ndarray
    reads: bool
    writes: bool
    owner: Instruction | Loop  # the template whose operand this is
    operand: str
    index: Access | None = None  # of the run-time index
    family: Family = field(init=False)
    table: np.ndarray = field(init=False)

    @property
    def repeats(self) -> tuple[Repeat, ...]:
        return tuple(n for n in self.path if isinstance(n, Repeat))

    def runs(self) -> np.ndarray:
        """Of every turn of the repeats, whether it takes place."""
        out = np.ones(self.buffers.shape, dtype=bool)
        for k, repeat in enumerate(self.repeats):
            if repeat.counts is not None:
                inside = np.arange(repeat.count) < repeat.counts[..., None]
                out &= inside.reshape(*inside.shape, *(1,) * (out.ndim - k - 1))
        return out


@dataclass(eq=False)
class Family:
    """One array of the lowered function: `slots` buffers like `buffer`, local to one turn of the last of `home`."""

    buffer: Buffer
    slots: int
    home: Path
    members: tuple[int, ...]
    accesses: list[Access] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.slots, *self.buffer.shape) if self.slots > 1 else self.buffer.shape

    def size(self, view: View) -> int:
        """Elements of one slot in the view's dtype."""
        return view.storage_size

    def is_local_to(self, node: Node) -> bool:
        """Whether each turn of `node` has an array of its own."""
        return any(n is node for n in self.home)


@dataclass(eq=False)
class Bound:
    """A node of the tree made ready to run: its operands as accesses, in the order of `Record.numbers`."""

    record: Instruction | Loop
    path: Path
    accesses: dict[int, Access]  # id(view of `record`) → access
    immediates: dict[int, np.ndarray]  # id(placeholder) → the table of an immediate that varies


class Immediate:
    """Stands in a record's field for an immediate that varies between turns."""


@dataclass(eq=False)
class Layout:
    """The storage plan of a program: `bound` by id of node, `family` by buffer index, `touched` by id of tree node."""

    bound: dict[int, Bound]
    family: dict[int, Family]
    slot: np.ndarray
    inside: dict[int, list[Access]]  # id(Repeat or loop) → every access below it, in program order


def layout(program: Program) -> Layout:
    """Bind every node of a program to families."""
    bound: dict[int, Bound] = {}
    accesses: list[Access] = []
    inside: dict[int, list[Access]] = defaultdict(list)
    for node, path in _walk(program.body, ()):
        b = bound[id(node)] = _bind(node, path)
        for access in b.accesses.values():
            for a in (access, access.index) if access.index else (access,):
                accesses.append(a)
                for n in a.path:
                    inside[id(n)].append(a)
    families, slot = _families(program, accesses)
    for a in accesses:
        a.family = families[int(a.buffers.flat[0])]
        a.family.accesses.append(a)
        a.table = _completed(a, np.asarray(slot[a.buffers] * a.view.storage_size + a.offsets))
    for index in (*(b.index for b in program.arguments), *(v.buffer.index for v in program.outputs)):
        if index not in families:
            families[index] = Family(program.buffers[index], 1, (), (index,))
    return Layout(bound, families, slot, inside)


def _completed(a: Access, table: np.ndarray) -> np.ndarray:
    """The table with the turns that ragged repeats leave out set as in the turn of the repeats around that has most."""
    out = table
    for repeat in a.repeats:
        if repeat.counts is None:
            continue
        rows = out.reshape(repeat.counts.size, repeat.count, -1)
        counts = repeat.counts.reshape(-1)
        last = counts[:, None, None] - 1
        full = rows[int(counts.argmax())]
        turn = np.arange(repeat.count)[:, None]
        beyond = np.take_along_axis(rows, last, 1) + full - full[last[:, :, 0]]
        out = np.where(turn <= last, rows, beyond).reshape(table.shape)
    inside = out.min() >= 0 and out.max() + a.view.extent < a.family.slots * a.view.storage_size
    return out if inside else table


def _walk(nodes: Sequence[Node], path: Path) -> Iterator[tuple[Node, Path]]:
    for node in nodes:
        if isinstance(node, Repeat):
            yield from _walk(node.body, (*path, node))
        else:
            yield node, path
            if isinstance(node, Loop | LoopLeaf):
                yield from _walk(node.body, (*path, node))


def _bind(node: Node, path: Path) -> Bound:
    """Rebuild the record with a view of its own in every operand, so that identity tells operands apart."""
    record = node.instruction if isinstance(node, Leaf) else node.loop if isinstance(node, LoopLeaf) else node
    assert isinstance(record, Instruction | Loop)
    if isinstance(node, Leaf | LoopLeaf):
        numbers = node.numbers
    else:
        numbers = np.array(record.numbers(), dtype=np.float64)
    column = itertools.count()
    views: dict[int, Access] = {}
    immediates: dict[int, np.ndarray] = {}
    order: list[tuple[View, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None]] = []

    def ints() -> np.ndarray:
        return numbers[..., next(column)].astype(np.int64)

    def view(v: View) -> View:
        fresh = View(v.buffer, v.offset, v.strides, v.shape, v.dtype, v.dynamic)
        order.append((fresh, ints(), ints(), (ints(), ints()) if v.dynamic else None))
        return fresh

    def number(v):
        table = numbers[..., next(column)]
        if table.size == 1 or (table == table.flat[0]).all():
            return v
        placeholder = Immediate()
        immediates[id(placeholder)] = table if isinstance(v, float) else table.astype(np.int64)
        return placeholder

    record = record.rebind(view, number)
    names = {id(v): name for name, *_ in record.layout().operands for v in _views(getattr(record, name))}
    roles = {name: (reads, writes) for name, reads, writes, _ in record.layout().operands}
    for v, buffers, offsets, index in order:
        name = names[id(v)]
        reads, writes = roles[name]
        inner = path
        if name.startswith("condition") and isinstance(node, Loop | LoopLeaf):  # a loop's body returns it
            inner = (*path, node)
        access = Access(v, inner, buffers, offsets, reads, writes, record, name)
        if index is not None and v.dynamic:
            access.index = Access(v.dynamic.index, path, *index, True, False, record, name)
        views[id(v)] = access
    return Bound(record, path, views, immediates)


def _views(value) -> Iterator[View]:
    for v in value if isinstance(value, tuple) else (value,):
        if isinstance(v, View):
            yield v


def _families(program: Program, accesses: Sequence[Access]) -> tuple[dict[int, Family], np.ndarray]:
    """Group the buffers, find each group's home and each buffer's slot in it."""
    n = len(program.buffers)
    root = _union(n, accesses)
    homes = _Homes(program, accesses)
    groups: dict[int, list[int]] = defaultdict(list)
    for index in sorted(homes.used):
        groups[root[index]].append(index)
    slot = np.zeros(n, dtype=np.int64)
    families: dict[int, Family] = {}
    for members in groups.values():
        home, turn = homes.common(members)
        by_turn: dict[int, int] = defaultdict(int)
        for m in members:
            slot[m] = by_turn[turn[m]]
            by_turn[turn[m]] += 1
        family = Family(program.buffers[members[0]], max(by_turn.values()), home, tuple(members))
        families.update((m, family) for m in members)
    return families, slot


def _union(n: int, accesses: Sequence[Access]) -> list[int]:
    parent = list(range(n))

    def find(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for a in accesses:
        ids = np.unique(a.buffers)
        first = find(int(ids[0]))
        for other in ids[1:]:
            parent[find(int(other))] = first
    return [find(x) for x in range(n)]


class _Homes:
    """For each buffer, how much of the path all of its accesses share, node by node and turn by turn."""

    def __init__(self, program: Program, accesses: Sequence[Access]):
        n = len(program.buffers)
        depth = max((len(a.path) for a in accesses), default=0)
        self.used: set[int] = set()
        self.path: dict[int, Path] = {}
        big = np.iinfo(np.int64).max
        self._low = np.full((depth + 1, n), big)
        self._high = np.full((depth + 1, n), -1)
        shared = np.full(n, depth, dtype=np.int64)
        ends = {*(b.index for b in program.arguments), *program.constants, *(v.buffer.index for v in program.outputs)}
        for a in accesses:
            runs = a.runs()
            ids = a.buffers[runs]
            present = np.unique(ids)
            np.minimum.at(shared, present, len(a.path))
            for index in present.tolist():
                if index not in self.path:
                    self.path[index] = a.path
                else:
                    shared[index] = min(shared[index], _agree(self.path[index], a.path))
            for j, turn in enumerate(_turns(a), start=1):
                turn = turn.reshape(runs.shape)[runs]
                np.minimum.at(self._low[j], ids, turn)
                np.maximum.at(self._high[j], ids, turn)
        self.used = set(self.path)
        for index in self.used:
            limit = 0 if index in ends else _visible(self.path[index], program.buffers[index].depth)
            d = min(int(shared[index]), limit)
            j = 1
            while j <= d and self._low[j][index] == self._high[j][index]:
                j += 1
            shared[index] = j - 1
        self.shared = shared

    def common(self, members: Sequence[int]) -> tuple[Path, dict[int, int]]:
        """The home of a family, and which turn of it each member is used in."""
        d = int(min(self.shared[m] for m in members))
        while d and not self._turns_agree(members, d):
            d -= 1
        return self.path[members[0]][:d], {m: int(self._low[d][m]) if d else 0 for m in members}

    def _turns_agree(self, members: Sequence[int], d: int) -> bool:
        first = self.path[members[0]][:d]
        return all(_agree(first, self.path[m][:d]) == d for m in members)


def _agree(a: Path, b: Path) -> int:
    """Length of the common prefix of two paths."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        n += 1
    return n


def _visible(path: Path, loops: int) -> int:
    """How far into `path` a buffer allocated under `loops` dynamic loops may be local: not into a deeper loop."""
    for j, node in enumerate(path):
        if not isinstance(node, Repeat):
            if loops == 0:
                return j
            loops -= 1
    return len(path)


def _turns(a: Access) -> Iterator[np.ndarray]:
    """For each prefix of the path, the number of the turn in which each element of `a.buffers` is used."""
    total, prefix = a.buffers.size, 1
    for node in a.path:
        if isinstance(node, Repeat):
            prefix *= node.count
        yield np.repeat(np.arange(prefix), total // prefix)
