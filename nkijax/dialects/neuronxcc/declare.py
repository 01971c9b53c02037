"""Declarations of `neuronxcc.nki.language`: tensors, the partition dimension, constants.

Dimensions left of `par_dim` are block dimensions.  A block tensor is one buffer (P, blocks …, F …), whose tiles are
patterns on it, unless an allocation gives its logical tiles places of their own.  Everything declared reads zero.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from nkijax import arrays
from nkijax.buffer import suffix_products
from nkijax.dialects.neuronxcc import compiler, emit
from nkijax.dialects.neuronxcc import dtype as kinds
from nkijax.dialects.neuronxcc.dtype import name_of
from nkijax.dialects.neuronxcc.tensor import Tensor, allocate, face, sbuf
from nkijax.errors import KernelError
from nkijax.isa.move import Memset
from nkijax.machine import Engine, Memory
from nkijax.trace import current, shape_of
from nkijax.view import View


class par_dim(int):
    """`nl.par_dim(n)`: n, and in a shape the mark of the partition dimension."""


class Blocks:
    """A block tensor whose logical tiles have places of their own."""

    __slots__ = ("_tiles", "buffer", "dtype", "shape")

    def __init__(self, tiles: dict[tuple[int, ...], View], shape: tuple[int, ...], dtype: str, memory: Memory):
        self._tiles, self.shape, self.dtype, self.buffer = tiles, shape, kinds.DType(dtype), memory

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def _split(self, key: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        keys = key if isinstance(key, tuple) else (key,)
        depth = len(next(iter(self._tiles)))
        try:
            index = tuple(operator.index(k) for k in keys[:depth])
        except TypeError:
            raise KernelError(f"tensor[...]: block dimensions of a placed tensor take ints, got {keys}") from None
        return tuple(i + n if i < 0 else i for i, n in zip(index, self.shape, strict=False)), keys[depth:]

    def __getitem__(self, key: Any) -> Any:
        index, rest = self._split(key)
        depth = len(next(iter(self._tiles)))
        if len(index) < depth:
            left = {i[len(index) :]: v for i, v in self._tiles.items() if i[: len(index)] == index}
            return Blocks(left, self.shape[len(index) :], self.dtype, self.buffer)
        if index not in self._tiles:
            raise KernelError(f"tensor[...]: block index {index} exceeds the block dimensions of {self.shape}")
        tile = face(self._tiles[index])
        return tile[rest] if rest else tile

    def __setitem__(self, key: Any, value: Any) -> None:
        index, rest = self._split(key)
        if len(index) < len(next(iter(self._tiles))):
            raise KernelError(f"tensor[...] = value: names one tile of {self.shape}, got {key}")
        emit.assign(self[key] if rest else self[index], value)


def _new(api: str, shape: Any, dtype: Any, buffer: Any, name: str | None) -> tuple[Any, list[View]]:
    """A declared tensor, and the views that cover it."""
    given = [shape] if isinstance(shape, int) else list(shape)
    marks = [k for k, n in enumerate(given) if isinstance(n, par_dim)]
    sizes, kind = shape_of(given, api), name_of(dtype, api)
    at = marks[0] if marks else 0
    placed = isinstance(buffer, compiler.Allocation)
    memory = buffer.memory if placed else sbuf if buffer is None else buffer
    if not isinstance(memory, Memory):
        raise KernelError(f"{api} buffer: must be nl.sbuf, psum, hbm, private_hbm, shared_hbm or an allocation")
    if memory.is_hbm:
        view = allocate(sizes, kind, memory, name or "", zero=True)
        return face(view), [view]
    blocks, tile = sizes[:at], sizes[at:]
    tile = tile if len(tile) > 1 else (*tile, 1)
    if placed and buffer.place is not None:
        recorder = current(api)
        every = itertools.product(*map(range, blocks))
        tiles = {i: View.whole(compiler.storage(recorder, buffer, i, tile, kind, name or "")) for i in every}
        return (Blocks(tiles, (*blocks, *tile), kind, memory) if blocks else face(tiles[()])), list(tiles.values())
    view = allocate((tile[0], *blocks, *tile[1:]), kind, memory, name or "", zero=True)
    steps = suffix_products(view.shape)
    strides = (*steps[1 : 1 + at], steps[0], *steps[1 + at :])
    return face(View(view.buffer, 0, strides, (*blocks, *tile), kind), at), [view]


def ndarray(shape, dtype=kinds.float32, buffer=None, name="", **hints) -> Any:
    """A new tensor; `shape` may mark the partitions with par_dim, `buffer` is a memory or an allocation.

    `hints`, such as lazy_initialization, are accepted without effect.
    """
    del hints
    return _new("nl.ndarray", shape, dtype, buffer, name)[0]


def full(shape, fill_value, dtype=kinds.float32, buffer=None, name="", **hints) -> Any:
    """A new tensor that holds `fill_value` everywhere; hints as `ndarray`."""
    del hints
    return _filled("nl.full", shape, fill_value, dtype, buffer, name)


def _filled(api: str, shape: Any, value: Any, dtype: Any, buffer: Any, name: str) -> Any:
    tensor, views = _new(api, shape, dtype, buffer, name)
    recorder, value = current(api), arrays.static(value)
    for view in views:
        if view.memory is Memory.psum and value == 0:
            continue  # it starts so
        if view.memory is Memory.shared_hbm and recorder.program_id:
            continue  # the first program did
        recorder.emit(
            Memset(view, emit.fitting(value, view.dtype), Engine.dma if view.memory.is_hbm else Engine.unknown)
        )
    return tensor


def zeros(shape, dtype=kinds.float32, buffer=None, name="", **hints) -> Any:
    """A new tensor of zeros; hints as `ndarray`."""
    del hints
    return _filled("nl.zeros", shape, 0, dtype, buffer, name)


def ones(shape, dtype=kinds.float32, buffer=None, name="", **hints) -> Any:
    """A new tensor of ones; hints as `ndarray`."""
    del hints
    return _filled("nl.ones", shape, 1, dtype, buffer, name)


def _shape_like(x: Any) -> Sequence[int]:
    partition = getattr(x, "partition", 0)
    return [par_dim(n) if k == partition and x.buffer.on_chip else n for k, n in enumerate(x.shape)]


def zeros_like(a, dtype=None, buffer=None, name="", **hints) -> Any:
    """A new tensor of zeros with the shape of `a`, and its dtype and memory unless others are given."""
    del hints
    return _filled("nl.zeros_like", _shape_like(a), 0, dtype or a.dtype, buffer or a.buffer, name)


def empty_like(a, dtype=None, buffer=None, name="", **hints) -> Any:
    """A new tensor with the shape of `a`, and its dtype and memory unless others are given."""
    del hints
    return _new("nl.empty_like", _shape_like(a), dtype or a.dtype, buffer or a.buffer, name)[0]


def shared_constant(constant, dtype=None, **hints) -> Tensor:
    """A host array as a read-only HBM tensor."""
    del hints
    data = np.asarray(constant)
    kind = name_of(data.dtype if dtype is None else dtype, "nl.shared_constant")
    values = arrays.constant(data, kind)
    return face(current("nl.shared_constant").constant(values, kind, Memory.private_hbm))


def shared_identity_matrix(n, dtype=kinds.uint8, **hints) -> Tensor:
    """The n by n identity as an HBM tensor."""
    return shared_constant(np.eye(n), dtype, **hints)
