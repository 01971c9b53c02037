"""Tensors as a kernel of the old dialect sees them: HBM tensors, and tiles in SBUF and PSUM; thin faces on `View`.

For the modules that emit instructions:

* `operand(x, shape, region)` gives the `View` of a tensor, broadcast to `shape` from the left and cut to a region; this
  is where addresses are checked, so that lanes that a mask hides may be anywhere.
* `compute(api, shape, dtype, make, operands, mask=, memory=, dst=)` (emit.py) allocates a result, cuts every operand
  to what the mask leaves, emits `make(dst, *views)`, and returns the tile, which remembers its region.
* `assign(dst, value)` (emit.py) is `dst[...] = value`; it redirects the instruction that made `value` where it can.

A subscript is a view: nothing is read, and nothing is checked before the use.  `Tensor.partition` is the dimension of
`view` that is the partitions (block dimensions come before it); an operand must have it first.  A result in [P] is a
tile (P, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from nkijax import dtypes
from nkijax.dialects.neuronxcc.bounds import Guard, bounded
from nkijax.dialects.neuronxcc.dtype import DType
from nkijax.dialects.neuronxcc.dtype import name_of as dtype_name
from nkijax.dialects.neuronxcc.index import Index
from nkijax.dialects.neuronxcc.predicate import Box, Predicate, Region, everywhere
from nkijax.errors import KernelError
from nkijax.isa.move import TensorCopy
from nkijax.machine import Memory
from nkijax.program import Instruction
from nkijax.trace import current, recording
from nkijax.view import Dynamic, View

sbuf, psum, private_hbm, shared_hbm = Memory.sbuf, Memory.psum, Memory.private_hbm, Memory.shared_hbm
hbm = shared_hbm  # the n-th declaration of every program is one tensor

OPERATORS: dict[str, Callable[..., Any]] = {}
"""What Python's operators and subscripts do, by name; filled by the modules that emit."""


