"""Masks that are no box, as tiles of flags: affine selections on a constant tile, or data; then a predicated copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkijax.dialects.neuronxcc.predicate import Predicate, Region
from nkijax.dialects.neuronxcc.regions import truth
from nkijax.dialects.neuronxcc.tensor import allocate, copied
from nkijax.isa.elementwise import TensorTensor
from nkijax.isa.move import DmaCopy, Memset
from nkijax.isa.operators import ALU
from nkijax.isa.select import AffineSelect, TensorCopyPredicated
from nkijax.machine import Memory
from nkijax.trace import current
from nkijax.view import View

_PATTERN_DIMS = 4
_MOST_SELECTIONS = 16


def predicate_tile(where: Region) -> View:
    """A uint8 tile of the shape of a region's box: 1 where the mask holds."""
    shape = where.box_shape
    sizes = shape if len(shape) > 1 else (*shape, 1)
    if _comparisons(where.rest) > _MOST_SELECTIONS or len(sizes) - 1 > _PATTERN_DIMS:
        return _constant(where, sizes)
    ones = allocate(sizes, "uint8", Memory.sbuf)
    current("mask").emit(Memset(ones, 1))
    assert where.rest is not None
    shifted = where.rest.mapped(lambda form: _shifted(form, where))
    return _selected(shifted, ones, sizes)


def _comparisons(predicate: Predicate | None) -> int:
    if predicate is None:
        return 0
    return sum(map(_comparisons, predicate.parts)) if predicate.parts else 1


def _constant(where: Region, sizes: Sequence[int]) -> View:
    """The flags as data in HBM, for what takes many selections."""
    assert where.rest is not None
    flags = np.broadcast_to(truth(where.rest, where.box), where.box_shape).reshape(sizes).astype(np.uint8)
    tile, recorder = allocate(sizes, "uint8", Memory.sbuf), current("mask")
    recorder.emit(DmaCopy(tile, recorder.constant(flags, "uint8", Memory.private_hbm)))
    return tile


def _shifted(form: Any, where: Region) -> Any:
    """A form that counts from the first position of the box."""
    moved = sum(c * first for c, (first, _) in zip(form.coefficients, where.box, strict=True))
    return type(form)(form.coefficients, where.box_shape, form.constant + moved)


def _selected(predicate: Predicate, tile: View, sizes: Sequence[int]) -> View:
    """`tile` where a predicate holds, else 0."""
    recorder = current("mask")
    if predicate.kind == "and":
        for part in predicate.parts:
            tile = _selected(part, tile, sizes)
        return tile
    if predicate.kind == "or":
        found = [_selected(part, tile, sizes) for part in predicate.parts]
        for other in found[1:]:
            out = allocate(sizes, "uint8", Memory.sbuf)
            recorder.emit(TensorTensor(out, found[0], other, ALU["maximum"]))
            found[0] = out
        return found[0]
    out = allocate(sizes, "uint8", Memory.sbuf)
    found = affine_pattern(predicate.form, sizes)
    assert found is not None  # there are no more free dimensions than a pattern has
    multiplier, pattern = found
    recorder.emit(AffineSelect(out, pattern, multiplier, tile, 0, ALU[predicate.kind], predicate.form.constant))
    return out


def affine_pattern(form: Any, sizes: Sequence[int]) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """The channel multiplier and the [step, count] pairs of a form over a tile, free dimensions merged where it can.

    None where more pairs are left than an instruction has.
    """
    coefficients = (*form.coefficients, *(0 for _ in range(len(sizes) - len(form.coefficients))))
    pairs: list[tuple[int, int]] = []
    for step, n in zip(coefficients[1:], sizes[1:], strict=True):
        if n == 1 and pairs:
            continue
        if pairs and pairs[-1][0] == step * n:
            pairs[-1] = (step, pairs[-1][1] * n)
        else:
            pairs.append((step, n))
    return (coefficients[0], tuple(pairs)) if len(pairs) <= _PATTERN_DIMS else None


def select(dst: View, src: View | float, where: Region, flags: View | None = None) -> None:
    """dst = src where the rest of a region's mask holds, and flags (uint8) are not 0; all are cut to its box."""
    recorder = current("mask")
    if isinstance(src, View) and src.dtype != dst.dtype:
        src = copied(src, dst.dtype)
    predicate = flags if where.rest is None else predicate_tile(where)
    assert predicate is not None
    if flags is not None and where.rest is not None:
        both = allocate(predicate.shape, "uint8", Memory.sbuf)
        recorder.emit(TensorTensor(both, predicate, flags, ALU["logical_and"]))
        predicate = both
    recorder.emit(TensorCopyPredicated(dst, src, predicate))
