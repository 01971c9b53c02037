"""Tiles of SBUF that share addresses.

Every place (first partition, byte address, shape, dtype) is a buffer of its own, which rolls and runs like any other.
That is all there is to it as long as a tile reads only what was written through it.  Where a tile reads bytes that
another tile wrote, `Placed.finish` makes the two one buffer, on which their views are patterns, as the trace ends.
In eager mode, where instructions have been executed by then, such tiles keep buffers of their own.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nkijax import dtypes
from nkijax.machine import Memory
from nkijax.program import Instruction, Loop, Node
from nkijax.trace import Recorder
from nkijax.view import Buffer, Dynamic, View

_NOBODY = -1


@dataclass(frozen=True)
class Tile:
    """A buffer at a place; `size` in bytes of one partition."""

    buffer: Buffer
    partition: int
    address: int
    size: int

    def meets(self, other: Tile) -> bool:
        apart = (
            self.partition + self.buffer.shape[0] <= other.partition
            or other.partition + other.buffer.shape[0] <= self.partition
            or self.address + self.size <= other.address
            or other.address + other.size <= self.address
        )
        return not apart


class Placed:
    """The tiles of one trace that have places in SBUF (a fact of the recorder)."""

    def __init__(self):
        self._tiles: dict[tuple, Tile] = {}

    def enter_loop(self) -> None: ...

    def exit_loop(self) -> None: ...

    def buffer(
        self, recorder: Recorder, partition: int, address: int, shape: tuple[int, ...], dtype: str, name: str
    ) -> Buffer:
        """The buffer at a place, which lives for the whole launch and is zero at first."""
        if not self._tiles:
            recorder.finishing.append(self.finish)
        key = (partition, address, shape, dtype)
        if key not in self._tiles:
            buffer = Buffer(len(recorder.buffers), shape, dtype, Memory.sbuf, name)
            recorder.buffers.append(buffer)
            recorder.zeros.add(buffer)
            size = math.prod(shape[1:]) * dtypes.size(dtype)
            self._tiles[key] = Tile(buffer, partition, address, size)
        return self._tiles[key].buffer

    def finish(self, recorder: Recorder, nodes: Sequence[Node]) -> list[Node]:
        """The body of the program, with tiles between which values flow made one buffer."""
        tiles = list(self._tiles.values())
        if not any(a.meets(b) for k, a in enumerate(tiles) for b in tiles[:k]):
            return list(nodes)
        groups = _Flow(tiles, nodes).groups()
        moved = {tile.buffer: home for group in groups for tile, home in _together(recorder, group).items()}
        return moved_to(nodes, moved) if moved else list(nodes)


# ---- who reads whose bytes


class _Flow:
    """Which tiles read bytes that other tiles wrote, over a grid of the ranges that the program touches."""

    def __init__(self, tiles: Sequence[Tile], nodes: Sequence[Node]):
        self._tiles = tiles
        self._number = {tile.buffer: k for k, tile in enumerate(tiles)}
        self._parent = list(range(len(tiles)))
        self._ranges: dict[tuple, tuple[int, int, int, int]] = {}
        touched = list(_touched(nodes, self._number))
        edges = [self._range(v) for v in touched]
        self._rows = sorted({e for first, last, _, _ in edges for e in (first, last)})
        self._columns = sorted({e for _, _, first, last in edges for e in (first, last)})
        self._owner = np.full((max(len(self._rows), 1), max(len(self._columns), 1)), _NOBODY)
        self._walk(nodes)

    def groups(self) -> list[list[Tile]]:
        """Tiles that must be one buffer."""
        found: dict[int, list[Tile]] = {}
        for k, tile in enumerate(self._tiles):
            found.setdefault(self._root(k), []).append(tile)
        return [group for group in found.values() if len(group) > 1]

    def _root(self, k: int) -> int:
        while self._parent[k] != k:
            k = self._parent[k]
        return k

    def _range(self, view: View) -> tuple[int, int, int, int]:
        """First and last (exclusive) partition and byte that a view touches."""
        key = (view.buffer, view.offset, view.strides, view.shape, view.dtype, view.dynamic is None)
        found = self._ranges.get(key)
        if found is None:
            found = self._ranges[key] = _range(self._tiles[self._number[view.buffer]], view)
        return found

    def _cells(self, view: View) -> np.ndarray:
        first, last, start, stop = self._range(view)
        rows = slice(bisect.bisect_left(self._rows, first), bisect.bisect_left(self._rows, last))
        columns = slice(bisect.bisect_left(self._columns, start), bisect.bisect_left(self._columns, stop))
        return self._owner[rows, columns]

    def _walk(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                self._walk(node.body)
                self._walk(node.body)  # what one turn leaves to the next
            elif isinstance(node, Instruction):
                for view in node.reads():
                    if view.buffer in self._number:
                        self._read(view)
                for view in node.writes():
                    if view.buffer in self._number:
                        self._cells(view)[...] = self._number[view.buffer]

    def _read(self, view: View) -> None:
        mine = self._number[view.buffer]
        cells = self._cells(view)
        if ((cells == mine) | (cells == _NOBODY)).all():
            return
        for other in np.unique(cells):
            if other != _NOBODY:
                self._parent[self._root(int(other))] = self._root(mine)


def _range(tile: Tile, view: View) -> tuple[int, int, int, int]:
    size = dtypes.size(view.dtype)
    row = tile.size // size
    first, column = divmod(view.offset, row)
    last = first + (view.strides[0] // row * (view.shape[0] - 1) if view.shape[0] > 1 else 0)
    if view.dynamic is not None:
        return first + tile.partition, last + 1 + tile.partition, tile.address, tile.address + tile.size
    extent = sum(s * (n - 1) for s, n in zip(view.strides[1:], view.shape[1:], strict=True))
    start = tile.address + column * size
    return first + tile.partition, last + 1 + tile.partition, start, start + (extent + 1) * size


def _touched(nodes: Sequence[Node], known: dict[Buffer, int]):
    for node in nodes:
        if isinstance(node, Loop):
            yield from _touched(node.body, known)
        elif isinstance(node, Instruction):
            for view in (*node.reads(), *node.writes()):
                if view.buffer in known:
                    yield view


# ---- one buffer for several tiles

_WORD = 4  # bytes; partitions of a shared buffer are a multiple of it


@dataclass(frozen=True)
class Home:
    """Where a tile is in a shared buffer; `row` and `byte` are its first partition and byte there."""

    buffer: Buffer
    row: int
    byte: int
    size: int  # bytes of a partition of the tile
    width: int  # and of the shared buffer

    def view(self, v: View) -> View:
        """A view of the tile as one of the shared buffer."""
        size = dtypes.size(v.dtype)
        row, width = self.size // size, self.width // size
        p, column = divmod(v.offset, row)
        strides = (v.strides[0] // row * width if v.shape[0] > 1 else width, *v.strides[1:])
        offset = (p + self.row) * width + self.byte // size + column
        return View(self.buffer, offset, strides, v.shape, v.dtype, v.dynamic)


def _together(recorder: Recorder, group: Sequence[Tile]) -> dict[Tile, Home]:
    """A shared buffer for a group of tiles."""
    top = min(t.partition for t in group)
    bottom = max(t.partition + t.buffer.shape[0] for t in group)
    start = min(t.address for t in group) // _WORD * _WORD
    width = -(-(max(t.address + t.size for t in group) - start) // _WORD) * _WORD
    dtype = min((t.buffer.dtype for t in group), key=dtypes.size)
    shape = (bottom - top, width // dtypes.size(dtype))
    buffer = Buffer(len(recorder.buffers), shape, dtype, Memory.sbuf, group[0].buffer.name)
    recorder.buffers.append(buffer)
    recorder.zeros.add(buffer)
    return {t: Home(buffer, t.partition - top, t.address - start, t.size, width) for t in group}


def moved_to(nodes: Sequence[Node], homes: Mapping[Buffer, Home]) -> list[Node]:
    """The nodes with every view of a buffer that has a home as one of the shared buffer."""

    def view(v: View) -> View:
        if v.dynamic is not None and v.dynamic.index.buffer in homes:
            d = v.dynamic
            v = replace(v, dynamic=Dynamic(view(d.index), d.stride, d.limit, d.vector))
        home = homes.get(v.buffer)
        return v if home is None else home.view(v)

    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            turned = node.rebind(view, lambda x: x)
            out.append(replace(turned, body=tuple(moved_to(node.body, homes))))
        elif isinstance(node, Instruction) and any(v.buffer in homes for v in (*node.reads(), *node.writes())):
            out.append(node.rebind(view, lambda x: x))
        else:
            out.append(node)
    return out
