"""The tables of numbers in a rolled program: one axis for each repeat around a node."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nkijax.program import Leaf, LoopLeaf, Node, Repeat


def steps(table: np.ndarray, axis: int) -> np.ndarray:
    """Differences between neighbours of a table of numbers; equal ones, infinities included, differ by 0."""
    after, before = (np.moveaxis(np.moveaxis(table, axis, 0)[k], 0, axis) for k in (slice(1, None), slice(None, -1)))
    with np.errstate(invalid="ignore"):
        return np.where(after == before, 0, after - before)


def mapped(node: Node, change: Callable[[np.ndarray], np.ndarray]) -> Node:
    """The node with every table in it changed: its own numbers, the counts of ragged repeats, and all inside."""
    if isinstance(node, Leaf):
        return Leaf(node.instruction, change(node.numbers))
    assert isinstance(node, LoopLeaf | Repeat)
    body = tuple(mapped(n, change) for n in node.body)
    if isinstance(node, LoopLeaf):
        return LoopLeaf(node.loop, change(node.numbers), body)
    return Repeat(node.count, body, None if node.counts is None else change(node.counts))


def nested(repeat: Repeat, axis: int, inner: int) -> Repeat:
    """The repeat as one of `count / inner` turns of one of `inner`; its own axis in the tables is `axis`."""
    outer = repeat.count // inner

    def halve(table: np.ndarray) -> np.ndarray:
        return table.reshape(*table.shape[:axis], outer, inner, *table.shape[axis + 1 :])

    return Repeat(outer, (Repeat(inner, tuple(mapped(n, halve) for n in repeat.body)),))
