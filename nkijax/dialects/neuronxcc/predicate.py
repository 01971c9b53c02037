"""Masks: predicates on the positions of a grid, and the region that one leaves of a tile.

A predicate is a tree of affine comparisons.  `region` turns one into a box of positions, and what the box does not say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nkijax.errors import KernelError

Box = tuple[tuple[int, int], ...]  # first and one past the last position, for each axis


@dataclass(frozen=True, eq=False, slots=True)
class Predicate:
    """Where a mask holds: a comparison (`form` with 0, by `kind`), or all ("and") or any ("or") of `parts`.

    Python's truth of a predicate is True, so that `mask if mask else other` works.
    """

    kind: str  # greater_equal, equal, not_equal; and, or
    form: Any = None  # an index.Index
    parts: tuple[Predicate, ...] = ()

    def __and__(self, other: Any) -> Predicate:
        return conjunction(self, other)

    __rand__ = __and__
    __mul__ = __and__

    def __or__(self, other: Any) -> Predicate:
        return Predicate("or", parts=(self, as_predicate(other)))

    __ror__ = __or__

    def __invert__(self) -> Predicate:
        if self.kind == "greater_equal":
            return compare(-self.form - 1, "greater_equal")
        if self.kind in _OPPOSITE:
            return Predicate(_OPPOSITE[self.kind], self.form, tuple(~p for p in self.parts))
        raise AssertionError(self.kind)

    def __bool__(self) -> bool:
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        """The grid's shape, aligned from the left."""
        shapes = [self.form.extents] if self.form is not None else [p.shape for p in self.parts]
        rank = max(map(len, shapes), default=0)
        return tuple(max((s[k] for s in shapes if k < len(s)), default=1) for k in range(rank))

    def mapped(self, change: Callable[[Any], Any]) -> Predicate:
        """The same tree with every form changed."""
        form = None if self.form is None else change(self.form)
        return Predicate(self.kind, form, tuple(p.mapped(change) for p in self.parts))

    def forms(self) -> Iterator[Any]:
        """Every form in the tree."""
        if self.form is not None:
            yield self.form
        for part in self.parts:
            yield from part.forms()

    def decided(self, box: Box) -> bool | None:
        """Whether it holds everywhere in a box (True), nowhere (False), or that depends (None)."""
        if self.kind in ("and", "or"):
            told = [p.decided(box) for p in self.parts]
            settles = self.kind == "or"
            if settles in told:
                return settles
            return None if None in told else not settles
        low, high = self.form.bounds(box)
        if self.kind == "greater_equal":
            return True if low >= 0 else False if high < 0 else None
        inside = False if low > 0 or high < 0 else True if low == high == 0 else None
        return inside if self.kind == "equal" or inside is None else not inside


_OPPOSITE = {"equal": "not_equal", "not_equal": "equal", "and": "or", "or": "and"}

TRUE = Predicate("and")
FALSE = Predicate("or")


def as_predicate(mask: Any) -> Predicate:
    """A predicate from one, from None (everywhere), or from a bool or a number."""
    if isinstance(mask, Predicate):
        return mask
    if mask is None:
        return TRUE
    if isinstance(mask, bool | int) or hasattr(mask, "item") and getattr(mask, "ndim", None) == 0:
        return TRUE if bool(mask) else FALSE
    if hasattr(mask, "on_chip"):
        raise of_the_run("mask")
    raise KernelError(f"mask: must be None, a bool or a comparison of indices, got {mask!r}")


def of_the_run(what: str) -> KernelError:
    """The error of a mask that depends on a run-time value (NKI's `err_unsupported_expression_in_mask`)."""
    rule = "must be affine in index grids, static loop indices and program_id"
    return KernelError(f"{what}: {rule}, got what only the run knows; choose by nl.where on a tile instead")


def conjunction(*masks: Any) -> Predicate:
    """All of some masks."""
    parts: list[Predicate] = []
    for mask in map(as_predicate, masks):
        parts += mask.parts if mask.kind == "and" else (mask,)
    return parts[0] if len(parts) == 1 else Predicate("and", parts=tuple(parts))


