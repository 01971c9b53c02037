"""Regions of results: what is left of one in a reduction's result, in a transpose's, and where dimensions merge.

A mask that is no box is looked at lane by lane here, as NumPy arrays of truth over the box that it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nkijax.dialects.neuronxcc.index import Index, predicate_where
from nkijax.dialects.neuronxcc.predicate import Box, Predicate, Region, region


def truth(predicate: Predicate, box: Box) -> np.ndarray:
    """Where a predicate holds in a box, as an array of a shape that broadcasts to the box's."""
    if predicate.kind in ("and", "or"):
        join, out = (np.logical_and, True) if predicate.kind == "and" else (np.logical_or, False)
        for part in predicate.parts:
            out = join(out, truth(part, box))
        return np.asarray(out)
    value = np.asarray(predicate.form.constant)
    for axis, c in enumerate(predicate.form.coefficients):
        if c:
            places = c * np.arange(*box[axis])
            value = value + places.reshape([-1 if k == axis else 1 for k in range(len(box))])
    return {"greater_equal": np.greater_equal, "equal": np.equal, "not_equal": np.not_equal}[predicate.kind](value, 0)


def projected(where: Region, axes: Sequence[int], shape: tuple[int, ...]) -> Region:
    """The region of a reduction's result, whose axis k is axis `axes[k]` of the input (-1: of size 1): any holds."""
    if where.empty:
        return Region(shape, ((0, 0),) * len(axes))
    box = tuple((0, 1) if a < 0 else where.box[a] for a in axes)
    if where.rest is None:
        return Region(shape, box)
    lanes = np.broadcast_to(truth(where.rest, where.box), where.box_shape)
    kept = [a for a in axes if a >= 0]
    some = np.asarray(lanes.any(axis=tuple(a for a in range(lanes.ndim) if a not in kept)))
    if some.all():
        return Region(shape, box)
    lanes = np.zeros([last for _, last in box], bool)
    lanes[tuple(slice(*b) for b in box)] = some.reshape([last - first for first, last in box])
    some_of = predicate_where(lanes).mapped(lambda form: Index(form.coefficients, shape, form.constant))
    return Region(shape, box, some_of)


def flattened(where: Region, first: int) -> Region:
    """The region of a tile whose dimensions from `first` on were merged into one."""
    shape = (*where.shape[:first], math.prod(where.shape[first:]))
    whole = all(b == (0, n) for b, n in zip(where.box[first:], where.shape[first:], strict=True))
    if where.empty or where.rest is None and whole:
        return Region(shape, (*where.box[:first], (0, 0 if where.empty else shape[-1])))
    lanes = np.zeros(where.shape, bool)
    lanes[tuple(slice(*b) for b in where.box)] = True if where.rest is None else truth(where.rest, where.box)
    return region(predicate_where(lanes.reshape(shape)), shape)


def permuted(where: Region, order: Sequence[int]) -> Region:
    """The region of a tile whose axis k was axis `order[k]`."""

    def turned(form: Index) -> Index:
        return Index(tuple(form.coefficients[k] for k in order), tuple(form.extents[k] for k in order), form.constant)

    rest = None if where.rest is None else where.rest.mapped(turned)
    return Region(tuple(where.shape[k] for k in order), tuple(where.box[k] for k in order), rest)
