"""Declarations of `neuronxcc.nki.language`: tensors, the partition dimension, constants.

Dimensions left of `par_dim` are block dimensions (see `blocks`).  Everything declared reads zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from nkijax import arrays
from nkijax.buffer import Buffer, suffix_products
from nkijax.dialects.neuronxcc import compiler, emit, unused
from nkijax.dialects.neuronxcc import dtype as kinds
from nkijax.dialects.neuronxcc.blocks import Blocks, Storage
from nkijax.dialects.neuronxcc.dtype import name_of
from nkijax.dialects.neuronxcc.tensor import Tensor, allocate, face, sbuf
from nkijax.errors import KernelError
from nkijax.isa.move import Memset
from nkijax.machine import Engine, Memory
from nkijax.trace import current, shape_of
from nkijax.view import View


class par_dim(int):
    """`nl.par_dim(n)`: n, and in a shape the mark of the partition dimension."""


def _new(api: str, shape: Any, dtype: Any, buffer: Any, name: str | None) -> tuple[Any, list[View]]:
    """A declared tensor, and the views that cover it."""
    given = [shape] if isinstance(shape, int) else list(shape)
    marks = [k for k, n in enumerate(given) if isinstance(n, par_dim)]
    sizes, kind = shape_of(given, api), name_of(dtype, api)
    at = marks[0] if marks else 0
    allocation = buffer if isinstance(buffer, compiler.Allocation) else None
    memory = allocation.memory if allocation is not None else sbuf if buffer is None else buffer
    if not isinstance(memory, Memory):
        raise KernelError(f"{api} buffer: must be nl.sbuf, psum, hbm, private_hbm, shared_hbm or an allocation")
    if memory.is_hbm:
        view = allocate(sizes, kind, memory, name or "", zero=True)
        return face(view), [view]
    blocks, tile = sizes[:at], sizes[at:]
    tile = tile if len(tile) > 1 else (*tile, 1)
    views: dict[tuple[int, ...], View] = {}
    for index in itertools.product(*map(range, blocks)):
        if allocation is not None:
            views[index] = View.whole(compiler.storage(current(api), allocation, index, tile, kind, name or ""))
        else:
            views[index] = allocate(tile, kind, memory, name or "", zero=True)
    if not blocks:
        return face(views[()]), list(views.values())
    placed = allocation is not None and allocation.place is not None
    like = next(iter(views.values()))
    storage = Storage(views, None if placed else lambda fill: _united(blocks, like, fill))
    tensor = Blocks(storage, (*blocks, *tile), kind, memory, name or "")
    if current(api).executor is not None and not placed:  # nothing rolls, and what was executed cannot be moved
        return tensor, [storage.unite().raw]
    return tensor, list(views.values())


def _united(blocks: tuple[int, ...], like: View, fill: float) -> Tensor:
    """A block tensor in one buffer (P, blocks …, F …), which lives as long as one of its tiles, `like`."""
    recorder, kind, tile = current("nl.ndarray"), like.dtype, like.shape
    old, shape = like.buffer, (tile[0], *blocks, *tile[1:])
    buffer = Buffer(len(recorder.buffers), shape, kind, old.memory, old.name, old.depth, old.scope)
    recorder.buffers.append(buffer)
    recorder.zeros.add(buffer)
    view = View.whole(buffer)
    if fill:
        recorder.emit(Memset(view, emit.fitting(fill, kind)))
    steps, at = suffix_products(view.shape), len(blocks)
    strides = (*steps[1 : 1 + at], steps[0], *steps[1 + at :])
    return face(View(view.buffer, 0, strides, (*blocks, *tile), kind), at)


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
    recorder.facts(unused.Fills).note(recorder)
    if isinstance(tensor, Blocks):
        tensor.filled(value)
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
