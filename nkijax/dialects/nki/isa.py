"""`nki.isa`: the instructions of NKI 0.6, with its names, order of arguments and defaults, and their enums.

This file holds names only.
"""

# ruff: noqa: F401

from __future__ import annotations

from typing import NoReturn

from nkijax.dialects.nki import absent, constants
from nkijax.dialects.nki.constants import (
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from nkijax.dialects.nki.emit import NkiInstruction
from nkijax.dialects.nki.isa_compute import (
    activation,
    activation_reduce,
    affine_select,
    iota,
    reciprocal,
    scalar_tensor_tensor,
    tensor_reduce,
    tensor_scalar,
    tensor_tensor,
    tensor_tensor_scan,
)
from nkijax.dialects.nki.isa_data import (
    dma_compute,
    dma_copy,
    dma_transpose,
    memset,
    nc_matmul,
    nc_transpose,
    register_alloc,
    register_load,
    register_move,
    register_store,
    tensor_copy,
    tensor_copy_predicated,
)
from nkijax.dialects.nki.isa_mx import nc_matmul_mx, quantize_mx
from nkijax.dialects.nki.isa_random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from nkijax.dialects.nki.isa_reduce import (
    activate2,
    bn_aggr,
    bn_stats,
    exponential,
    range_select,
    select_reduce,
    tensor_partition_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
)
from nkijax.dialects.nki.isa_search import (
    local_gather,
    max8,
    nc_find_index8,
    nc_match_replace8,
    nc_n_gather,
    nc_stream_shuffle,
    nonzero_with_count,
    sequence_bounds,
    topk,
)
from nkijax.dialects.nki.isa_sync import core_barrier, sendrecv
from nkijax.dialects.nki.register import VirtualRegister
from nkijax.dialects.nki.tile_size import active_target
from nkijax.errors import KernelError
from nkijax.machine import Generation

NkiValidationError = KernelError


def get_nc_version() -> Generation:
    """The NeuronCore version of the target."""
    return active_target().generation


def get_nc_sub_version() -> int:
    """0: first silicon."""
    return 0


# Removed from NKI itself, with what serves instead.
_RUN_TIME = "nki.isa.tensor_copy with a register as an index, nl.ds(register, n) or .ap(…, scalar_offset=…)"
_REMOVED = {"tensor_copy_dynamic_src": _RUN_TIME, "tensor_copy_dynamic_dst": _RUN_TIME}


def __getattr__(name: str) -> NoReturn:
    absent.attribute("nki.isa", name, globals(), _REMOVED)
