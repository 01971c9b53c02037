"""Microscaling (MX) types: quantize_mx makes them, nc_matmul_mx multiplies them (NeuronCore-v4).

An x4 element packs four values, the first in the lowest bits.  A group of 8 partitions by one x4 element shares a
scale, a power of two whose biased exponent is a byte (255: NaN).  The scales of the data's partition p and column c are
in row 32 * (p // 32) + p % 32 // 8 of the scale tile, column c: four rows of each quadrant of 32 partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import rates, rules
from nkijax.isa.accumulate import Recording, resolve_accumulate
from nkijax.isa.matmul import check_untiled
from nkijax.machine import Engine, Generation, Memory, Target, Work
from nkijax.program import In, InOut, Instruction, Out, Read
from nkijax.view import View

_PACK = 4  # values of an x4 element
_GROUP = 8  # partitions that share a scale
_QUADRANT = 32
_ROWS = _QUADRANT // _GROUP  # of a quadrant that hold its scales
_SLOTS = (0, 4, 8, 12)  # rows of a quadrant where those may start
_SCALES = ("float8_e8m0fnu", "uint8")
_DATA = ("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")
_GREATEST_EXPONENT = {"float8_e5m2_x4": 15, "float8_e4m3fn_x4": 8}
_TILE_ROWS = (32, 64, 128)
_FEED_CYCLES = 64
_NAN_BYTE, _LAST_BYTE, _MANTISSA_BITS = 255, 254, 23  # of a scale; of float32
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


# ---- values and scales as arrays


def _unpack(x: jax.Array, dtype: str) -> jax.Array:
    """The four values of each x4 element along a new last axis, in float32."""
    if dtype == "float4_e2m1fn_x4":
        nibbles = (x[..., None] >> (4 * np.arange(_PACK, dtype=x.dtype)).reshape((1,) * x.ndim + (-1,))) & 0xF
        return jnp.asarray(np.concatenate([_E2M1, -_E2M1]))[nibbles]
    return lax.bitcast_convert_type(x, dtypes.storage(dtype.removesuffix("_x4"))).astype(np.float32)


def _power(byte: jax.Array) -> jax.Array:
    """2 ** (byte - 127) in float32; 0 for 0, whose power is no normal float32; NaN for 255."""
    power = lax.bitcast_convert_type(byte.astype(np.uint32) << _MANTISSA_BITS, np.float32)
    return jnp.where(byte == _NAN_BYTE, np.float32(np.nan), power)


def _scale_rows(quadrants: int) -> np.ndarray:
    """The rows of a scale tile that hold scales."""
    return (_QUADRANT * np.arange(quadrants)[:, None] + np.arange(_ROWS)).reshape(-1)


# ---- rules


def _check_data(inst: QuantizeMx | NcMatmulMx, target: Target, name: str) -> None:
    """A tile whose partitions fill quadrants."""
    view: View = getattr(inst, name)
    rules.partitions(inst, target, name)
    if view.partitions % _QUADRANT:
        raise rules.fail(inst, name, f"must have a multiple of {_QUADRANT} partitions", view.shape)


def _check_scale(inst: QuantizeMx | NcMatmulMx, target: Target, name: str, data: str) -> None:
    """A scale tile with the four rows of each quadrant of `data`, starting in one of the slots."""
    view: View = getattr(inst, name)
    rules.in_memory(inst, name, memories=(Memory.sbuf,))
    rules.partitions(inst, target, name)
    if view.dtype not in _SCALES:
        raise rules.fail(inst, name, f"must be one of {list(_SCALES)}", view.dtype)
    start = view.offset // view.partition_stride % _QUADRANT
    if start not in _SLOTS:
        raise rules.fail(inst, name, f"must start at row {list(_SLOTS)} of a quadrant", start)
    need = int(_scale_rows(getattr(inst, data).partitions // _QUADRANT)[-1]) + 1
    if not _is_narrowed(view) and view.partitions < need:
        raise rules.fail(inst, name, f"must have at least {need} rows, for the quadrants of {data}", view.shape)


def _narrowed(view: View, partitions: int) -> View:
    """The rows of a scale tile that belong to data of so many partitions: (quadrants, 4, columns); or `view` itself
    where it has no such rows.
    """
    quadrants = partitions // _QUADRANT
    if not quadrants or view.partitions < (quadrants - 1) * _QUADRANT + _ROWS:
        return view
    rows = view.slice(0, 0, _ROWS)
    strides, shape = (_QUADRANT * rows.strides[0], *rows.strides), (quadrants, *rows.shape)
    return View(view.buffer, view.offset, strides, shape, view.dtype, view.dynamic)


def _is_narrowed(view: View) -> bool:
    """Whether `_narrowed` made the view: dimension 1 steps through partitions as no other view's does."""
    return view.ndim > 2 and view.strides[0] == _QUADRANT * view.strides[1] and view.strides[1] >= view.partition_stride  # noqa: PLR2004


