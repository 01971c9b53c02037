"""`nki.language`: dtypes, memory, data movement, loops, and the operators that instructions take (NKI 0.6).

This file holds names only.
"""

# ruff: noqa: F401

from __future__ import annotations

from typing import NoReturn

from nkijax.dialects.nki import absent
from nkijax.dialects.nki.chance import dropout, rand, random_seed
from nkijax.dialects.nki.choosing import gather_flattened, where
from nkijax.dialects.nki.control import (
    affine_range,
    dynamic_range,
    fori_loop,
    no_reorder,
    num_programs,
    program_id,
    program_ndim,
    sequential_range,
    static_range,
    while_loop,
)
from nkijax.dialects.nki.dtype import (
    bfloat16,
    bool_,
    float4_e2m1fn_x4,
    float8_e4m3,
    float8_e4m3fn,
    float8_e4m3fn_x4,
    float8_e5m2,
    float8_e5m2_x4,
    float8_e8m0fnu,
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
from nkijax.dialects.nki.matrices import matmul, shared_constant, shared_identity_matrix, transpose
from nkijax.dialects.nki.memory import (
    broadcast_to,
    device_print,
    ds,
    empty_like,
    expand_dims,
    full,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    load,
    load_transpose2d,
    ndarray,
    ones,
    store,
    zeros,
    zeros_like,
)
from nkijax.dialects.nki.objects import NKIObject
from nkijax.dialects.nki.ops import (
    abs,
    abs_max,
    abs_min,
    add,
    all,
    arctan,
    average,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    bypass,
    ceil,
    copy,
    cos,
    divide,
    equal,
    erf,
    erf_dx,
    exp,
    floor,
    fmod,
    gelu,
    gelu_apprx_sigmoid,
    gelu_apprx_sigmoid_dx,
    gelu_apprx_tanh,
    gelu_dx,
    greater,
    greater_equal,
    invert,
    left_shift,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    max,
    maximum,
    mean,
    min,
    minimum,
    mish,
    mod,
    multiply,
    negative,
    not_equal,
    power,
    prelu,
    prod,
    reciprocal,
    relu,
    right_shift,
    rsqrt,
    sigmoid,
    sign,
    silu,
    silu_dx,
    sin,
    softplus,
    sqrt,
    square,
    subtract,
    sum,
    tan,
    tanh,
    trunc,
    var,
)
from nkijax.dialects.nki.reductions import rms_norm, softmax
from nkijax.dialects.nki.tensor import (
    MemoryRegion,
    NkiTensor,
    hbm,
    private_hbm,
    psum,
    sbuf,
    shared_hbm,
)
from nkijax.dialects.nki.tile_size import tile_size

DType = str
bool = bool_  # undocumented, in use
range = static_range  # undocumented, in use

# Removed from NKI itself, with what serves instead.
_PLACES = "slices and .ap(pattern), or nki.isa.iota for values"
_REMOVED = {
    "arange": _PLACES,
    "mgrid": _PLACES,
    "par_dim": "nothing: dimension 0 of a tensor on chip is its partitions",
    "nc": "kernel[n]",
    "spmd_dim": "kernel[n]",
    "static_cast": "nl.copy(x, dtype)",
    "fp32": "nl.float32",
}


def __getattr__(name: str) -> NoReturn:
    absent.attribute("nki.language", name, globals(), _REMOVED)
