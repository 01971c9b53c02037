"""Tensors of `nki.language`: allocation, filling, loading and storing."""

from __future__ import annotations

import operator
from typing import Any

from nkijax.dialects.nki.subscript import DynamicSlice
from nkijax.dialects.nki.tensor import (
    MemoryRegion,
    NkiTensor,
    allocate,
    copy_instruction,
    fill_instruction,
    sbuf,
    view_of,
)
from nkijax.errors import KernelError
from nkijax.isa.debug import DevicePrint
from nkijax.isa.move import DmaCopy
from nkijax.isa.transpose import DmaTranspose
from nkijax.trace import current, dtype_of, shape_of
from nkijax.view import View

_ADDRESS = "(start partition, byte offset in a partition)"


def ndarray(shape, dtype, buffer=sbuf, name="", address=None) -> NkiTensor:
    """A new tensor with nothing in it: NaN in floats, 4 in integers, so that reading it shows.

    `buffer` is a memory region.  On chip the first dimension is the partitions; more of them than the machine has are
    refused by the instruction that meets them.  `address`, (start partition, byte offset), is checked, without effect.
    """
    if address is not None:
        _check_address(address, buffer)
    return allocate("nki.language.ndarray", shape, dtype, buffer, name)


def _check_address(address: Any, buffer: Any) -> None:
    try:
        partition, start_bytes = (operator.index(x) for x in address)
    except (TypeError, ValueError):
        raise KernelError(f"nki.language.ndarray address: must be {_ADDRESS}, got {address!r}") from None
    bank_bytes = current("nki.language.ndarray").target.psum_bank_bytes
    if partition < 0 or start_bytes < 0:
        raise KernelError(f"nki.language.ndarray address: must not be negative, got {address}")
    if buffer is MemoryRegion.psum and start_bytes % bank_bytes:
        rule = f"must start at a bank of PSUM, a multiple of {bank_bytes} bytes"
        raise KernelError(f"nki.language.ndarray address: {rule}, got {address}")


def _filled(api: str, shape: Any, value: Any, dtype: Any, buffer: Any, name: str) -> NkiTensor:
    tensor = allocate(api, shape, dtype, buffer, name)
    current(api).emit(fill_instruction(tensor._view, value))
    return tensor


def zeros(shape, dtype, buffer=sbuf, name="") -> NkiTensor:
    """A new tensor of zeros."""
    return _filled("nki.language.zeros", shape, 0, dtype, buffer, name)


def ones(shape, dtype, buffer=sbuf, name="") -> NkiTensor:
    """A new tensor of ones."""
    return _filled("nki.language.ones", shape, 1, dtype, buffer, name)


def full(shape, fill_value, dtype, buffer=sbuf, name="") -> NkiTensor:
    """A new tensor that holds `fill_value` everywhere."""
    return _filled("nki.language.full", shape, fill_value, dtype, buffer, name)


def zeros_like(x, dtype=None, buffer=None, name="") -> NkiTensor:
    """A new tensor of zeros with the shape of `x`, and its dtype and memory unless others are given."""
    like = view_of("nki.language.zeros_like x", x)
    return _filled("nki.language.zeros_like", like.shape, 0, dtype or like.dtype, buffer or like.memory, name)


def empty_like(x, dtype=None, buffer=None, name="") -> NkiTensor:
    """A new tensor with nothing in it; shape, dtype and memory as `zeros_like`."""
    like = view_of("nki.language.empty_like x", x)
    return allocate("nki.language.empty_like", like.shape, dtype or like.dtype, buffer or like.memory, name)


def load(src, dtype=None) -> NkiTensor:
    """A new SBUF tile with the elements of `src`, an HBM tensor of up to 128 rows, cast to `dtype`."""
    view = view_of("nki.language.load src", src)
    tile = allocate("nki.language.load", view.shape, dtype or view.dtype, sbuf)
    current("nki.language.load").emit(DmaCopy(tile._view, view))
    return tile


