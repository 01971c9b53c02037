"""Rolling: fold the repetition of a flat program back into `Repeat` nodes.

The list is turned into tokens (everything of an instruction but its numbers).  Repeatedly the smallest period p with
runs of equal blocks of p nodes folds into `Repeat(n, block)`, whose numbers become tables with one axis for each
enclosing repeat; then again from p = 1, until nothing folds.  Blocks that differ only in how often the repeats in them
turn fold too where those counts are an arithmetic progression (causal attention): the inner repeat becomes *ragged*.
It knows nothing of Python loops or instructions, and `unroll(roll(p)) == p`: all but names, lines and cores, which a
repeat has of its first turn (what two cores do alike is two turns).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from nkijax.program import Instruction, Leaf, Loop, LoopLeaf, Node, Program, Repeat, view_token
from nkijax.tables import mapped, nested, steps
from nkijax.view import View

MAX_PERIOD = 4096  # the longest block that is looked for, in nodes
MIN_RAGGED = 3  # turns that make a progression of counts
MANY = 400  # instructions that are left, of which XLA would take ten seconds: then repeats become ragged more freely


def roll(program: Program) -> Program:
    """The same program with its repetition folded, in loop bodies too."""
    nodes, _ = _Roller(program.zeros).fold(program.body)
    if _size(nodes) > MANY:
        loosely, _ = _Roller(program.zeros, loose=True).fold(program.body)
        nodes = min(nodes, _plain(loosely, 0), key=_size)
    return replace(program, body=tuple(_settle(n) for n in _split(nodes, 0)))


def unroll(program: Program) -> Program:
    """The flat program that `roll` came from."""
    return replace(program, body=tuple(_flat(program.body, (), program.buffers)))


class _Roller:
    """Interns tokens as small ints, of instructions and of folded blocks alike.

    While they are folded, nodes stand beside their tokens: `fold` takes a flat list and gives a folded one, and both.
    A `loose` one lets the counts of ragged repeats be any, one among them: what turns elsewhere, and stands alone here,
    is a repeat of one turn.
    """

    def __init__(self, zeros: frozenset[int], loose: bool = False) -> None:
        self._zeros, self._loose = zeros, loose
        self._ids: dict[object, int] = {}
        self._views: dict[int, int] = {}  # by id: most views serve in many instructions, which keep them alive

    def _intern(self, key: object) -> int:
        return self._ids.setdefault(key, len(self._ids))

    def _view(self, view: View) -> int:
        found = self._views.get(id(view))
        if found is None:
            found = self._views[id(view)] = self._intern((view_token(view), view.buffer.index in self._zeros))
        return found

    def _open(self, node: Node) -> tuple[Node, int]:
        """A node of the flat program and its token; a loop with its body folded."""
        if isinstance(node, Instruction):
            moves = any(v.dynamic is not None for v in node.operands())  # run-time errors name the line
            return node, self._intern((node.token(self._view), node.site if moves else ""))
        if not isinstance(node, Loop):
            raise TypeError(f"roll takes a flat program, got {type(node).__name__}")
        body, keys = self.fold(node.body)
        leaf = LoopLeaf(node, np.array(node.numbers(), dtype=np.float64), tuple(body))
        return leaf, self._intern((node.token(self._view), tuple(keys)))

    def fold(self, flat: Sequence[Node]) -> tuple[list[Node], list[int]]:
        """Fold runs until none is left."""
        opened = [self._open(n) for n in flat]
        nodes = [n for n, _ in opened]
        keys = np.array([(k, k) for _, k in opened], dtype=np.int64).reshape(-1, 2)  # (all, all but counts)
        period = 1
        while period <= min(MAX_PERIOD, len(nodes) // 2):
            runs = _runs(nodes, keys[:, 0], period)
            if not runs:
                runs = _runs(nodes, keys[:, 1], period)
                runs = runs if self._loose else _ragged(nodes, runs, period)
            if not runs:
                period += 1
                continue
            out: list[Node] = []
            tokens: list[np.ndarray] = []
            position = 0
            for start, count in runs:
                end = start + count * period
                body = tuple(_stack(nodes[start + i : end : period]) for i in range(period))
                out += [*nodes[position:start], Repeat(count, body)]
                tokens += [keys[position:start], self._repeat(count, body, keys[start : start + period])]
                position = end
            bodies = {tuple(keys[start : start + period, 0].tolist()) for start, _ in runs} if self._loose else set()
            nodes, keys = out + nodes[position:], np.concatenate([*tokens, keys[position:]])
            for body in sorted(bodies):
                nodes, keys = self._single(nodes, keys, body)
            period = 1
        return [_leaf(n) for n in nodes], keys[:, 0].tolist()

    def _repeat(self, count: int, body: Sequence[Node], keys: np.ndarray) -> np.ndarray:
        """The tokens of a folded block, from those of its first turn."""
        ragged = tuple(c.tobytes() for c in _counts(body))
        exact = self._intern(("repeat", count, ragged, tuple(keys[:, 0].tolist())))
        loose = exact if ragged and not self._loose else self._intern(("repeat", tuple(keys[:, 1].tolist())))
        return np.array([[exact, loose]])

    def _single(self, nodes: list[Node], keys: np.ndarray, body: tuple[int, ...]) -> tuple[list[Node], np.ndarray]:
        """With each block of these tokens, where it stands alone, made a repeat of one turn."""
        width, found = len(body), np.ones(max(0, len(nodes) - len(body) + 1), dtype=bool)
        for k, key in enumerate(body):
            found &= keys[k : k + len(found), 0] == key
        out: list[Node] = []
        tokens: list[np.ndarray] = []
        position = 0
        for start in np.flatnonzero(found).tolist():
            if start < position:
                continue
            turn = tuple(_stack([node]) for node in nodes[start : start + width])
            out += [*nodes[position:start], Repeat(1, turn)]
            tokens += [keys[position:start], self._repeat(1, turn, keys[start : start + width])]
            position = start + width
        return out + nodes[position:], np.concatenate([*tokens, keys[position:]])


def _counts(nodes: Sequence[Node]) -> Iterator[np.ndarray]:
    """The counts of the ragged repeats among and in `nodes`."""
    for node in nodes:
        if isinstance(node, Repeat) and node.counts is not None:
            yield node.counts
        if isinstance(node, Repeat | LoopLeaf):
            yield from _counts(node.body)


def _turns(node: Node) -> list[int]:
    """The counts of a node and of the repeats in it."""
    below = [n for b in node.body for n in _turns(b)] if isinstance(node, Repeat | LoopLeaf) else []
    return [node.count, *below] if isinstance(node, Repeat) else below


def _ragged(nodes: Sequence[Node], runs: list[tuple[int, int]], period: int) -> list[tuple[int, int]]:
    """The parts of runs whose repeats' counts grow, or shrink, by the same numbers from turn to turn."""
    out = []
    for start, count in runs:
        blocks = [nodes[start + i * period : start + (i + 1) * period] for i in range(count)]
        moves = np.diff([[n for node in block for n in _turns(node)] for block in blocks], axis=0)
        first = 0
        while first < len(moves):
            last = first + 1
            while last < len(moves) and (moves[last] == moves[first]).all():
                last += 1
            if last - first >= MIN_RAGGED - 1 and moves[first].any():
                out.append((start + first * period, last - first + 1))
                last += 1  # a turn belongs to one run
            first = last
    return out


