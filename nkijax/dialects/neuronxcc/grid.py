"""Grids of programs: their launch dimensions, which program runs, and what they reduce together."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

from nkijax.dialects.neuronxcc import emit
from nkijax.dialects.neuronxcc.dtype import name_of
from nkijax.dialects.neuronxcc.math import binary, tile_of
from nkijax.dialects.neuronxcc.memory import load
from nkijax.dialects.neuronxcc.ops import op_name
from nkijax.dialects.neuronxcc.tensor import Tile, face, operand
from nkijax.errors import KernelError
from nkijax.isa.move import DmaCopy
from nkijax.isa.programs import ProgramBarrier
from nkijax.machine import Memory
from nkijax.trace import current
from nkijax.view import View


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


class ProgramId(int):
    """A program's number on the grid axis `axis`; where an axis is asked for, it stands for its own."""

    axis: int


def _axis(api: str, axis: Any) -> int:
    grid = current(api).grid
    k = axis.axis if isinstance(axis, ProgramId) else operator.index(axis)
    if not 0 <= k < max(len(grid), 1):
        raise KernelError(f"{api} axis: the grid has {len(grid)} axes, got {axis}")
    return k


def program_id(axis=0) -> int:
    """Which program this is on a grid axis; 0 without a grid."""
    api = "nl.program_id"
    k, recorder = _axis(api, axis), current(api)
    here = recorder.program_id // math.prod(recorder.grid[k + 1 :]) % recorder.grid[k] if recorder.grid else 0
    number = ProgramId(here)
    number.axis = k
    return number


def num_programs(axes=None) -> int:
    """How many programs there are: in all, on one axis, or on several axes together."""
    api = "nl.num_programs"
    recorder = current(api)
    if axes is None:
        return recorder.programs
    if isinstance(axes, tuple | list):
        return math.prod(num_programs(a) for a in axes)
    k = _axis(api, axes)
    return recorder.grid[k] if recorder.grid else 1


def program_ndim() -> int:
    """How many axes the grid has; 0 without one."""
    return len(current("nl.program_ndim").grid)


def all_reduce(
    x, op, program_axes=None, dtype=None, mask=None, parallel_reduce=True, asynchronous=False, **hints
) -> Tile:
    """The reduction of a tile over the programs along `program_axes` (all axes by default); each gets the result.

    Every program leaves its tile in HBM that all share, they meet, and each reduces what it finds there.  Hints, such
    as parallel_reduce, have no effect.
    """
    del hints
    api = "nl.all_reduce"
    recorder, tile = current(api), emit.copy(tile_of(f"{api} x", x), "float32", mask, api)
    kind = x.dtype.name if dtype is None else name_of(dtype, api)
    group = _group(api, program_axes)
    if len(group) == 1:
        return emit.copy(tile, kind, None, api)
    shared = View.whole(recorder.allocate((recorder.programs, *tile.shape), "float32", Memory.shared_hbm))
    recorder.emit(DmaCopy(shared.select(0, recorder.program_id), operand(tile, api=api)))
    recorder.emit(ProgramBarrier(shared))
    total = load(face(shared.select(0, group[0])))
    for program in group[1:]:
        total = binary(op_name(op), total, load(face(shared.select(0, program))))
    return emit.copy(total, kind, None, api)


def _group(api: str, axes: Any) -> list[int]:
    """The programs that differ from this one on some axes only, in order."""
    recorder = current(api)
    grid = recorder.grid or (1,)
    chosen = range(len(grid)) if axes is None else axes if isinstance(axes, tuple | list) else (axes,)
    moving = {_axis(api, a) for a in chosen}
    here = [recorder.program_id // math.prod(grid[k + 1 :]) % n for k, n in enumerate(grid)]
    places = itertools.product(*(range(n) if k in moving else (here[k],) for k, n in enumerate(grid)))
    return [sum(i * math.prod(grid[k + 1 :]) for k, i in enumerate(place)) for place in places]
