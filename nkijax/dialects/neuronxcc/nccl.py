"""`neuronxcc.nki.nccl` and its `collectives`: across devices, of which there is one here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nkijax.errors import Unsupported


def _across(name: str) -> Callable[..., NoReturn]:
    def collective(*args: Any, **kwargs: Any) -> NoReturn:
        raise Unsupported(f"neuronxcc.nki.nccl.{name}: collectives across devices are not emulated in this dialect")

    collective.__name__ = collective.__qualname__ = name
    return collective


all_gather = _across("all_gather")
all_reduce = _across("all_reduce")
reduce_scatter = _across("reduce_scatter")
collective_permute = _across("collective_permute")
collective_permute_implicit = _across("collective_permute_implicit")
