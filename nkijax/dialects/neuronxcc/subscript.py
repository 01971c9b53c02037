"""What `tensor[key]` addresses: slices, ints, index objects and run-time indices become one access pattern.

Dimensions of the result: those of the index objects (aligned from the left) where the first of them stands, and one for
each slice.  Nothing is checked here but what no mask could make right; bounds become `Guard`s of the result.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nkijax.dialects.neuronxcc.index import DynamicSlice, Index, Irregular, as_index, is_int
from nkijax.dialects.neuronxcc.pattern import Pattern, Rows, Span, addresses
from nkijax.dialects.neuronxcc.pieces import Pieces, resolved
from nkijax.dialects.neuronxcc.predicate import FALSE, Predicate, conjunction
from nkijax.dialects.neuronxcc.tensor import Tensor, face, operand
from nkijax.errors import KernelError, Unsupported
from nkijax.view import View

_API = "tensor[...]"
_FULL = slice(None)
_TRUTH = (Predicate, bool, np.bool_)


def subscript(x: Tensor | Pieces, key: Any) -> Any:
    """The view `x[key]`."""
    if isinstance(x, Pieces):
        return _again(x, key)
    direct = _direct(x, key if type(key) is tuple else (key,))
    if direct is not None:
        return direct
    if isinstance(key, _TRUTH):
        mask = key if isinstance(key, Predicate) else None if key else FALSE
        return x if mask is None else _masked(x, mask)
    return _resolved(x, key)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all subscripts of one form have in common: all but where each entry starts.

    `reach` is the least and greatest position in each dimension, counted from the entry's start.
    """

    strides: tuple[int, ...]
    shape: tuple[int, ...]
    partition: int
    reach: tuple[tuple[int, int], ...]


_plans: dict[tuple[Any, ...], _Plan] = {}
_MOST_PLANS = 10_000


def _direct(x: Tensor, keys: tuple[Any, ...]) -> Any:
    """The view for ints, slices of ints and index objects that are inside: nearly every access; None for any other.

    Its shape and strides are looked up by the form of the subscript.
    """
    if x.guards or x.mask is not None:
        return None
    view = addresses(x)
    sizes, strides = view.shape, view.strides
    if view.dynamic is not None or len(keys) > len(sizes):
        return None
    form: list[Any] = [view.memory.on_chip, x.partition, sizes, strides]
    starts: list[int] = []
    for k, n in zip(keys, sizes, strict=False):
        found = _form_of(k, n)
        if found is None:
            return None
        start, kind = found
        starts.append(start)
        form.append(kind)
    key = tuple(form)
    plan = _plans.get(key)
    if plan is None:
        plan = _planned(x, keys)
        if len(_plans) > _MOST_PLANS:
            _plans.clear()
        _plans[key] = plan
    offset = view.offset
    for start, (low, high), n, stride in zip(starts, plan.reach, sizes, strides, strict=False):
        if start + low < 0 or start + high >= n:
            return None
        offset += start * stride
    return face(View(view.buffer, offset, plan.strides, plan.shape, view.dtype), plan.partition)


def _form_of(k: Any, n: int) -> tuple[int, Any] | None:
    """Where an entry of a subscript starts, and its form; None for one that only the run knows, or is irregular."""
    kind = type(k)
    if kind is int:
        return (k, None) if k >= 0 else None
    if kind is Index:
        return (k.constant, (k.coefficients, k.extents)) if k.moving is None else None
    if kind is slice and k.step is None:
        first, last = 0 if k.start is None else k.start, n if k.stop is None else k.stop
        if type(first) is int and type(last) is int and 0 <= first < last:
            return first, last - first
    elif kind is DynamicSlice and type(k.start) is int and k.start >= 0:
        return k.start, k.size
    return None


def _planned(x: Tensor, keys: tuple[Any, ...]) -> _Plan:
    entries: list[Any] = [entry(x, dim, k) for dim, k in enumerate(_complete(x, list(keys)))]
    pattern = Pattern(x, entries)
    parts = [pattern.part(k) for k in range(x.ndim)]
    reach = tuple((low - p.constant, high - p.constant) for p in parts for low, high in (p.bounds(),))
    made = pattern.tensor()
    return _Plan(made.raw.strides, made.shape, made.partition, reach)


