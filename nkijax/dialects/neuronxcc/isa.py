"""`neuronxcc.nki.isa`: the instructions of the old dialect, which return what they compute.

This file holds names only; the modules `isa_*` say what each takes.
"""

# ruff: noqa: F401

from __future__ import annotations

from nkijax.dialects.neuronxcc import constants
from nkijax.dialects.neuronxcc.constants import (
    dge_mode,
    dma_engine,
    engine,
    fp32,
    gpsimd_engine,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from nkijax.dialects.neuronxcc.isa_compute import (
    activation,
    activation_reduce,
    dropout,
    reciprocal,
    scalar_tensor_tensor,
    tensor_scalar,
    tensor_scalar_reduce,
    tensor_tensor,
    tensor_tensor_scan,
)
from nkijax.dialects.neuronxcc.isa_data import (
    _tiled_offloaded_fma,
    _tiled_offloaded_memcpy,
    affine_select,
    dma_copy,
    dma_transpose,
    iota,
    memset,
    nc_transpose,
    tensor_copy,
    tensor_copy_dynamic_dst,
    tensor_copy_dynamic_src,
    tensor_copy_predicated,
)
from nkijax.dialects.neuronxcc.isa_matmul import nc_matmul
from nkijax.dialects.neuronxcc.isa_reduce import (
    bn_aggr,
    bn_stats,
    range_select,
    select_reduce,
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar_cumulative,
)
from nkijax.dialects.neuronxcc.isa_search import (
    builtin_custom_op,
    local_gather,
    max8,
    nc_find_index8,
    nc_match_replace8,
    nc_stream_shuffle,
    sequence_bounds,
)
from nkijax.dialects.neuronxcc.tile_size import active_target
from nkijax.machine import Generation


def get_nc_version() -> Generation:
    """The NeuronCore version of the target."""
    return active_target().generation
