"""Index objects, as `nl.arange` and `nl.mgrid` make them (see `grids`), `nl.ds`, and arithmetic on them.

An `Index` stays symbolic: an affine form over the positions of a grid.  Ranks align from the left, so an axis is its
number, counted from the partitions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nkijax.dialects.neuronxcc.predicate import Predicate, Region, compare, conjunction, true_boxes
from nkijax.errors import KernelError
from nkijax.view import View

_API = "nl.arange"
_INTS = (int, np.integer)

RUNTIME: dict[str, Callable[..., Any]] = {}
"""What is computed of run-time indices, by name; filled by `runtime`, which emits it."""


def is_int(x: Any) -> bool:
    """A Python or NumPy integer (loop variables are such), no bool."""
    return type(x) is int or isinstance(x, _INTS) and not isinstance(x, bool)


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

    `moving` is (view of a register or a one-element integer tile, factor), for what only the run knows.  An axis of
    one position has coefficient 0, as it may meet a longer one.
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
        coefficients, constant, moving = [0] * rank, self.constant, Index((), (), 0, self.moving)
        for c, part in zip(self.coefficients, parts, strict=False):
            if c and part.moving is not None:
                moving = moving + Index((), (), 0, part.moving) * c
            constant += c * part.constant
            for axis, k in enumerate(part.coefficients):
                coefficients[axis] += c * k
        return Index(tuple(coefficients), extents, constant + moving.constant, moving.moving)

    # ---- arithmetic

    def _linear(self, other: Any, sign: int) -> Index | Any:
        if type(other) is int:
            return Index(self.coefficients, self.extents, self.constant + sign * other, self.moving)
        other = as_index(other)
        if other is None:
            return NotImplemented
        extents = self.extents if self.extents == other.extents else extents_of(self.extents, other.extents)
        pad = lambda c: (*c, *(0 for _ in range(len(extents) - len(c))))  # noqa: E731
        both = zip(pad(self.coefficients), pad(other.coefficients), strict=True)
        moving = self.moving
        if other.moving is not None:
            if moving is not None and moving[0] != other.moving[0]:
                moving = RUNTIME["total"]([moving, (other.moving[0], sign * other.moving[1])]), 1
            else:
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

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Index) and not any(other.coefficients) and other.moving is None:
            other = other.constant
        if isinstance(other, Index) and not any(self.coefficients) and self.moving is None:
            return other * self.constant
        if not is_int(other):
            return Irregular.of(self) * other if isinstance(other, Index) else NotImplemented
        k = int(other)  # type: ignore[arg-type]
        moving = (self.moving[0], self.moving[1] * k) if self.moving and k else None
        return Index(tuple(c * k for c in self.coefficients), self.extents, self.constant * k, moving)

    __rmul__ = __mul__

    def _divided(self, other: Any) -> tuple[Any, Any]:
        """Quotient and remainder by a positive int, as indices where both are affine, or one number of the run."""
        if not is_int(other) or other < 1:
            raise KernelError(f"{_API}: an index is divided by positive ints only, got {other!r}")
        k: int = int(other)  # type: ignore[arg-type]
        inner = Index(tuple(c % k for c in self.coefficients), self.extents, self.constant % k)
        if self.moving is not None and self.moving[1] % k or inner.bounds()[1] >= k:
            if self.moving is not None and not any(self.coefficients):
                return RUNTIME["divided"](self, k)
            return Irregular.of(self) // k, Irregular.of(self) % k
        moving = (self.moving[0], self.moving[1] // k) if self.moving else None
        outer = Index(tuple(c // k for c in self.coefficients), self.extents, self.constant // k, moving)
        return outer, inner

    def __floordiv__(self, other: Any) -> Any:
        return self._divided(other)[0]

    def __mod__(self, other: Any) -> Any:
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
        if key in _COLUMN_AND_ROW and len(self.extents) == 1:
            (c,), (n,) = self.coefficients, self.extents
            both = ((c, 0), (n, 1)) if key[1] is None else ((0, c), (1, n))
            return Index(*both, self.constant, self.moving)
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
                size = len(range(first, last, step))
                coefficients.append(c * step if size > 1 else 0)
                extents.append(size)
            else:
                constant += c * operator.index(k)
        return Index(tuple(coefficients), tuple(extents), constant, self.moving)

    def __repr__(self) -> str:
        terms = [f"{c}*i{axis}" for axis, c in enumerate(self.coefficients) if c]
        return f"Index({' + '.join([*terms, str(self.constant)])} over {self.extents})"


@dataclass(frozen=True, eq=False, slots=True)
class Irregular:
    """Indices that are no affine form of the positions, such as a quotient: an array, aligned from the left."""

    values: np.ndarray

    __array_ufunc__: ClassVar[None] = None

    @staticmethod
    def of(x: Any) -> Irregular:
        """The values of an index grid."""
        if isinstance(x, Irregular):
            return x
        if x.moving is not None:
            raise KernelError(f"{_API}: a run-time index takes part in no product or quotient of index grids")
        places = np.indices(x.extents, sparse=True)
        grid = sum((c * i for c, i in zip(x.coefficients, places, strict=True)), np.int64(x.constant))
        return Irregular(np.broadcast_to(grid, x.extents))

    @property
    def extents(self) -> tuple[int, ...]:
        return self.values.shape

    shape = extents

    @property
    def ndim(self) -> int:
        return self.values.ndim

    def as_affine(self) -> Index | None:
        """The index that this is after all; None for what is none."""
        v = self.values
        origin = int(v[(0,) * v.ndim])
        steps = tuple(int(np.take(v, 1, axis).flat[0]) - origin if n > 1 else 0 for axis, n in enumerate(v.shape))
        found = Index(steps, v.shape, origin)
        return found if np.array_equal(Irregular.of(found).values, v) else None

    def _with(self, other: Any, function: Callable[..., Any]) -> Any:
        other = self if other is self else as_index(other) or other
        if not isinstance(other, Index | Irregular):
            return NotImplemented
        a, b = self.values, Irregular.of(other).values
        rank = max(a.ndim, b.ndim)
        extents_of(a.shape, b.shape)
        a, b = (v.reshape((*v.shape, *(1 for _ in range(rank - v.ndim)))) for v in (a, b))
        out = function(a, b)
        return predicate_where(out) if out.dtype == bool else Irregular(out)

    def __add__(self, other: Any) -> Any:
        return self._with(other, np.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(other, np.subtract)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, np.multiply)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, np.floor_divide)

    def __mod__(self, other: Any) -> Any:
        return self._with(other, np.mod)

    def __lt__(self, other: Any) -> Any:
        return self._with(other, np.less)

    def __le__(self, other: Any) -> Any:
        return self._with(other, np.less_equal)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, np.greater)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, np.greater_equal)

    def __eq__(self, other: Any) -> Any:
        return self._with(other, np.equal)

    def __ne__(self, other: Any) -> Any:
        return self._with(other, np.not_equal)

    __hash__ = object.__hash__

    def __getitem__(self, key: Any) -> Irregular:
        """`grid[:, None]` and its like."""
        return Irregular(self.values[key])

    def __repr__(self) -> str:
        return f"Irregular(over {self.extents})"


def predicate_where(lanes: np.ndarray) -> Predicate:
    """The predicate that holds where an array is true."""
    parts = []
    for box in true_boxes(lanes):
        bounds = []
        for axis, ((first, last), n) in enumerate(zip(box, lanes.shape, strict=True)):
            if (first, last) != (0, n):
                i = axis_index(axis, lanes.shape)
                bounds += [i >= first, i < last]
        parts.append(conjunction(*bounds))
    return parts[0] if len(parts) == 1 else Predicate("or", parts=tuple(parts))


_COLUMN_AND_ROW = ((slice(None), None), (None, slice(None)))


def as_index(x: Any) -> Index | None:
    """An int, an index, or a one-element integer tile as an `Index`; None for anything else."""
    if type(x) is Index:
        return x
    if is_int(x):
        return Index((), (), int(x))
    return x.as_index() if hasattr(x, "as_index") else None


def axis_index(axis: int, shape: Sequence[int]) -> Index:
    """The position along one axis of a grid."""
    return Index(tuple(int(k == axis and n > 1) for k, n in enumerate(shape)), tuple(shape))


def predicate_of(where: Region) -> Predicate:
    """A region as a mask again."""
    parts = [] if where.rest is None else [where.rest]
    for axis, ((first, last), n) in enumerate(zip(where.box, where.shape, strict=True)):
        if (first, last) != (0, n):
            i = axis_index(axis, where.shape)
            parts += [i >= first, i < last]
    return conjunction(*parts)


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """`size` elements from `start` on, an int, an index without axes or a 1x1 tile; made by `nl.ds`."""

    start: Any
    size: int


def ds(start, size) -> DynamicSlice:
    """A slice of `size` elements from `start` on."""
    return DynamicSlice(start, operator.index(size))