def _size(nodes: Sequence[Node]) -> int:
    """How many instructions are left."""
    return sum(_size(n.body) if isinstance(n, Repeat | LoopLeaf) else 1 for n in nodes)


def _plain(nodes: Sequence[Node], depth: int) -> list[Node]:
    """Repeats of one turn as what they are; `depth` repeats are around."""
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Repeat) and node.count == 1:
            out += _plain([mapped(n, lambda table: table.take(0, depth)) for n in node.body], depth)
        elif isinstance(node, Repeat):
            out.append(Repeat(node.count, tuple(_plain(node.body, depth + 1)), node.counts))
        elif isinstance(node, LoopLeaf):
            out.append(LoopLeaf(node.loop, node.numbers, tuple(_plain(node.body, depth))))
        else:
            out.append(node)
    return out


def _leaf(node: Node) -> Node:
    """An instruction with its numbers beside it."""
    return Leaf(node, np.array(node.numbers(), dtype=np.float64)) if isinstance(node, Instruction) else node


def _stack(turns: Sequence[Node], around: tuple[int, ...] = ()) -> Node:
    """Equal nodes of every turn as one, their numbers stacked along a new leading axis.

    `around` are the counts of the repeats between the turns and these nodes.
    """
    first = turns[0]
    if isinstance(first, Instruction):
        return Leaf(first, np.array([t.numbers() for t in turns], dtype=np.float64))  # type: ignore[union-attr]
    if isinstance(first, Leaf):
        return Leaf(first.instruction, np.stack([t.numbers for t in turns]))  # type: ignore[union-attr]
    if isinstance(first, LoopLeaf):
        bodies = zip(*(t.body for t in turns), strict=True)  # type: ignore[union-attr]
        numbers = np.stack([t.numbers for t in turns])  # type: ignore[union-attr]
        return LoopLeaf(first.loop, numbers, tuple(_stack(b, around) for b in bodies))
    assert isinstance(first, Repeat)
    counts = [t.count for t in turns]  # type: ignore[union-attr]
    most = max(counts)
    bodies = zip(*([_padded(n, len(around), most) for n in t.body] for t in turns), strict=True)  # type: ignore[union-attr]
    table = np.stack([np.full(around, t.count) if t.counts is None else t.counts for t in turns])  # type: ignore[union-attr]
    table = table if (table < most).any() else None
    return Repeat(most, tuple(_stack(b, (*around, most)) for b in bodies), table)


def _padded(node: Node, axis: int, count: int) -> Node:
    """The node with one axis of its tables lengthened to `count` by its last entry."""

    def pad(table: np.ndarray) -> np.ndarray:
        width = [(0, count - table.shape[axis] if k == axis else 0) for k in range(table.ndim)]
        return np.pad(table, width, mode="edge")

    return mapped(node, pad)


