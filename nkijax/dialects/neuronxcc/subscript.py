"""What `tensor[key]` addresses: slices, ints, index objects and run-time indices become one access pattern.

Dimensions of the result: those of the index objects (aligned from the left) where the first of them stands, and one for
each slice.  Nothing is checked here but what no mask could make right; bounds become `Guard`s of the result.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nkijax.dialects.neuronxcc.index import DynamicSlice, Index, as_index, extents_of, is_int
from nkijax.dialects.neuronxcc.predicate import FALSE, Predicate, conjunction
from nkijax.dialects.neuronxcc.tensor import OPERATORS, Guard, Tensor, face, operand
from nkijax.errors import KernelError, Unsupported
from nkijax.view import Dynamic, View

_API = "tensor[...]"
_FULL = slice(None)


@dataclass(frozen=True, slots=True)
class Rows:
    """A run-time index of each row: an integer tile of one element a partition."""

    view: View


@dataclass(frozen=True, slots=True)
class _Span:
    """A slice: `size` elements from `start` by `step`; it makes a dimension of its own."""

    start: Index
    size: int
    step: int = 1


def subscript(x: Tensor, key: Any) -> Any:
    """The view `x[key]`."""
    if isinstance(key, Predicate | bool | np.bool_):
        mask = key if isinstance(key, Predicate) else None if key else FALSE
        return x if mask is None else _masked(x, mask)
    direct = _direct(x, key if isinstance(key, tuple) else (key,))
    return _resolved(x, key) if direct is None else direct


def _direct(x: Tensor, keys: tuple[Any, ...]) -> Any:
    """The view for ints and slices of ints that are inside, the keys of nearly every access; None for any other."""
    if x.guards or x.mask is not None or len(keys) > x.ndim:
        return None
    view, on_chip = _addresses(x), x.on_chip
    if view.dynamic is not None:
        return None
    shape: list[int] = []
    strides: list[int] = []
    offset, partition = view.offset, 0
    for dim, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        k: Any = keys[dim] if dim < len(keys) else _FULL
        first: Any
        last: Any
        kind = type(k)
        if kind is slice and k.step is None:
            first, last = 0 if k.start is None else k.start, n if k.stop is None else k.stop
        elif kind is DynamicSlice:
            first, last = k.start, (k.start + k.size if type(k.start) is int else None)
        elif kind is int:
            first, last = k, k + 1
        else:
            return None
        if not (type(first) is type(last) is int) or not 0 <= first < last <= n:
            return None
        offset += first * stride
        if on_chip and dim == x.partition:
            partition = len(shape)
        elif kind is int:
            continue
        shape.append(last - first)
        strides.append(stride)
    while len(shape) < (2 if on_chip else 1):
        shape.append(1)
        strides.append(1)
    return face(View(view.buffer, offset, tuple(strides), tuple(shape), view.dtype), partition)


def _resolved(x: Tensor, key: Any) -> Any:
    """The view of any key."""
    keys = list(key) if isinstance(key, tuple) else [key]
    new = [k for k, one in enumerate(keys) if one is None]
    if new:
        y = subscript(x, tuple(one for one in keys if one is not None))
        for axis in new:
            y = y.expand_dims(axis)
        return y
    entries = [_entry(x, dim, k) for dim, k in enumerate(_complete(x, keys))]
    return _Pattern(x, entries).tensor()


def _masked(x: Tensor, mask: Predicate) -> Any:
    both = mask if x.mask is None else conjunction(x.mask, mask)
    return face(operand(x) if not x.guards else x.raw, x.partition, x.guards, both)


def _complete(x: Tensor, keys: list[Any]) -> list[Any]:
    dots = [k for k, one in enumerate(keys) if one is Ellipsis]
    if len(dots) > 1:
        raise KernelError(f"{_API} key: takes at most one Ellipsis, got {len(dots)}")
    if dots:
        keys[dots[0] : dots[0] + 1] = [_FULL] * (x.ndim - len(keys) + 1)
    while len(keys) > x.ndim and is_int(keys[-1]) and keys[-1] == 0:
        keys.pop()
    if len(keys) > x.ndim:
        raise KernelError(f"{_API} key: a tensor of shape {x.shape} takes {x.ndim} indices, got {len(keys)}")
    return keys + [_FULL] * (x.ndim - len(keys))


def _entry(x: Tensor, dim: int, k: Any) -> Index | _Span | Rows:
    n = x.shape[dim]
    if isinstance(k, slice):
        return _span(n, k)
    if isinstance(k, DynamicSlice):
        start = as_index(k.start)
        if start is None or start.ndim:
            raise KernelError(f"{_API} dimension {dim}: nl.ds takes an int or a 1x1 tile, got {k.start!r}")
        return _Span(start, k.size)
    if isinstance(k, float) and k.is_integer():
        k = int(k)
    if is_int(k) and k < 0:
        k = int(k) + n
    index = as_index(k)
    if index is not None:
        return index
    if isinstance(k, Tensor) and k.on_chip:
        view = operand(k, api=f"{_API} dimension {dim}")
        if view.free == 1:
            return Rows(view)
        raise Unsupported(f"{_API} dimension {dim}: an index tile {view.shape} with several columns; use one column")
    if isinstance(k, np.ndarray):
        return _affine(k, dim)
    raise KernelError(
        f"{_API} dimension {dim}: an index must be an int, a slice, nl.ds, an index object or an integer "
        f"tile, got {k!r}"
    )


def _span(n: int, k: slice) -> _Span:
    """A slice; one that ends past the dimension keeps its size."""
    bounds = [as_index(b) for b in (k.start, k.stop)]
    start = bounds[0] if k.start is not None else Index((), (), 0)
    stop = bounds[1] if k.stop is not None else Index((), (), n)
    step = 1 if k.step is None else operator.index(k.step)
    if start is None or stop is None or start.ndim or stop.ndim or step < 1:
        raise KernelError(f"{_API}: a slice takes ints and a positive step, got {k}")
    if start.moving is None and start.constant < 0:
        start = start + n
    if stop.moving is None and stop.constant < 0:
        stop = stop + n
    size = stop - start
    if size.moving is not None:
        raise KernelError(f"{_API}: the size of a slice must be known while tracing, got {k}; use nl.ds(start, size)")
    count = -(-size.constant // step)
    if count < 1:
        raise KernelError(f"{_API}: a slice must not be empty, got {k.start}:{k.stop} of {n}")
    return _Span(start, count, step)


def _affine(k: np.ndarray, dim: int) -> Index:
    """A NumPy array of integers that is an affine grid, as an index."""
    if k.dtype.kind not in "iu" or k.size == 0:
        raise KernelError(f"{_API} dimension {dim}: an index array must hold integers, got {k.dtype}")
    origin = k[(0,) * k.ndim]
    steps = [int(np.take(k, 1, axis).flat[0] - origin) if n > 1 else 0 for axis, n in enumerate(k.shape)]
    want = origin + sum(s * i for s, i in zip(steps, np.indices(k.shape, sparse=True), strict=True))
    if not np.array_equal(np.broadcast_to(want, k.shape), k):
        raise Unsupported(f"{_API} dimension {dim}: a NumPy index that is no affine grid")
    return Index(tuple(steps), k.shape, int(origin))


class _Pattern:
    """The dimensions of the result of a subscript, and the pattern that they make."""

    def __init__(self, x: Tensor, entries: Sequence[Index | _Span | Rows]):
        self.x, self.entries = x, entries
        self.rows = next((e for e in entries if isinstance(e, Rows)), None)
        grids = [e.extents for e in entries if isinstance(e, Index)]
        if self.rows is not None:
            grids.append((self.rows.view.shape[0],))
        grid = extents_of(*grids, api=_API)
        spans = [k for k, e in enumerate(entries) if isinstance(e, _Span)]
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
            if isinstance(e, _Span):
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
        if isinstance(entry, _Span):
            at = self.axis_of["span", self.x.partition]
        else:
            on = [a for a, c in enumerate(entry.coefficients) if c] if isinstance(entry, Index) else [0]
            before = sum(isinstance(e, _Span) for e in self.entries[: self.x.partition])
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
        if isinstance(entry, _Span):
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
        x, view = self.x, self.x.raw if self.x.guards or self.x.mask is not None else _addresses(self.x)
        parts = [self.part(k) for k in range(x.ndim)]
        rank, shape = len(self.shape), tuple(self.shape)
        strides, offset, dynamic = [0] * rank, view.offset, view.dynamic
        guards = [Guard(g.form.compose(parts, rank, shape), g.limit, g.dim) for g in x.guards]
        for dim, (part, stride, n) in enumerate(zip(parts, view.strides, view.shape, strict=True)):
            offset += part.constant * stride
            for axis, c in enumerate(part.coefficients):
                strides[axis] += c * stride
            low, high = part.bounds()
            if part.moving is not None:
                dynamic = _moved(dynamic, part, stride, n, high)
            elif isinstance(self.entries[dim], Rows):
                dynamic = self._rows(dynamic, stride, n)
            elif low < 0 or high >= n:
                guards.append(Guard(part, n, dim))
        if (
            view.dynamic is not None
            and view.dynamic.vector
            and (parts[0].coefficients, shape[:1]) != (_first(rank), view.shape[:1])
        ):
            raise Unsupported(f"{_API}: the rows of a view with a run-time index of each row stay as they are")
        mask = None if x.mask is None else x.mask.mapped(lambda form: form.compose(parts, rank, shape))
        if len(shape) == 2 and shape[1] == 1 and not strides[1]:
            strides[1] = 1
        return face(
            View(view.buffer, offset, tuple(strides), shape, view.dtype, dynamic), self.partition, tuple(guards), mask
        )

    def _rows(self, dynamic: Dynamic | None, stride: int, n: int) -> Dynamic:
        if dynamic is not None or self.x.on_chip:
            raise Unsupported(f"{_API}: rows of run-time indices on an HBM tensor without another run-time index only")
        if self.axis_of.get(("grid", 0)) != 0:
            raise Unsupported(f"{_API}: rows of run-time indices must be the first dimension of the result")
        assert self.rows is not None
        return Dynamic(self.rows.view, stride, n, True)


def _first(rank: int) -> tuple[int, ...]:
    """The coefficients of an index that is the position along dimension 0."""
    return (1, *(0 for _ in range(rank - 1)))


def _addresses(x: Tensor) -> View:
    """The addresses of what is subscripted: those of a result count once its masked-off lanes are zero."""
    if (
        getattr(x, "made", None) is not None
        or getattr(x, "moved", None) is not None
        or getattr(x, "region", None) is not None
    ):
        return OPERATORS["settle"](x)
    return x.raw


def _moved(dynamic: Dynamic | None, part: Index, stride: int, n: int, high: int) -> Dynamic:
    assert part.moving is not None
    if dynamic is not None:
        raise Unsupported(f"{_API}: a view takes one run-time index, got two")
    view, factor = part.moving
    room = n - 1 - high
    return Dynamic(view, stride * factor, room // factor + 1 if factor > 0 and room >= 0 else n)
