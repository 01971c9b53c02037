"""Bounds of what a subscript addresses: they are checked at its use, when a mask has said which lanes are touched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nkijax.dialects.neuronxcc.index import RUNTIME, Index
from nkijax.dialects.neuronxcc.predicate import Box
from nkijax.errors import KernelError, Unsupported
from nkijax.view import Dynamic, View


class OutOfBounds(KernelError, IndexError):
    """An address beyond its tensor."""


@dataclass(frozen=True, slots=True)
class Guard:
    """0 ≤ form < limit must hold, over the dimensions of a view: dimension `dim` of a tensor was indexed so.

    With a run-time part, which counts upwards, it bounds the view's run-time index.
    """

    form: Index
    limit: int
    dim: int

    def bounds(self, box: Box, name: str) -> tuple[int, int]:
        """Least and greatest position in a box, without the run-time part; an error where none is inside."""
        low, high = self.form.bounds(box)
        if high - low >= self.limit or self.form.moving is None and (low < 0 or high >= self.limit):
            raise OutOfBounds(
                f"Out-of-bound access for tensor `{name}` on dimension {self.dim}: index range [{low}, {high}] exceed "
                f"dimension size of {self.limit}."
            )
        return low, high


def bounded(view: View, guards: Sequence[Guard], box: Box) -> View:
    """The view, given that its positions in a box are inside: legal run-time indices are those that keep them so."""
    lows, room, moved = list[int](), math.inf, None
    for guard in guards:
        low, high = guard.bounds(box, view.buffer.name or "unnamed")
        if guard.form.moving is not None:
            lows.append(low)
            room, moved = min(room, guard.limit - 1 - high), moved or guard.form.moving
            if moved != guard.form.moving:
                raise Unsupported("tensor[...]: a bound that several run-time indices share is not emulated")
    if moved is None:
        return view
    (index, factor), d, low = moved, view.dynamic, min(lows)
    if d is None or d.index != index:
        raise Unsupported("tensor[...]: a bound that several run-time indices share is not emulated")
    if not low:
        return replace(view, dynamic=replace(d, limit=min(d.limit, int(room) // factor + 1)))
    one = d.stride // factor  # the index counts from the first position in the box
    limit = min(int(room) + low, factor * (d.limit - 1) + low) + 1
    return replace(view, offset=view.offset - low * one, dynamic=Dynamic(RUNTIME["total"]([moved], low), one, limit))
