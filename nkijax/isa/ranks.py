"""The ranks of collectives: the devices of a mesh, in groups, and what all of a group send each other.

Ranks count the devices of the manual axes of `jax.shard_map` around the kernel, in the order of the mesh, or those of
the axis that `nkijax.function(kernel, mesh_axis=…)` names.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.errors import KernelError, Unsupported
from nkijax.isa import operators, rules
from nkijax.isa.operators import ALU, AluOp
from nkijax.machine import Generation, Memory, Target
from nkijax.program import EVERY_CORE, Instruction, Masked
from nkijax.view import View

Groups = tuple[tuple[int, ...], ...]
"""Lists of ranks, each of which exchanges data among itself, in that order."""

_HBM = (Memory.private_hbm, Memory.shared_hbm)
_PRIORITIES = range(4)
_REDUCTIONS = (ALU["add"], ALU["minimum"], ALU["maximum"])


# ---- rules


def check_groups(inst: Any) -> None:
    """`replica_group` has lists of equal length, without a rank in common."""
    groups: Groups = inst.replica_group
    every = [rank for group in groups for rank in group]
    if not every or not all(isinstance(r, numbers.Integral) and r >= 0 for r in every):
        raise rules.fail(inst, "replica_group", "must have lists of ranks", list(map(list, groups)))
    if len(set(every)) < len(every):
        raise rules.fail(inst, "replica_group", "must have each rank once", list(map(list, groups)))
    if len({len(group) for group in groups}) > 1:
        raise rules.fail(inst, "replica_group", "must have lists of equal length", list(map(list, groups)))


def check_tensors(inst: Any, target: Target, *operands: str, sbuf: bool = True, one: bool = False) -> None:
    """Lists of as many tensors: all in HBM, or one each in SBUF if `sbuf`; of one dtype from source to destination."""
    lists = [getattr(inst, name) for name in operands]
    for name, tensors in zip(operands, lists, strict=True):
        if len(tensors) != len(lists[0]) or not tensors:
            raise rules.fail(inst, name, f"must have as many tensors as {operands[0]}, at least one", len(tensors))
        if one and len(tensors) > 1:
            raise rules.fail(inst, name, "must have exactly one tensor", len(tensors))
        for view in tensors:
            _check_memory(inst, target, name, view, sbuf)
    every = [view for tensors in lists for view in tensors]
    if len({view.memory.is_hbm for view in every}) > 1:
        raise rules.fail(inst, ", ".join(operands), "must all be in HBM or all in sbuf", "both")
    if len(lists[0]) > 1 and not every[0].memory.is_hbm and not hasattr(inst, "channel_ids"):
        raise rules.fail(inst, operands[0], "several tensors must be in HBM", "sbuf")
    for views in zip(*lists, strict=True):
        for name, view in zip(operands, views, strict=True):
            if view.dtype != views[-1].dtype:
                raise rules.fail(inst, name, f"must have the dtype {views[-1].dtype} of {operands[-1]}", view.dtype)
    priority = inst.priority
    if priority is not None:
        rules.since(inst, target, Generation.gen4, "priority")
        if priority not in _PRIORITIES:
            raise rules.fail(inst, "priority", "must be an integer from 0 to 3", repr(priority))


def _check_memory(inst: Any, target: Target, name: str, view: View, sbuf: bool) -> None:
    legal = (*_HBM, Memory.sbuf) if sbuf else _HBM
    if view.memory not in legal:
        raise rules.fail(inst, name, f"must be in {'HBM or sbuf' if sbuf else 'HBM'}", view.memory.value)
    if view.memory.on_chip and view.partitions > target.pmax:
        raise KernelError(f"{inst.api} {name} partition dimension {view.partitions} exceeds maximum {target.pmax}")
    if view.dynamic is not None:
        raise rules.fail(inst, name, "must have an address known at compile time", "a run-time index")


def check_reduction(inst: Any, name: str = "srcs") -> None:
    """`op` is add, minimum or maximum, and the tensors take arithmetic."""
    if inst.op not in _REDUCTIONS:
        raise rules.fail(inst, "op", "must be nl.add, nl.minimum or nl.maximum", getattr(inst.op, "name", inst.op))
    for view in getattr(inst, name):
        if dtypes.KINDS[view.dtype].family == "packed":
            raise rules.fail(inst, name, "packed x4 types take no arithmetic", view.dtype)


def check_shape(inst: Any, dst: View, shape: Sequence[int], what: str) -> None:
    """A destination has the shape that the source and the group ask for."""
    if dst.shape != tuple(shape):
        raise rules.fail(inst, "dsts", f"must have the shape {tuple(shape)}: {what}", dst.shape)


# ---- two cores of one rank


def joined(inst: Any, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Both cores of a rank reached the collective: done once if it is the same one, else once for each core."""
    same = all((i.reads(), i.writes()) == (inst.reads(), inst.writes()) for i in others)
    return (replace(inst, core=EVERY_CORE, site=inst.site),) if same else (inst, *others)


