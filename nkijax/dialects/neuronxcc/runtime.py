"""Several run-time indices in one address, or in one index: the machine adds them up beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nkijax.dialects.neuronxcc.index import RUNTIME, Index
from nkijax.dialects.neuronxcc.math import binary, stored, where
from nkijax.dialects.neuronxcc.tensor import Tile, face, operand
from nkijax.errors import Unsupported
from nkijax.view import Dynamic, View

_NOWHERE = -1


def _tile(index: View) -> Tile:
    """A register, or a tile of integers, as a tile of int32."""
    if not index.memory.on_chip:
        return stored(index)
    tile = face(index)
    return tile if index.dtype == "int32" else tile.astype("int32")


def total(parts: Sequence[tuple[View, int]], constant: int = 0) -> View:
    """Σ value * factor of run-time indices, and a constant, as a tile."""
    scaled = [binary("multiply", _tile(index), factor) if factor != 1 else _tile(index) for index, factor in parts]
    out = scaled[0]
    for other in scaled[1:]:
        out = binary("add", out, other)
    return operand(binary("add", out, constant) if constant else out)


def joined(first: Dynamic, second: Dynamic) -> Dynamic:
    """The one run-time index that moves a view as two do: out of range where one of them is."""
    if min(first.stride, second.stride) < 1:
        raise Unsupported("tensor[...]: two run-time indices of one view must count upwards")
    unit = math.gcd(first.stride, second.stride)
    inside, parts, limit = [], [], 1
    for one in (first, second):
        index, factor = _tile(one.index), one.stride // unit
        inside += [binary("greater_equal", index, 0, dtype="uint8"), binary("less", index, one.limit, dtype="uint8")]
        parts.append((operand(index), factor))
        limit += (one.limit - 1) * factor
    legal = inside[0]
    for flag in inside[1:]:
        legal = binary("logical_and", legal, flag, dtype="uint8")
    sum_of = where(legal, face(total(parts)), _NOWHERE, dtype="int32")
    return Dynamic(operand(sum_of), unit, limit, first.vector or second.vector)


def divided(index: Index, k: int) -> tuple[Index, Index]:
    """Quotient and remainder of a run-time index below 2**24 by a positive int, rounded down."""
    assert index.moving is not None
    n = face(total([index.moving], index.constant))
    rest = binary("bitwise_and", n, k - 1) if k & (k - 1) == 0 else binary("mod", n, k)
    quotient = binary("divide", binary("subtract", n, rest), k, dtype="int32")
    return tuple(Index((), (), 0, (operand(part), 1)) for part in (quotient, rest))  # type: ignore[return-value]


RUNTIME.update(total=total, joined=joined, divided=divided)
