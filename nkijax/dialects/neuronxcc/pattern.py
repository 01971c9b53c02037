"""The dimensions of the result of a subscript, and the access pattern that they make.

Those of the index objects (aligned from the left) stand where the first of them does; each slice has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nkijax.dialects.neuronxcc.index import RUNTIME, Index, extents_of
from nkijax.dialects.neuronxcc.tensor import OPERATORS, Guard, Tensor, face
from nkijax.errors import Unsupported
from nkijax.view import Dynamic, View

_API = "tensor[...]"


@dataclass(frozen=True, slots=True)
class Rows:
    """A run-time index of each row: an integer tile of one element a partition, on a grid of `extents`, (P, …)."""

    view: View
    extents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A slice: `size` elements from `start` by `step`; it makes a dimension of its own."""

    start: Index
    size: int
    step: int = 1


class Pattern:
    """The dimensions of the result of a subscript, and the pattern that they make."""

    def __init__(self, x: Tensor, entries: Sequence[Index | Span | Rows]):
        self.x, self.entries = x, entries
        grid = extents_of(*(e.extents for e in entries if not isinstance(e, Span)), api=_API)
        spans = [k for k, e in enumerate(entries) if isinstance(e, Span)]
        first = next((k for k, e in enumerate(entries) if isinstance(e, Rows) or isinstance(e, Index) and e.ndim), None)
        axes = [a for a in range(len(grid)) if not spans or grid[a] != 1]
        if first is not None and not axes:
            axes = [0]
        self.axis_of: dict[tuple[str, int], int] = {}  # ("grid", axis) or ("span", entry) → dimension of the result
        self.shape: list[int] = []
        for k, e in enumerate(entries):
            if k == first:
                for a in axes:
                    self._add(("grid", a), grid[a])
            if isinstance(e, Span):
                self._add(("span", k), e.size)
        self.partition = self._partition()

    def _add(self, source: tuple[str, int], n: int) -> None:
        self.axis_of[source] = len(self.shape)
        self.shape.append(n)

    def _insert(self, at: int) -> int:
        """A dimension of size 1."""
        self.shape.insert(at, 1)
        self.axis_of = {s: a + (a >= at) for s, a in self.axis_of.items()}
        return at

    def _partition(self) -> int:
        """The dimension of the result that is the partitions; one is added for a single partition."""
        if not self.x.on_chip:
            if not self.shape:
                self.shape.append(1)
            return 0
        entry = self.entries[self.x.partition]
        if isinstance(entry, Span):
            at = self.axis_of["span", self.x.partition]
        else:
            on = [a for a, c in enumerate(entry.coefficients) if c] if isinstance(entry, Index) else [0]
            before = sum(isinstance(e, Span) for e in self.entries[: self.x.partition])
            grid = [self.axis_of["grid", a] for a in on if ("grid", a) in self.axis_of]
            ones = [d for s, d in self.axis_of.items() if s[0] == "grid" and self.shape[d] == 1 and not on]
            at = grid[0] if grid else min(ones) if ones else self._insert(min(before, len(self.shape)))
        if len(self.shape) < 2:
            self.shape.append(1)
        return at

    def part(self, k: int) -> Index:
        """The position in dimension `k` of the tensor, over the dimensions of the result."""
        entry, rank = self.entries[k], len(self.shape)
        coefficients = [0] * rank
        if isinstance(entry, Span):
            coefficients[self.axis_of["span", k]] = entry.step
            start = entry.start
            return Index(tuple(coefficients), tuple(self.shape), start.constant, start.moving)
        if isinstance(entry, Rows):
            return Index(tuple(coefficients), tuple(self.shape))
        for axis, c in enumerate(entry.coefficients):
            if c and ("grid", axis) in self.axis_of:
                coefficients[self.axis_of["grid", axis]] = c
        return Index(tuple(coefficients), tuple(self.shape), entry.constant, entry.moving)

    def tensor(self) -> Any:
        x, view = self.x, self.x.raw if self.x.guards or self.x.mask is not None else addresses(self.x)
        parts = [self.part(k) for k in range(x.ndim)]
        rank, shape = len(self.shape), tuple(self.shape)
        strides, offset, dynamic = [0] * rank, view.offset, _of_rows(view, parts[0], shape)
        guards = [Guard(g.form.compose(parts, rank, shape), g.limit, g.dim) for g in x.guards]
        for dim, (part, stride, n) in enumerate(zip(parts, view.strides, view.shape, strict=True)):
            offset += part.constant * stride
            for axis, c in enumerate(part.coefficients):
                strides[axis] += c * stride
            low, high = part.bounds()
            entry = self.entries[dim]
            if part.moving is not None:
                dynamic = _joined(dynamic, _moved(part, stride, n, high))
            elif isinstance(entry, Rows):
                dynamic = _joined(dynamic, self._rows(entry, stride, n))
            elif low < 0 or high >= n:
                guards.append(Guard(part, n, dim))
        mask = None if x.mask is None else x.mask.mapped(lambda form: form.compose(parts, rank, shape))
        if len(shape) == 2 and shape[1] == 1 and not strides[1]:
            strides[1] = 1
        return face(
            View(view.buffer, offset, tuple(strides), shape, view.dtype, dynamic), self.partition, tuple(guards), mask
        )

    def _rows(self, rows: Rows, stride: int, n: int) -> Dynamic:
        if self.x.on_chip:
            raise Unsupported(f"{_API}: rows of run-time indices on an HBM tensor only; use nl.gather_flattened")
        if self.axis_of.get(("grid", 0)) != 0:
            raise Unsupported(f"{_API}: rows of run-time indices must be the first dimension of the result")
        return Dynamic(rows.view, stride, n, True)


def _of_rows(view: View, part: Index, shape: tuple[int, ...]) -> Dynamic | None:
    """The run-time index of a view; where each row has its own, of the rows at `part`."""
    d = view.dynamic
    if d is None or not d.vector:
        return d
    step, low, high = part.coefficients[0] if shape[0] > 1 else 1, *part.bounds()
    if step < 1 or any(part.coefficients[1:]) or part.moving is not None or low < 0 or high >= view.shape[0]:
        raise Unsupported(f"{_API}: of the rows of a view with a run-time index of each row only slices are taken")
    index = d.index.slice(0, low, high + 1, step)
    return Dynamic(index, d.stride, d.limit, True)


def addresses(x: Tensor) -> View:
    """The addresses of what is subscripted: those of a result count once its masked-off lanes are zero."""
    if (
        getattr(x, "made", None) is not None
        or getattr(x, "moved", None) is not None
        or getattr(x, "region", None) is not None
    ):
        return OPERATORS["settle"](x)
    return x.raw


def _joined(dynamic: Dynamic | None, other: Dynamic) -> Dynamic:
    return other if dynamic is None else RUNTIME["joined"](dynamic, other)


def _moved(part: Index, stride: int, n: int, high: int) -> Dynamic:
    assert part.moving is not None
    view, factor = part.moving
    room = n - 1 - high
    return Dynamic(view, stride * factor, room // factor + 1 if factor > 0 and room >= 0 else n)
