"""The tensor engine in the old dialect: nc_matmul, and `nl.matmul` and `nl.transpose` on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import nkijax.dialects.neuronxcc.tensor as t
from nkijax import dtypes
from nkijax.dialects.neuronxcc import emit
from nkijax.dialects.neuronxcc.emit import copied, joint, to_sbuf
from nkijax.dialects.neuronxcc.fit import merged
from nkijax.dialects.neuronxcc.index import Index, predicate_of
from nkijax.dialects.neuronxcc.isa_compute import tile_of
from nkijax.dialects.neuronxcc.predicate import Box, Predicate, Region, as_predicate, conjunction, everywhere, region
from nkijax.dialects.neuronxcc.regions import projected
from nkijax.dialects.neuronxcc.tensor import Tensor, Tile, boxed, operand, result
from nkijax.errors import KernelError
from nkijax.isa.matmul import MatmulPerfMode, NcMatmul
from nkijax.isa.move import Memset
from nkijax.machine import Memory
from nkijax.trace import current
from nkijax.view import View

_API = "nki.isa.nc_matmul"
_WIDE = ("float32", "tfloat32")
_ROWS = 2  # that double_row contracts at once


def nc_matmul(
    stationary,
    moving,
    is_stationary_onezero=False,
    is_moving_onezero=False,
    is_transpose=False,
    tile_position=(),
    tile_size=(),
    perf_mode=None,
    mask=None,
    **hints,
) -> Tile:
    """stationary (K, M) transposed times moving (K, N …), into PSUM in float32: (M, N …).

    `mask` is on the result, or on the free dimension of `stationary` where only that fits or `stationary` hides the
    same lanes.  Lanes that a mask on an operand hides add nothing; where it hides all of the contracted dimension, the
    result is not written.  `perf_mode` "double_row_gen3" contracts operands (K, 2, M) and (K, 2, N).  `is_transpose`
    changes no value.
    """
    del hints, is_transpose
    s, m = tile_of(stationary, f"{_API} stationary"), tile_of(moving, f"{_API} moving")
    double = perf_mode is not None and "double_row" in str(perf_mode)
    where, operands = _cut_operands(s, m, mask, double)
    tile = result(where.shape, "float32", Memory.psum, where)
    if operands is None:
        return tile
    mode = MatmulPerfMode.double_row if double else MatmulPerfMode.none
    onezero = bool(is_stationary_onezero), bool(is_moving_onezero)
    dst, recorder = boxed(tile.raw, where.box), current(_API)
    recorder.zeros.add(dst.buffer)  # a first matmul adds to zeros, so that every step of a contraction is the same
    place = (tuple(tile_position), tuple(tile_size))
    made = NcMatmul(dst, *_paired(*operands), *onezero, False, True, *place, mode, dst)
    recorder.emit(made)
    tile.made = made
    return tile


def _cut_operands(s: Tensor, m: Tensor, mask: Any, double: bool) -> tuple[Region, tuple[View, View] | None]:
    """The region of the result, and what masks leave of the operands; None if that is nothing."""
    left, right = _free(s, double), _free(m, double)
    shape = (math.prod(left), *right)
    if mask is None and s.mask is None and m.mask is None and s.shape[0] == m.shape[0]:
        return everywhere(shape), (operand(s, api=_API), operand(m, api=_API))
    if len(left) > 1:
        s, mask = _merged(s, mask, shape, double)
    s_in, m_in = joint(_API, None, [s], s.shape), joint(_API, None, [m], m.shape)
    where = _result_region(mask, shape, s_in)
    first, ones = 2 if double else 1, (0,) * len(right)
    s_in, rows_left = _unwritten(s_in, first, lambda f: Index((*f.coefficients, *ones), shape, f.constant))
    m_in, columns_left = _unwritten(m_in, first, lambda f: Index((0, *f.coefficients), shape, f.constant))
    if rows_left or columns_left:
        where = region(conjunction(predicate_of(where), *rows_left, *columns_left), shape, _API)
    if s_in.rest is not None:
        s, s_in = _zeroed(s, s_in), everywhere(s.shape)
    if m_in.rest is not None:
        m, m_in = _zeroed(m, m_in), everywhere(m.shape)
    (a, b), (c, d) = s_in.box[0], m_in.box[0]
    rows = max(a, c), min(b, d)
    where = _cut(where, s_in, m_in, double)
    if where.empty or rows[0] >= rows[1]:
        return where, None
    stationary = operand(s, None, _operand_region(s, rows, where.box[:1], double), _API)
    return where, (stationary, operand(m, None, _operand_region(m, rows, where.box[1:], double), _API))


def _free(x: Tensor, double: bool) -> tuple[int, ...]:
    """The free dimensions that are not contracted."""
    if double and (x.ndim < 3 or x.shape[1] != _ROWS):
        raise KernelError(f"{_API}: with double_row operands must be (K, {_ROWS}, …), got {x.shape}")
    return x.shape[2:] if double else x.shape[1:]


def _merged(s: Tensor, mask: Any, shape: tuple[int, ...], double: bool) -> tuple[Tensor, Any]:
    """A stationary with its free dimensions as one, which takes a mask on them, and the mask that is left."""
    first = 2 if double else 1
    if isinstance(mask, Predicate) and not _fits(mask, shape) and not double and _fits(mask, (1, *s.shape[first:])):
        return merged(s, first, mask), None
    return merged(s, first), mask


def _unwritten(x: Region, first: int, over: Callable[[Index], Index]) -> tuple[Region, list[Predicate]]:
    """An operand's region, without a mask on free dimensions alone, and over the result where it leaves any of them.

    Free dimensions start at `first`.
    """
    if x.rest is None or x.empty:
        return x, []
    seen = projected(x, range(first, len(x.shape)), x.shape[first:])
    alone = not any(any(form.coefficients[:first]) for form in x.rest.forms())
    return Region(x.shape, x.box) if alone else x, [] if seen.rest is None else [seen.rest.mapped(over)]


def _fits(mask: Predicate, shape: tuple[int, ...]) -> bool:
    """Whether a mask is one on a tile of a shape."""
    return len(mask.shape) <= len(shape) and all(n in (1, size) for n, size in zip(mask.shape, shape, strict=False))


def _result_region(mask: Any, shape: tuple[int, ...], stationary: Region) -> Region:
    """The region of the result; a mask of shape (1, M) may be on the stationary's free dimension."""
    if isinstance(mask, Predicate) and mask.shape == (1, shape[0]):
        if not _fits(mask, shape) or _hides_too(stationary, mask):
            mask = mask.mapped(lambda form: Index(form.coefficients[1:], form.extents[1:], form.constant))
    return region(None if mask is None else as_predicate(mask), shape, _API)


