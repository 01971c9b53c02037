"""Instructions that move or fill: dma_copy, tensor_copy, memset; and what every DMA instruction shares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import jax.numpy as jnp
import numpy as np

from nkijax import dtypes
from nkijax.errors import KernelError
from nkijax.isa import rates, rules
from nkijax.machine import Engine, Generation, Memory, Target, Transfer, Work
from nkijax.program import In, Instruction, Masked, Number, Out, Read
from nkijax.view import View


class OobMode(Enum):
    """What a DMA does with a run-time address outside its tensor: fail, or leave those elements alone."""

    error = 0
    skip = 1


class DgeMode(Enum):
    """Who generates DMA descriptors: the compiler's choice, GpSimd, the hardware block, or nobody (they are static)."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


# ---- rules and facts of every DMA instruction

_DMA_MEMORIES = (Memory.sbuf, Memory.private_hbm, Memory.shared_hbm)
_PRIORITIES = range(4)


def is_vector_indirect(view: View) -> bool:
    """Each row of the view has a run-time index of its own."""
    return view.dynamic is not None and view.dynamic.vector


def is_member(inst: Instruction, operand: str, kind: type[Enum], name: str) -> None:
    """An enum argument is a member, not the number or the string behind one."""
    value = getattr(inst, operand)
    if not isinstance(value, kind):
        raise rules.fail(inst, operand, f"must be a member of {name}", repr(value))


def dma_operands(inst: Instruction, target: Target, *operands: str) -> None:
    """Tiles of a DMA are in HBM or SBUF, those in SBUF with at most `pmax` partitions; index tiles are in SBUF."""
    for name in operands:
        dma_operand(inst, target, name, getattr(inst, name))


def dma_operand(inst: Instruction, target: Target, name: str, view: View) -> None:
    """The same for one tile; `name` is what the kernel calls it."""
    short = inst.api.rpartition(".")[2]
    if view.memory not in _DMA_MEMORIES:
        raise KernelError(
            f"{inst.api} {name}: {short} requires HBM or SBUF tensors, got {name}=MemoryRegion.{view.memory.value}"
        )
    if view.memory.on_chip and view.partitions > target.pmax:
        raise KernelError(f"{inst.api} {name} partition dimension {view.partitions} exceeds maximum {target.pmax}")
    if view.dynamic and view.dynamic.index.memory not in (Memory.sbuf, Memory.register):
        index = view.dynamic.index
        raise rules.fail(inst, name, "its run-time index must be a register or in sbuf", index.memory.value)


def dma_queueing(inst: Instruction, target: Target, *operands: str) -> None:
    """The rules of `priority`, `dge_mode` and `oob_mode`, which every DMA instruction that has them shares."""
    priority = getattr(inst, "priority", None)
    dge_mode = getattr(inst, "dge_mode", DgeMode.unknown)
    if priority is not None:
        rules.since(inst, target, Generation.gen4, "priority")
        if not isinstance(priority, int) or priority not in _PRIORITIES:
            raise rules.fail(inst, "priority", "must be an integer from 0 to 3", repr(priority))
    is_member(inst, "oob_mode", OobMode, "nki.isa.oob_mode")
    is_member(inst, "dge_mode", DgeMode, "nki.isa.dge_mode")
    if dge_mode is DgeMode.hwdge:
        rules.since(inst, target, Generation.gen3, "dge_mode.hwdge")
    if dge_mode in (DgeMode.hwdge, DgeMode.none):
        for name in operands:
            if is_vector_indirect(getattr(inst, name)):
                rule = f"dge_mode.{dge_mode.name} takes no vector_offset"
                raise rules.fail(inst, name, rule, "a vector-indirect view")


def run_bytes(view: View) -> int:
    """Bytes of the longest contiguous run that the view's innermost dimensions make."""
    run = 1
    for stride, n in zip(reversed(view.strides), reversed(view.shape), strict=True):
        if n == 1:
            continue
        if stride != run:
            break
        run *= n
    return run * dtypes.size(view.dtype)


def transfer(*views: View) -> Transfer:
    """The DMA cost of views of equal element counts: the larger side's bytes, and the shortest contiguous HBM run."""
    runs = [run_bytes(v) for v in views if v.memory.is_hbm]
    return Transfer(max(v.size * dtypes.size(v.dtype) for v in views), min(runs, default=0))


# ---- the instructions