def _resolved(x: Tensor, key: Any) -> Any:
    """The view of any key."""
    keys = list(key) if isinstance(key, tuple) else [key]
    new = [k for k, one in enumerate(keys) if one is None]
    if new:
        y = subscript(x, tuple(one for one in keys if one is not None))
        for axis in new:
            y = y.expand_dims(axis)
        return y
    entries: list[Any] = [entry(x, dim, k) for dim, k in enumerate(_complete(x, keys))]
    return resolved(x, entries)


def _again(x: Pieces, key: Any) -> Any:
    """The view of a key of what is itself a subscript in pieces."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(k is None or isinstance(k, _TRUTH) for k in keys):
        raise Unsupported(f"{_API}: a subscript by an irregular grid takes ints, slices and index grids, got {key!r}")
    entries = [entry(x, dim, k) for dim, k in enumerate(_complete(x, keys))]
    starts = [e.start if isinstance(e, Span) else e for e in entries]
    if any(isinstance(e, Rows) or isinstance(e, Index) and e.moving is not None for e in starts):
        raise Unsupported(f"{_API}: a subscript by an irregular grid takes no run-time index")
    affine: list[Any] = [Index((0,) * e.ndim, e.extents) if isinstance(e, Irregular) else e for e in entries]
    pattern = Pattern(x, affine)
    places = []
    for k, (e, n) in enumerate(zip(entries, x.shape, strict=True)):
        values = _spread(e.values, pattern) if isinstance(e, Irregular) else Irregular.of(pattern.part(k)).values
        if values.min() < 0 or values.max() >= n:
            raise KernelError(f"{_API} dimension {k}: index range [{values.min()}, {values.max()}] exceeds {n}")
        places.append(values)
    return x.again(pattern, places)


def _spread(values: np.ndarray, pattern: Pattern) -> np.ndarray:
    """The values of an index grid over the result of a subscript."""
    at = {pattern.axis_of["grid", axis]: n for axis, n in enumerate(values.shape) if n > 1}
    return np.broadcast_to(values.reshape([at.get(dim, 1) for dim in range(len(pattern.shape))]), pattern.shape)


def _masked(x: Tensor, mask: Predicate) -> Any:
    both = mask if x.mask is None else conjunction(x.mask, mask)
    return face(operand(x) if not x.guards else x.raw, x.partition, x.guards, both)


def _complete(x: Tensor | Pieces, keys: list[Any]) -> list[Any]:
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


def entry(x: Any, dim: int, k: Any) -> Index | Span | Rows | Irregular:
    """What one index of a subscript stands for."""
    n = x.shape[dim]
    if isinstance(k, slice):
        return _span(n, k)
    if isinstance(k, DynamicSlice):
        start = as_index(k.start)
        if start is None or start.ndim:
            raise KernelError(f"{_API} dimension {dim}: nl.ds takes an int or a 1x1 tile, got {k.start!r}")
        return Span(start, k.size)
    if isinstance(k, float) and k.is_integer():
        k = int(k)
    if is_int(k) and k < 0:
        k = int(k) + n
    index = as_index(k)
    if index is not None:
        return index
    if isinstance(k, Tensor) and k.on_chip:
        view = operand(k, api=f"{_API} dimension {dim}")
        return Rows(view, view.shape if view.free > 1 else view.shape[:1])
    if isinstance(k, np.ndarray):
        if k.dtype.kind not in "iu" or k.size == 0:
            raise KernelError(f"{_API} dimension {dim}: an index array must hold integers, got {k.dtype}")
        k = Irregular(k)
    if isinstance(k, Irregular):
        return k.as_affine() or k
    raise KernelError(
        f"{_API} dimension {dim}: an index must be an int, a slice, nl.ds, an index object or an integer "
        f"tile, got {k!r}"
    )


def _span(n: int, k: slice) -> Span:
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
    return Span(start, count, step)
