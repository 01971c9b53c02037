"""Tables of numbers: their steps, and changing all of a tree."""

from __future__ import annotations

import numpy as np

from nkijax.isa.move import Memset
from nkijax.machine import Memory
from nkijax.program import Leaf, LoopLeaf, Repeat
from nkijax.tables import mapped, nested, steps
from nkijax.view import Buffer, View

FILL = Memset(View.whole(Buffer(0, (128, 8), "float32", Memory.sbuf)), 0.0)


def leaf(*shape):
    return Leaf(FILL, np.arange(np.prod(shape), dtype=float).reshape(shape))


def test_steps():
    table = np.array([[0.0, 1.0], [2.0, 5.0]])
    assert steps(table, 0).tolist() == [[2.0, 4.0]] and steps(table, 1).tolist() == [[1.0], [3.0]]
    assert steps(np.array([np.inf, np.inf, -np.inf, -np.inf]), 0).tolist() == [0.0, -np.inf, 0.0]


def test_every_table_of_a_tree_changes():
    inner = Repeat(2, (leaf(3, 2, 1),), np.array([1, 2, 2]))
    loop = LoopLeaf(FILL, np.zeros((3, 1)), (leaf(3, 1),))  # type: ignore[arg-type]
    tree = mapped(Repeat(3, (inner, loop)), lambda table: table[1:])
    assert isinstance(tree, Repeat) and tree.counts is None
    ragged, loop = tree.body
    assert isinstance(ragged, Repeat) and isinstance(loop, LoopLeaf) and ragged.counts is not None
    assert ragged.counts.tolist() == [2, 2] and ragged.body[0].numbers.shape == (2, 2, 1)
    assert loop.numbers.shape == (2, 1) and loop.body[0].numbers.tolist() == [[1.0], [2.0]]


def test_a_repeat_as_two():
    outer = nested(Repeat(6, (leaf(2, 6, 1),)), 1, 3)
    (inner,) = outer.body
    assert isinstance(inner, Repeat) and (outer.count, inner.count) == (2, 3)
    (node,) = inner.body
    assert isinstance(node, Leaf) and node.numbers.shape == (2, 2, 3, 1)
    assert node.numbers[0, 1].tolist() == [[3.0], [4.0], [5.0]]