def store(dst, value) -> None:
    """Copy an SBUF tile into HBM."""
    emitted = DmaCopy(view_of("nki.language.store dst", dst), view_of("nki.language.store value", value))
    current("nki.language.store").emit(emitted)


def load_transpose2d(src, dtype=None) -> NkiTensor:
    """A new SBUF tile with the transpose of `src`, (rows, columns) in HBM, cast to `dtype`."""
    api = "nki.language.load_transpose2d"
    view = view_of(f"{api} src", src)
    if view.ndim != 2:
        raise KernelError(f"{api} src: must have 2 dimensions, got {view.shape}")
    tile = allocate(api, view.shape[::-1], view.dtype, sbuf)
    current(api).emit(DmaTranspose(tile._view, view))
    return tile if dtype is None or dtype_of(dtype, api) == view.dtype else _cast(api, tile, dtype)


def _cast(api: str, x: NkiTensor, dtype: Any) -> NkiTensor:
    tile = allocate(api, x.shape, dtype, sbuf)
    current(api).emit(copy_instruction(tile._view, x._view))
    return tile


def expand_dims(x, axis) -> NkiTensor:
    """A view of `x` with a dimension of size 1 at `axis`."""
    view, axis = view_of("nki.language.expand_dims x", x), operator.index(axis)
    return NkiTensor(view.expand_dim(axis + view.ndim + 1 if axis < 0 else axis))


def broadcast_to(x, shape, dtype=None) -> NkiTensor:
    """A new SBUF tile in which each dimension of size 1 is repeated; `x` itself if it has shape and dtype already.

    Partitions are repeated by a DMA, so `x` must then be in SBUF.
    """
    api = "nki.language.broadcast_to"
    src, sizes = view_of(f"{api} x", x), shape_of(shape, api)
    kind = src.dtype if dtype is None else dtype_of(dtype, api)
    if (sizes, kind) == (src.shape, src.dtype):
        return x
    if len(sizes) != src.ndim or any(n not in (1, size) for n, size in zip(src.shape, sizes, strict=True)):
        raise KernelError(f"{api} shape: must repeat dimensions of size 1 of {src.shape}, got {sizes}")
    strides = [s if n == size else 0 for s, n, size in zip(src.strides, src.shape, sizes, strict=True)]
    wide = View(src.buffer, src.offset, tuple(strides), sizes, src.dtype, src.dynamic)
    tile = allocate(api, sizes, kind, sbuf)
    repeats_rows = src.memory.on_chip and sizes[0] != src.shape[0]
    current(api).emit(DmaCopy(tile._view, wide) if repeats_rows else copy_instruction(tile._view, wide))
    return tile


def ds(start, size) -> DynamicSlice:
    """An index: `size` elements from `start` on, which may be a register or a 1x1 integer tile."""
    try:
        return DynamicSlice(start, operator.index(size))
    except TypeError:
        raise KernelError(f"nki.language.ds size: must be an int, got {size!r}") from None


def is_hbm(buffer) -> bool:
    """Whether a memory region is HBM."""
    return _region("is_hbm", buffer).is_hbm


def is_on_chip(buffer) -> bool:
    """Whether a memory region is SBUF or PSUM."""
    return _region("is_on_chip", buffer).on_chip


def is_psum(buffer) -> bool:
    """Whether a memory region is PSUM."""
    return _region("is_psum", buffer) is MemoryRegion.psum


def is_sbuf(buffer) -> bool:
    """Whether a memory region is SBUF."""
    return _region("is_sbuf", buffer) is MemoryRegion.sbuf


def _region(api: str, buffer: Any) -> MemoryRegion:
    if not isinstance(buffer, MemoryRegion):
        raise KernelError(f"nki.language.{api} buffer: must be a memory region, got {buffer!r}")
    return buffer


def device_print(print_prefix, tensor) -> None:
    """Print a tensor's values after `print_prefix`, when the kernel runs; in eager mode at once."""
    api = "nki.language.device_print"
    current(api).emit(DevicePrint(print_prefix, view_of(f"{api} tensor", tensor)))
