"""`nki.collectives`: data between ranks, the devices of a mesh: call the kernel inside `jax.shard_map`.

Each function translates its arguments and emits its entry of `nkijax.isa`, whose docstring says what it computes, its
rules, its cost and what is not emulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from nkijax.dialects.nki import absent
from nkijax.dialects.nki.emit import operand
from nkijax.dialects.nki.objects import NKIObject
from nkijax.dialects.nki.ops import alu
from nkijax.dialects.nki.register import VirtualRegister
from nkijax.dialects.nki.tensor import view_of
from nkijax.errors import KernelError
from nkijax.isa import collectives, collectives_v, permute
from nkijax.trace import current
from nkijax.view import View


class ReplicaGroup(NKIObject):
    """Lists of ranks, each of which takes part in a collective among itself: ReplicaGroup([[0, 1], [2, 3]])."""

    replica_groups: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        if not isinstance(self.replica_groups, list | tuple):
            raise KernelError(f"ReplicaGroup: must be lists of ranks, got {self.replica_groups!r}")


def _groups(api: str, group: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(group, ReplicaGroup):
        raise KernelError(f"{api} replica_group: must be a ReplicaGroup, got {group!r}")
    return tuple(tuple(ranks) for ranks in group.replica_groups)


def _views(name: str, tensors: Any) -> tuple[View, ...]:
    if not isinstance(tensors, list | tuple):
        raise KernelError(f"{name}: must be a list of tensors, got {tensors!r}")
    return tuple(view_of(name, t) for t in tensors)


def _channels(name: str, tensors: Any) -> tuple[View, ...]:
    """The one tensor of each channel."""
    if not isinstance(tensors, list | tuple) or any(not isinstance(t, list | tuple) or len(t) != 1 for t in tensors):
        raise KernelError(f"{name}: must be a list of channels, each a list of one tensor, got {tensors!r}")
    return tuple(view_of(name, t[0]) for t in tensors)


# ---- within a group


def all_reduce(srcs, dsts, replica_group, op, priority=None, name=None) -> None:
    """dsts[i] = srcs[i] reduced by `op`, add, minimum or maximum, over the ranks of the group."""
    api = "nki.collectives.all_reduce"
    recorder = current(api)
    of, to = _views(f"{api} srcs", srcs), _views(f"{api} dsts", dsts)
    groups = _groups(api, replica_group)
    recorder.emit(collectives.AllReduce(of, to, groups, alu(op), priority, recorder.mesh_axis, name=name))


def all_gather(srcs, dsts, replica_group, collective_dim, priority=None, name=None) -> None:
    """dsts[i] = srcs[i] of all ranks of the group, one after another along `collective_dim`."""
    api = "nki.collectives.all_gather"
    recorder = current(api)
    of, to = _views(f"{api} srcs", srcs), _views(f"{api} dsts", dsts)
    groups = _groups(api, replica_group)
    recorder.emit(collectives.AllGather(of, to, groups, collective_dim, priority, recorder.mesh_axis, name=name))


def reduce_scatter(srcs, dsts, replica_group, collective_dim, op, priority=None, name=None) -> None:
    """dsts[i] = this rank's part, along dimension 0, of srcs[i] reduced by `op` over the ranks of the group."""
    api = "nki.collectives.reduce_scatter"
    recorder = current(api)
    of, to = _views(f"{api} srcs", srcs), _views(f"{api} dsts", dsts)
    groups = _groups(api, replica_group)
    entry = collectives.ReduceScatter(of, to, groups, collective_dim, alu(op), priority, recorder.mesh_axis, name=name)
    recorder.emit(entry)


def all_to_all(srcs, dsts, replica_group, collective_dim, priority=None, name=None) -> None:
    """Part r of dsts[i], along dimension 0, = this rank's part of srcs[i] of rank r of the group."""
    api = "nki.collectives.all_to_all"
    recorder = current(api)
    of, to = _views(f"{api} srcs", srcs), _views(f"{api} dsts", dsts)
    groups = _groups(api, replica_group)
    recorder.emit(collectives.AllToAll(of, to, groups, collective_dim, priority, recorder.mesh_axis, name=name))


