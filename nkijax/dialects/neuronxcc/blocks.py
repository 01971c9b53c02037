"""Block tensors: tensors with dimensions left of the partitions.

Each logical tile is a buffer of its own, so that tiles that loops take in turn roll as a family.  A tensor whose block
dimensions are indexed by something else than ints (index objects, slices, what only the run knows) becomes one buffer
(P, blocks …, F …) instead, on which tiles are patterns; what was recorded of its tiles until then is moved there as the
trace ends.  Tiles with given places stay where they are: index grids over them are pieces, slices are fewer tiles.

Not emulated: tiles with given places that only the run can choose, or that are reshaped across blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from nkijax import dtypes
from nkijax.dialects.neuronxcc import emit, overlay
from nkijax.dialects.neuronxcc.bounds import Guard
from nkijax.dialects.neuronxcc.dtype import DType, name_of
from nkijax.dialects.neuronxcc.index import Index, Irregular, as_index
from nkijax.dialects.neuronxcc.pattern import Rows, Span
from nkijax.dialects.neuronxcc.pieces import of_blocks
from nkijax.dialects.neuronxcc.subscript import entry
from nkijax.dialects.neuronxcc.tensor import Tensor, Tile, face, operand
from nkijax.errors import KernelError, Unsupported
from nkijax.machine import Memory
from nkijax.trace import current
from nkijax.view import View

_API = "tensor[...]"


class Storage:
    """Where the tiles of a block tensor are; `whole(fill)` makes the one buffer instead, None if places are given."""

    def __init__(self, tiles: dict[tuple[int, ...], View], whole: Callable[[float], Tensor] | None):
        self.tiles, self.used, self.fill = tiles, False, 0.0
        self._whole, self._made = whole, None

    @property
    def one(self) -> Any:
        """The tensor in one buffer, if it is that."""
        return self._made

    @property
    def placed(self) -> bool:
        """Whether tiles stay where they are."""
        return self._whole is None

    def unite(self) -> Any:
        """Make it one buffer."""
        if self._whole is None:
            raise Unsupported(f"{_API}: tiles with given places are not reshaped together")
        self._made = self._whole(0.0 if self.used else self.fill)
        if self.used:
            buffer, size = self._made.raw.buffer, dtypes.size(self._made.dtype)
            width = buffer.size // buffer.shape[0] * size
            part = width // len(self.tiles)
            homes = {
                v.buffer: overlay.Home(buffer, 0, k * part, part, width) for k, v in enumerate(self.tiles.values())
            }
            current(_API).finishing.insert(0, lambda _, nodes: overlay.moved_to(nodes, homes))
        self.tiles = {index: self._made[index].raw for index in self.tiles}
        return self._made


class Blocks:
    """A block tensor, or a part of one with fewer block dimensions."""

    __slots__ = ("_index", "_storage", "buffer", "dtype", "name", "partition", "shape")
    __array_ufunc__ = None

    def __init__(
        self,
        storage: Storage,
        shape: tuple[int, ...],
        dtype: str,
        memory: Memory,
        name: str = "",
        index: tuple[int, ...] = (),
    ):
        self._storage, self._index = storage, index
        self.shape, self.dtype, self.buffer, self.name = shape, DType(dtype), memory, name
        self.partition = len(next(iter(storage.tiles))) - len(index)  # how many block dimensions are left

    def filled(self, value: float) -> None:
        """Note that every tile holds a number."""
        self._storage.fill = value

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return dtypes.size(self.dtype)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is tuple and self._storage.one is None:
            depth = self.partition
            index = key[:depth]
            if all(type(k) is int for k in index):
                tile = self._storage.tiles.get((*self._index, *index))
                if tile is not None:
                    self._storage.used = True
                    return face(tile)[key[depth:]] if len(key) > depth else face(tile)
        keys = list(key) if isinstance(key, tuple) else [key]
        if self._storage.one is not None:
            return self._storage.one[(*self._index, *keys)]
        at = next((k for k, one in enumerate(keys) if one is Ellipsis), None)
        if at is not None:
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        depth = self.partition
        index = self._ints(keys[:depth])
        if index is None and self._storage.placed:
            return self._of_places(keys + [slice(None)] * (self.ndim - len(keys)))
        if index is None:
            return self._storage.unite()[(*self._index, *keys)]
        if len(index) < depth:
            beyond = next((k for k, i in enumerate(index) if not 0 <= i < self.shape[k]), None)
            if beyond is not None:
                raise KernelError(f"{_API}: block index {index[beyond]} exceeds the block dimensions of {self.shape}")
            return Blocks(
                self._storage, self.shape[len(index) :], self.dtype.name, self.buffer, self.name, (*self._index, *index)
            )
        tile = self._tile(index)
        return tile[tuple(keys[depth:])] if keys[depth:] else tile

    def _of_places(self, keys: Sequence[Any]) -> Any:
        """What index grids, or slices, of block dimensions name: pieces, or fewer tiles."""
        depth = self.partition
        entries = [entry(self, dim, k) for dim, k in enumerate(keys)]
        starts = [e.start if isinstance(e, Span) else e for e in entries[:depth]]
        if any(isinstance(e, Rows) or isinstance(e, Index) and e.moving is not None for e in starts):
            raise Unsupported(f"{_API}: which tile of a tensor with given places must be known while tracing")
        if not any(isinstance(e, Span) for e in entries[:depth]):
            return of_blocks(entries, depth, self._tile)
        if any(isinstance(e, Index | Irregular) and e.ndim for e in entries[:depth]):
            raise KernelError(f"{_API}: block dimensions take slices or index grids, not both, got {keys!r}")
        return self._sliced(entries[:depth], keys[depth:])

    def _sliced(self, entries: Sequence[Any], rest: Sequence[Any]) -> Blocks:
        """The tensor of some tiles, each subscripted."""
        spans = [e if isinstance(e, Span) else Span(e, 1) for e in entries]
        ranges = [range(e.start.constant, e.start.constant + e.size * e.step, e.step) for e in spans]
        kept = [k for k, e in enumerate(entries) if isinstance(e, Span)]
        tiles = {}
        for places in itertools.product(*(enumerate(r) for r in ranges)):
            tile = self._tile(tuple(i for _, i in places))[tuple(rest)]
            tiles[tuple(places[k][0] for k in kept)] = operand(tile, api=_API)
        one = next(iter(tiles.values()))
        shape = (*(len(ranges[k]) for k in kept), *one.shape)
        return Blocks(Storage(tiles, None), shape, one.dtype, self.buffer, self.name)

    def _tile(self, index: tuple[int, ...]) -> Tensor:
        """One tile; an error at its use if there is none."""
        beyond = next((k for k, i in enumerate(index) if not 0 <= i < self.shape[k]), None)
        if beyond is not None:
            return self._outside(beyond, index)
        self._storage.used = True
        return face(self._storage.tiles[(*self._index, *index)])

    def _ints(self, keys: Sequence[Any]) -> tuple[int, ...] | None:
        """Block indices as ints; None if one is something else."""
        out = []
        for k, n in zip(keys, self.shape, strict=False):
            index = as_index(k)
            if index is None or index.ndim or index.moving is not None:
                return None
            out.append(index.constant + n if index.constant < 0 else index.constant)
        return tuple(out)

    def _outside(self, dim: int, index: tuple[int, ...]) -> Tensor:
        """A tile that does not exist: no error until it is used where no mask hides it."""
        one = next(iter(self._storage.tiles.values()))
        form = Index((0,) * one.ndim, one.shape, index[dim])
        return face(one, guards=(Guard(form, self.shape[dim], dim),))

    def __setitem__(self, key: Any, value: Any) -> None:
        """self[key] = value; what a mask hides whole is written nowhere, so its block index may be anywhere."""
        if isinstance(value, Tile) and value.region is not None and value.region.empty:
            return
        dst = self[key]
        if not isinstance(dst, Blocks):
            emit.assign(dst, value)
            return
        if (
            not isinstance(value, Blocks)
            and not emit.is_number(value)
            or isinstance(value, Blocks)
            and value.shape != dst.shape
        ):
            raise KernelError(f"{_API}: a block tensor takes a number, or one of its shape {dst.shape}, got {value!r}")
        for index, tile in dst.own_tiles().items():
            emit.assign(face(tile), value[index] if isinstance(value, Blocks) else value)

    def own_tiles(self) -> dict[tuple[int, ...], View]:
        """The tiles, by their place in this tensor."""
        depth = len(self._index)
        return {i[depth:]: v for i, v in self._storage.tiles.items() if i[:depth] == self._index}

    def _mapped(self, change: Callable[[View], View]) -> Blocks:
        """The same tiles, each seen in another way."""
        depth = self.partition
        tiles = {i: change(v) for i, v in self.own_tiles().items()}
        self._storage.used = True
        one = next(iter(tiles.values()))
        return Blocks(Storage(tiles, None), (*self.shape[:depth], *one.shape), one.dtype, self.buffer, self.name)

    def reshape(self, *sizes: Any, shape: Any = None) -> Any:
        """The same elements in another shape: of each tile, where blocks and partitions stay, else as one buffer."""
        given = shape if shape is not None else sizes[0] if len(sizes) == 1 else sizes
        given, kept = tuple(int(n) for n in given), self.partition + 1
        if given[:kept] == self.shape[:kept]:
            return self._mapped(lambda v: v.reshape(given[kept - 1 :]))
        whole = self._storage.one or self._storage.unite()
        return (whole[self._index] if self._index else whole).reshape(given)

    def view(self, dtype) -> Any:
        """The same bytes as another dtype; the last dimension is scaled by the ratio of the sizes."""
        kind, one = name_of(dtype, "view"), self._storage.one
        if one is None:
            return self._mapped(lambda v: v.reinterpret(kind))
        part = one[self._index] if self._index else one
        return face(part.raw.reinterpret(kind), part.partition)

    def __repr__(self) -> str:
        return f"Blocks({self.name or 'unnamed'}: {self.dtype}{list(self.shape)} in {self.buffer.value})"