def _hides_too(stationary: Region, mask: Predicate) -> bool:
    """Whether the stationary hides, on its free dimension, the lanes that a mask hides there."""
    if stationary.shape[1:] != mask.shape[1:] or stationary.box[1] == (0, stationary.shape[1]):
        return False
    return region(mask, stationary.shape, _API).box[1] == stationary.box[1]


def _cut(where: Region, s: Region, m: Region, double: bool) -> Region:
    """The region of the result without what operands hide on their free dimensions."""
    first = 2 if double else 1
    free = (s.box[first], *m.box[first:])
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(where.box, free, strict=True))
    return Region(where.shape, box, where.rest)


def _operand_region(x: Tensor, rows: tuple[int, int], free: Box, double: bool) -> Region:
    return Region(x.shape, (rows, *(((0, _ROWS),) if double else ()), *free))


def _zeroed(x: Tensor, where: Region) -> Tensor:
    """A copy of an operand that is zero where a mask that is no box hides it."""
    out = t.allocate(x.shape, str(x.dtype), Memory.sbuf, zero=True)
    current(_API).emit(Memset(out, emit.fitting(0, str(x.dtype))))
    if not where.empty:
        emit.select(boxed(out, where.box), operand(x, None, where, _API), where)
    return t.face(out)


def _paired(a: View, b: View) -> tuple[View, View]:
    """The operands as the tensor engine takes them: in SBUF, both wide or both narrow floats."""
    a, b = _float(to_sbuf(a)), _float(to_sbuf(b))
    if (a.dtype in _WIDE) != (b.dtype in _WIDE):
        a, b = (x if x.dtype in _WIDE else copied(x, "float32") for x in (a, b))
    return a, b


def _float(x: View) -> View:
    """Integers as floats that hold them."""
    if dtypes.is_float(x.dtype):
        return x
    return copied(x, "bfloat16" if dtypes.size(x.dtype) == 1 else "float32")
