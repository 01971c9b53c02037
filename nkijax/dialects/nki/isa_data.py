"""Instructions that move data, the tensor engine's, and those on registers.

Each function translates its arguments and emits the instruction's entry of `nkijax.isa`, whose docstring says what it
computes, its rules, its cost and what is not emulated.  Shapes: P partitions (at most 128), F all free dimensions.
"""

from __future__ import annotations

from nkijax.dialects.nki.constants import dge, dge_mode, engine, matmul_perf_mode, oob_mode
from nkijax.dialects.nki.emit import NkiInstruction, emit, operand
from nkijax.dialects.nki.ops import alu
from nkijax.dialects.nki.register import VirtualRegister
from nkijax.dialects.nki.tensor import NkiTensor, view_of
from nkijax.isa.dma_compute import DmaCompute
from nkijax.isa.matmul import matmul_instructions
from nkijax.isa.move import DmaCopy, Memset, TensorCopy
from nkijax.isa.register import RegisterLoad, RegisterMove, RegisterStore
from nkijax.isa.select import TensorCopyPredicated
from nkijax.isa.transpose import DmaTranspose, NcTranspose
from nkijax.trace import current

# ---- data movement


def dma_copy(
    dst, src, priority=None, oob_mode=oob_mode.error, dge_mode=dge_mode.unknown, engine=engine.unknown, name=None
) -> NkiInstruction:
    """dst[...] = cast(src[...]) between HBM and SBUF, in row-major order; sizes agree, shapes need not."""
    to, of = view_of("nki.isa.dma_copy dst", dst), view_of("nki.isa.dma_copy src", src)
    return emit(DmaCopy(to, of, priority, oob_mode, dge(dge_mode), engine, name=name))


def dma_compute(
    dst, srcs, reduce_op, scales=None, unique_indices=True, oob_mode=oob_mode.error, name=None
) -> NkiInstruction:
    """dst[...] = cast(the sum of all srcs), up to 16, in HBM and SBUF; with a vector_offset a read-modify-write."""
    to = view_of("nki.isa.dma_compute dst", dst)
    views = tuple(view_of(f"nki.isa.dma_compute srcs[{i}]", src) for i, src in enumerate(srcs))
    return emit(DmaCompute(to, views, alu(reduce_op), scales, unique_indices, oob_mode, name=name))


def tensor_copy(dst, src, engine=engine.unknown, name=None, dtype=None) -> NkiInstruction:
    """dst = cast(src), (P, F).  `dtype` is accepted, as old tutorials pass it, and has no effect: dst's own counts."""
    to, of = view_of("nki.isa.tensor_copy dst", dst), view_of("nki.isa.tensor_copy src", src)
    return emit(TensorCopy(to, of, engine, name=name))


def memset(dst, value, engine=engine.unknown, name=None) -> NkiInstruction:
    """dst = value, (P, F)."""
    return emit(Memset(view_of("nki.isa.memset dst", dst), operand(value), engine, name=name))


def tensor_copy_predicated(dst, src, predicate, reverse_pred=False, name=None) -> NkiInstruction:
    """dst = src where predicate != 0 (or == 0, reversed), (P, F); src may be a number."""
    to, mask = (view_of(f"nki.isa.tensor_copy_predicated {n}", x) for n, x in (("dst", dst), ("predicate", predicate)))
    return emit(TensorCopyPredicated(to, operand(src), mask, bool(reverse_pred), name=name))


def nc_transpose(dst, data, engine=engine.unknown, name=None) -> NkiInstruction:
    """dst (F, P) = data (P, F) transposed, bit for bit; on the tensor engine into PSUM, or on the vector engine."""
    to, of = view_of("nki.isa.nc_transpose dst", dst), view_of("nki.isa.nc_transpose data", data)
    return emit(NcTranspose(to, of, engine, name=name))


def dma_transpose(
    dst, src, axes=None, priority=None, dge_mode=dge_mode.unknown, oob_mode=oob_mode.error, name=None
) -> NkiInstruction:
    """dst = src transposed, first and last dimension swapped, on the way into SBUF."""
    to, of = view_of("nki.isa.dma_transpose dst", dst), view_of("nki.isa.dma_transpose src", src)
    order = None if axes is None else tuple(axes)
    return emit(DmaTranspose(to, of, order, priority, dge(dge_mode), oob_mode, name=name))


# ---- the tensor engine


def nc_matmul(
    dst,
    stationary,
    moving,
    is_stationary_onezero=False,
    is_moving_onezero=False,
    is_transpose=False,
    accumulate=None,
    tile_position=(),
    tile_size=(),
    perf_mode=matmul_perf_mode.none,
    name=None,
) -> NkiInstruction:
    """dst (M, N) = stationary (K, M).T @ moving (K, N) into PSUM, or added to it.

    `accumulate` None: the first matmul since the allocation overwrites, later ones add, for each element of dst.
    """
    recorder = current("nki.isa.nc_matmul")
    emitted = matmul_instructions(
        recorder,
        view_of("nki.isa.nc_matmul dst", dst),
        view_of("nki.isa.nc_matmul stationary", stationary),
        view_of("nki.isa.nc_matmul moving", moving),
        is_stationary_onezero,
        is_moving_onezero,
        is_transpose,
        accumulate,
        tile_position,
        tile_size,
        perf_mode,
        name,
    )
    for instruction in emitted:
        recorder.emit(instruction)
    return NkiInstruction(emitted[-1])


# ---- registers


def register_alloc(x=None) -> VirtualRegister:
    """A new register, unset, or set to an int (or, as before NKI 0.3, loaded from a 1-element tensor)."""
    recorder = current("nki.isa.register_alloc")
    register = recorder.register()
    if isinstance(x, NkiTensor):
        recorder.emit(RegisterLoad(register, x._view))
    elif x is not None:
        recorder.emit(RegisterMove(register, operand(x)))
    return VirtualRegister(register)


def register_move(dst, src) -> None:
    """dst = src, an int or a register."""
    current("nki.isa.register_move").emit(RegisterMove(operand(dst), operand(src)))


def register_load(dst, src) -> None:
    """dst = src, a 1-element tensor in HBM or SBUF."""
    current("nki.isa.register_load").emit(RegisterLoad(operand(dst), view_of("nki.isa.register_load src", src)))


def register_store(dst, src) -> None:
    """dst, a 1-element tensor in HBM or SBUF, = src."""
    current("nki.isa.register_store").emit(RegisterStore(view_of("nki.isa.register_store dst", dst), operand(src)))
