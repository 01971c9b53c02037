"""Instructions on microscaling (MX) types, NeuronCore-v4's.

Each function translates its arguments and emits the instruction's entry of `nkijax.isa`, whose docstring says what it
computes, its rules, its cost and what is not emulated.  Shapes: P partitions (at most 128), F all free dimensions.
"""

from __future__ import annotations

from nkijax.dialects.nki.emit import NkiInstruction, emit
from nkijax.dialects.nki.tensor import view_of
from nkijax.isa.mx import QuantizeMx, matmul_mx_instructions
from nkijax.trace import current


def nc_matmul_mx(
    dst,
    stationary,
    moving,
    stationary_scale,
    moving_scale,
    tile_position=None,
    tile_size=None,
    accumulate=None,
    name=None,
) -> NkiInstruction:
    """dst (M, N) = stationary (P, M) by moving (P, N), both of x4 elements times their scales, or added to it.

    Partitions and the four values of an element are summed over; `accumulate` as for `nc_matmul`.
    """
    recorder = current("nki.isa.nc_matmul_mx")
    emitted = matmul_mx_instructions(
        recorder,
        view_of("nki.isa.nc_matmul_mx dst", dst),
        view_of("nki.isa.nc_matmul_mx stationary", stationary),
        view_of("nki.isa.nc_matmul_mx moving", moving),
        view_of("nki.isa.nc_matmul_mx stationary_scale", stationary_scale),
        view_of("nki.isa.nc_matmul_mx moving_scale", moving_scale),
        tile_position,
        tile_size,
        accumulate,
        name,
    )
    for instruction in emitted:
        recorder.emit(instruction)
    return NkiInstruction(emitted[-1])


def quantize_mx(dst, src, dst_scale, name=None) -> NkiInstruction:
    """dst (P, F/4) of x4 elements = src (P, F) over its scales; dst_scale: a scale for each 8 rows of an element."""
    to, of = view_of("nki.isa.quantize_mx dst", dst), view_of("nki.isa.quantize_mx src", src)
    return emit(QuantizeMx(to, of, view_of("nki.isa.quantize_mx dst_scale", dst_scale), name=name))
