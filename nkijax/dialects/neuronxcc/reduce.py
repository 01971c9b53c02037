"""`nl` reductions of tiles over free dimensions, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nkijax.dialects.neuronxcc import emit, hidden
from nkijax.dialects.neuronxcc.dtype import name_of
from nkijax.dialects.neuronxcc.emit import compute, joint
from nkijax.dialects.neuronxcc.math import binary, tile_of, unary
from nkijax.dialects.neuronxcc.ops import alu
from nkijax.dialects.neuronxcc.regions import projected
from nkijax.dialects.neuronxcc.tensor import Tile, boxed, operand, result
from nkijax.errors import KernelError
from nkijax.isa.elementwise import TensorScalar
from nkijax.isa.reduce import TensorReduce
from nkijax.machine import Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View


def axes_of(api: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes as sorted non-negative ints; the partition dimension is none of them."""
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    axes = sorted(int(a) + ndim if int(a) < 0 else int(a) for a in given)
    if not axes or axes[0] < 1 or axes[-1] >= ndim:
        raise KernelError(f"{api} axis: must be free dimensions of a tile of {ndim} dimensions, got {axis}")
    return tuple(axes)


def kept_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of a reduction, and which axis of the input each of its dimensions is (-1: none)."""
    if keepdims:
        source = tuple(-1 if a in axes else a for a in range(len(shape)))
    else:
        source = tuple(a for a in range(len(shape)) if a not in axes)
        source = source if len(source) > 1 else (*source, -1)
    return tuple(1 if a < 0 else shape[a] for a in source), source


def trailing(view: View, axes: Sequence[int]) -> tuple[View, tuple[int, ...]]:
    """The view with the reduced dimensions last, and where they are then."""
    rest = [a for a in range(view.ndim) if a not in axes]
    if rest == list(range(len(rest))):
        return view, tuple(axes)
    return view.permute([*rest, *axes]), tuple(range(len(rest), view.ndim))


def reduced(
    api: str,
    op: Any,
    x: Any,
    axis: Any,
    dtype: Any = None,
    mask: Any = None,
    keepdims: bool = False,
    negate: bool = False,
) -> Tile:
    """A new tile: `x` reduced by an operator over free dimensions, without the lanes that the mask hides."""
    x, row = tile_of(f"{api} x", x), alu(op)
    kind = x.dtype.name if dtype is None else name_of(dtype, api)
    axes = axes_of(api, axis, x.ndim)
    shape, source = kept_shape(x.shape, axes, keepdims)
    where = joint(api, mask, [x], x.shape)
    into = projected(where, source, shape)
    tile = result(shape, kind, Memory.sbuf, into)
    if where.empty:
        return tile
    assert row.identity is not None or where.rest is None
    view = hidden.filled(operand(x, None, where, api), where, row.identity or 0)
    view, last = trailing(view, axes)
    made = TensorReduce(boxed(tile.raw, into.box), row, view, last, negate)
    current(api).emit(made)
    tile.made = made
    return tile


def _reduction(name: str, op: str, doc: str) -> Callable[..., Tile]:
    def function(x, axis, dtype=None, mask=None, keepdims=False, **hints) -> Tile:
        del hints
        return reduced(f"nl.{name}", op, x, axis, dtype, mask, keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc + " over free dimensions; masked-off lanes are left out, hints have no effect."
    return function


max = _reduction("max", "maximum", "The greatest element")
min = _reduction("min", "minimum", "The least element")
sum = _reduction("sum", "add", "The sum")
prod = _reduction("prod", "multiply", "The product")
all = _reduction("all", "logical_and", "Whether all elements are not 0,")


def mean(x, axis, dtype=None, mask=None, keepdims=False, **hints) -> Tile:
    """The sum over free dimensions divided by their size, which no mask changes."""
    del hints
    api = "nl.mean"
    x = tile_of(f"{api} x", x)
    n = math.prod(x.shape[a] for a in axes_of(api, axis, x.ndim))
    total = reduced(api, "add", x, axis, "float32", mask, keepdims)
    return _scaled(api, total, 1.0 / n, x.dtype.name if dtype is None else name_of(dtype, api))


def _scaled(api: str, total: Tile, factor: float, kind: str) -> Tile:
    make = lambda dst, data: TensorScalar(dst, data, alu("multiply"), factor)  # noqa: E731
    tile = compute(api, total.shape, kind, make, [total])
    if total.region is not None:
        tile.region = total.region
    return tile


def var(x, axis, dtype=None, mask=None, keepdims=False, **hints) -> Tile:
    """The population variance over free dimensions."""
    del hints
    x = tile_of("nl.var x", x)
    center = mean(x, axis, "float32", mask, keepdims=True)
    return mean(unary("square", binary("subtract", x, center, dtype="float32")), axis, dtype or x.dtype, mask, keepdims)


def softmax(x, axis, dtype=None, mask=None, **hints) -> Tile:
    """exp(x - max) / sum of that, over free dimensions."""
    del hints
    x = tile_of("nl.softmax x", x)
    top = reduced("nl.softmax", "maximum", x, axis, "float32", mask, True)
    e = unary("exp", binary("subtract", x, top, dtype="float32"), mask=mask)
    return binary("divide", e, reduced("nl.softmax", "add", e, axis, "float32", mask, True), mask, dtype or x.dtype)


def rms_norm(x, w, axis, n, epsilon=1e-6, dtype=None, mask=None, compute_dtype=None, **hints) -> Tile:
    """x / sqrt(sum of x² / n + epsilon) * w over free dimensions."""
    del hints, compute_dtype
    x = tile_of("nl.rms_norm x", x)
    squares = reduced("nl.rms_norm", "add", unary("square", x, "float32"), axis, "float32", mask, True)
    mean_square = compute("nl.rms_norm", squares.shape, "float32", _mean_plus(1.0 / n, epsilon), [squares])
    scaled = binary("multiply", x, unary("rsqrt", mean_square), mask, "float32")
    return binary("multiply", scaled, w, mask, dtype or x.dtype)


def _mean_plus(factor: float, epsilon: float) -> Callable[[View, View], Instruction]:
    return lambda dst, data: TensorScalar(dst, data, alu("multiply"), factor, False, alu("add"), epsilon)


def loop_reduce(x, op, loop_indices=None, dtype=None, mask=None, **hints) -> Tile:
    """`x`, which the assignment `t[...] = loop_reduce(x, op)` folds into `t` by `op`."""
    del hints, loop_indices
    tile = emit.copy(tile_of("nl.loop_reduce x", x), dtype, mask, "nl.loop_reduce")
    tile.reduce = alu(op).name
    return tile
