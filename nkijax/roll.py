"""Rolling: fold the repetition of a flat program back into `Repeat` nodes.

The list is turned into tokens (everything of an instruction but its numbers).  Repeatedly the smallest period p with
runs of equal blocks of p nodes folds into `Repeat(n, block)`, whose numbers become tables with one axis for each
enclosing repeat; then again from p = 1, until nothing folds.  It knows nothing of Python loops or instructions, and
`unroll(roll(p)) == p`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nkijax.program import Instruction, Leaf, Loop, LoopLeaf, Node, Program, Repeat

MAX_PERIOD = 4096  # the longest block that is looked for, in nodes


def roll(program: Program) -> Program:
    """The same program with its repetition folded, in loop bodies too."""
    roller = _Roller(program.zeros)
    return replace(program, body=tuple(_settle(n) for n in roller.fold([roller.leaf(n) for n in program.body])))


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
