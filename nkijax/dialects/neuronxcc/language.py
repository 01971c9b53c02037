"""`neuronxcc.nki.language`: dtypes, memory, index objects, loops, math.  This file holds names only."""

# ruff: noqa: F401

from __future__ import annotations

from nkijax.dialects.neuronxcc import iterators as iterators
from nkijax.dialects.neuronxcc import runtime as _runtime
from nkijax.dialects.neuronxcc import sizes as constants
from nkijax.dialects.neuronxcc.constants import bfp16, fp32
from nkijax.dialects.neuronxcc.declare import (
    empty_like,
    full,
    ndarray,
    ones,
    par_dim,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from nkijax.dialects.neuronxcc.dtype import (
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from nkijax.dialects.neuronxcc.grid import all_reduce, nc, num_programs, program_id, program_ndim, spmd_dim
from nkijax.dialects.neuronxcc.grids import arange, mgrid
from nkijax.dialects.neuronxcc.index import ds
from nkijax.dialects.neuronxcc.linear import FloatInfo as finfo
from nkijax.dialects.neuronxcc.linear import (
    broadcast_to,
    copy,
    dropout,
    matmul,
    rand,
    random_seed,
    static_cast,
    transpose,
)
from nkijax.dialects.neuronxcc.loops import affine_range, sequential_range, static_range
from nkijax.dialects.neuronxcc.math import FUNCTIONS, where
from nkijax.dialects.neuronxcc.memory import (
    atomic_rmw,
    device_print,
    expand_dims,
    gather_flattened,
    load,
    load_transpose2d,
    store,
)
from nkijax.dialects.neuronxcc.reduce import (
    all,
    loop_reduce,
    max,
    mean,
    min,
    prod,
    rms_norm,
    softmax,
    sum,
    var,
)
from nkijax.dialects.neuronxcc.shims import gemm_grid, gemm_stationary_grid
from nkijax.dialects.neuronxcc.tensor import hbm, private_hbm, psum, sbuf, shared_hbm
from nkijax.dialects.neuronxcc.tile_size import tile_size

globals().update(FUNCTIONS)
bool = bool_
