"""Instructions at which the two cores of a kernel meet: sendrecv, core_barrier."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

import jax

from nkijax import dtypes
from nkijax.isa import rules
from nkijax.machine import Engine, Generation, Memory, Target, Transfer, Work
from nkijax.program import EVERY_CORE, In, Instruction, Out, Read
from nkijax.view import View

CORES = 2
_GPSIMD_DMA_ELEMENTS = 256  # bytes of a partition that gpsimd_dma takes, for each byte of an element


class DmaEngine(Enum):
    """Which engine moves a sendrecv (nki.isa.dma_engine)."""

    dma = 1
    gpsimd_dma = 2


def _check_swap(inst: Instruction, dst: View, src: View) -> None:
    for name, view in (("dst", dst), ("src", src)):
        if view.memory is not Memory.sbuf:
            raise rules.fail(inst, name, f"{name} must be in ['sbuf']", view.memory.value)
    if (dst.shape, dst.dtype) != (src.shape, src.dtype):
        raise rules.fail(inst, "dst", f"must be {src.dtype} {src.shape} like src", f"{dst.dtype} {dst.shape}")


def _payload(view: View) -> Transfer:
    return Transfer(view.size * dtypes.size(view.dtype))


@dataclass(frozen=True)
class SendRecv(Instruction):
    """dst = src of the core `recv_from_rank`, which receives this core's src at the same meeting; bit for bit.

    Memory: SBUF.  Data types: any, equal.
    Layout: dst and src have equal shapes (P, F); with gpsimd_dma at most 256 elements of a partition.
    Engine: DMA.
    Cost: a transfer of the tile's bytes, once both cores have come.
    Not emulated: nothing.
    Source: nki.isa.sendrecv
    """

    api = "nki.isa.sendrecv"

    src: In
    dst: Out
    send_to_rank: int
    recv_from_rank: int
    pipe_id: int
    dma_engine: DmaEngine = DmaEngine.dma

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen3, "sendrecv")
        _check_swap(self, self.dst, self.src)
        for name in ("send_to_rank", "recv_from_rank"):
            if getattr(self, name) not in range(CORES):
                raise rules.fail(self, name, "must be 0 or 1", getattr(self, name))
        if self.send_to_rank != self.recv_from_rank:
            raise rules.fail(
                self, "recv_from_rank", f"must be the send_to_rank {self.send_to_rank}", self.recv_from_rank
            )
        if not isinstance(self.dma_engine, DmaEngine):
            raise rules.fail(self, "dma_engine", "must be a member of nki.isa.dma_engine", repr(self.dma_engine))
        if self.dma_engine is DmaEngine.gpsimd_dma and self.src.free > _GPSIMD_DMA_ELEMENTS:
            limit = f"takes at most {_GPSIMD_DMA_ELEMENTS} elements of a partition with gpsimd_dma"
            raise rules.fail(self, "src", limit, self.src.free)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return (read(self.src),)

    def cycles(self, target: Target) -> Transfer:
        return _payload(self.src)

    def meets(self) -> Hashable:
        return None if self.recv_from_rank == self.core else (self.api, self.pipe_id)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        (other,) = others
        assert isinstance(other, SendRecv)
        swap = Swap(self.dst, other.dst, self.src, other.src, core=EVERY_CORE, site=self.site)
        swap.check_shapes()
        return (swap,)


@dataclass(frozen=True)
class Swap(Instruction):
    """dst0 = src1, dst1 = src0: what two partners' sendrecv amount to; both are read before either is written.

    Engine: DMA.
    Cost: a transfer of one tile's bytes.
    Source: nki.isa.sendrecv
    """

    api = "nki.isa.sendrecv"

    dst0: Out
    dst1: Out
    src0: In
    src1: In

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        self.check_shapes()

    def check_shapes(self) -> None:
        """What one core sends must be what the other receives."""
        _check_swap(self, self.dst0, self.src1)
        _check_swap(self, self.dst1, self.src0)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return read(self.src1), read(self.src0)

    def cycles(self, target: Target) -> Transfer:
        return _payload(self.src0)


@dataclass(frozen=True)
class CoreBarrier(Instruction):
    """data = data: every core named in `cores` reaches this point before any goes on.

    Memory: `data`, the tensor that the cores share, in any memory.
    Data types: any.
    Engine: `engine`, gpsimd by default.
    Cost: one issue interval (assumed), once both cores have come.
    Not emulated: nothing.
    Source: nki.isa.core_barrier
    """

    api = "nki.isa.core_barrier"

    data: In
    cores: tuple[int, ...]
    engine: Engine = Engine.gpsimd

    def __post_init__(self):
        cores = (self.cores,) if isinstance(self.cores, int) else tuple(self.cores)
        object.__setattr__(self, "cores", cores)

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd if self.engine is Engine.unknown else self.engine

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen3, "core_barrier")
        if not self.cores or any(c not in range(CORES) for c in self.cores):
            raise rules.fail(self, "cores", "must name cores 0 and 1", self.cores)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return ()

    def cycles(self, target: Target) -> Work:
        return Work(target.min_issue_cycles, 0)

    def meets(self) -> Hashable:
        return (self.api, tuple(sorted(self.cores))) if len(self.cores) > 1 else None
