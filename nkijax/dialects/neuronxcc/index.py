"""Index objects: `nl.arange`, `nl.mgrid`, `nl.ds`, and arithmetic on them.

An `Index` stays symbolic: an affine form over the positions of a grid.  Ranks align from the left, so an axis is its
number, counted from the partitions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nkijax.dialects.neuronxcc.predicate import Predicate, Region, compare, conjunction
from nkijax.errors import KernelError, Unsupported
from nkijax.view import View

_API = "nl.arange"


def is_int(x: Any) -> bool:
    """A Python or NumPy integer (loop variables are such), no bool."""
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def extents_of(*shapes: Sequence[int], api: str = _API) -> tuple[int, ...]:
    """The shape that shapes have together, aligned from the left; sizes agree or are 1."""
    rank = max(map(len, shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for axis, n in enumerate(shape):
            if n != 1:
                if out[axis] not in (1, n):
                    raise KernelError(
                        f"{api}: shapes must agree from the left or be 1, got {tuple(map(tuple, shapes))}"
                    )
                out[axis] = n
    return tuple(out)


@dataclass(frozen=True, eq=False, slots=True)
class Index:
    """`constant` + Σ coefficients[k]·i_k, with 0 ≤ i_k < extents[k]; and a run-time part.

    `moving` is (view of a register or a one-element integer tile, factor), for what only the run knows.
    """

    coefficients: tuple[int, ...]
    extents: tuple[int, ...]
    constant: int = 0
    moving: tuple[View, int] | None = None

    __array_ufunc__: ClassVar[None] = None  # so that NumPy's integers leave arithmetic to this class

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    @property
    def ndim(self) -> int:
        return len(self.extents)

    def bounds(self, box: Sequence[tuple[int, int]] | None = None) -> tuple[int, int]:
        """Least and greatest value over a box of positions, without the moving part."""
        low = high = self.constant
        for axis, c in enumerate(self.coefficients):
            if c:
                first, last = (0, self.extents[axis] - 1) if box is None else (box[axis][0], box[axis][1] - 1)
                low += c * (first if c > 0 else last)
                high += c * (last if c > 0 else first)
        return low, high

    def compose(self, parts: Sequence[Index], rank: int, extents: tuple[int, ...]) -> Index:
        """The form with `parts[k]` in place of i_k, each over a grid of `extents`."""
        coefficients, constant = [0] * rank, self.constant
        for c, part in zip(self.coefficients, parts, strict=False):
            if c and part.moving is not None:
                raise Unsupported(f"{_API}: a bound or mask of a position that only the run knows is not emulated")
            constant += c * part.constant
            for axis, k in enumerate(part.coefficients):
                coefficients[axis] += c * k
        return Index(tuple(coefficients), extents, constant, self.moving)

    # ---- arithmetic

    def _linear(self, other: Any, sign: int) -> Index | Any:
        other = as_index(other)
        if other is None:
            return NotImplemented
        extents = extents_of(self.extents, other.extents)
        pad = lambda c: (*c, *(0 for _ in range(len(extents) - len(c))))  # noqa: E731
        both = zip(pad(self.coefficients), pad(other.coefficients), strict=True)
        moving = self.moving
        if other.moving is not None:
            if moving is not None and moving[0] != other.moving[0]:
                raise Unsupported(f"{_API}: an index takes one run-time part, got two")
            factor = (moving[1] if moving else 0) + sign * other.moving[1]
            moving = (other.moving[0], factor) if factor else None
        return Index(tuple(a + sign * b for a, b in both), extents, self.constant + sign * other.constant, moving)

    def __add__(self, other: Any) -> Index:
        return self._linear(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Index:
        return self._linear(other, -1)

    def __rsub__(self, other: Any) -> Index:
        return (-self)._linear(other, 1)

    def __neg__(self) -> Index:
        return self * -1

    def __mul__(self, other: Any) -> Index:
        if isinstance(other, Index) and not any(other.coefficients) and other.moving is None:
            other = other.constant
        if isinstance(other, Index) and not any(self.coefficients) and self.moving is None:
            return other * self.constant
        if not is_int(other):
            if isinstance(other, Index):
                raise Unsupported(f"{_API}: the product of two index grids is no affine index")
            return NotImplemented
        k = int(other)  # type: ignore[arg-type]
        moving = (self.moving[0], self.moving[1] * k) if self.moving and k else None
        return Index(tuple(c * k for c in self.coefficients), self.extents, self.constant * k, moving)

    __rmul__ = __mul__

    def _divided(self, other: Any) -> tuple[Index, Index]:
        """Quotient and remainder by a positive int, where both are affine."""
        if not is_int(other) or other < 1:
            raise Unsupported(f"{_API}: an index is divided by positive ints only, got {other!r}")
        k: int = int(other)  # type: ignore[arg-type]
        inner = Index(tuple(c % k for c in self.coefficients), self.extents, self.constant % k)
        if self.moving is not None and self.moving[1] % k or inner.bounds()[1] >= k:
            raise Unsupported(f"{_API}: an index grid divided by {k} is not affine here; use slices or reshape")
        moving = (self.moving[0], self.moving[1] // k) if self.moving else None
        outer = Index(tuple(c // k for c in self.coefficients), self.extents, self.constant // k, moving)
        return outer, inner

    def __floordiv__(self, other: Any) -> Index:
        return self._divided(other)[0]

    def __mod__(self, other: Any) -> Index:
        return self._divided(other)[1]

    # ---- comparisons give predicates

    def __lt__(self, other: Any) -> Predicate:
        return compare(other - self - 1, "greater_equal")

    def __le__(self, other: Any) -> Predicate:
        return compare(other - self, "greater_equal")

    def __gt__(self, other: Any) -> Predicate:
        return compare(self - other - 1, "greater_equal")

    def __ge__(self, other: Any) -> Predicate:
        return compare(self - other, "greater_equal")

    def __eq__(self, other: Any) -> Any:
        return False if as_index(other) is None else compare(self - other, "equal")

    def __ne__(self, other: Any) -> Any:
        return True if as_index(other) is None else compare(self - other, "not_equal")

    __hash__ = object.__hash__

    # ---- shape

    def __getitem__(self, key: Any) -> Index:
        """`index[:, None]` and its like: full slices, None, ints and slices of ints."""
        keys = list(key) if isinstance(key, tuple) else [key]
        given = sum(k is not None and k is not Ellipsis for k in keys)
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - given)
        keys += [slice(None)] * (self.ndim - sum(k is not None for k in keys))
        coefficients, extents, constant = [], [], self.constant
        axes = iter(zip(self.coefficients, self.extents, strict=True))
        for k in keys:
            if k is None:
                coefficients.append(0)
                extents.append(1)
                continue
            c, n = next(axes)
            if isinstance(k, slice):
                first, last, step = k.indices(n)
                constant += c * first
                coefficients.append(c * step)
                extents.append(len(range(first, last, step)))
            else:
                constant += c * operator.index(k)
        return Index(tuple(coefficients), tuple(extents), constant, self.moving)

    def __repr__(self) -> str:
        terms = [f"{c}*i{axis}" for axis, c in enumerate(self.coefficients) if c]
        return f"Index({' + '.join([*terms, str(self.constant)])} over {self.extents})"


def as_index(x: Any) -> Index | None:
    """An int, an index, or a one-element integer tile as an `Index`; None for anything else."""
    if isinstance(x, Index):
        return x
    if is_int(x):
        return Index((), (), int(x))
    return x.as_index() if hasattr(x, "as_index") else None


def axis_index(axis: int, shape: Sequence[int]) -> Index:
    """The position along one axis of a grid."""
    return Index(tuple(int(k == axis) for k in range(len(shape))), tuple(shape))


def predicate_of(where: Region) -> Predicate:
    """A region as a mask again."""
    parts = [] if where.rest is None else [where.rest]
    for axis, ((first, last), n) in enumerate(zip(where.box, where.shape, strict=True)):
        if (first, last) != (0, n):
            i = axis_index(axis, where.shape)
            parts += [i >= first, i < last]
    return conjunction(*parts)


def arange(*bounds: Any) -> Index:
    """nl.arange(n) or nl.arange(a, b): the integers, as an index of one axis."""
    first, last = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    n = int(last) - int(first)
    if n < 1:
        raise KernelError(f"{_API}: must not be empty, got {bounds}")
    return Index((1,), (n,), int(first))


class Grid(tuple):
    """The open mesh of `nl.mgrid[…]`: an `Index` for each axis, also called p, x, y, z and w."""

    p = property(lambda self: self[0])
    x = property(lambda self: self[1])
    y = property(lambda self: self[2])
    z = property(lambda self: self[3])
    w = property(lambda self: self[4])


class _Mgrid:
    """`nl.mgrid[a:b, c:d, …]`."""

    def __getitem__(self, key: Any) -> Grid:
        ranges = key if isinstance(key, tuple) else (key,)
        return Grid(self._axes(ranges))

    def _axes(self, ranges: Sequence[slice]) -> Iterator[Index]:
        for axis, r in enumerate(ranges):
            one = arange(r.start or 0, r.stop)
            yield one[(*(None for _ in range(axis)), slice(None), *(None for _ in range(len(ranges) - axis - 1)))]


mgrid = _Mgrid()


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """`size` elements from `start` on, an int, an index without axes or a 1x1 tile; made by `nl.ds`."""

    start: Any
    size: int


def ds(start, size) -> DynamicSlice:
    """A slice of `size` elements from `start` on."""
    return DynamicSlice(start, operator.index(size))