@dataclass(frozen=True)
class DmaCopy(Instruction):
    """dst[...] = cast(src[...]), element by element in row-major order of each view's full shape.

    Elements of a run-time indexed `src` that lie outside its tensor raise, or with `oob_mode.skip` leave the bits of
    `dst` as they are; so do those of an indexed `dst`.  Rows of `dst` that are named twice hold either value.

    Memory: `dst` and `src` in HBM or SBUF, never PSUM; run-time indices in SBUF or a register.
    Data types: any to any through float32; equal dtypes are copied bit for bit; x4 and e8m0 types only so, and
    everything with `dge_mode.hwdge`.
    Layout: shapes may differ, the element counts not.  Tile size: P <= 128 on chip, F free.
    Engine: DMA.  `engine` (sync or scalar) only names the queue that triggers a `dge_mode.hwdge` transfer.
    Cost: a `Transfer` of the larger side's bytes, its row the shortest contiguous run in HBM.
    Not emulated: `priority` and `engine` change no value and no cost.
    Source: nki.isa.dma_copy
    """

    api = "nki.isa.dma_copy"

    dst: Out
    src: In
    priority: int | None = None
    oob_mode: OobMode = OobMode.error
    dge_mode: DgeMode = DgeMode.unknown
    engine: Engine = Engine.unknown

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        dst, src = self.dst, self.src
        dma_operands(self, target, "dst", "src")
        if src.size != dst.size:
            raise KernelError(
                f"{self.api} src: dma_copy requires src and dst to have the same number of elements, "
                f"got src={src.size}, dst={dst.size}"
            )
        if dst.dtype != src.dtype and (_only_bytes(dst.dtype) or _only_bytes(src.dtype)):
            given = f"{src.dtype} to {dst.dtype}"
            raise rules.fail(self, "src", "x4 and e8m0 types are only copied to themselves", given)
        for name, view in (("dst", dst), ("src", src)):
            if is_vector_indirect(view) and view.dynamic and view.dynamic.index.free != 1:
                raise rules.fail(self, name, "its vector_offset must be an (n, 1) tile", view.dynamic.index.shape)
        dma_queueing(self, target, "dst", "src")
        if self.dge_mode is DgeMode.hwdge and dst.dtype != src.dtype:
            raise rules.fail(self, "src", f"dge_mode.hwdge needs the dtype {dst.dtype} of dst; use view", src.dtype)
        rules.engine_is(self, Engine.sync, Engine.scalar)
        if self.engine is not Engine.unknown and self.dge_mode is not DgeMode.hwdge:
            raise rules.fail(self, "engine", "is chosen only with dge_mode.hwdge", f"dge_mode.{self.dge_mode.name}")

    def skips(self) -> bool:
        return self.oob_mode is OobMode.skip

    def run(self, read: Read) -> tuple[Masked | jnp.ndarray, ...]:
        value = read(self.src)
        if self.src.dynamic is None or self.oob_mode is OobMode.error:
            return (value,)
        rows = read.valid(self.src).reshape(-1, 1)
        return (Masked(value, jnp.broadcast_to(rows, value.shape)),)

    def cycles(self, target: Target) -> Transfer:
        return transfer(self.dst, self.src)


def _only_bytes(dtype: str) -> bool:
    """The MX types, which no engine converts on the way."""
    return dtypes.KINDS[dtype].family == "packed" or dtype == "float8_e8m0fnu"


_DYNAMIC_COPY_CYCLES = 600  # documented for NeuronCore-v2 copies with a run-time address, assumed for later ones


