"""Instructions that transpose: nc_transpose on chip, dma_transpose on the way into SBUF."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from nkijax import dtypes
from nkijax.isa import rules
from nkijax.isa.move import DgeMode, OobMode, dma_operands, dma_queueing, is_vector_indirect, transfer
from nkijax.machine import Engine, Generation, Memory, Target, Transfer, Work
from nkijax.program import In, Instruction, Masked, Out, Read

_VECTOR_BLOCK = 32
_PE_FEED_CYCLES = 64
_PE_TRANSPOSE_NS = 168  # measured on trn2: issue interval of a PE transpose
_VECTOR_TRANSPOSE_NS = 93  # measured on trn2: steady interval of 32 x 32 blocks


@dataclass(frozen=True)
class NcTranspose(Instruction):
    """dst[f, p] = data[p, f], bit for bit: `data` is (P, F), `dst` (F, P), each with its free dimensions flattened.

    Always overwrites `dst`, and does not count as a matmul's write of PSUM.

    Memory: tensor engine: `data` in SBUF, `dst` in PSUM; vector engine: either in SBUF or PSUM.
    Data types: any, equal.
    Layout: P and F swap.  Tile size: P, F <= 128 on the tensor engine, <= 32 on the vector engine.
    Engine: tensor or vector; when unknown, tensor for a `dst` in PSUM, vector for one in SBUF.
    Cost: tensor: max(P, min(64, F)) cycles on NeuronCore-v2, 168 ns after it; vector: max(MIN_II, F) on NeuronCore-v2,
    93 ns after it (measured on trn2 for a full tile, assumed for smaller ones and for trn3).
    Not emulated: NeuronCore-v2's tensor engine multiplies, and spreads NaN and infinity over a row; here it does not.
    Source: nki.isa.nc_transpose
    """

    api = "nki.isa.nc_transpose"

    dst: Out
    data: In
    engine: Engine = Engine.unknown

    @property
    def queue(self) -> Engine:
        if self.engine is not Engine.unknown:
            return self.engine
        return Engine.tensor if self.dst.memory is Memory.psum else Engine.vector

    def check(self, target: Target) -> None:
        rules.engine_is(self, Engine.tensor, Engine.vector)
        rules.in_memory(self, "dst", "data")
        rules.partitions(self, target, "dst", "data", equal=False)
        rules.same_dtype(self, "dst", "data")
        dst, data = self.dst, self.data
        if (dst.partitions, dst.free) != (data.free, data.partitions):
            want = (data.free, data.partitions)
            raise rules.fail(self, "dst", f"must be {want}, the transpose of data {data.shape}", dst.shape)
        if self.queue is Engine.tensor:
            rules.in_memory(self, "data", memories=(Memory.sbuf,))
            rules.in_memory(self, "dst", memories=(Memory.psum,))
        limit = target.pmax if self.queue is Engine.tensor else _VECTOR_BLOCK
        if max(data.partitions, data.free) > limit:
            rule = f"the {self.queue.name} engine transposes at most {limit} by {limit} elements"
            raise rules.fail(self, "data", rule, data.shape)

    def run(self, read: Read) -> tuple[jnp.ndarray, ...]:
        return (read(self.data).T,)

    def cycles(self, target: Target) -> Work:
        queue, latency = self.queue, target.latency_cycles(self.queue)
        if target.generation >= Generation.gen3:
            ns = _PE_TRANSPOSE_NS if queue is Engine.tensor else _VECTOR_TRANSPOSE_NS
            return Work(ns * target.ghz(queue), latency)
        if queue is Engine.tensor:
            return Work(max(self.data.partitions, min(_PE_FEED_CYCLES, self.data.free)), latency)
        return Work(max(target.min_issue_cycles, self.data.free), latency)


_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_LAST_MAX = 128
_ROWS = 16
_HWDGE_OUTER = (1, 2, 4, 8, 16)
_TWO_BYTES = 2


@dataclass(frozen=True)
class DmaTranspose(Instruction):
    """dst = transpose(src, axes), bit for bit; axes are (1, 0), (2, 1, 0) or (3, 1, 2, 0), the first and last swapped.

    A vector-indirect `src` is gathered first: its row r is row `index.T.reshape(-1)[r]` of its tensor.
    Run-time addresses outside the tensor raise, or with `oob_mode.skip` leave their elements of `dst` as they are.

    Memory: `src` in HBM or SBUF (HBM when vector-indirect), `dst` in SBUF or HBM.
    Data types: any, equal; 2 bytes with `dge_mode.hwdge` or a vector-indirect `src`.
    Layout: the shape of `dst` is the permuted shape of `src`, its rank included.  Tile size: P <= 128 on chip;
    `dge_mode.hwdge` and gathers take a last dimension <= 128 and rows by 16.
    Engine: DMA.
    Cost: the `Transfer` of a copy; on NeuronCore-v2 its row is one element, as no unit there transposes.
    Not emulated: `priority`; that DMA transposes reach at most 90 % (from HBM) or 50 % (from SBUF) of a copy's rate.
    Source: nki.isa.dma_transpose
    """

    api = "nki.isa.dma_transpose"

    dst: Out
    src: In
    axes: tuple[int, ...] | None = None
    priority: int | None = None
    dge_mode: DgeMode = DgeMode.unknown
    oob_mode: OobMode = OobMode.error

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        dst, src = self.dst, self.src
        dma_operands(self, target, "dst", "src")
        if src.ndim not in _AXES:
            raise rules.fail(self, "src", "must have 2, 3 or 4 dimensions", src.shape)
        axes = _AXES[src.ndim]
        if self.axes is not None and tuple(self.axes) != axes:
            raise rules.fail(self, "axes", f"must be {axes} for {src.ndim} dimensions", self.axes)
        want = tuple(src.shape[k] for k in axes)
        if dst.shape != want:
            raise rules.fail(self, "dst", f"must have the permuted shape {want} of src {src.shape}", dst.shape)
        rules.same_dtype(self, "dst", "src")
        dma_queueing(self, target, "dst", "src")
        if self.oob_mode is OobMode.skip and src.dynamic is None:
            raise rules.fail(self, "oob_mode", "skip needs a src with a run-time index", "a static src")
        if self.dge_mode is DgeMode.hwdge:
            self._check_hardware()
        if is_vector_indirect(src):
            self._check_gather(target)

    def _check_blocks(self, what: str) -> None:
        """What the 2-byte transposing hardware takes."""
        src = self.src
        if dtypes.size(src.dtype) != _TWO_BYTES:
            raise rules.fail(self, "src", f"{what} needs a 2-byte dtype", src.dtype)
        if src.shape[-1] > _LAST_MAX:
            raise rules.fail(self, "src", f"{what} needs a last dimension of at most {_LAST_MAX}", src.shape)

    def _check_hardware(self) -> None:
        shape, what = self.src.shape, "dge_mode.hwdge"
        self._check_blocks(what)
        if len(shape) == len(_AXES[2]):
            if shape[0] != _ROWS:
                raise rules.fail(self, "src", f"{what} needs {_ROWS} rows in 2 dimensions", shape)
        elif shape[0] not in _HWDGE_OUTER or shape[0] * shape[-2] % _ROWS:
            rule = f"{what} needs a first dimension of {list(_HWDGE_OUTER)}, times dimension -2 a multiple of {_ROWS}"
            raise rules.fail(self, "src", rule, shape)

    def _check_gather(self, target: Target) -> None:
        src, what = self.src, "a vector-indirect src"
        assert src.dynamic
        index = src.dynamic.index
        rules.since(self, target, Generation.gen3, what)
        self._check_blocks(what)
        if index.dtype != "uint32" or index.memory is not Memory.sbuf or index.ndim != len(_AXES[2]):
            given = f"{index.dtype} {index.shape} in {index.memory.value}"
            raise rules.fail(self, "src", "its vector_offset must be a 2-D uint32 tile in sbuf", given)
        rows, columns = index.shape
        if rows % _ROWS or not _ROWS <= rows <= target.pmax or (columns > 1 and rows != target.pmax):
            rule = f"its vector_offset must have 16 to {target.pmax} rows by 16, and {target.pmax} for many columns"
            raise rules.fail(self, "src", rule, index.shape)
        if src.shape[0] % _ROWS or index.size < src.shape[0]:
            rule = f"its rows must be a multiple of {_ROWS}, each with an index"
            raise rules.fail(self, "src", rule, f"{src.shape[0]} rows and {index.size} indices")
        if src.ndim == len(_AXES[4]) and 1 not in src.shape[1:3]:
            raise rules.fail(self, "src", f"{what} in 4 dimensions needs size 1 in dimension 1 or 2", src.shape)

    def skips(self) -> bool:
        return self.oob_mode is OobMode.skip

    def run(self, read: Read) -> tuple[Masked | jnp.ndarray, ...]:
        shape, axes = self.src.shape, _AXES[self.src.ndim]
        value = read(self.src).reshape(shape).transpose(axes)
        if self.oob_mode is OobMode.error or self.src.dynamic is None:
            return (value,)
        rows = read.valid(self.src).reshape(-1, *(1 for _ in shape[1:]))
        return (Masked(value, jnp.broadcast_to(rows, shape).transpose(axes)),)

    def cycles(self, target: Target) -> Transfer:
        moved = transfer(self.dst, self.src)
        if target.generation is Generation.gen2 and moved.row_bytes:
            return Transfer(moved.bytes, dtypes.size(self.src.dtype))
        return moved