# ---- the mesh


@dataclass(frozen=True)
class Ranks:
    """`size` devices along mesh `axes`; `manual` if those are axes of `jax.shard_map`."""

    axes: tuple[str, ...]
    size: int
    manual: bool

    @property
    def me(self) -> jax.Array:
        """The rank of this device."""
        return lax.axis_index(self.axes).astype(np.int32)


def ranks(inst: Any) -> Ranks:
    """The ranks that an instruction runs on; Unsupported outside of a mesh."""
    manual = tuple(jax.sharding.get_abstract_mesh().manual_axes)
    axes = manual if inst.axis is None else (inst.axis,) if isinstance(inst.axis, str) else tuple(inst.axis)
    try:
        found = Ranks(axes, math.prod(lax.axis_size(a) for a in axes), set(axes) <= set(manual))
    except NameError:
        found = Ranks((), 0, False)
    if not found.axes:
        where = "" if inst.axis is None else f" with the axis {inst.axis!r}"
        raise Unsupported(
            f"{inst.api}: needs the ranks of a mesh{where}; call nkijax.function(kernel) inside jax.shard_map"
            f"\n  at {inst.site}"
        )
    last = max((rank for group in getattr(inst, "replica_group", ()) for rank in group), default=0)
    if last >= found.size:
        rule = f"{inst.api} replica_group: must have ranks below {found.size}, the devices of mesh axes {found.axes}"
        raise KernelError(f"{rule}, got {last}", inst.site)
    return found


def whole(mesh: Ranks, groups: Groups) -> bool:
    """Whether the group is all ranks in order, so that JAX's own collectives need no table."""
    return groups == (tuple(range(mesh.size)),)


def members(mesh: Ranks, groups: Groups) -> np.ndarray:
    """(rank, position) -> rank: the group of each rank; a rank of no group stands alone."""
    table = np.repeat(np.arange(mesh.size, dtype=np.int32)[:, None], len(groups[0]), axis=1)
    for group in groups:
        table[list(group)] = group
    return table


def positions(mesh: Ranks, groups: Groups) -> np.ndarray:
    """rank -> its position in its group."""
    table = np.zeros(mesh.size, np.int32)
    for group in groups:
        table[list(group)] = np.arange(len(group))
    return table


def gathered(mesh: Ranks, groups: Groups, x: jax.Array) -> jax.Array:
    """x of every rank of this rank's group, in order: (ranks, …)."""
    if whole(mesh, groups):
        return lax.all_gather(x, mesh.axes)
    covers = len(groups) * len(groups[0]) == mesh.size
    if mesh.manual and len(mesh.axes) == 1 and covers:
        return lax.all_gather(x, mesh.axes[0], axis_index_groups=[list(g) for g in groups])
    return lax.all_gather(x, mesh.axes)[jnp.asarray(members(mesh, groups))[mesh.me]]


def taking_part(mesh: Ranks, groups: Groups, values: Sequence[jax.Array]) -> tuple[jax.Array | Masked, ...]:
    """Results that only the ranks in `groups` write."""
    table = np.zeros(mesh.size, bool)
    table[[rank for group in groups for rank in group]] = True
    if table.all():
        return tuple(values)
    mine = jnp.asarray(table)[mesh.me]
    return tuple(Masked(v, jnp.broadcast_to(mine, v.shape)) for v in values)


def widened(x: jax.Array) -> jax.Array:
    """What a reduction works on: float32, or 32-bit integers."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jnp.float32)
    return x if x.dtype.itemsize == np.dtype(np.int32).itemsize else x.astype(jnp.int32)


def reduced(op: AluOp, x: jax.Array) -> jax.Array:
    """x (ranks, …) reduced over the ranks."""
    fold = {"add": jnp.sum, "minimum": jnp.min, "maximum": jnp.max}[op.name]
    return fold(x, axis=0).astype(x.dtype)


def stored(x: jax.Array, dtype: str) -> jax.Array:
    """A reduction's integers as their own dtype, wrapped; floats are left to the store cast."""
    return operators.from_bits(x, dtype) if dtypes.is_int(dtype) and dtype != "bool" else x


def ring_bytes(inst: Any, views: Sequence[View], passes: float = 1.0) -> int:
    """Bytes that each rank of a ring sends: (n - 1) / n of `views`, `passes` times."""
    n = len(inst.replica_group[0])
    return math.ceil(passes * (n - 1) / n * sum(v.size * dtypes.size(v.dtype) for v in views))