def _runs(nodes: Sequence[Node], keys: np.ndarray, period: int) -> list[tuple[int, int]]:
    """(start, count ≥ 2) of the non-overlapping runs of equal blocks of `period` keys."""
    equal = keys[:-period] == keys[period:]
    if not equal.any():
        return []
    edges = np.diff(np.concatenate([[0], equal.astype(np.int8), [0]]))
    runs, free = [], 0
    for start, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        start = max(int(start), free)
        count, rest = divmod(int(end) + period - start, period)
        if count >= 2:
            start += _turn_start(nodes[start : start + rest + period + period], period, rest) if rest else 0
            runs.append((start, count))
            free = start + count * period
    return runs


def _turn_start(nodes: Sequence[Node], period: int, rest: int) -> int:
    """Which of the first `rest` + 1 nodes begins a turn: the one whose turns have the fewest buffers in common."""
    first, last = {}, {}
    for k, node in enumerate(nodes):
        for buffer in _buffers(node):
            first.setdefault(buffer, k)
            last[buffer] = k
    crossed = np.zeros(len(nodes) + 2, dtype=np.int64)
    for buffer, k in first.items():  # boundaries k + 1 to last
        crossed[k + 1] += 1
        crossed[last[buffer] + 1] -= 1
    return int(np.cumsum(crossed)[period : period + rest + 1].argmin())


def _buffers(node: Node) -> set[int]:
    """The indices of the buffers that a node uses."""
    if isinstance(node, Instruction):
        return {v.buffer.index for v in (*node.reads(), *node.writes())}
    if not isinstance(node, Leaf):
        return {b for n in node.body for b in _buffers(n)}
    columns: list[bool] = []  # of the numbers: whether each is the index of a buffer

    def view(v: View) -> View:
        columns.extend([True, False] if v.dynamic is None else [True, False, True, False])
        return v

    node.instruction.rebind(view, lambda number: columns.append(False) or number)
    return set(np.unique(node.numbers[..., np.flatnonzero(columns)]).astype(int).tolist())


def _split(nodes: Sequence[Node], depth: int) -> list[Node]:
    """Turn repeats whose numbers are two nested progressions into nested repeats (a tile loop in a tile loop).

    `depth` repeats are around `nodes`; the numbers' axis of a repeat among them is `depth`.
    """
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Repeat):
            inner = 1 if node.counts is not None else _inner_count(node, depth)
            if inner > 1:
                out += _split([nested(node, depth, inner)], depth)
            else:
                out.append(Repeat(node.count, tuple(_split(node.body, depth + 1)), node.counts))
        elif isinstance(node, LoopLeaf):
            out.append(LoopLeaf(node.loop, node.numbers, tuple(_split(node.body, depth))))
        else:
            out.append(node)
    return out


def _inner_count(repeat: Repeat, axis: int) -> int:
    """After how many turns the numbers of a repeat leave their arithmetic progressions, if regularly; else 1."""
    tables = list(_tables(repeat.body))
    breaks = []
    for table in tables:
        moves = np.moveaxis(steps(table, axis), axis, 0).reshape(repeat.count - 1, -1)
        changed = np.flatnonzero((moves != moves[0]).any(axis=1))
        if len(changed):
            breaks.append(int(changed[0]) + 1)
    inner = min(breaks, default=1)
    if inner < 2 or repeat.count % inner:
        return 1
    for table in tables:
        parts = table.reshape(*table.shape[:axis], -1, inner, *table.shape[axis + 1 :])
        moves = steps(parts, axis + 1).reshape(-1, table.shape[-1])
        if (moves != moves[0]).any():
            return 1
    return inner


def _tables(nodes: Sequence[Node]) -> Iterator[np.ndarray]:
    for node in nodes:
        if isinstance(node, Leaf | LoopLeaf):
            yield node.numbers
        elif isinstance(node, Repeat) and node.counts is not None:
            yield node.counts[..., None]
        if isinstance(node, Repeat | LoopLeaf):
            yield from _tables(node.body)


def _settle(node: Node) -> Node:
    """At the top level nothing varies: back from leaves to instructions and loops."""
    if isinstance(node, Leaf):
        return node.instruction
    if isinstance(node, LoopLeaf):
        return replace(node.loop, body=tuple(_settle(n) for n in node.body))
    return node


def _flat(nodes: Sequence[Node], turn: tuple[int, ...], buffers) -> list[Node]:
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Repeat):
            for i in range(node.count if node.counts is None else int(node.counts[turn])):
                out += _flat(node.body, (*turn, i), buffers)
        elif isinstance(node, Leaf):
            out.append(node.instruction.with_numbers(node.numbers[turn].tolist(), buffers))
        elif isinstance(node, LoopLeaf):
            loop = node.loop.with_numbers(node.numbers[turn].tolist(), buffers)
            out.append(replace(loop, body=tuple(_flat(node.body, turn, buffers))))
        elif isinstance(node, Loop):
            out.append(replace(node, body=tuple(_flat(node.body, (), buffers))))
        else:
            out.append(node)
    return out
