"""Reductions of tiles along their trailing free axes, and what is made of them: softmax, rms_norm.

Sums and products are taken in float32 and cast once, on the write.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from nkijax.dialects.nki.math import emit_for, new, repeated, tile
from nkijax.dialects.nki.memory import broadcast_to
from nkijax.dialects.nki.tensor import NkiTensor
from nkijax.errors import KernelError
from nkijax.isa.activation import Activate
from nkijax.isa.elementwise import Reciprocal, TensorScalar, TensorTensor
from nkijax.isa.operators import ACTIVATIONS, ALU, AluOp
from nkijax.isa.reduce import TensorReduce
from nkijax.view import View

_ADD, _SUBTRACT, _MULTIPLY, _MAXIMUM = ALU["add"], ALU["subtract"], ALU["multiply"], ALU["maximum"]
_ROWS = {"sum": _ADD, "max": _MAXIMUM, "min": ALU["minimum"], "prod": _MULTIPLY, "all": ALU["logical_and"]}


def _axes(api: str, x: View, axis: Any) -> tuple[int, ...]:
    """`axis` as ascending ints: the last dimension or the last few, never the partitions."""
    try:
        given = [operator.index(a) for a in (axis if isinstance(axis, tuple | list) else (axis,))]
    except TypeError:
        raise KernelError(f"{api} axis: must be an int or a sequence of ints, got {axis!r}") from None
    axes = tuple(sorted(a + x.ndim if a < 0 else a for a in given))
    if not axes or axes[0] < 1 or axes != tuple(range(x.ndim - len(axes), x.ndim)):
        rule = "must be the last contiguous dim(s) of the tile, not its partitions"
        raise KernelError(f"{api} axis: {rule}, got {axis!r} of shape {x.shape}")
    return axes


def _kept(x: View, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if d in axes else n for d, n in enumerate(x.shape))


def _count(x: View, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[a] for a in axes)


def _shape(x: View, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape of a result, which on chip has a free dimension at least."""
    if keepdims:
        return _kept(x, axes)
    kept = x.shape[: axes[0]]
    return kept if len(kept) > 1 else (*kept, 1)


def _reduced(api: str, op: AluOp, x: View, axes: tuple[int, ...], negate: bool = False) -> View:
    """A new float32 tile, axes kept with size 1."""
    out = new(api, _kept(x, axes), "float32", x)._view
    emit_for(api, TensorReduce(out, op, x, axes, negate))
    return out


def _combined(api: str, op: AluOp, x: View, stat: View, dtype: Any = "float32") -> View:
    """A new tile: x <op> a statistic of it, repeated along the axes that were reduced."""
    out = new(api, x.shape, dtype, x)._view
    if stat.free == 1 and stat.dtype == "float32":
        emit_for(api, TensorScalar(out, x, op, stat))
    else:
        emit_for(api, TensorTensor(out, x, repeated(stat, x.shape), op))
    return out


# ---- reductions


def reduce(name: str, x: Any, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    """sum, max, min, prod or all."""
    api = f"nki.language.{name}"
    src = tile(f"{api} x", x)
    axes = _axes(api, src, axis)
    out = new(api, _shape(src, axes, keepdims), dtype, src)
    emit_for(api, TensorReduce(out._view, _ROWS[name], src, axes, False, keepdims))
    return out


def mean(x: Any, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    """The sum, in float32, times one over the count."""
    api = "nki.language.mean"
    src = tile(f"{api} x", x)
    axes = _axes(api, src, axis)
    out = new(api, _shape(src, axes, keepdims), dtype, src)
    total = _reduced(api, _ADD, src, axes)
    emit_for(api, TensorScalar(out._view, total, _MULTIPLY, 1 / _count(src, axes)))
    return out


def variance(x: Any, axis: Any, dtype: Any) -> NkiTensor:
    """The mean of squared distances from the mean, axes kept with size 1."""
    api = "nki.language.var"
    src = tile(f"{api} x", x)
    axes = _axes(api, src, axis)
    scale = 1 / _count(src, axes)
    middle = _reduced(api, _ADD, src, axes)
    emit_for(api, TensorScalar(middle, middle, _MULTIPLY, scale))
    away = _combined(api, _SUBTRACT, src, middle)
    emit_for(api, TensorTensor(away, away, away, _MULTIPLY))
    out = new(api, _kept(src, axes), dtype, src)
    total = _reduced(api, _ADD, away, axes)
    emit_for(api, TensorScalar(out._view, total, _MULTIPLY, scale))
    return out


# ---- normalisations


def softmax(x, axis=-1, dtype=None) -> NkiTensor:
    """exp(x - max) over its sum, along `axis`; in float32, cast once."""
    api = "nki.language.softmax"
    src = tile(f"{api} x", x)
    axes = _axes(api, src, axis)
    low = _reduced(api, _MAXIMUM, src, axes, negate=True)
    powers = _combined(api, _ADD, src, low)
    emit_for(api, Activate(powers, ACTIVATIONS["exp"], powers))
    total = _reduced(api, _ADD, powers, axes)
    emit_for(api, Reciprocal(total, total))
    return NkiTensor(_combined(api, _MULTIPLY, powers, total, src.dtype if dtype is None else dtype))


def rms_norm(x, w, axis, n, epsilon=1e-06, dtype=None, compute_dtype=None) -> NkiTensor:
    """x / sqrt(sum of x * x over `axis` / n + epsilon) * w; products are held in `compute_dtype`, by default float32.

    `w` has the shape of x, or sizes of 1 in it; a single row of it is repeated over the partitions by a DMA.
    """
    api = "nki.language.rms_norm"
    src, weight = tile(f"{api} x", x), tile(f"{api} w", w)
    axes = _axes(api, src, axis)
    if weight.ndim != src.ndim or any(m not in (1, size) for m, size in zip(weight.shape, src.shape, strict=True)):
        raise KernelError(f"{api} w: must have the shape {src.shape} of x, or sizes of 1 in it, got {weight.shape}")
    held = "float32" if compute_dtype is None else compute_dtype
    squares = new(api, src.shape, held, src)._view
    emit_for(api, Activate(squares, ACTIVATIONS["square"], src))
    total = _reduced(api, _ADD, squares, axes)
    emit_for(api, TensorScalar(total, total, _MULTIPLY, 1 / n, False, _ADD, epsilon))
    emit_for(api, Activate(total, ACTIVATIONS["rsqrt"], total))
    scaled = _combined(api, _MULTIPLY, src, total, held)
    if weight.partitions != src.partitions:
        weight = broadcast_to(w, (src.partitions, *weight.shape[1:]))._view
    return NkiTensor(_combined(api, _MULTIPLY, scaled, weight, src.dtype if dtype is None else dtype))
