"""Rolling: fold the repetition of a flat program back into `Repeat` nodes.

The list is turned into tokens (everything of an instruction but its numbers).  Repeatedly the smallest period p with
runs of equal blocks of p nodes folds into `Repeat(n, block)`, whose numbers become tables with one axis for each
enclosing repeat; then again from p = 1, until nothing folds.  It knows nothing of Python loops or instructions, and
`unroll(roll(p)) == p`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from nkijax.program import Instruction, Leaf, Loop, LoopLeaf, Node, Program, Repeat, steps

MAX_PERIOD = 4096  # the longest block that is looked for, in nodes


def roll(program: Program) -> Program:
    """The same program with its repetition folded, in loop bodies too."""
    roller = _Roller(program.zeros)
    nodes = _split(roller.fold([roller.leaf(n) for n in program.body]), 0)
    return replace(program, body=tuple(_settle(n) for n in nodes))


def unroll(program: Program) -> Program:
    """The flat program that `roll` came from."""
    return replace(program, body=tuple(_flat(program.body, (), program.buffers)))


class _Roller:
    """Interns tokens as small ints, of instructions and of folded blocks alike."""

    def __init__(self, zeros: frozenset[int]) -> None:
        self._zeros = zeros
        self._ids: dict[object, int] = {}
        self._keys: dict[int, int] = {}  # id(node) → token of a folded node; leaves carry theirs
        self._alive: list[Node] = []

    def _intern(self, key: object) -> int:
        return self._ids.setdefault(key, len(self._ids))

    def leaf(self, node: Node) -> Node:
        """An instruction or loop of the flat program with its numbers beside it."""
        if isinstance(node, Instruction):
            out: Node = Leaf(node, np.array(node.numbers(), dtype=np.float64))
            views = (*node.reads(), *node.writes())
            zero = tuple(v.buffer.index in self._zeros for v in views)
            moves = any(v.dynamic for v in views)  # run-time errors name the line
            key = self._intern((node.token(), zero, node.site if moves else ""))
        elif isinstance(node, Loop):
            body = tuple(self.fold([self.leaf(n) for n in node.body]))
            out = LoopLeaf(node, np.array(node.numbers(), dtype=np.float64), body)
            key = self._intern((node.token(), tuple(self.key(n) for n in body)))
        else:
            raise TypeError(f"roll takes a flat program, got {type(node).__name__}")
        return self._remember(out, key)

    def _remember(self, node: Node, key: int) -> Node:
        self._keys[id(node)] = key
        self._alive.append(node)  # ids must not be reused
        return node

    def key(self, node: Node) -> int:
        return self._keys[id(node)]

    def fold(self, nodes: list[Node]) -> list[Node]:
        """Fold runs until none is left."""
        keys = np.array([self.key(n) for n in nodes], dtype=np.int64)
        period = 1
        while period <= min(MAX_PERIOD, len(nodes) // 2):
            runs = _runs(keys, period)
            if not runs:
                period += 1
                continue
            out: list[Node] = []
            position = 0
            for start, count in runs:
                out += nodes[position:start]
                block = [nodes[start + i * period : start + (i + 1) * period] for i in range(count)]
                body = tuple(self._stack(turns) for turns in zip(*block, strict=True))
                key = self._intern(("repeat", count, tuple(self.key(n) for n in body)))
                out.append(self._remember(Repeat(count, body), key))
                position = start + count * period
            nodes = out + nodes[position:]
            keys = np.array([self.key(n) for n in nodes], dtype=np.int64)
            period = 1
        return nodes

    def _stack(self, turns: Sequence[Node]) -> Node:
        """Equal nodes of every turn as one, their numbers stacked along a new leading axis."""
        first = turns[0]
        if isinstance(first, Leaf):
            new: Node = Leaf(first.instruction, np.stack([t.numbers for t in turns]))  # type: ignore[union-attr]
        elif isinstance(first, LoopLeaf):
            bodies = zip(*(t.body for t in turns), strict=True)  # type: ignore[union-attr]
            numbers = np.stack([t.numbers for t in turns])  # type: ignore[union-attr]
            new = LoopLeaf(first.loop, numbers, tuple(self._stack(b) for b in bodies))
        else:
            assert isinstance(first, Repeat)
            bodies = zip(*(t.body for t in turns), strict=True)  # type: ignore[union-attr]
            new = Repeat(first.count, tuple(self._stack(b) for b in bodies))
        return self._remember(new, self.key(first))


def _runs(keys: np.ndarray, period: int) -> list[tuple[int, int]]:
    """(start, count ≥ 2) of the non-overlapping runs of equal blocks of `period` keys."""
    equal = keys[:-period] == keys[period:]
    if not equal.any():
        return []
    edges = np.diff(np.concatenate([[0], equal.astype(np.int8), [0]]))
    runs, free = [], 0
    for start, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        start = max(int(start), free)
        count = (int(end) + period - start) // period
        if count >= 2:
            runs.append((start, count))
            free = start + count * period
    return runs


def _split(nodes: Sequence[Node], depth: int) -> list[Node]:
    """Turn repeats whose numbers are two nested progressions into nested repeats (a tile loop in a tile loop).

    `depth` repeats are around `nodes`; the numbers' axis of a repeat among them is `depth`.
    """
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Repeat):
            inner = _inner_count(node, depth)
            if inner > 1:
                shape = (node.count // inner, inner)
                body = tuple(_reshape(n, depth, shape) for n in node.body)
                out += _split([Repeat(shape[0], (Repeat(inner, body),))], depth)
            else:
                out.append(Repeat(node.count, tuple(_split(node.body, depth + 1))))
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
        if isinstance(node, Repeat | LoopLeaf):
            yield from _tables(node.body)


def _reshape(node: Node, axis: int, shape: tuple[int, int]) -> Node:
    """The node with one axis of its numbers split in two."""
    if isinstance(node, Repeat):
        return Repeat(node.count, tuple(_reshape(n, axis, shape) for n in node.body))
    assert isinstance(node, Leaf | LoopLeaf)
    old = node.numbers.shape
    numbers = node.numbers.reshape(*old[:axis], *shape, *old[axis + 1 :])
    if isinstance(node, Leaf):
        return Leaf(node.instruction, numbers)
    return LoopLeaf(node.loop, numbers, tuple(_reshape(n, axis, shape) for n in node.body))


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
            for i in range(node.count):
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
