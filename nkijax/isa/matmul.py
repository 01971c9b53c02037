"""nc_matmul: the systolic array."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.errors import KernelError
from nkijax.isa import rules
from nkijax.isa.accumulate import Recording, resolve_accumulate
from nkijax.isa.move import is_member
from nkijax.machine import Engine, Generation, Memory, Target, Work
from nkijax.program import In, InOut, Instruction, Out, Read
from nkijax.view import View


class MatmulPerfMode(Enum):
    """Performance modes; `double_row` contracts two fp8 rows in the time of one."""

    none = "none"
    double_row = "double_row"


_DTYPES = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32")
_WIDE = ("tfloat32", "float32")
_FP8_PAIR = {"float8_e4m3", "float8_e4m3fn"}
_FP8 = tuple(dtypes.storage(name) for name in _DTYPES if dtypes.is_fp8(name))
_NARROW = (dtypes.storage("bfloat16"), dtypes.storage("float16"))  # each holds every fp8 number
_ROWS = 2  # of double_row
_TRANSPOSED_BYTES = 2  # an fp8 transpose leaves 16-bit elements in PSUM
_FINE_TILE = 32  # rows or columns of the PE array, NeuronCore-v3 and later
_FEED_CYCLES = 64
_FP32_PASSES, _SPLIT_PASSES = 4, 2  # fp32 takes four passes; two with one operand of 0 and 1, or in transpose mode


@dataclass(frozen=True)
class NcMatmul(Instruction):
    """dst = stationary.T @ moving, or dst + that: (K, M), (K, N) -> (M, N); free dimensions are flattened.

    With `accumulate` the old `dst` (`addend`, the same view) is added; with `written` only where a matmul has written
    `dst` before, which that state tells element by element and then learns.  `resolve_accumulate` makes these three.
    With `is_transpose`, `moving` is an identity and dst[m, n] = stationary[n, m] bit for bit.  With `double_row`
    operands are (K, 2, M) and (K, 2, N), and both rows are summed over.

    Memory: `stationary` and `moving` in SBUF, `dst` in PSUM.
    Data types: fp8 (e4m3fn on NeuronCore-v4), bf16, fp16, tf32, fp32; fp32 and tf32 only with each other, e4m3 not
    with e4m3fn.  Products are exact and summed in float32.  `dst` is fp32, on NeuronCore-v4 also bf16; with
    `is_transpose` it has the dtype of `stationary`, or 2 bytes with an fp8's bits in the low one.
    Layout: K on partitions.  Tile size: K, M <= 128, N <= 512 (NeuronCore-v4: 16 KiB of `dst`); less in a PE tile.
    Engine: tensor.
    Cost: max(min(64, M), N) cycles, four times for fp32, twice where one fp32 operand is marked as of 0 and 1 or in
    transpose mode; double_row takes the time of one row.
    Indirection: dst, stationary, moving (gen4); the latter two of at most 16 bits, outside of PE tiles, and moving not
    with `is_transpose`.
    Not emulated: `tile_position`, `tile_size` and the onezero flags change no value; that `moving` is an identity is
    believed, and so is the PE tile that the operands sit in.
    Source: nki.isa.nc_matmul
    """

    api = "nki.isa.nc_matmul"
    contracts = ("stationary", "moving")
    indirect = ("dst", "stationary", "moving", "addend")

    dst: Out
    stationary: In
    moving: In
    is_stationary_onezero: bool = False
    is_moving_onezero: bool = False
    is_transpose: bool = False
    accumulate: bool = False
    tile_position: tuple[int, ...] = ()
    tile_size: tuple[int, ...] = ()
    perf_mode: MatmulPerfMode = MatmulPerfMode.none
    addend: In | None = None
    written: InOut | None = None

    @property
    def queue(self) -> Engine:
        return Engine.tensor

    @property
    def _double(self) -> bool:
        return self.perf_mode is MatmulPerfMode.double_row

    @property
    def _columns(self) -> tuple[int, int]:
        """M and N."""
        rows = _ROWS if self._double else 1
        return self.stationary.free // rows, self.moving.free // rows

    def contracting(self) -> bool:
        plain = self.accumulate and self.written is None and not self._double and not self.is_transpose
        return plain and self.addend is not None and self.dst.dtype == "float32"

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", memories=(Memory.psum,))
        rules.in_memory(self, "stationary", "moving", memories=(Memory.sbuf,))
        is_member(self, "perf_mode", MatmulPerfMode, "nki.isa.matmul_perf_mode")
        self._check_dtypes(target)
        if self._double:
            self._check_double_row(target)
        self._check_shapes(target)
        self._check_tile(target)
        check_untiled(self, self.tile_position)
        for name in rules.indirect(self, "stationary", "moving"):
            if getattr(self, name).dtype in _WIDE:
                raise rules.fail(self, name, "must have at most 16 bits when indirect", getattr(self, name).dtype)
        if self.is_transpose:
            rules.not_indirect(self, "with is_transpose", "moving")

    def _check_dtypes(self, target: Target) -> None:
        known = _DTYPES if target.generation >= Generation.gen4 else tuple(d for d in _DTYPES if d != "float8_e4m3fn")
        for name in ("stationary", "moving"):
            view: View = getattr(self, name)
            if view.dtype not in known:
                raise rules.fail(self, name, f"must be one of {list(known)} on {target.name}", view.dtype)
        pair = (self.stationary.dtype, self.moving.dtype)
        if (pair[0] in _WIDE) != (pair[1] in _WIDE):
            raise rules.fail(self, "stationary, moving", "float32 and tfloat32 mix only with each other", pair)
        if set(pair) == _FP8_PAIR:
            raise rules.fail(self, "stationary, moving", "float8_e4m3 does not mix with float8_e4m3fn", pair)
        if self.is_transpose:
            self._check_transpose(target)
        elif self.dst.dtype != "float32" and (self.dst.dtype != "bfloat16" or target.generation < Generation.gen4):
            rule = "must be float32, or bfloat16 from gen4 on"
            raise rules.fail(self, "dst", rule, f"{self.dst.dtype} on {target.name}")

    def _check_transpose(self, target: Target) -> None:
        rules.since(self, target, Generation.gen3, "is_transpose")
        data, dst = self.stationary.dtype, self.dst.dtype
        if dst != data and not (dtypes.is_fp8(data) and dtypes.size(dst) == _TRANSPOSED_BYTES):
            raise rules.fail(self, "dst", f"must have the dtype {data} of stationary with is_transpose", dst)
        if self.accumulate:
            raise rules.fail(self, "accumulate", "a transpose overwrites its destination", self.accumulate)
        if self.moving.partitions != self.moving.free:
            raise rules.fail(self, "moving", "must be an identity with is_transpose", self.moving.shape)

    def _check_double_row(self, target: Target) -> None:
        rules.since(self, target, Generation.gen3, "perf_mode.double_row")
        if self.is_transpose or (self.tile_size and self.tile_size[-1] < target.stationary_fmax):
            given = "is_transpose" if self.is_transpose else f"tile_size {self.tile_size}"
            raise rules.fail(self, "perf_mode", "double_row excludes is_transpose and column tiles", given)
        for name in ("stationary", "moving"):
            view: View = getattr(self, name)
            if not dtypes.is_fp8(view.dtype):
                raise rules.fail(self, name, "must be fp8 with perf_mode.double_row", view.dtype)
            if view.ndim < len("KRM") or view.shape[1] != _ROWS:
                raise rules.fail(self, name, f"must be (K, {_ROWS}, ...) with perf_mode.double_row", view.shape)

    def _check_shapes(self, target: Target) -> None:
        k, (m, n) = self.stationary.partitions, self._columns
        for name in ("stationary", "moving"):
            size = getattr(self, name).partitions
            if size > target.pmax:
                self._raise(name, f"contraction dimension {size} exceeds pmax={target.pmax}")
        if k != self.moving.partitions:
            given = f"stationary[0]={k} != moving[0]={self.moving.partitions}"
            self._raise("moving", f"contraction dimension mismatch: {given}")
        fmax = target.stationary_fmax
        if m > fmax:
            self._raise("stationary", f"stationary free dimension {m} exceeds gemm_stationary_fmax={fmax}")
        fmax = target.moving_fmax
        if target.generation >= Generation.gen4:
            fmax = target.psum_partition_bytes // dtypes.size(self.dst.dtype)
        if n > fmax:
            self._raise("moving", f"moving free dimension {n} exceeds gemm_moving_fmax={fmax}")
        if (self.dst.partitions, self.dst.free) != (m, n):
            raise rules.fail(self, "dst", f"must be ({m}, {n}), stationary's by moving's free size", self.dst.shape)

    def _raise(self, operand: str, what: str) -> None:
        raise KernelError(f"{self.api} {operand}: Matmul {what}")

    def _check_tile(self, target: Target) -> None:
        """The part of the PE array: lenient on sizes between the granules, which kernels take from their data."""
        position, size = self.tile_position, self.tile_size
        if bool(position) != bool(size):
            raise rules.fail(self, "tile_position, tile_size", "give both or neither", f"{position} and {size}")
        if not size:
            return
        if len(position) != len(size) or len(size) != len(("row", "column")):
            raise rules.fail(self, "tile_position, tile_size", "must each be (row, column)", f"{position} and {size}")
        needs = (self.stationary.partitions, self._columns[0])
        for what, start, extent, need in zip(("row", "column"), position, size, needs, strict=True):
            if extent == _FINE_TILE:
                rules.since(self, target, Generation.gen3, f"tile_size of {_FINE_TILE} {what}s")
            if not 0 < extent <= target.pmax or start % extent or not 0 <= start <= target.pmax - extent:
                rule = f"the {what} tile must start at a multiple of its size within {target.pmax}"
                raise rules.fail(self, "tile_position, tile_size", rule, f"{position} and {size}")
            if need > extent:
                raise rules.fail(self, "tile_size", f"the {what} tile must hold {need} {what}s", size)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        if self.is_transpose:
            result = self._transposed(read(self.stationary).T)
        else:
            result = self._product(read)
        if self.written is None:
            return (result,)
        flags = read(self.written)
        return result, jnp.ones_like(flags)

    def _product(self, read: Read) -> jax.Array:
        stationary, moving = _factors(read(self.stationary), read(self.moving))
        if self._double:
            stationary = stationary.reshape(-1, self._columns[0])
            moving = moving.reshape(-1, self._columns[1])
        over_partitions = (((0,), (0,)), ((), ()))
        product = lax.dot_general(
            stationary, moving, over_partitions, precision=lax.Precision.HIGHEST, preferred_element_type=np.float32
        )
        if self.addend is None or not self.accumulate:
            return product
        total = read(self.addend, np.float32) + product
        return total if self.written is None else jnp.where(read(self.written), total, product)

    def _transposed(self, bits: jax.Array) -> jax.Array:
        if bits.dtype.itemsize > 1 or dtypes.size(self.dst.dtype) == 1:
            return bits
        wide = lax.bitcast_convert_type(bits, np.uint8).astype(np.uint16)
        return lax.bitcast_convert_type(wide, dtypes.storage(self.dst.dtype))

    def cycles(self, target: Target) -> Work:
        m, n = self._columns
        passes = 1
        if "float32" in (self.stationary.dtype, self.moving.dtype):
            split = self.is_stationary_onezero or self.is_moving_onezero or self.is_transpose
            passes = _SPLIT_PASSES if split else _FP32_PASSES
        return Work(passes * max(min(_FEED_CYCLES, m), n), target.latency_cycles(Engine.tensor))


def _factors(*operands: jax.Array) -> tuple[jax.Array, ...]:
    """The operands in a dtype that holds both exactly.

    A GPU multiplies two-byte floats an order of magnitude faster than float32, with exact products and float32 sums
    too; a CPU does not.
    """
    kinds, narrow = {x.dtype for x in operands}, np.dtype(np.float32)
    if jax.default_backend() != "cpu":
        narrow = next((kind for kind in _NARROW if kinds <= {kind, *_FP8}), narrow)
    return tuple(x.astype(narrow) for x in operands)


def check_untiled(inst: Instruction, tile_position: tuple[int, ...]) -> None:
    """A matmul with an operand made by `.indirect` starts at the first row and column of the PE array."""
    if any(tile_position):
        rules.not_indirect(inst, "in a PE tile of its own", *inst.indirect)


def matmul_instructions(
    recorder: Recording,
    dst: View,
    stationary: View,
    moving: View,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: MatmulPerfMode | str = MatmulPerfMode.none,
    name: str | None = None,
) -> tuple[Instruction, ...]:
    """What a call of nc_matmul emits, in order: the matmul comes last.

    Resolves what depends on more than the call: `accumulate` on what was written before, `is_transpose` on the
    generation (NeuronCore-v2 multiplies by the identity like by any other matrix), `perf_mode` by name.
    """
    overwrite = is_transpose and accumulate is None
    resolved = resolve_accumulate(recorder, dst, False if overwrite else accumulate)
    matmul = NcMatmul(
        dst,
        stationary,
        moving,
        is_stationary_onezero,
        is_moving_onezero,
        is_transpose and recorder.target.generation >= Generation.gen3,
        resolved.accumulate,
        tuple(tile_position),
        tuple(tile_size),
        next((mode for mode in MatmulPerfMode if mode.value == perf_mode), perf_mode),  # type: ignore[arg-type]
        resolved.addend,
        resolved.written,
        name=name,
    )
    return (*resolved.before, matmul)
