"""What `tensor[key]` addresses.

Ints and slices, the keys of nearly every access, are resolved in one pass; every other key is first rewritten to them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nkijax.errors import KernelError, Outside
from nkijax.machine import Memory
from nkijax.view import View

_API = "NkiTensor[...]"
_FULL = slice(None)
_ON_CHIP = (Memory.sbuf, Memory.psum)


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """`size` elements from `start` on, an int, a register or a 1x1 tile; made by `nl.ds`."""

    start: Any
    size: int


def subscript(view: View, key: tuple[Any, ...], runtime: Callable[[Any], View | None]) -> View:
    """The view `view[key]`.

    An int drops its dimension, but an on-chip view keeps its partition dimension and at least one free dimension, of
    size 1, and an HBM view at least one dimension.  `runtime` gives the view of a register or a tile, else None.
    An empty slice raises `Outside`.
    """
    shape, strides, offset = view.shape, view.strides, view.offset
    on_chip = view.buffer.memory in _ON_CHIP
    new_shape: list[int] = []
    new_strides: list[int] = []
    if len(key) > len(shape):
        return subscript(*_rewritten(view, key, runtime), runtime)
    dim = 0
    for k in key:
        n, stride = shape[dim], strides[dim]
        if type(k) is slice:
            first, last, step = k.start, k.stop, k.step
            first = 0 if first is None else first
            last = n if last is None else last
            step = 1 if step is None else step
            if not (type(first) is type(last) is type(step) is int):
                return subscript(*_rewritten(view, key, runtime), runtime)
            first = first + n if first < 0 else first
            last = last + n if last < 0 else last
            if step < 1 or not 0 <= first < last <= n:
                raise _bad_slice(view, dim, k, first, last)
            offset += first * stride
            new_shape.append(last - first if step == 1 else -((first - last) // step))
            new_strides.append(stride * step)
        elif type(k) is int:
            index = k + n if k < 0 else k
            if not 0 <= index < n:
                raise view.out_of_bounds(dim, k)
            offset += index * stride
            if dim == 0 and on_chip:
                new_shape.append(1)
                new_strides.append(stride)
        else:
            return subscript(*_rewritten(view, key, runtime), runtime)
        dim += 1
    new_shape += shape[dim:]
    new_strides += strides[dim:]
    if len(new_shape) < (2 if on_chip else 1):
        new_shape.append(1)
        new_strides.append(strides[-1])
    indexed = View(view.buffer, offset, tuple(new_strides), tuple(new_shape), view.dtype, view.dynamic)
    if view.dynamic is not None:
        _check_dynamic(view, key, indexed)
    return indexed


def _check_dynamic(view: View, key: tuple[Any, ...], indexed: View) -> None:
    """What takes part in an indirection stays: rows of a vector-indirect view, all of one made by `.indirect`."""
    assert view.dynamic
    if view.dynamic.vector and key and (type(key[0]) is not slice or indexed.shape[0] != view.shape[0]):
        rule = "rows of a vector-indirect view take part in the indirection"
        raise KernelError(f"{_API} dimension 0: {rule}, got {key[0]}")
    if view.dynamic.columns and indexed != view:
        raise KernelError(f"{_API} key: an indirect view must be used as it is, got {key}")


def _bad_slice(view: View, dim: int, given: slice, first: int, last: int) -> KernelError:
    if given.step is not None and given.step < 1:
        return KernelError(f"{_API} dimension {dim}: a slice's step must be at least 1, got {given.step}")
    if 0 <= last <= first <= view.shape[dim]:
        kind = Outside if first == last else KernelError
        return kind(f"{_API} dimension {dim}: a slice must not be empty, got {given.start}:{given.stop}")
    return view.out_of_bounds(dim, first, last - 1)


def _rewritten(view: View, key: tuple[Any, ...], runtime: Callable[[Any], View | None]) -> tuple[View, tuple]:
    """A view and a key of ints and slices of ints that mean the same as `view[key]`."""
    dots = [i for i, k in enumerate(key) if k is Ellipsis]
    if len(dots) > 1:
        raise KernelError(f"{_API} key: takes at most one Ellipsis, got {len(dots)}")
    if dots:
        missing = view.ndim - len(key) + 1
        key = (*key[: dots[0]], *[_FULL] * missing, *key[dots[0] + 1 :])
    if len(key) > view.ndim:
        raise KernelError(
            f"{_API} key: a tensor of {view.ndim} dimensions {view.shape} takes as many indices, got {len(key)}"
        )
    out: list[Any] = []
    for dim, k in enumerate(key):
        start = k.start if isinstance(k, DynamicSlice) else k
        index = runtime(start)
        if index is not None:
            view = view.shifted(dim, index, k.size if isinstance(k, DynamicSlice) else 1)
            out.append(_FULL if isinstance(k, DynamicSlice) else 0)
        else:
            out.append(_plain(dim, k))
    return view, tuple(out)


def _plain(dim: int, k: Any) -> int | slice:
    """One element of a key as an int or a slice of ints."""
    if isinstance(k, DynamicSlice):
        start = _int(dim, k.start)
        return slice(start, start + k.size)
    if isinstance(k, slice):
        return slice(*(x if x is None else _int(dim, x) for x in (k.start, k.stop, k.step)))
    return _int(dim, k)


def _int(dim: int, x: Any) -> int:
    """An index as an int; NumPy's integers are fine, bools and registers are not."""
    if not isinstance(x, bool):
        try:
            return operator.index(x)
        except TypeError:
            pass
    raise KernelError(
        f"{_API} dimension {dim}: an index must be an int, a slice of ints, Ellipsis, nl.ds(start, size), a register "
        f"or a 1x1 integer tile, got {x!r}"
    )
