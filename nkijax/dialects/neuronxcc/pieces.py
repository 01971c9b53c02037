"""Subscripts that are no one access pattern: each becomes several, on boxes of the result's positions.

Such are subscripts by index grids that are not affine (`t[i, j // 2]`), by index tiles of several columns, and by index
grids over tiles with given places.

Not emulated: more than 1024 pieces; to subscript what index tiles of several columns address, or any of these again by
what only the run knows, by a mask or by None.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nkijax.dialects.neuronxcc.bounds import Guard
from nkijax.dialects.neuronxcc.dtype import DType
from nkijax.dialects.neuronxcc.index import Index, Irregular, extents_of
from nkijax.dialects.neuronxcc.pattern import Pattern, Rows, Span
from nkijax.dialects.neuronxcc.predicate import Box, Predicate, as_predicate
from nkijax.dialects.neuronxcc.tensor import OPERATORS, Tensor, boxed, broadcast, face, operand
from nkijax.errors import Unsupported
from nkijax.view import Dynamic, View

_API = "tensor[...]"
_MOST = 1024  # pieces of one subscript


@dataclass(frozen=True, eq=False)
class Pieces:
    """What a subscript addresses, as tensors on boxes of its positions; it is loaded, stored to and assigned to.

    `entries` are the subscript's, `axis_of` tells where they are in the result (see `Pattern`), and `made_of` makes
    what other entries address.
    """

    shape: tuple[int, ...]
    parts: tuple[tuple[Box, Tensor], ...]
    entries: Sequence[Any] = ()
    axis_of: Mapping[tuple[str, int], int] = field(default_factory=dict)
    made_of: Callable[[Sequence[Any]], Any] | None = None

    __array_ufunc__ = None

    @property
    def dtype(self) -> DType:
        return self.parts[0][1].dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def on_chip(self) -> bool:
        return self.parts[0][1].on_chip

    @property
    def partition(self) -> int:
        return self.parts[0][1].partition

    def __getitem__(self, key: Any) -> Any:
        return self if key is Ellipsis else OPERATORS["subscript"](self, key)

    def again(self, pattern: Pattern, places: Sequence[np.ndarray]) -> Any:
        """What a second subscript addresses: `places` are its positions along each dimension, over its pattern."""
        if self.made_of is None or any(isinstance(e, Rows) for e in self.entries):
            raise Unsupported(f"{_API}: a subscript by several columns of run-time indices is not subscripted again")
        entries: list[Any] = []
        for k, e in enumerate(self.entries):
            values, moving = self._values(k, e, places)
            found = Irregular(np.broadcast_to(values, pattern.shape))
            affine = found.as_affine()
            if moving is not None and affine is None:
                raise Unsupported(f"{_API}: an irregular subscript of what starts at a run-time index")
            entries.append(found if affine is None else replace(affine, moving=moving))
        return self.made_of(entries)

    def _values(self, k: int, e: Any, places: Sequence[np.ndarray]) -> tuple[Any, Any]:
        """The positions that entry `k` names at places of the result, and their run-time part."""
        if isinstance(e, Span):
            return e.start.constant + e.step * places[self.axis_of["span", k]], e.start.moving
        moving = e.moving if isinstance(e, Index) else None
        values = Irregular.of(replace(e, moving=None) if isinstance(e, Index) else e).values
        return values[
            tuple(places[self.axis_of["grid", a]] if n > 1 else 0 for a, n in enumerate(values.shape))
        ], moving

    def masked(self, mask: Any) -> Iterator[tuple[Box, Tensor, Any]]:
        """Each box and its tensor, with the mask there."""
        for box, part in self.parts:
            yield box, part, None if mask is None else as_predicate(mask).mapped(_shift(box))

    def cut(self, x: Any, box: Box) -> Any:
        """The part, in a box, of a tensor that broadcasts to this shape; a number as it is."""
        return face(boxed(broadcast(operand(x), self.shape), box)) if isinstance(x, Tensor) else x


def _shift(box: Box) -> Callable[[Index], Index]:
    """What makes a form over the whole grid one over a box, counted from its first position."""

    def shifted(form: Index) -> Index:
        rank = min(form.ndim, len(box))
        moved = sum(c * first for c, (first, _) in zip(form.coefficients, box, strict=False))
        extents = tuple(1 if form.extents[k] == 1 else box[k][1] - box[k][0] for k in range(rank))
        coefficients = tuple(c if n > 1 else 0 for c, n in zip(form.coefficients, extents, strict=False))
        left = form.coefficients[rank:], form.extents[rank:]
        return Index((*coefficients, *left[0]), (*extents, *left[1]), form.constant + moved, form.moving)

    return shifted


def pieces(x: Tensor, entries: Sequence[Index | Span | Rows | Irregular]) -> Pieces:
    """The parts of `x[entries]`, of which some are irregular or are rows of several columns."""
    grid = extents_of(*(e.extents for e in entries if not isinstance(e, Span)), api=_API)
    parts, shape = [], ()
    for box in _boxes(entries, tuple((0, n) for n in grid)):
        pattern = Pattern(x, [_on(e, box, grid) for e in entries])
        made, shape = pattern.tensor(), tuple(pattern.shape)
        place = _place(pattern, box)
        parts.append((place, _cut(made, place)))
    return Pieces(shape, tuple(parts), entries, pattern.axis_of, lambda new: resolved(x, new))


def resolved(x: Tensor, entries: Sequence[Any]) -> Any:
    """What entries of a subscript address."""
    if any(isinstance(e, Irregular) or isinstance(e, Rows) and len(e.extents) > 1 for e in entries):
        return pieces(x, entries)
    return Pattern(x, entries).tensor()


def _boxes(entries: Sequence[Any], whole: Box) -> list[Box]:
    """Boxes of a grid on which every entry is affine, or a column of run-time indices."""
    grids = [e.values for e in entries if isinstance(e, Irregular)]
    boxes = list(itertools.islice(_affine_boxes(grids, whole), _MOST + 1))
    if any(isinstance(e, Rows) and len(e.extents) > 1 for e in entries):
        boxes = [b for box in boxes for b in _columns(box)]
    if len(boxes) > _MOST:
        raise Unsupported(f"{_API}: an index grid of more than {_MOST} affine pieces")
    return boxes


def of_blocks(entries: Sequence[Any], depth: int, tile_at: Callable[[tuple[int, ...]], Tensor]) -> Pieces:
    """The parts of a tensor whose first `depth` dimensions count tiles: one for each tile that index grids name."""
    grid = extents_of(*(e.extents for e in entries if not isinstance(e, Span)), api=_API)
    blocks, inner = [Irregular.of(e).values for e in entries[:depth]], [_over(e, grid) for e in entries[depth:]]
    varying = {axis for v in blocks for axis, n in enumerate(v.shape) if n > 1}
    parts, whole = [], ()
    for at in itertools.product(*(range(n) if axis in varying else (0,) for axis, n in enumerate(grid))):
        places = [tuple(k if n > 1 else 0 for k, n in zip(at, v.shape, strict=False)) for v in blocks]
        tile = tile_at(tuple(int(v[place]) for v, place in zip(blocks, places, strict=True)))
        one = tuple((k, k + 1) if axis in varying else (0, grid[axis]) for axis, k in enumerate(at))
        for box in _boxes(inner, one):
            pattern = Pattern(tile, [_on(e, box, grid) for e in inner])
            made, whole, place = pattern.tensor(), tuple(pattern.shape), _place(pattern, box)
            parts.append((place, _cut(made, place)))
    return Pieces(whole, tuple(parts), entries, pattern.axis_of, lambda new: of_blocks(new, depth, tile_at))


def _over(entry: Any, grid: tuple[int, ...]) -> Any:
    """An entry of a subscript over a whole grid."""
    if not isinstance(entry, Index):
        return entry
    pad = (0,) * (len(grid) - entry.ndim)
    return Index((*entry.coefficients, *pad), grid, entry.constant, entry.moving)


def _place(pattern: Pattern, box: Box) -> Box:
    """Where a box of the grid is in the result."""
    place = tuple((0, n) for n in pattern.shape)
    for axis, bounds in enumerate(box):
        at = pattern.axis_of.get(("grid", axis))
        place = place if at is None else (*place[:at], bounds, *place[at + 1 :])
    return place


def by_rows(x: Tensor) -> Pieces | None:
    """A tensor with a run-time index of each row as one for each row, for what must come one after the other."""
    view, d = x.raw, x.raw.dynamic
    if d is None or not d.vector:
        return None
    parts = []
    for p in range(view.shape[0]):
        one = Dynamic(d.index.slice(0, p, p + 1), d.stride, d.limit)
        row = View(view.buffer, view.offset + p * view.strides[0], view.strides, (1, *view.shape[1:]), view.dtype, one)
        box = ((p, p + 1), *((0, n) for n in view.shape[1:]))
        guards = tuple(Guard(_shift(box)(g.form), g.limit, g.dim) for g in x.guards)
        parts.append((box, face(row, 0, guards)))
    return Pieces(view.shape, tuple(parts))


def _columns(box: Box) -> Iterator[Box]:
    """A box, cut to single positions of all axes but the first."""
    for at in itertools.product(*(range(*bounds) for bounds in box[1:])):
        yield (box[0], *((k, k + 1) for k in at))


def _on(entry: Any, box: Box, grid: tuple[int, ...]) -> Any:
    """An entry as it is on a box, over the whole grid: what is irregular elsewhere is affine there."""
    if isinstance(entry, Irregular):
        return _affine(entry.values, box, grid)
    if isinstance(entry, Rows) and len(entry.extents) > 1:
        view = entry.view
        for dim, (first, last) in enumerate(box[1 : view.ndim], start=1):
            view = view.slice(dim, first, last)
        return Rows(view.reshape((view.shape[0], 1)), grid)
    return replace(entry, extents=grid) if isinstance(entry, Rows) else entry


def _sub(values: np.ndarray, box: Box) -> np.ndarray:
    return values[tuple(slice(*b) if n > 1 else slice(None) for b, n in zip(box, values.shape, strict=False))]


def _affine(values: np.ndarray, box: Box, grid: tuple[int, ...]) -> Index:
    """The affine form that an array of indices is on a box."""
    part = _sub(values, box)
    origin = part[(0,) * part.ndim]
    steps = [int(np.take(part, 1, axis).flat[0] - origin) if n > 1 else 0 for axis, n in enumerate(part.shape)]
    steps += [0] * (len(grid) - len(steps))
    return Index(tuple(steps), grid, int(origin) - sum(s * first for s, (first, _) in zip(steps, box, strict=True)))


def _affine_boxes(grids: Sequence[np.ndarray], box: Box) -> Iterator[Box]:
    """Boxes on which every array of indices is affine."""
    stack = [box]
    while stack:
        box = stack.pop()
        axis, at = _break([_sub(g, box) for g in grids])
        if not at:
            yield box
            continue
        first, last = box[axis]
        for bounds in ((first + at, last), (first, first + at)):
            stack.append((*box[:axis], bounds, *box[axis + 1 :]))


def _break(grids: Sequence[np.ndarray]) -> tuple[int, int]:
    """The axis, and how many positions of it come before arrays cease to be affine along it; 0 if they never do."""
    found = (0, 0)
    for values in grids:
        for axis in range(values.ndim):
            steps = np.diff(values, axis=axis)
            if not steps.size:
                continue
            other = steps != steps[(0,) * steps.ndim]
            bad = np.flatnonzero(other.any(axis=tuple(k for k in range(steps.ndim) if k != axis)))
            if len(bad) and bad[0]:
                return axis, int(bad[0]) + 1
            if len(bad):
                found = found if found[1] else (axis, 1)
    return found


def _cut(x: Any, box: Box) -> Any:
    """The part of a tensor inside a box of its positions, its bounds still to be checked."""
    shifted = _shift(box)
    guards = tuple(Guard(shifted(g.form), g.limit, g.dim) for g in x.guards)
    mask: Predicate | None = None if x.mask is None else x.mask.mapped(shifted)
    return face(boxed(x.raw, box), x.partition, guards, mask)
