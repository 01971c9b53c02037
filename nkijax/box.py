"""Where an access pattern is a box: a reshape of the flat storage in which the pattern is a plain slice.

In the buffer's own shape it is one if each dimension of the pattern moves in a dimension of its own.  Failing that, a
pattern with strides s1 > s2 > … > sn that divide one another addresses a box of the storage reshaped to
(size/s1, s1/s2, …, sn); a box without steps goes before one with.  Most patterns of real kernels are boxes, so reads
and writes become slices that XLA fuses; the others become gathers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Box:
    """A box in `radixes`; one box dimension for each moving pattern dimension, and fillers of size 1.

    `units[k]` is the stride of box dimension k; `order` gives, for each box dimension, the pattern dimension that
    moves in it, or -1.
    """

    radixes: tuple[int, ...]
    units: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    order: tuple[int, ...]

    def starts(self, offset: np.ndarray) -> list[np.ndarray]:
        """The start in every box dimension, for each offset of a table."""
        out = [offset // self.units[0]]
        out += [offset // u % r for u, r in zip(self.units[1:], self.radixes[1:], strict=True)]
        return out

    @property
    def spans(self) -> tuple[int, ...]:
        return tuple((n - 1) * step + 1 for n, step in zip(self.sizes, self.steps, strict=True))

    def holds(self, offset: np.ndarray) -> bool:
        """Whether no offset of the table makes the pattern leave its box dimensions."""
        return all(
            int(start.max()) + span <= radix
            for start, span, radix in zip(self.starts(offset), self.spans, self.radixes, strict=True)
        )

    def axis_of(self, stride: int, starts: Sequence[int], limit: int) -> int | None:
        """The box dimension that a run-time index with this stride moves in without leaving it, or None."""
        for k, unit in enumerate(self.units):
            if stride % unit == 0:
                last = starts[k] + (limit - 1) * (stride // unit) + self.spans[k]
                return k if last <= self.radixes[k] else None
        return None


def in_shape(
    box: Box, starts: Sequence[np.ndarray], shape: Sequence[int]
) -> tuple[list[np.ndarray], tuple[int, ...]] | None:
    """The span of a box as one in another `shape` of the same storage: start tables and spans, or None.

    Dimensions that lie in one of `shape` merge, and one that several of those make up splits, where what is covered
    stays a box with the same elements in the same order.  `starts` are the box's, a table for each dimension.
    """
    tables: list[np.ndarray] = []
    spans: list[int] = []
    k = j = 0
    while k < len(box.radixes) or j < len(shape):
        first, other = k, j
        ours = theirs = 1
        while k == first or j == other or ours != theirs:
            if ours <= theirs and k < len(box.radixes):
                ours, k = ours * box.radixes[k], k + 1
            elif j < len(shape):
                theirs, j = theirs * shape[j], j + 1
            else:
                break
        if ours != theirs:
            return None
        one = _merged(box.radixes[first:k], starts[first:k], box.spans[first:k])
        parts = None if one is None else _parts(*one, shape[other:j])
        if parts is None:
            return None
        tables += parts[0]
        spans += parts[1]
    return tables, tuple(spans)


def _merged(
    radixes: Sequence[int], starts: Sequence[np.ndarray], spans: Sequence[int]
) -> tuple[np.ndarray, int] | None:
    """Start and span of several dimensions as one, in which they cover one stretch; or None."""
    start, span = np.zeros((), np.int64), 1
    for radix, first, n in zip(radixes, starts, spans, strict=True):
        if span > 1 and n < radix:
            return None
        start, span = start * radix + first, span * n
    return start, span


def _parts(start: np.ndarray, span: int, shape: Sequence[int]) -> tuple[list[np.ndarray], list[int]] | None:
    """A stretch of one dimension as a box of the several that it is made of; or None."""
    tables: list[np.ndarray] = []
    spans: list[int] = []
    for n in reversed(shape):
        at, start = start % n, start // n
        if span % n == 0 and not at.any():
            spans.insert(0, n)
            span //= n
        elif int(at.max()) + span <= n:
            spans.insert(0, span)
            span = 1
        else:
            return None
        tables.insert(0, at)
    return (tables, spans) if span == 1 else None


def find(
    size: int,
    natural: Sequence[int],
    strides: Sequence[int],
    shape: Sequence[int],
    offset: np.ndarray,
    serves: Callable[[Box], bool] = lambda box: True,
) -> Box | None:
    """A box of a pattern in a storage of `size` elements and `natural` shape that `serves`, or None.

    `offset` is a table, which the box fits as a whole.
    """
    moving = sorted((k for k, n in enumerate(shape) if n > 1 and strides[k]), key=lambda k: -strides[k])
    boxes = [make(size, natural, strides, shape, moving) for make in (_natural, _nested)]
    found = [b for b in boxes if b is not None and b.holds(offset) and serves(b)]
    return min(found, key=lambda b: max(b.steps), default=None)


def _nested(
    size: int, natural: Sequence[int], strides: Sequence[int], shape: Sequence[int], moving: list[int]
) -> Box | None:
    units = [strides[k] for k in moving]
    order = list(moving)
    if not units or units[-1] != 1:
        units.append(1)
        order.append(-1)
    if any(a == b or a % b for a, b in zip(units, units[1:], strict=False)) or size % units[0]:
        return None
    radixes = [size // units[0]] + [a // b for a, b in zip(units, units[1:], strict=False)]
    sizes = [shape[k] if k >= 0 else 1 for k in order]
    return Box(tuple(radixes), tuple(units), tuple(sizes), (1,) * len(units), tuple(order))


def _natural(
    size: int, natural: Sequence[int], strides: Sequence[int], shape: Sequence[int], moving: list[int]
) -> Box | None:
    if math.prod(natural) != size:
        return None
    units, step = [], 1
    for n in reversed(natural):
        units.append(step)
        step *= n
    units.reverse()
    order, steps = [-1] * len(units), [1] * len(units)
    for k in moving:
        fits = [j for j, u in enumerate(units) if strides[k] % u == 0 and natural[j] > 1]
        if not fits or order[fits[0]] >= 0:
            return None
        order[fits[0]], steps[fits[0]] = k, strides[k] // units[fits[0]]
    sizes = [shape[k] if k >= 0 else 1 for k in order]
    return Box(tuple(natural), tuple(units), tuple(sizes), tuple(steps), tuple(order))
