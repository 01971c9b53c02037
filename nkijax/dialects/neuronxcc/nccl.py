"""`neuronxcc.nki.nccl` and its `collectives`: across devices, of which there is one here.

A collective of groups of one member is a copy; any other raises Unsupported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nkijax.dialects.neuronxcc.isa_data import dma_copy
from nkijax.errors import Unsupported


def _refuse(name: str, given: Any) -> NoReturn:
    raise Unsupported(
        f"neuronxcc.nki.nccl.{name}: collectives across devices are not emulated in this dialect; groups of one member "
        f"are copies, got {given!r}"
    )


def _grouped(name: str) -> Callable[..., None]:
    def collective(op=None, srcs=(), dsts=(), replica_groups=(), **hints) -> None:
        del op, hints
        if not replica_groups or any(len(group) != 1 for group in replica_groups):
            _refuse(name, replica_groups)
        for src, dst in zip(srcs, dsts, strict=True):
            dma_copy(dst=dst, src=src)

    collective.__name__ = collective.__qualname__ = name
    collective.__doc__ = f"{name} of tensors of one group member each: dsts[i] = srcs[i]; hints have no effect."
    return collective


all_gather = _grouped("all_gather")
all_reduce = _grouped("all_reduce")
reduce_scatter = _grouped("reduce_scatter")


def collective_permute(dst=None, src=None, source_target_pairs=(), **hints) -> None:
    """dst = the `src` of the member that sends here: of itself, where it is the only one; hints have no effect."""
    del hints
    if len(source_target_pairs) != 1 or source_target_pairs[0][0] != source_target_pairs[0][1]:
        _refuse("collective_permute", source_target_pairs)
    dma_copy(dst=dst, src=src)


def collective_permute_implicit(dst=None, src=None, replica_groups=(), mask=None, **hints) -> None:
    """dst = the `src` of the neighbour in the ring of its group: of itself, where it is alone; hints have no effect."""
    del hints
    if not replica_groups or any(len(group) != 1 for group in replica_groups):
        _refuse("collective_permute_implicit", replica_groups)
    dma_copy(dst=dst, src=src, mask=mask)