@dataclass(frozen=True)
class TensorCopy(Instruction):
    """dst = cast(src): (P, F), free shapes may differ.

    Memory: `dst` and `src` in SBUF or PSUM; GpSimd reaches no PSUM.
    Data types: any to any; equal dtypes are copied bit for bit (NaN payloads, integers above 2**24); x4 types only so.
    Layout: the same P, the same number of free elements.  Tile size: P <= 128.
    Engine: vector, scalar (not on NeuronCore-v2) or gpsimd; vector when unknown.
    Cost: with N = F, max(MIN_II, N) cycles on NeuronCore-v2, and on scalar and gpsimd (assumed for gpsimd after it).
    On vector of later cores N/4 for bf16 and fp16 within SBUF, N/2 where they are strided or one side is in PSUM
    (documented); N/2 for other equal dtypes within SBUF, N/1.3 for a cast within SBUF, N otherwise (measured on trn2).
    Twice that with a stride above 16 bytes.  A run-time address takes at least 600 cycles.
    Indirection: dst, src (gen4, not on gpsimd).
    Source: nki.isa.tensor_copy
    """

    api = "nki.isa.tensor_copy"
    indirect = ("dst", "src")

    dst: Out
    src: In
    engine: Engine = Engine.unknown

    @property
    def queue(self) -> Engine:
        return Engine.vector if self.engine is Engine.unknown else self.engine

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "src")
        rules.partitions(self, target, "dst", "src")
        rules.same_free(self, "dst", "src")
        rules.engine_is(self, Engine.vector, Engine.scalar, Engine.gpsimd)
        if self.engine is Engine.scalar:
            rules.since(self, target, Generation.gen3, "engine.scalar")
        if self.engine is Engine.gpsimd:
            rules.no_psum_on_gpsimd(self, "dst", "src")
            rules.not_indirect(self, "on gpsimd", "dst", "src")
        if "packed" in (dtypes.KINDS[self.dst.dtype].family, dtypes.KINDS[self.src.dtype].family):
            rules.same_dtype(self, "dst", "src")

    def run(self, read: Read) -> tuple[jnp.ndarray, ...]:
        return (read(self.src),)

    def cycles(self, target: Target) -> Work:
        tiles, cycles = (self.dst, self.src), float(self.dst.free)
        if self.queue is Engine.vector:
            cycles = rates.one_input_cycles(target, *tiles, cast_rate=rates.CAST_RATE)
        if self.src.dynamic or self.dst.dynamic:
            cycles = max(_DYNAMIC_COPY_CYCLES, cycles * rates.stride_penalty(*tiles))
            return rates.work(target, self.queue, cycles, copy=True)
        return rates.work(target, self.queue, cycles, *tiles, copy=True)


@dataclass(frozen=True)
class Memset(Instruction):
    """dst = value, everywhere: (P, F).

    Memory: `dst` in SBUF or PSUM (GpSimd: SBUF).  A fill of HBM (`nl.zeros` and its kin) is this record with `engine`
    dma.
    Data types: an integer fills an integer dtype (within its range, exactly) or a float; a float only a float;
    x4 types take 0 alone.
    Layout: any.  Tile size: P <= 128, F free.
    Engine: vector or gpsimd; vector when unknown.
    Cost: with N = F, max(MIN_II, N), and on NeuronCore-v2 max(MIN_II, N/2) for zeros of bf16 and fp16; after it
    measured on trn2 for gpsimd, assumed for vector; twice that with a stride above 16 bytes.  HBM: a `Transfer`.
    State is bookkeeping and costs nothing.
    Source: nki.isa.memset
    """

    api = "nki.isa.memset"

    dst: Out
    value: Number
    engine: Engine = Engine.unknown

    @property
    def queue(self) -> Engine:
        if self.dst.memory is Memory.state:
            return Engine.tensor
        return Engine.vector if self.engine is Engine.unknown else self.engine

    def check(self, target: Target) -> None:
        self._check_value()
        if self.dst.memory is Memory.state or (self.dst.memory.is_hbm and self.engine is Engine.dma):
            return
        rules.in_memory(self, "dst")
        rules.partitions(self, target, "dst")
        rules.engine_is(self, Engine.vector, Engine.gpsimd)
        if self.engine is Engine.gpsimd:
            rules.no_psum_on_gpsimd(self, "dst")

    def _check_value(self) -> None:
        value, kind = self.value, dtypes.KINDS[self.dst.dtype]
        if not isinstance(value, int | float | np.integer | np.floating):
            raise rules.fail(self, "value", "must be a number", repr(value))
        if kind.family == "float":
            return
        if kind.family == "packed":
            if value != 0:
                raise rules.fail(self, "value", f"must be 0 for a dst of {kind.name}", repr(value))
            return
        if not isinstance(value, int | np.integer):
            raise rules.fail(self, "value", f"must be an integer for a dst of {kind.name}", repr(value))
        low, high = (0, 1) if kind.family == "bool" else (np.iinfo(kind.storage).min, np.iinfo(kind.storage).max)
        if not low <= value <= high:
            raise rules.fail(self, "value", f"must be in [{low}, {high}] for a dst of {kind.name}", repr(value))

    def run(self, read: Read) -> tuple[jnp.ndarray, ...]:
        dtype = np.float32 if dtypes.is_float(self.dst.dtype) else dtypes.storage(self.dst.dtype)
        return (jnp.broadcast_to(read(self.value, dtype), (self.dst.partitions, self.dst.free)),)

    def cycles(self, target: Target) -> Work | Transfer:
        if self.dst.memory is Memory.state:
            return Work(0, 0)
        if self.queue is Engine.dma:
            return transfer(self.dst)
        halved = target.generation is Generation.gen2 and self.value == 0 and self.dst.dtype in rates.NARROW
        return rates.work(target, self.queue, self.dst.free / 2 if halved else self.dst.free, self.dst)
