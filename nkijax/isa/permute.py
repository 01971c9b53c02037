"""Sending to one other rank: explicit pairs, rings; and what rank this is (see `nkijax.isa.ranks`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import ranks, rules
from nkijax.isa.operators import AluOp
from nkijax.isa.ranks import Groups, Ranks
from nkijax.machine import Engine, Memory, Target, Transfer, Work
from nkijax.program import In, Instruction, Masked, Number, Out, Read
from nkijax.view import View

Pairs = tuple[tuple[int, int], ...]
_PAIR = 2
_CHANNELS = 4  # at most, within a node


def _sent(mesh: Ranks, pairs: Pairs, x: jax.Array) -> jax.Array:
    """x of the rank that sends to this one; to ranks that nobody sends to, that of any other."""
    senders, takers = ({pair[k] for pair in pairs} for k in range(_PAIR))
    rest = zip(*(sorted(set(range(mesh.size)) - used) for used in (senders, takers)), strict=True)
    return lax.ppermute(x, mesh.axes, [*pairs, *rest])


def _ring(groups: Groups) -> Pairs:
    """From each rank to the next of its group."""
    return tuple((group[k], group[(k + 1) % len(group)]) for group in groups for k in range(len(group)))


def _check_channels(inst: CollectivePermuteImplicit | CollectivePermuteImplicitReduce, count: int) -> None:
    if inst.channel_ids != tuple(range(count)):
        raise rules.fail(
            inst, "channel_ids", f"must be the ints from 0 to {count - 1}, a channel each", inst.channel_ids
        )
    if count > _CHANNELS:
        raise rules.fail(inst, "channel_ids", f"must be at most {_CHANNELS} channels", count)


def _bytes(views: Sequence[View]) -> int:
    return sum(v.size * dtypes.size(v.dtype) for v in views)


@dataclass(frozen=True)
class CollectivePermute(Instruction):
    """dsts[0] = srcs[0] of the rank that a pair (source, target) names for this one, bit for bit

    A rank that is no target keeps dsts[0] as it is.
    Memory: HBM, one tensor each.
    Data types: any, equal.
    Layout: equal shapes; each rank at most once a source and once a target.
    Engine: DMA.
    Cost: a transfer of the bytes; assumed.
    Not emulated: `priority`.
    Source: nki.collectives.collective_permute
    """

    srcs: tuple[In, ...]
    dsts: tuple[Out, ...]
    source_target_pairs: Pairs
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.collective_permute"

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        ranks.check_tensors(self, target, "srcs", "dsts", sbuf=False, one=True)
        pairs = self.source_target_pairs
        if not pairs or any(len(set(ends)) < len(pairs) for ends in zip(*pairs, strict=True)):
            rule = "must have pairs, and no rank twice as a source or as a target"
            raise rules.fail(self, "source_target_pairs", rule, list(pairs))
        ranks.check_shape(self, self.dsts[0], self.srcs[0].shape, "that of srcs")

    @property
    def replica_group(self) -> Groups:
        """The ranks that are sources or targets."""
        return (tuple({rank for pair in self.source_target_pairs for rank in pair}),)

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        mesh = ranks.ranks(self)
        targets = tuple(target for _, target in self.source_target_pairs)
        return ranks.taking_part(mesh, (targets,), [_sent(mesh, self.source_target_pairs, read(self.srcs[0]))])

    def cycles(self, target: Target) -> Transfer:
        return Transfer(_bytes(self.srcs))

    def meets(self) -> Hashable:
        return (self.api, self.source_target_pairs)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)


@dataclass(frozen=True)
class CollectivePermuteImplicit(Instruction):
    """dsts[c] = srcs[c] of this rank's predecessor in its group's ring, for each channel c, bit for bit

    Memory: HBM or SBUF, one tensor each a channel.
    Data types: any; dsts[c] as srcs[c].
    Layout: equal shapes; channel_ids 0, 1, …, at most 4.
    Engine: DMA.
    Cost: a transfer of the bytes; assumed.
    Not emulated: `priority`; that channels of the device may take the ring in other orders.
    Source: nki.collectives.collective_permute_implicit
    """

    srcs_by_channel: tuple[In, ...]
    dsts_by_channel: tuple[Out, ...]
    replica_group: Groups
    channel_ids: tuple[int, ...] = (0,)
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.collective_permute_implicit"

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        ranks.check_groups(self)
        ranks.check_tensors(self, target, "srcs_by_channel", "dsts_by_channel")
        _check_channels(self, len(self.srcs_by_channel))
        for src, dst in zip(self.srcs_by_channel, self.dsts_by_channel, strict=True):
            ranks.check_shape(self, dst, src.shape, "that of its source")

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        mesh, pairs = ranks.ranks(self), _ring(self.replica_group)
        return ranks.taking_part(
            mesh, self.replica_group, [_sent(mesh, pairs, read(src)) for src in self.srcs_by_channel]
        )

    def cycles(self, target: Target) -> Transfer:
        return Transfer(_bytes(self.srcs_by_channel))

    def meets(self) -> Hashable:
        return (self.api, self.replica_group)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)


@dataclass(frozen=True)
class CollectivePermuteImplicitReduce(Instruction):
    """dsts[c] = srcs0[c] <op> srcs1[c] of this rank's predecessor in its group's ring, for each channel c

    In float32, or exactly in integers.
    Memory: HBM or SBUF, one tensor each a channel.
    Data types: any but x4, equal within a channel.
    Layout: equal shapes; channel_ids 0, 1, …, at most 4.
    Engine: DMA.
    Cost: a transfer of the bytes of srcs0; assumed.
    Not emulated: `priority`; that channels of the device may take the ring in other orders.
    Source: nki.collectives.collective_permute_implicit_reduce
    """

    srcs0_by_channel: tuple[In, ...]
    srcs1_by_channel: tuple[In, ...]
    dsts_by_channel: tuple[Out, ...]
    replica_group: Groups
    op: AluOp
    channel_ids: tuple[int, ...] = (0,)
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.collective_permute_implicit_reduce"

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        ranks.check_groups(self)
        ranks.check_tensors(self, target, "srcs0_by_channel", "srcs1_by_channel", "dsts_by_channel")
        ranks.check_reduction(self, "srcs0_by_channel")
        _check_channels(self, len(self.dsts_by_channel))
        for srcs in (self.srcs0_by_channel, self.srcs1_by_channel):
            for src, dst in zip(srcs, self.dsts_by_channel, strict=True):
                ranks.check_shape(self, dst, src.shape, "that of its sources")

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        mesh, pairs = ranks.ranks(self), _ring(self.replica_group)
        values = []
        for first, second in zip(self.srcs0_by_channel, self.srcs1_by_channel, strict=True):
            both = jnp.stack([ranks.widened(read(first)), ranks.widened(read(second))])
            values.append(_sent(mesh, pairs, ranks.stored(ranks.reduced(self.op, both), first.dtype)))
        return ranks.taking_part(mesh, self.replica_group, values)

    def cycles(self, target: Target) -> Transfer:
        return Transfer(_bytes(self.srcs0_by_channel))

    def meets(self) -> Hashable:
        return (self.api, self.replica_group)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)


# ---- which rank


def _register_work(target: Target) -> Work:
    return Work(target.register_move_cycles, target.latency_cycles(Engine.sync))


def _check_register(inst: Instruction, view: View) -> None:
    if view.memory is not Memory.register:
        raise rules.fail(inst, "dst", "must be a register", view.memory.value)


@dataclass(frozen=True)
class RankId(Instruction):
    """dst = this rank, counted along the mesh axes of the ranks

    Memory: a register.
    Engine: a sequencer; modelled on sync.
    Cost: 68 ns (a register move's, assumed).
    Source: nki.collectives.rank_id
    """

    dst: Out
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.rank_id"

    @property
    def queue(self) -> Engine:
        return Engine.sync

    def check(self, target: Target) -> None:
        _check_register(self, self.dst)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return (ranks.ranks(self).me,)

    def cycles(self, target: Target) -> Work:
        return _register_work(target)


@dataclass(frozen=True)
class CurrentProcessingRankId(Instruction):
    """dst = ring[(position - iteration_id) mod n]: the rank whose data are here after iteration_id steps of the ring

    Memory: a register; iteration_id is an int or a register.
    Engine: a sequencer; modelled on sync.
    Cost: 68 ns (a register move's, assumed).
    Not emulated: that channels of the device may take the ring in other orders.
    Source: nki.collectives.collective_permute_implicit_current_processing_rank_id
    """

    dst: Out
    iteration_id: In | Number
    replica_group: Groups
    channel_id: int = 0
    axis: str | tuple[str, ...] | None = None

    api: ClassVar[str] = "nki.collectives.collective_permute_implicit_current_processing_rank_id"

    @property
    def queue(self) -> Engine:
        return Engine.sync

    def check(self, target: Target) -> None:
        _check_register(self, self.dst)
        ranks.check_groups(self)
        step = self.iteration_id
        if isinstance(step, View) and step.memory is not Memory.register or not isinstance(step, View | int):
            raise rules.fail(self, "iteration_id", "must be an int or a register", repr(step))
        if self.channel_id not in range(_CHANNELS):
            raise rules.fail(self, "channel_id", f"must be from 0 to {_CHANNELS - 1}", self.channel_id)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        mesh, groups = ranks.ranks(self), self.replica_group
        position = jnp.asarray(ranks.positions(mesh, groups))[mesh.me]
        ring = jnp.asarray(ranks.members(mesh, groups))[mesh.me]
        return (ring[jnp.mod(position - read(self.iteration_id, np.int32), len(groups[0]))],)

    def cycles(self, target: Target) -> Work:
        return _register_work(target)