# ---- quantize_mx


@dataclass(frozen=True)
class QuantizeMx(Instruction):
    """dst = cast(src / X), dst_scale = X, for each group X = 2 ** (floor(log2(max |src|)) - (Emax - 1))

    Emax is 15 for e5m2, 8 for e4m3fn: X is twice the scale of the OCP sample, so that nothing saturates.  A group of
    zeros has X = 2 ** -127; one with infinity or NaN has NaN as scale and in every element.
    Memory: all in SBUF.
    Data types: src fp16, bf16; dst float8_e5m2_x4, float8_e4m3fn_x4; dst_scale float8_e8m0fnu or uint8.
    Layout: src (P, F), P a multiple of 32 up to 128, F of 4; dst (P, F/4); dst_scale at least (P - 28, F/4), of which
        only four rows a quadrant are written, from row 0, 4, 8 or 12 of a quadrant on.
    Engine: Vector, from gen4 on.
    Cost: max(64, F / 4), twice that with a stride above 16 bytes.
    Not emulated: gradients, which end at packed types.
    Source: nki.isa.quantize_mx
    """

    dst: Out
    src: In
    dst_scale: Out  # only the rows that are written

    api: ClassVar[str] = "nki.isa.quantize_mx"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dst_scale", _narrowed(self.dst_scale, self.src.partitions))

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen4, "quantize_mx")
        dst, src = self.dst, self.src
        rules.in_memory(self, "dst", "src", memories=(Memory.sbuf,))
        _check_data(self, target, "src")
        if src.dtype not in ("float16", "bfloat16"):
            raise rules.fail(self, "src", "must be float16 or bfloat16", src.dtype)
        if src.free % _PACK:
            raise rules.fail(self, "src", f"must have a multiple of {_PACK} free elements", src.shape)
        if dst.dtype not in _GREATEST_EXPONENT:
            raise rules.fail(self, "dst", f"must be one of {list(_GREATEST_EXPONENT)}", dst.dtype)
        columns = src.free // _PACK
        if (dst.partitions, dst.free) != (src.partitions, columns):
            raise rules.fail(self, "dst", f"must be ({src.partitions}, {columns}), a quarter of src", dst.shape)
        _check_scale(self, target, "dst_scale", "src")
        if self.dst_scale.size != _ROWS * (src.partitions // _QUADRANT) * columns:
            raise rules.fail(
                self, "dst_scale", f"must have {columns} columns, one for each of dst", self.dst_scale.shape
            )

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        p, f = self.src.partitions, self.src.free
        groups = read(self.src, np.float32).reshape(p // _GROUP, _GROUP, f // _PACK, _PACK)
        greatest = jnp.max(jnp.abs(groups), axis=(1, 3))
        exponent = (lax.bitcast_convert_type(greatest, np.uint32) >> _MANTISSA_BITS).astype(np.int32)
        below = _GREATEST_EXPONENT[self.dst.dtype] - 1
        byte = jnp.where(exponent == _NAN_BYTE, _NAN_BYTE, jnp.maximum(exponent - below, 0)).astype(np.uint8)
        inverse = _power(jnp.where(byte == _NAN_BYTE, byte, np.uint8(_LAST_BYTE) - byte))
        values = (groups * inverse[:, None, :, None]).reshape(p, f // _PACK, _PACK)
        elements = dtypes.cast(values, self.dst.dtype.removesuffix("_x4"))
        packed = dtypes.widened(elements, dtypes.storage(self.dst.dtype))
        if self.dst_scale.dtype == "uint8":
            return packed, byte
        return packed, lax.bitcast_convert_type(byte, dtypes.storage(self.dst_scale.dtype))

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, self.src.free / _PACK, self.dst, self.src)


# ---- nc_matmul_mx


@dataclass(frozen=True)
class NcMatmulMx(Instruction):
    """dst[m, n] = sum over p, q of S[p, m, q] * X[p, n, q], or dst + that; q counts the values of an x4 element

    S and X are `stationary` (P, M) and `moving` (P, N) times their scales.  With `accumulate` the old `dst` (`addend`,
    the same view) is added; with `written` only where a matmul has written `dst` before, as for nc_matmul.

    Memory: all in SBUF, `dst` in PSUM.
    Data types: x4 data, of two types or one; scales float8_e8m0fnu or uint8; `dst` fp32 or bf16.  Products are exact
    within float32's range, sums are float32.
    Layout: P a multiple of 32 up to 128; M even.  Scale tiles have at least P - 28 rows, start in row 0, 4, 8 or 12 of
    a quadrant, and may have more columns than their data.
    Tile size: M <= 128, N <= 16 KiB of `dst`.
    Engine: tensor, NeuronCore-v4.
    Cost: max(min(64, M), N) cycles: four times the rate of bf16 (documented), in its time.
    Indirection: dst; data together with its scales, by the same index; outside of PE tiles.
    Not emulated: `tile_position` and `tile_size` change no value; a scale of 2 ** -127 counts as 0; gradients end at
    packed types.
    Source: nki.isa.nc_matmul_mx
    """

    api = "nki.isa.nc_matmul_mx"
    contracts = ("stationary", "moving", "stationary_scale", "moving_scale")
    indirect = ("dst", "stationary", "moving", "stationary_scale", "moving_scale", "addend")

    dst: Out
    stationary: In
    moving: In
    stationary_scale: In
    moving_scale: In
    tile_position: tuple[int, ...] = ()
    tile_size: tuple[int, ...] = ()
    accumulate: bool = False
    addend: In | None = None
    written: InOut | None = None

    def __post_init__(self) -> None:
        for name in ("tile_position", "tile_size"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))

    @property
    def queue(self) -> Engine:
        return Engine.tensor

    def contracting(self) -> bool:
        plain = self.accumulate and self.written is None and self.addend is not None
        return plain and self.dst.dtype == "float32"

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen4, "nc_matmul_mx")
        rules.in_memory(self, "dst", memories=(Memory.psum,))
        rules.in_memory(self, "stationary", "moving", memories=(Memory.sbuf,))
        for name in ("stationary", "moving"):
            self._check_side(target, name)
        if self.dst.dtype not in ("float32", "bfloat16"):
            raise rules.fail(self, "dst", "must be float32 or bfloat16", self.dst.dtype)
        self._check_shapes(target)
        self._check_tile()
        check_untiled(self, self.tile_position)

    def _check_side(self, target: Target, name: str) -> None:
        """Data and scales of one operand."""
        data: View = getattr(self, name)
        scale: View = getattr(self, f"{name}_scale")
        if data.dtype not in _DATA:
            raise rules.fail(self, name, f"must be one of {list(_DATA)}", data.dtype)
        _check_data(self, target, name)
        _check_scale(self, target, f"{name}_scale", name)
        if scale.free < data.free:
            raise rules.fail(self, f"{name}_scale", f"must have the {data.free} columns of {name}", scale.shape)
        indices = [v.dynamic.index if v.dynamic and v.dynamic.columns else None for v in (data, scale)]
        if indices[0] != indices[1]:
            given = f"{data!r} and {scale!r}"
            raise rules.fail(self, f"{name}, {name}_scale", "must be indirect by one index, or neither", given)

    def _check_shapes(self, target: Target) -> None:
        (k, m), (same_k, n) = ((v.partitions, v.free) for v in (self.stationary, self.moving))
        if k != same_k:
            raise rules.fail(self, "moving", f"must have the {k} partitions of stationary", self.moving.shape)
        if m > target.stationary_fmax or m % 2:
            rule = f"must have an even number of columns, at most {target.stationary_fmax}"
            raise rules.fail(self, "stationary", rule, self.stationary.shape)
        most = target.psum_partition_bytes // dtypes.size(self.dst.dtype)
        if n > most:
            raise rules.fail(self, "moving", f"must have at most {most} columns", self.moving.shape)
        if (self.dst.partitions, self.dst.free) != (m, n):
            raise rules.fail(self, "dst", f"must be ({m}, {n}), stationary's by moving's free size", self.dst.shape)

    def _check_tile(self) -> None:
        """The part of the PE array: rows only."""
        position, size = self.tile_position, self.tile_size
        if not position and not size:
            return
        whole = _TILE_ROWS[-1]
        legal = len(size) == len(position) == len(("row", "column")) and size[0] in _TILE_ROWS and size[1] == whole
        if not legal or position[0] not in range(0, whole, size[0]) or position[1] != 0:
            rule = f"must be (start, 0) and (rows, {whole}), rows one of {list(_TILE_ROWS)} and start a multiple of it"
            raise rules.fail(self, "tile_position, tile_size", rule, f"{position} and {size}")
        if self.stationary.partitions > size[0]:
            raise rules.fail(self, "tile_size", f"must hold {self.stationary.partitions} rows", size)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        result = self._product(read)
        if self.addend is not None and self.accumulate:
            total = read(self.addend, np.float32) + result
            result = total if self.written is None else jnp.where(read(self.written), total, result)
        if self.written is None:
            return (result,)
        return result, jnp.ones_like(read(self.written))

    def _product(self, read: Read) -> jax.Array:
        stationary = self._values(read, self.stationary, self.stationary_scale)
        moving = self._values(read, self.moving, self.moving_scale)
        over_partitions_and_values = (((0, 2), (0, 2)), ((), ()))
        return lax.dot_general(
            stationary,
            moving,
            over_partitions_and_values,
            precision=lax.Precision.HIGHEST,
            preferred_element_type=np.float32,
        )

    def _values(self, read: Read, data: View, scale: View) -> jax.Array:
        """The operand's values (terms * P, F, 4), scaled; `terms` contractions are presented at once."""
        x = read(scale)
        if x.dtype.itemsize == 1:  # else float32, which stores every float when precision is reduced to it
            x = _power(lax.bitcast_convert_type(x, np.uint8))
        rows = x.reshape(-1, scale.partitions, scale.free)[:, _scale_rows(data.partitions // _QUADRANT), : data.free]
        factors = jnp.repeat(rows.reshape(-1, data.free), _GROUP, axis=0)
        return _unpack(read(data), data.dtype) * factors[:, :, None]

    def cycles(self, target: Target) -> Work:
        return Work(
            max(min(_FEED_CYCLES, self.stationary.free), self.moving.free), target.latency_cycles(Engine.tensor)
        )


def matmul_mx_instructions(
    recorder: Recording,
    dst: View,
    stationary: View,
    moving: View,
    stationary_scale: View,
    moving_scale: View,
    tile_position: tuple[int, ...] | None = None,
    tile_size: tuple[int, ...] | None = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> tuple[Instruction, ...]:
    """What a call of nc_matmul_mx emits, in order: the matmul comes last; `accumulate` is resolved as for nc_matmul."""
    resolved = resolve_accumulate(recorder, dst, accumulate)
    matmul = NcMatmulMx(
        dst,
        stationary,
        moving,
        stationary_scale,
        moving_scale,
        tile_position or (),
        tile_size or (),
        resolved.accumulate,
        resolved.addend,
        resolved.written,
        name=name,
    )
    return (*resolved.before, matmul)
