"""Collectives of as many elements as a table of metadata says while they run (see `nkijax.isa.ranks`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nkijax.isa import ranks, rules
from nkijax.isa.ranks import Groups
from nkijax.machine import Engine, Memory, Target, Transfer
from nkijax.program import In, Instruction, Masked, Out, Read

_COUNTS, _COUNTS_AND_PLACES = 3, 4  # rows of the metadata
_HBM_ROWS, _SBUF_ROWS = 0, 1  # the dimension of the metadata that has the rows
_SENT = 2  # rows 0 and 1: counts and displacements
_ROW_RECEIVED, _ROW_PLACES = 2, 3


def _set_received(inst: AllGatherV | AllToAllV) -> None:
    """Row 2 of the metadata is written unless the caller knows the counts."""
    view = inst.metadata_tensor
    rows = _SBUF_ROWS if view.memory.on_chip else _HBM_ROWS
    if not inst.recv_counts_known and view.ndim > rows + 1 and view.shape[rows] > _ROW_RECEIVED:
        object.__setattr__(inst, "received", view.slice(rows, _ROW_RECEIVED, _ROW_RECEIVED + 1))


def _check_variable(inst: AllGatherV | AllToAllV, target: Target) -> None:
    ranks.check_groups(inst)
    ranks.check_tensors(inst, target, "srcs", "dsts", sbuf=False, one=True)
    n, view = len(inst.replica_group[0]), inst.metadata_tensor
    rows = _COUNTS_AND_PLACES if inst.has_rdispls else _COUNTS
    shape = (1, rows, n) if view.memory.on_chip else (rows, n)
    if view.memory is Memory.psum or view.dtype != "uint32" or view.shape != shape:
        given = f"{view.dtype} {view.shape} in {view.memory.value}"
        raise rules.fail(inst, "metadata_tensor", f"must be uint32 {shape} in HBM or sbuf", given)
    if inst.dsts[0].size % n:
        raise rules.fail(inst, "dsts", f"must have a multiple of {n} elements", inst.dsts[0].shape)


def _scattered(
    inst: AllGatherV | AllToAllV, read: Read, column: jax.Array | int, mesh: ranks.Ranks
) -> tuple[jax.Array | Masked, ...]:
    """What arrives: from each rank s of the group src[displ : displ + count], at this rank's places.

    `column` is the column of the senders' counts and displacements that this rank reads.
    """
    n, size = len(inst.replica_group[0]), inst.dsts[0].size
    table = read(inst.metadata_tensor).reshape(-1, n).astype(jnp.int32)
    chunks = ranks.gathered(mesh, inst.replica_group, read(inst.srcs[0]).reshape(-1))
    sent = ranks.gathered(mesh, inst.replica_group, table[:_SENT])[:, :, column]
    count, start = sent[:, :1], sent[:, 1:]
    places = table[_ROW_PLACES] if inst.has_rdispls else np.arange(n, dtype=np.int32) * (size // n)
    k = jnp.arange(chunks.shape[1], dtype=jnp.int32)[None, :]
    room = size if inst.has_rdispls else size // n
    to = jnp.where((k < count) & (k < room), jnp.asarray(places)[:, None] + k, size)
    rows = jnp.arange(n, dtype=jnp.int32)[:, None]
    elements = chunks[rows, jnp.minimum(start + k, chunks.shape[1] - 1)]
    value = jnp.zeros(size, chunks.dtype).at[to].set(elements, mode="drop")
    arrived = jnp.zeros(size, bool).at[to].set(True, mode="drop")
    counts = count[:, 0].astype(jnp.uint32)
    values = (value,) if inst.received is None else (value, counts)
    masked = ranks.taking_part(mesh, inst.replica_group, values)
    return (Masked(value, arrived & getattr(masked[0], "mask", True)), *masked[1:])


@dataclass(frozen=True)
class AllGatherV(Instruction):
    """dst[s * slot : s * slot + count of s] = src[displ : displ + count] of each rank s of the group

    slot is 1/n of the elements of dst; both tensors are flat.  Row 0 of metadata_tensor has count, row 1 displ, both
    in column 0; row 2 takes the counts that arrived unless recv_counts_known.
    Memory: src and dst in HBM, one of each; metadata in HBM or SBUF.
    Data types: any, equal; metadata uint32.
    Layout: metadata (3, n), in SBUF (1, 3, n).
    Engine: DMA.
    Cost: a transfer of (n - 1) / n of the bytes of dst; assumed.
    Not emulated: `priority`; that the device wants two cores a rank and four ranks a group; has_rdispls, as in NKI.
    Source: nki.collectives.all_gather_v
    """

    srcs: tuple[In, ...]
    dsts: tuple[Out, ...]
    replica_group: Groups
    metadata_tensor: In
    recv_counts_known: bool = False
    has_rdispls: bool = False
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None
    received: Out | None = field(default=None, init=False)

    api: ClassVar[str] = "nki.collectives.all_gather_v"

    def __post_init__(self):
        _set_received(self)

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        if self.has_rdispls:
            raise rules.fail(self, "has_rdispls", "must be False: NKI does not support it", self.has_rdispls)
        _check_variable(self, target)

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        return _scattered(self, read, 0, ranks.ranks(self))

    def cycles(self, target: Target) -> Transfer:
        return Transfer(ranks.ring_bytes(self, self.dsts))

    def meets(self) -> Hashable:
        return (self.api, self.replica_group)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)


@dataclass(frozen=True)
class AllToAllV(Instruction):
    """dst[place of s : … + count] = src[displ : displ + count] of each rank s, by its column for this rank

    Both tensors are flat.  Row 0 of metadata_tensor has a count for each rank, row 1 a displ, row 3, if has_rdispls,
    the places in dst; else rank s has slot s of n equal ones.  Row 2 takes the counts that arrived unless
    recv_counts_known.
    Memory: src and dst in HBM, one of each; metadata in HBM or SBUF.
    Data types: any, equal; metadata uint32.
    Layout: metadata (3, n), in SBUF (1, 3, n); 4 for 3 if has_rdispls.
    Engine: DMA.
    Cost: a transfer of (n - 1) / n of the bytes of dst; assumed.
    Not emulated: `priority`; which replica groups the fabric of the device can serve.
    Source: nki.collectives.all_to_all_v
    """

    srcs: tuple[In, ...]
    dsts: tuple[Out, ...]
    replica_group: Groups
    metadata_tensor: In
    recv_counts_known: bool = False
    has_rdispls: bool = False
    priority: int | None = None
    axis: str | tuple[str, ...] | None = None
    received: Out | None = field(default=None, init=False)

    api: ClassVar[str] = "nki.collectives.all_to_all_v"

    def __post_init__(self):
        _set_received(self)

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        _check_variable(self, target)

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        mesh = ranks.ranks(self)
        mine = jnp.asarray(ranks.positions(mesh, self.replica_group))[mesh.me]
        return _scattered(self, read, mine, mesh)

    def cycles(self, target: Target) -> Transfer:
        return Transfer(ranks.ring_bytes(self, self.dsts))

    def meets(self) -> Hashable:
        return (self.api, self.replica_group)

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        return ranks.joined(self, others)
