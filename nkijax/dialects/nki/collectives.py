"""`nki.collectives`: every name can be imported; none is emulated yet, and calling one raises Unsupported."""

from __future__ import annotations

from typing import Any

from nkijax.dialects.nki import later

NOT_YET = (
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
)


def __getattr__(name: str) -> Any:
    return later.attribute("nki.collectives", name, NOT_YET, globals())
