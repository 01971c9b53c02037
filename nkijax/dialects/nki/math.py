"""Math on tiles: `nl.add(x, y)` and its kin allocate an SBUF tile and emit the instruction that fills it.

The result has the dtype asked for, else that of the first tile.  Two tiles have equal shapes, or one of them has one
element a partition, (P, 1).  What no instruction has is an `Elementwise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nkijax.dialects.nki.emit import operand
from nkijax.dialects.nki.tensor import NkiTensor, allocate, sbuf
from nkijax.errors import KernelError
from nkijax.isa.activation import Activate
from nkijax.isa.elementwise import Reciprocal, TensorScalar, TensorTensor
from nkijax.isa.mathematics import FUNCTIONS, Elementwise
from nkijax.isa.operators import ACTIVATIONS, ALU, AluOp
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View

# Unary functions that are one instruction of the Vector or GpSimd engine; the others are activation functions.
_UNARY_ALU = {
    "abs": (ALU["abs"], None),
    "invert": (ALU["invert"], None),
    "rsqrt": (ALU["rsqrt"], None),
    "negative": (ALU["multiply"], -1.0),
    "logical_not": (ALU["logical_xor"], 1.0),
}


def emit_for(api: str, instruction: Instruction) -> None:
    """Emit an instruction on behalf of `api`, which errors then name too."""
    try:
        current(api).emit(instruction)
    except KernelError as error:
        raise KernelError(f"{api}: {error.message}", error.site) from None


def tile(name: str, x: Any) -> View:
    """The view of a tile in SBUF or PSUM; `name` is "<api> <operand>"."""
    if not isinstance(x, NkiTensor):
        raise KernelError(f"{name}: must be a tile, got {x!r}")
    if not x._view.memory.on_chip:
        raise KernelError(f"{name}: must be in sbuf or psum; load it first, got a tensor in {x.buffer.value}")
    return x._view


def new(api: str, shape: Sequence[int], dtype: Any, like: View) -> NkiTensor:
    """A new SBUF tile, of the dtype of `like` unless another is given."""
    return allocate(api, shape, like.dtype if dtype is None else dtype, sbuf)


def repeated(view: View, shape: tuple[int, ...]) -> View:
    """A tile with free dimensions of size 1 as one of `shape`, its elements repeated without a copy."""
    strides = [s if n == size else 0 for s, n, size in zip(view.strides, view.shape, shape, strict=True)]
    return View(view.buffer, view.offset, tuple(strides), shape, view.dtype, view.dynamic)


def column(view: View, shape: tuple[int, ...]) -> View:
    """A tile of one element a partition as one of `shape`, the element repeated without a copy."""
    strides = (view.strides[0], *(0 for _ in shape[1:]))
    return View(view.buffer, view.offset, strides, shape, view.dtype, view.dynamic)


# ---- one operand


def unary(name: str, x: Any, dtype: Any) -> NkiTensor:
    """A new tile: function `name` of a tile, element by element."""
    api = f"nki.language.{name}"
    src = tile(f"{api} x", x)
    out = new(api, src.shape, dtype, src)
    emit_for(api, _unary(name, out._view, src))
    return out


def _unary(name: str, dst: View, src: View) -> Instruction:
    if name in _UNARY_ALU:
        return TensorScalar(dst, src, *_UNARY_ALU[name])
    if name in FUNCTIONS:
        return Elementwise(dst, src, None, FUNCTIONS[name])
    return Reciprocal(dst, src) if name == "reciprocal" else Activate(dst, ACTIVATIONS[name], src)


# ---- two operands


def binary(name: str, x: Any, y: Any, dtype: Any) -> NkiTensor:
    """A new tile: function `name` of two tiles, or of a tile and a number, element by element."""
    api = f"nki.language.{name}"
    tiles = [tile(f"{api} {n}", v) for n, v in (("x", x), ("y", y)) if isinstance(v, NkiTensor)]
    if not tiles:
        raise KernelError(f"{api} x, y: one of them must be a tile, got {x!r} and {y!r}")
    a, b = (_number(f"{api} {n}", v) for n, v in (("x", x), ("y", y)))
    wide = max(tiles, key=lambda view: view.free)
    for name_, view in (("x", a), ("y", b)):
        if isinstance(view, View) and view.shape != wide.shape and not _is_column(view, wide):
            rule = f"must have the shape {wide.shape} of the other operand, or one element a partition"
            raise KernelError(f"{api} {name_}: {rule}, got {view.shape}")
    out = new(api, wide.shape, dtype, tiles[0])
    emit_for(api, _binary(name, out._view, a, b))
    return out


def _number(name: str, x: Any) -> Any:
    value = operand(x)
    if not isinstance(value, View | int | float):
        raise KernelError(f"{name}: must be a tile or a number, got {x!r}")
    return value


def _is_column(view: View, wide: View) -> bool:
    return view.free == 1 and view.partitions == wide.partitions


def _binary(name: str, dst: View, a: Any, b: Any) -> Instruction:
    if name in FUNCTIONS:
        return Elementwise(dst, a, b, FUNCTIONS[name])
    op = ALU[name]
    for first, second, swapped in ((a, b, False), (b, a, True)):
        if isinstance(first, View) and _suits_scalar(op, first, second):
            return TensorScalar(dst, first, op, second, swapped)
    first, second = (v if v.shape == dst.shape else column(v, dst.shape) for v in (a, b))
    return TensorTensor(dst, first, second, op)


def _suits_scalar(op: AluOp, first: View, second: Any) -> bool:
    """Whether `second` is a scalar of tensor_scalar: a number, or a column of the dtype that it takes."""
    if not isinstance(second, View):
        return True
    return second.free == 1 and first.free != 1 and (op.bitvec or second.dtype == "float32")