def all_gather_v(
    srcs,
    dsts,
    replica_group,
    metadata_tensor,
    recv_counts_known=False,
    has_rdispls=False,
    priority=None,
    name=None,
) -> None:
    """Each rank's chunk of the size that `metadata_tensor` says goes to all ranks of the group, each into its slot."""
    _emit_v("all_gather_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls, priority, name)


def all_to_all_v(
    srcs,
    dsts,
    replica_group,
    metadata_tensor,
    recv_counts_known=False,
    has_rdispls=False,
    priority=None,
    name=None,
) -> None:
    """Each rank sends each other one a chunk of the size and from the place that `metadata_tensor` says."""
    _emit_v("all_to_all_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls, priority, name)


def _emit_v(function, srcs, dsts, replica_group, metadata_tensor, known, places, priority, name) -> None:
    api = f"nki.collectives.{function}"
    recorder = current(api)
    entry = {"all_gather_v": collectives_v.AllGatherV, "all_to_all_v": collectives_v.AllToAllV}[function]
    of, to = _views(f"{api} srcs", srcs), _views(f"{api} dsts", dsts)
    table, groups = view_of(f"{api} metadata_tensor", metadata_tensor), _groups(api, replica_group)
    recorder.emit(entry(of, to, groups, table, bool(known), bool(places), priority, recorder.mesh_axis, name=name))


# ---- to one other rank


def collective_permute(srcs, dsts, source_target_pairs, priority=None, name=None) -> None:
    """dsts[0] = srcs[0] of the rank that a pair (source, target) has as the source for this one."""
    api = "nki.collectives.collective_permute"
    recorder = current(api)
    of, to = _views(f"{api} srcs", srcs), _views(f"{api} dsts", dsts)
    try:
        pairs = tuple((int(source), int(target)) for source, target in source_target_pairs)
    except (TypeError, ValueError):
        rule = "must be a list of pairs of ranks"
        raise KernelError(f"{api} source_target_pairs: {rule}, got {source_target_pairs!r}") from None
    recorder.emit(permute.CollectivePermute(of, to, pairs, priority, recorder.mesh_axis, name=name))


def collective_permute_implicit(
    srcs_by_channel,
    dsts_by_channel,
    replica_group,
    channel_ids=[0],  # noqa: B006
    priority=None,
    name=None,
) -> None:
    """Each channel's dst = its src of this rank's predecessor in the ring of the group."""
    api = "nki.collectives.collective_permute_implicit"
    recorder = current(api)
    of, to = _channels(f"{api} srcs_by_channel", srcs_by_channel), _channels(f"{api} dsts_by_channel", dsts_by_channel)
    groups, ids = _groups(api, replica_group), tuple(channel_ids)
    entry = permute.CollectivePermuteImplicit(of, to, groups, ids, priority, recorder.mesh_axis, name=name)
    recorder.emit(entry)


def collective_permute_implicit_reduce(
    srcs0_by_channel,
    srcs1_by_channel,
    dsts_by_channel,
    replica_group,
    op,
    channel_ids=[0],  # noqa: B006
    priority=None,
    name=None,
) -> None:
    """Each channel's dst = src0 <op> src1 of this rank's predecessor in the ring of the group."""
    api = "nki.collectives.collective_permute_implicit_reduce"
    recorder = current(api)
    first, second = (
        _channels(f"{api} {n}", x)
        for n, x in (("srcs0_by_channel", srcs0_by_channel), ("srcs1_by_channel", srcs1_by_channel))
    )
    to, groups = _channels(f"{api} dsts_by_channel", dsts_by_channel), _groups(api, replica_group)
    axis, ids = recorder.mesh_axis, tuple(channel_ids)
    entry = permute.CollectivePermuteImplicitReduce(first, second, to, groups, alu(op), ids, priority, axis, name=name)
    recorder.emit(entry)


# ---- which rank


def collective_permute_implicit_current_processing_rank_id(
    iteration_id, replica_group, channel_id=0, name=None
) -> VirtualRegister:
    """A register: the rank whose data are here after `iteration_id` steps of the ring."""
    api = "nki.collectives.collective_permute_implicit_current_processing_rank_id"
    recorder = current(api)
    register, groups = recorder.register(), _groups(api, replica_group)
    entry = permute.CurrentProcessingRankId(
        register, operand(iteration_id), groups, channel_id, recorder.mesh_axis, name=name
    )
    recorder.emit(entry)
    return VirtualRegister(register)


def rank_id(name=None) -> VirtualRegister:
    """A register: this rank."""
    recorder = current("nki.collectives.rank_id")
    register = recorder.register()
    recorder.emit(permute.RankId(register, recorder.mesh_axis, name=name))
    return VirtualRegister(register)


def __getattr__(name: str) -> NoReturn:
    absent.attribute("nki.collectives", name, globals())
