"""Grids of programs: their launch dimensions, and which program runs."""

from __future__ import annotations

import math
import operator
from typing import Any

from nkijax.errors import KernelError
from nkijax.trace import current


class nc(int):
    """`nl.nc(n)`: n physical cores, in a grid; `m * nl.nc(n)` is one dimension of m times n programs."""

    def __mul__(self, other: Any) -> nc:
        return nc(int(self) * int(other))

    __rmul__ = __mul__


def spmd_dim(x, y=1) -> int:
    """`nl.spmd_dim(x, nl.nc(y))`: one dimension of x times y programs."""
    return operator.index(x) * operator.index(y)


def grid_of(key: Any) -> tuple[int, ...]:
    """The grid of `kernel[key]`; a 0 counts as 1."""
    sizes = key if isinstance(key, tuple | list) else (key,)
    try:
        grid = tuple(max(operator.index(n), 1) for n in sizes)
    except TypeError:
        raise KernelError(f"kernel[grid]: must be ints, got {key!r}") from None
    if any(operator.index(n) < 0 for n in sizes):
        raise KernelError(f"kernel[grid]: must not be negative, got {key!r}")
    return grid


def _axis(api: str, axis: Any) -> int:
    grid = current(api).grid
    k = operator.index(axis)
    if not 0 <= k < max(len(grid), 1):
        raise KernelError(f"{api} axis: the grid has {len(grid)} axes, got {axis}")
    return k


def program_id(axis=0) -> int:
    """Which program this is on a grid axis; 0 without a grid."""
    api = "nl.program_id"
    k, recorder = _axis(api, axis), current(api)
    if not recorder.grid:
        return 0
    return recorder.program_id // math.prod(recorder.grid[k + 1 :]) % recorder.grid[k]


def num_programs(axes=None) -> Any:
    """How many programs there are: in all, on one axis, or a tuple for several axes."""
    api = "nl.num_programs"
    recorder = current(api)
    if axes is None:
        return recorder.programs
    if isinstance(axes, tuple | list):
        return tuple(num_programs(a) for a in axes)
    k = _axis(api, axes)
    return recorder.grid[k] if recorder.grid else 1


def program_ndim() -> int:
    """How many axes the grid has; 0 without one."""
    return len(current("nl.program_ndim").grid)
