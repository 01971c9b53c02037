"""Collectives within groups of ranks, each lowered to JAX's own on the axes of a mesh (see `nkijax.isa.ranks`).

The two cores of a rank (`kernel[2]`) meet at a collective; on the same tensors in shared HBM it is done once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nkijax.isa import ranks, rules
from nkijax.isa.operators import AluOp
from nkijax.isa.ranks import Groups
from nkijax.machine import Engine, Target, Transfer
from nkijax.program import In, Instruction, Masked, Out, Read

_SBUF_DIMS = 2
_NATIVE = {"add": lax.psum, "minimum": lax.pmin, "maximum": lax.pmax}


@dataclass(frozen=True)
class AllReduce(Instruction):
    """dsts[i] = srcs[i] <op> … of all ranks of the group, in float32 or exactly in integers

    Memory: HBM, or one tensor in SBUF.
    Data types: any but x4; dsts[i] as srcs[i].
    Layout: equal shapes.
    Engine: DMA.
    Cost: a transfer of 2 (n - 1) / n of the bytes (a ring of n ranks); assumed, as all of collectives.
    Not emulated: `priority`.
    Source: nki.collectives.all_reduce
    """

    srcs: tuple[In, ...]
    dsts: tuple[Out, ...]
    replica_group: Groups
    op: AluOp
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.all_reduce"

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        ranks.check_groups(self)
        ranks.check_tensors(self, target, "srcs", "dsts")
        ranks.check_reduction(self)
        for src, dst in zip(self.srcs, self.dsts, strict=True):
            ranks.check_shape(self, dst, src.shape, "that of srcs")

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        mesh = ranks.ranks(self)
        values = []
        for src in self.srcs:
            x = ranks.widened(read(src))
            if ranks.whole(mesh, self.replica_group):
                out = _NATIVE[self.op.name](x, mesh.axes)
            else:
                out = ranks.reduced(self.op, ranks.gathered(mesh, self.replica_group, x))
            values.append(ranks.stored(out, src.dtype))
        return ranks.taking_part(mesh, self.replica_group, values)

    def cycles(self, target: Target) -> Transfer:
        return Transfer(ranks.ring_bytes(self, self.srcs, passes=2))

    def meets(self) -> Hashable:
        return (self.api, self.replica_group)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)


def _check_dim(inst: AllGather | ReduceScatter | AllToAll, *legal: int) -> None:
    if inst.collective_dim not in legal:
        raise rules.fail(inst, "collective_dim", f"must be {' or '.join(map(str, legal))}", inst.collective_dim)


@dataclass(frozen=True)
class AllGather(Instruction):
    """dsts[i] = concatenation of srcs[i] of all ranks of the group along collective_dim, bit for bit

    Memory: HBM, or one tensor in SBUF.
    Data types: any; dsts[i] as srcs[i].
    Layout: dsts[i] has n times the size of srcs[i] in collective_dim, which is 0, or in SBUF, where tensors are
        (P, F), 0 or 1.
    Engine: DMA.
    Cost: a transfer of (n - 1) / n of the bytes of dsts; assumed.
    Not emulated: `priority`.
    Source: nki.collectives.all_gather
    """

    srcs: tuple[In, ...]
    dsts: tuple[Out, ...]
    replica_group: Groups
    collective_dim: int
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.all_gather"

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        ranks.check_groups(self)
        ranks.check_tensors(self, target, "srcs", "dsts")
        on_chip = self.srcs[0].memory.on_chip
        _check_dim(self, 0, 1) if on_chip else _check_dim(self, 0)
        n, dim = len(self.replica_group[0]), self.collective_dim
        for src, dst in zip(self.srcs, self.dsts, strict=True):
            if on_chip and src.ndim != _SBUF_DIMS:
                raise rules.fail(self, "srcs", "must have 2 dimensions in sbuf", src.shape)
            shape = [size * n if d == dim else size for d, size in enumerate(src.shape)]
            ranks.check_shape(self, dst, shape, f"{n} times srcs in dimension {dim}")

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        mesh, dim = ranks.ranks(self), self.collective_dim
        values = []
        for src in self.srcs:
            x = read(src)
            if ranks.whole(mesh, self.replica_group):
                values.append(lax.all_gather(x, mesh.axes, axis=dim, tiled=True))
            else:
                values.append(jnp.concatenate(list(ranks.gathered(mesh, self.replica_group, x)), axis=dim))
        return ranks.taking_part(mesh, self.replica_group, values)

    def cycles(self, target: Target) -> Transfer:
        return Transfer(ranks.ring_bytes(self, self.dsts))

    def meets(self) -> Hashable:
        return (self.api, self.replica_group)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)


@dataclass(frozen=True)
class ReduceScatter(Instruction):
    """dsts[i] = this rank's n-th part, along dimension 0, of srcs[i] <op> … of all ranks of the group

    In float32, or exactly in integers.
    Memory: HBM, or one tensor in SBUF.
    Data types: any but x4; dsts[i] as srcs[i].
    Layout: srcs[i] has n times the size of dsts[i] in dimension 0, the only collective_dim.
    Engine: DMA.
    Cost: a transfer of (n - 1) / n of the bytes of srcs; assumed.
    Not emulated: `priority`.
    Source: nki.collectives.reduce_scatter
    """

    srcs: tuple[In, ...]
    dsts: tuple[Out, ...]
    replica_group: Groups
    collective_dim: int
    op: AluOp
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.reduce_scatter"

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        ranks.check_groups(self)
        ranks.check_tensors(self, target, "srcs", "dsts")
        ranks.check_reduction(self)
        _check_dim(self, 0)
        n = len(self.replica_group[0])
        for src, dst in zip(self.srcs, self.dsts, strict=True):
            if src.shape[0] % n:
                raise rules.fail(self, "srcs", f"must have a multiple of {n} in dimension 0", src.shape)
            ranks.check_shape(self, dst, (src.shape[0] // n, *src.shape[1:]), f"1/{n} of srcs in dimension 0")

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        mesh, n = ranks.ranks(self), len(self.replica_group[0])
        mine = jnp.asarray(ranks.positions(mesh, self.replica_group))[mesh.me]
        values = []
        for src in self.srcs:
            x = ranks.widened(read(src))
            if ranks.whole(mesh, self.replica_group) and self.op.name == "add":
                out = lax.psum_scatter(x, mesh.axes, tiled=True)
            else:
                parts = x.reshape(n, -1, x.shape[1])
                out = ranks.reduced(self.op, ranks.gathered(mesh, self.replica_group, parts)[:, mine])
            values.append(ranks.stored(out, src.dtype))
        return ranks.taking_part(mesh, self.replica_group, values)

    def cycles(self, target: Target) -> Transfer:
        return Transfer(ranks.ring_bytes(self, self.srcs))

    def meets(self) -> Hashable:
        return (self.api, self.replica_group)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)


@dataclass(frozen=True)
class AllToAll(Instruction):
    """dsts[i][part r] = srcs[i][this rank's part] of rank r of the group, parts along dimension 0, bit for bit

    Memory: HBM.
    Data types: any; dsts[i] as srcs[i].
    Layout: equal shapes, dimension 0, the only collective_dim, in n parts.
    Engine: DMA.
    Cost: a transfer of (n - 1) / n of the bytes; assumed.
    Not emulated: `priority`.
    Source: nki.collectives.all_to_all
    """

    srcs: tuple[In, ...]
    dsts: tuple[Out, ...]
    replica_group: Groups
    collective_dim: int
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.all_to_all"

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        ranks.check_groups(self)
        ranks.check_tensors(self, target, "srcs", "dsts", sbuf=False)
        _check_dim(self, 0)
        n = len(self.replica_group[0])
        for src, dst in zip(self.srcs, self.dsts, strict=True):
            if src.shape[0] % n:
                raise rules.fail(self, "srcs", f"must have a multiple of {n} in dimension 0", src.shape)
            ranks.check_shape(self, dst, src.shape, "that of srcs")

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        mesh, n = ranks.ranks(self), len(self.replica_group[0])
        mine = jnp.asarray(ranks.positions(mesh, self.replica_group))[mesh.me]
        values = []
        for src in self.srcs:
            x = read(src)
            if ranks.whole(mesh, self.replica_group):
                values.append(lax.all_to_all(x, mesh.axes, 0, 0, tiled=True))
            else:
                parts = x.reshape(n, -1, x.shape[1])
                values.append(ranks.gathered(mesh, self.replica_group, parts)[:, mine].reshape(x.shape))
        return ranks.taking_part(mesh, self.replica_group, values)

    def cycles(self, target: Target) -> Transfer:
        return Transfer(ranks.ring_bytes(self, self.srcs))

    def meets(self) -> Hashable:
        return (self.api, self.replica_group)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)
