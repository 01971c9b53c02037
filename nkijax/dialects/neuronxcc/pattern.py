"""The dimensions of the result of a subscript, and the access pattern that they make.

Those of the index objects (aligned from the left) stand where the first of them does; each slice has one.

Not emulated: of rows with a run-time index each, any but an upward slice; one bound on two run-time indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nkijax.dialects.neuronxcc.bounds import Guard
from nkijax.dialects.neuronxcc.index import RUNTIME, Index, extents_of
from nkijax.dialects.neuronxcc.predicate import Predicate, of_the_run
from nkijax.dialects.neuronxcc.tensor import OPERATORS, Tensor, face
from nkijax.errors import KernelError, Unsupported
from nkijax.view import Dynamic, View

_API = "tensor[...]"
_ON_PARTITIONS = f"{_API}: run-time indices must be on the partition dimension, the first of the result"


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

    def __init__(self, x: Any, entries: Sequence[Any]):
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
        parts = self._parts()
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
                dynamic = _joined(dynamic, _moved(part, stride, n, low, high))
            elif isinstance(entry, Rows):
                dynamic = _joined(dynamic, self._rows(entry, stride, n))
            if low < 0 or high >= n:
                guards.append(Guard(part, n, dim))
        mask = self._mask(parts)
        if len(shape) == 2 and shape[1] == 1 and not strides[1]:
            strides[1] = 1
        return face(
            View(view.buffer, offset, tuple(strides), shape, view.dtype, dynamic), self.partition, tuple(guards), mask
        )

    def _parts(self) -> list[Index]:
        """The position in each dimension of the tensor; run-time indices count upwards, several ones from 0."""
        parts = [_upward(self.part(k)) for k in range(self.x.ndim)]
        several = sum(p.moving is not None for p in parts) + (self.x.raw.dynamic is not None) > 1
        return [_from_zero(p) for p in parts] if several else parts

    def _mask(self, parts: Sequence[Index]) -> Predicate | None:
        """The mask of `x` over this pattern."""

        def composed(form: Index) -> Index:
            found = form.compose(parts, len(self.shape), tuple(self.shape))
            if found.moving is not None:
                raise of_the_run(f"{_API} of a masked tile")
            return found

        return None if self.x.mask is None else self.x.mask.mapped(composed)

    def _rows(self, rows: Rows, stride: int, n: int) -> Dynamic:
        if self.x.on_chip:
            rule = "a tile takes run-time indices of one element, got one for each row"
            raise KernelError(f"{_API}: {rule}; loop over them, or use nl.gather_flattened")
        if self.axis_of.get(("grid", 0)) != 0:
            raise KernelError(_ON_PARTITIONS)
        return Dynamic(rows.view, stride, n, True)


def _of_rows(view: View, part: Index, shape: tuple[int, ...]) -> Dynamic | None:
    """The run-time index of a view; where each row has its own, of the rows at `part`."""
    d = view.dynamic
    if d is None or not d.vector:
        return d
    if any(part.coefficients[1:]):
        raise KernelError(_ON_PARTITIONS)
    step, low, high = part.coefficients[0] if shape[0] > 1 else 1, *part.bounds()
    if step < 1 or part.moving is not None or low < 0 or high >= view.shape[0]:
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


def _moved(part: Index, stride: int, n: int, low: int, high: int) -> Dynamic:
    """What moves a view: legal is what keeps all of its grid inside, or any of it, where there is a `Guard` to tell."""
    assert part.moving is not None
    view, factor = part.moving
    edge = high if low >= 0 and high < n else low
    return Dynamic(view, stride * factor, (n - 1 - edge) // factor + 1)


def _upward(part: Index) -> Index:
    """A position whose run-time index counts upwards: one that counts downwards is computed."""
    if part.moving is None or part.moving[1] > 0:
        return part
    return Index(part.coefficients, part.extents, 0, (RUNTIME["total"]([part.moving], part.constant), 1))


def _from_zero(part: Index) -> Index:
    """A position whose least one, without its run-time index, is not negative: what is less is computed with it."""
    low = part.bounds()[0]
    if part.moving is None or low >= 0:
        return part
    return Index(part.coefficients, part.extents, part.constant - low, (RUNTIME["total"]([part.moving], low), 1))