def compare(form: Any, kind: str) -> Predicate:
    """`form` compared with 0."""
    if not hasattr(form, "extents"):
        return as_predicate({"greater_equal": form >= 0, "equal": form == 0, "not_equal": form != 0}[kind])
    if form.moving is not None:
        raise of_the_run("mask")
    return Predicate(kind, form)


@dataclass(frozen=True, slots=True)
class Region:
    """What a mask leaves of a grid of `shape`: the positions of `box` where `rest` holds (None: all of them)."""

    shape: tuple[int, ...]
    box: Box
    rest: Predicate | None = None

    @property
    def empty(self) -> bool:
        for first, last in self.box:
            if first >= last:
                return True
        return False

    @property
    def full(self) -> bool:
        return self.rest is None and self.box == everywhere(self.shape).box

    @property
    def box_shape(self) -> tuple[int, ...]:
        return tuple(last - first for first, last in self.box)


@functools.lru_cache(maxsize=4096)
def everywhere(shape: tuple[int, ...]) -> Region:
    """The region without a mask."""
    return Region(shape, tuple((0, n) for n in shape))


def true_boxes(lanes: np.ndarray) -> Iterator[Box]:
    """The places where an array is true, as boxes."""
    if not lanes.ndim:
        if lanes:
            yield ()
        return
    first, n = 0, len(lanes)
    for end in range(1, n + 1):
        if end == n or not np.array_equal(lanes[end], lanes[first]):
            for rest in true_boxes(lanes[first]):
                yield ((first, end), *rest)
            first = end


def region(mask: Any, shape: Sequence[int], api: str = "mask") -> Region:
    """The region that a mask leaves of a grid, aligned from the left."""
    shape = tuple(shape)
    if mask is None:
        return everywhere(shape)
    whole = as_predicate(mask).mapped(lambda form: aligned(form, shape, api))
    box: list[tuple[int, int]] = [(0, n) for n in shape]
    rest = [whole]
    for _ in range(3):
        rest = _tightened(rest, box)
        if rest is None:
            return Region(shape, ((0, 0),) * len(shape))
    return Region(shape, tuple(box), None if not rest else conjunction(*rest))


def aligned(form: Any, shape: tuple[int, ...], api: str) -> Any:
    """A form over exactly the axes of a grid."""
    for axis, (c, n) in enumerate(zip(form.coefficients, form.extents, strict=True)):
        if c and n != 1 and (axis >= len(shape) or n != shape[axis]):
            raise KernelError(f"{api} mask: its shape {form.extents} must align from the left with {shape}")
    coefficients = tuple(form.coefficients[: len(shape)])
    return type(form)((*coefficients, *(0 for _ in range(len(shape) - len(coefficients)))), shape, form.constant)


def _tightened(parts: Sequence[Predicate], box: list[tuple[int, int]]) -> list[Predicate] | None:
    """Shrink `box` by what all of `parts` imply; the parts that it does not say, or None if nothing is left."""
    rest: list[Predicate] = []
    for part in parts:
        told = part.decided(tuple(box))
        if told is False:
            return None
        if told:
            continue
        if part.kind == "and":
            inner = _tightened(part.parts, box)
            if inner is None:
                return None
            rest += inner
        elif part.kind == "or":
            open_parts = [p for p in part.parts if p.decided(tuple(box)) is not False]
            if len(open_parts) == 1:
                inner = _tightened(open_parts, box)
                if inner is None:
                    return None
                rest += inner
            else:
                rest.append(Predicate("or", parts=tuple(open_parts)))
        else:
            if part.kind in ("greater_equal", "equal"):
                _bound(part.form, box)
            if part.kind == "equal":
                _bound(-part.form, box)
            if any(first >= last for first, last in box):
                return None
            if part.decided(tuple(box)) is not True:
                rest.append(part)
    return rest


def _bound(form: Any, box: list[tuple[int, int]]) -> None:
    """Shrink `box` by `form` ≥ 0, one axis at a time."""
    for axis, c in enumerate(form.coefficients):
        if not c:
            continue
        first, last = box[axis]
        others = form.bounds(box)[1] - (c * (last - 1) if c > 0 else c * first)
        limit = -others  # c * i ≥ limit
        if c > 0:
            first = max(first, -(-limit // c))
        else:
            last = min(last, limit // c + 1)
        box[axis] = (first, last)