class Tensor:
    """A tensor or a view of one; see the module's docstring."""

    __slots__ = ("_view", "guards", "mask", "partition")
    __array_ufunc__ = None  # NumPy's numbers leave arithmetic to this class

    def __init__(self, view: View, partition: int = 0, guards: tuple[Guard, ...] = (), mask: Predicate | None = None):
        self._view = view
        self.partition, self.guards, self.mask = partition, guards, mask

    # ---- facts

    @property
    def raw(self) -> View:
        """The addresses, unchecked."""
        return self._view

    @property
    def shape(self) -> tuple[int, ...]:
        return self._view.shape

    @property
    def dtype(self) -> DType:
        return DType(self._view.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return dtypes.size(self._view.dtype)

    @property
    def buffer(self) -> Memory:
        return self._view.memory

    @property
    def name(self) -> str:
        return self._view.buffer.name

    @property
    def on_chip(self) -> bool:
        return self._view.memory.on_chip

    @property
    def shape_2d(self) -> tuple[int, int]:
        """Partitions, and all free elements."""
        return self.shape[0], math.prod(self.shape[1:])

    def with_view(self, view: View) -> Tensor:
        """A tensor of the same kind on other addresses."""
        return face(view)

    # ---- indexing

    def __getitem__(self, key: Any) -> Any:
        return OPERATORS["subscript"](self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        OPERATORS["assign"](OPERATORS["subscript"](self, key), value)

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self!r}: is not iterable; loop over a range and index it")

    # ---- views

    def reshape(self, *sizes: Any, shape: Any = None) -> Any:
        """The same elements in another shape: reshape((a, b)), reshape(a, b) or reshape(shape=(a, b))."""
        given = shape if shape is not None else sizes[0] if len(sizes) == 1 else sizes
        given = (given,) if isinstance(given, int) else tuple(int(n) for n in given)
        return self.with_view(plain(self, "reshape").reshape(given))

    def view(self, dtype) -> Any:
        """The same bytes as another dtype; the last dimension is scaled by the ratio of the sizes."""
        return self.with_view(plain(self, "view").reinterpret(dtype_name(dtype, "view")))

    def expand_dims(self, axis) -> Any:
        """A dimension of size 1 at `axis`, or one at each of several axes, counted in the result."""
        view = plain(self, "expand_dims")
        axes = axis if isinstance(axis, tuple | list) else (axis,)
        ndim = view.ndim + len(axes)
        for k in sorted(a + ndim if a < 0 else a for a in axes):
            view = view.expand_dim(k)
        return self.with_view(view)

    def broadcast_to(self, *shape: Any) -> Any:
        """A new tile in which dimensions of size 1 are repeated."""
        return OPERATORS["broadcast_to"](self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype) -> Any:
        """A new tile with the elements cast."""
        return OPERATORS["copy"](self, dtype)

    # ---- operators

    def as_index(self) -> Index | None:
        """A one-element integer tile as an index; None for what is none."""
        if self.on_chip and self.size == 1 and dtypes.is_int(self.dtype):
            return Index((), (), 0, (operand(self), 1))
        return None

    def __eq__(self, other: object) -> Any:
        if other is None or isinstance(other, str):
            return False
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __int__(self) -> int:
        recorder = recording()
        if recorder is None or recorder.executor is None:
            raise TypeError(f"{self!r}: its value is known only at run time")
        return int(recorder.executor.value(operand(self)).item())

    def __add__(self, other: Any) -> Any:
        return OPERATORS["binary"]("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return OPERATORS["binary"]("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return OPERATORS["binary"]("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return OPERATORS["binary"]("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return OPERATORS["binary"]("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return OPERATORS["binary"]("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return OPERATORS["binary"]("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return OPERATORS["binary"]("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return OPERATORS["binary"]("power", self, other)

    def __mod__(self, other: Any) -> Any:
        return OPERATORS["binary"]("mod", self, other)

    def __and__(self, other: Any) -> Any:
        return OPERATORS["binary"]("bitwise_and", self, other)

    def __or__(self, other: Any) -> Any:
        return OPERATORS["binary"]("bitwise_or", self, other)

    def __xor__(self, other: Any) -> Any:
        return OPERATORS["binary"]("bitwise_xor", self, other)

    def __lt__(self, other: Any) -> Any:
        return OPERATORS["binary"]("less", self, other)

    def __le__(self, other: Any) -> Any:
        return OPERATORS["binary"]("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return OPERATORS["binary"]("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return OPERATORS["binary"]("greater_equal", self, other)

    def __neg__(self) -> Any:
        return OPERATORS["binary"]("multiply", self, -1)

    def __iadd__(self, other: Any) -> Any:
        return OPERATORS["update"]("add", self, other)

    def __isub__(self, other: Any) -> Any:
        return OPERATORS["update"]("subtract", self, other)

    def __imul__(self, other: Any) -> Any:
        return OPERATORS["update"]("multiply", self, other)

    def __itruediv__(self, other: Any) -> Any:
        return OPERATORS["update"]("divide", self, other)

    def __repr__(self) -> str:
        recorder = recording()
        name = self.name or "unnamed"
        text = f"{type(self).__name__}({name}: {self._view.dtype}{list(self.shape)} in {self.buffer.value}"
        if recorder is None or recorder.executor is None or self.guards or self._view.dynamic:
            return text + ")"
        return f"{text})\n{recorder.executor.value(self._view)}"


class HbmTensor(Tensor):
    """A tensor in HBM, or an access pattern on one."""

    __slots__ = ()


class Tile(Tensor):
    """A tensor in SBUF or PSUM, or a view of one.

    A result of an operation also knows the instruction that made it (`made`) and what its mask left (`region`).
    `reduce` is the operator of a `loop_reduce`, for the assignment to apply; `skipped` tells which elements a load with
    `oob_mode.skip` has left out (see `skipped`).
    """

    __slots__ = ("made", "moved", "reduce", "region", "settled", "skipped")

    def __init__(self, view: View, partition: int = 0, guards: tuple[Guard, ...] = (), mask: Predicate | None = None):
        self._view = view
        self.partition, self.guards, self.mask = partition, guards, mask
        self.region: Region | None = None
        self.made: Instruction | None = None
        self.moved: Instruction | None = None
        self.settled: View | None = None
        self.reduce: str | None = None
        self.skipped: Any = None

    def as_tile(self) -> Tile:
        return self


def face(view: View, partition: int = 0, guards: tuple[Guard, ...] = (), mask: Predicate | None = None) -> Any:
    """The face of a view in a kernel."""
    memory = view.buffer.memory
    return (Tile if memory is sbuf or memory is psum else HbmTensor)(view, partition, guards, mask)


# ---- views of tensors


def broadcast(view: View, shape: Sequence[int], api: str = "operand") -> View:
    """The view with dimensions of size 1 repeated, aligned from the left."""
    if view.shape == tuple(shape):
        return view
    rank = len(shape)
    own = (*view.shape, *(1 for _ in range(rank - view.ndim)))
    strides = (*view.strides, *(0 for _ in range(rank - view.ndim)))
    if len(own) > rank and any(n != 1 for n in own[rank:]):
        raise KernelError(f"{api}: shape {view.shape} does not broadcast to {tuple(shape)}")
    for have, want in zip(own, shape, strict=False):
        if have not in (1, want):
            raise KernelError(f"{api}: shape {view.shape} does not broadcast to {tuple(shape)} from the left")
    steps = tuple(s if have == want else 0 for s, have, want in zip(strides, own, shape, strict=False))
    return View(view.buffer, view.offset, steps, tuple(shape), view.dtype, view.dynamic)


def boxed(view: View, box: Box) -> View:
    """The part of a view inside a box of its positions."""
    if box == everywhere(view.shape).box:
        return view
    offset = view.offset + sum(first * s for (first, _), s in zip(box, view.strides, strict=True))
    dynamic = view.dynamic
    if dynamic is not None and dynamic.vector and box[0] != (0, view.shape[0]):
        index = boxed(dynamic.index, (box[0], *((0, n) for n in dynamic.index.shape[1:])))
        dynamic = Dynamic(index, dynamic.stride, dynamic.limit, True)
    return View(view.buffer, offset, view.strides, tuple(b - a for a, b in box), view.dtype, dynamic)


def operand(x: Tensor, shape: Sequence[int] | None = None, region: Region | None = None, api: str = "operand") -> View:
    """The view of a tensor, broadcast to `shape` and cut to a region's box; its addresses are checked here."""
    view = OPERATORS["settle"](x) if isinstance(x, Tile) else x.raw
    if x.partition:
        rule = "a block tensor is indexed down to one tile"
        raise KernelError(f"{api}: {rule}, got shape {x.shape} whose dimension {x.partition} is the partitions")
    if x.guards:
        box = everywhere(x.shape).box if region is None else region.box
        padded = (*box, *((0, 1) for _ in range(x.ndim - len(box))))
        own = tuple((0, 1) if n == 1 else b for b, n in zip(padded, x.shape, strict=False))
        view = bounded(view, x.guards, own)
    if shape is not None:
        view = broadcast(view, shape, api)
    return view if region is None else boxed(view, region.box)


def plain(x: Tensor, api: str) -> View:
    """The view of a tensor for a change of shape, which needs every address to be inside."""
    if x.mask is not None:
        raise KernelError(f"{api}: takes no masked view")
    return operand(x, api=api)


# ---- new tensors


def allocate(shape: Sequence[int], dtype: str, memory: Memory, name: str = "", zero: bool = False) -> View:
    """A fresh buffer, as a view; `zero` makes it read zero before it is written."""
    recorder = current("nl")
    buffer = recorder.allocate(tuple(shape), dtype, memory, name)
    if zero:
        recorder.zeros.add(buffer)
    return View.whole(buffer)


def copied(view: View, dtype: str, memory: Memory = sbuf) -> View:
    """A copy of a tile, in SBUF."""
    out = allocate(view.shape, dtype, memory)
    current("copy").emit(TensorCopy(out, view))
    return out


def to_sbuf(view: View) -> View:
    """The view, or a copy in SBUF of one in PSUM, for engines that do not reach it."""
    return copied(view, view.dtype) if view.memory is psum else view


def result(shape: Sequence[int], dtype: str, memory: Memory = sbuf, region: Region | None = None) -> Tile:
    """A fresh tile for the result of an operation; lanes outside `region` read zero."""
    sizes = tuple(shape) if len(shape) > 1 else (*shape, *(1 for _ in range(2 - len(shape))))
    partial = region is not None and not region.full
    tile = Tile(allocate(sizes, dtype, memory, zero=partial))
    tile.region = region if partial else None
    return tile
