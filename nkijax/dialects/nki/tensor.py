"""Tensors as a kernel sees them: a thin face on `View`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from nkijax import arrays
from nkijax.dialects.nki.register import VirtualRegister
from nkijax.dialects.nki.subscript import subscript
from nkijax.errors import KernelError, Outside
from nkijax.isa.move import DmaCopy, Memset, TensorCopy
from nkijax.machine import Engine, Memory
from nkijax.program import Instruction
from nkijax.trace import current, dtype_of, recording, shape_of
from nkijax.view import View

MemoryRegion = Memory
sbuf, psum, private_hbm, shared_hbm = Memory.sbuf, Memory.psum, Memory.private_hbm, Memory.shared_hbm
hbm = private_hbm

_REGIONS = (sbuf, psum, private_hbm, shared_hbm)


class NkiTensor:
    """A tensor, or a view of one: every method gives a new view of the same storage.

    Tensors are equal only to themselves, are true, and take no arithmetic.  Source: nki.language.NkiTensor
    """

    __slots__ = ("_view", "_outside")

    def __init__(self, view: View):
        self._view = view

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_view":  # never set: see `_unusable`
            raise KernelError(self._outside)
        raise AttributeError(f"'NkiTensor' object has no attribute '{name}'", name=name, obj=self)

    # ---- facts

    @property
    def shape(self) -> tuple[int, ...]:
        return self._view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements of the dtype."""
        return self._view.strides

    @property
    def offset(self) -> int:
        """Of the first element in the storage, in elements of the dtype."""
        return self._view.offset

    @property
    def dtype(self) -> str:
        return self._view.dtype

    @property
    def buffer(self) -> Memory:
        """The memory region."""
        return self._view.memory

    @property
    def name(self) -> str:
        return self._view.buffer.name

    @property
    def ndim(self) -> int:
        return len(self._view.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._view.size

    @property
    def base_tensor(self) -> NkiTensor:
        """The whole tensor that this is a view of, in its own shape and dtype; not documented, but kernels use it."""
        return NkiTensor(View.whole(self._view.buffer))

    def is_contiguous(self) -> bool:
        """Whether it is row-major dense; dimensions of size 1, and partitions on chip, do not matter."""
        return self._view.is_contiguous()

    def is_indirect(self) -> bool:
        """Whether part of its address is known only at run time."""
        return self._view.dynamic is not None

    def get_pattern(self) -> list[list[int]]:
        """[[stride, count], …], outermost first."""
        return [[s, n] for s, n in zip(self._view.strides, self._view.shape, strict=True)]

    # ---- indexing

    def __getitem__(self, key: Any) -> NkiTensor:
        try:
            return NkiTensor(subscript(self._view, key if type(key) is tuple else (key,), _runtime))
        except Outside as error:
            return _unusable(error)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy a tensor, an array of as many elements, or a number into the view `self[key]`."""
        recorder = current("NkiTensor.__setitem__")
        dst = self[key]._view
        if isinstance(value, NkiTensor):
            recorder.emit(copy_instruction(dst, value._view))
        elif arrays.is_array(value):
            data = arrays.constant(value, dst.dtype)
            recorder.emit(copy_instruction(dst, recorder.constant(data, dst.dtype, private_hbm)))
        else:
            recorder.emit(fill_instruction(dst, value))

    # ---- views

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements start, start + step, … below `end` of one dimension."""
        return NkiTensor(self._view.slice(*map(operator.index, (dim, start, end, step))))

    def select(self, dim: int, index: int | NkiTensor | VirtualRegister) -> NkiTensor:
        """Drop dimension `dim` at `index`."""
        if isinstance(index, NkiTensor | VirtualRegister):
            return NkiTensor(self._view.select(operator.index(dim), index._view))
        return NkiTensor(self._view.select(operator.index(dim), operator.index(index)))

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row p of the result is row `vector_offset[p]` of this HBM tensor; `dim` must be 0."""
        return NkiTensor(
            self._view.vector_select(operator.index(dim), view_of("vector_select vector_offset", vector_offset))
        )

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        return NkiTensor(self._view.permute(_ints(dims)))

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A dimension of size 1, repeated `size` times."""
        return NkiTensor(self._view.broadcast(operator.index(dim), operator.index(size)))

    def expand_dim(self, dim: int) -> NkiTensor:
        """Insert a dimension of size 1 before `dim`."""
        return NkiTensor(self._view.expand_dim(operator.index(dim)))

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Drop a dimension of size 1."""
        return NkiTensor(self._view.squeeze_dim(operator.index(dim)))

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """Split a dimension into `shape`, of which one may be -1."""
        return NkiTensor(self._view.reshape_dim(operator.index(dim), _ints(shape)))

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Merge dimensions start_dim … end_dim, inclusive."""
        return NkiTensor(self._view.flatten_dims(operator.index(start_dim), operator.index(end_dim)))

    def reshape(self, shape: Sequence[int] | None = None, new_shape: Sequence[int] | None = None) -> NkiTensor:
        """The same elements in another shape, without a copy; `new_shape` is the older name of `shape`."""
        given = new_shape if shape is None else shape
        if given is None:
            raise TypeError("NkiTensor.reshape: missing argument: 'shape'")
        return NkiTensor(self._view.reshape(_ints(given)))

    def rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: Mapping[str, int] | None = None
    ) -> NkiTensor:
        """Name, split, permute and merge dimensions: rearrange(("p", ("h", "w")), ("p", "w", "h"), {"h": 4}).

        A group in `src_pattern` splits a dimension (`fixed_sizes` gives all sizes but one), one in dst_pattern merges.
        """
        return NkiTensor(_rearranged(self._view, src_pattern, dst_pattern, fixed_sizes or {}))

    def view(self, dtype: str) -> NkiTensor:
        """The same bytes as another dtype; the last dimension is scaled by the ratio of the sizes."""
        return NkiTensor(self._view.reinterpret(dtype_of(dtype, "NkiTensor.view")))

    reinterpret_cast = view

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: NkiTensor | VirtualRegister | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: str | None = None,
    ) -> NkiTensor:
        """An explicit access pattern of [step, count] pairs, outermost first, in elements of `dtype`.

        It starts `offset` elements after this view's first one.  Element (i0, i1, …) of the result is at
        Σ step_k·i_k, plus scalar_offset, or vector_offset[i0], times the element stride of `indirect_dim` here.
        A pattern that leaves the tensor is an error when it is used.
        """
        scalar = None if scalar_offset is None else view_of("ap scalar_offset", scalar_offset)
        vector = None if vector_offset is None else view_of("ap vector_offset", vector_offset)
        pairs = [_ints(pair) for pair in pattern]
        base = 0 if offset is None else operator.index(offset)
        kind = None if dtype is None else dtype_of(dtype, "NkiTensor.ap")
        try:
            return NkiTensor(self._view.ap(pairs, base, scalar, vector, operator.index(indirect_dim), kind))
        except Outside as error:
            return _unusable(error)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """A gather or scatter by a compute engine (NeuronCore-v4): element (p, i) is at free offset number i of p.

        `index` is a (P, K) SBUF tile: each group of 16 partitions (32 for the tensor engine) shares the offsets in its
        rows of `index`, column by column, of which `num_elem` are used.
        """
        count = None if num_elem is None else operator.index(num_elem)
        return NkiTensor(self._view.indirect(view_of("NkiTensor.indirect index", index), count))

    # ---- Python's protocols

    def __iter__(self) -> NoReturn:
        raise TypeError("NkiTensor: is not iterable; loop over range(tensor.shape[0]) and index it")

    def __contains__(self, item: object) -> NoReturn:
        raise TypeError("NkiTensor: `in` looks at values, which are unknown while tracing")

    def __repr__(self) -> str:
        view, recorder = self._view, recording()
        name = f"{view.buffer.name}: " if view.buffer.name else ""
        text = f"NkiTensor({name}{view.dtype}{list(view.shape)} in {view.memory.value}"
        if recorder is None or recorder.executor is None:
            return text + "; eager=True shows data)"
        return f"{text})\n{recorder.executor.value(view)}"

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self!r}: tensors take no operators; use nki.isa.tensor_tensor(dst, a, b, op=nl.add), "
            "nki.isa.tensor_scalar(dst, data, op0=nl.add, operand0=1.0), and their like"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


def _unusable(error: Outside) -> NkiTensor:
    """A tensor whose every use raises what is wrong with it, at the line of the use."""
    tensor = NkiTensor.__new__(NkiTensor)
    tensor._outside = error.message
    return tensor


def view_of(operand: str, x: Any) -> View:
    """The view of a tensor or a register; KernelError for anything else.  `operand` is "<api> <operand>"."""
    kind = type(x)
    if kind is NkiTensor or kind is VirtualRegister:
        return x._view
    raise KernelError(f"{operand}: must be a tensor, got {x!r}")


def _runtime(x: Any) -> View | None:
    kind = type(x)
    return x._view if kind is NkiTensor or kind is VirtualRegister else None


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(operator.index, values))


def allocate(api: str, shape: Sequence[int], dtype: Any, buffer: Memory, name: str = "") -> NkiTensor:
    """A fresh, uninitialised tensor."""
    if buffer not in _REGIONS:
        raise KernelError(f"{api} buffer: must be nl.sbuf, psum, hbm, private_hbm or shared_hbm, got {buffer!r}")
    sizes = shape_of(shape, api)
    if buffer.on_chip and len(sizes) == 1:
        rule = "SBUF and PSUM tensors must have at least 2 dimensions (partition-dim and free-dim)"
        raise KernelError(f"{api} shape: {rule}, got {sizes}")
    return NkiTensor(View.whole(current(api).allocate(sizes, dtype_of(dtype, api), buffer, name)))


def copy_instruction(dst: View, src: View) -> Instruction:
    """What moves `src` to `dst`: an engine within the chip, else DMA."""
    return TensorCopy(dst, src) if dst.memory.on_chip and src.memory.on_chip else DmaCopy(dst, src)


def fill_instruction(dst: View, value: Any) -> Instruction:
    """What fills `dst` with a number: an engine on chip, DMA in HBM."""
    return Memset(dst, arrays.static(value), Engine.dma if dst.memory.is_hbm else Engine.unknown)


def _rearranged(view: View, src: Sequence[Any], dst: Sequence[Any], sizes: Mapping[str, int]) -> View:
    groups = [(g,) if isinstance(g, str) else tuple(g) for g in src]
    merged = [(g,) if isinstance(g, str) else tuple(g) for g in dst]
    names, wanted = [n for g in groups for n in g], [n for g in merged for n in g]
    if len(groups) != view.ndim:
        raise KernelError(f"rearrange src_pattern: must name the dimensions of {view.shape}, got {tuple(src)}")
    if len(set(names)) != len(names) or sorted(names) != sorted(wanted):
        raise KernelError(f"rearrange dst_pattern: must have each name of {tuple(src)} once, got {tuple(dst)}")
    unknown = sorted(set(sizes) - set(names))
    if unknown:
        raise KernelError(f"rearrange fixed_sizes: must be sizes of names in {tuple(src)}, got {unknown}")
    for dim in reversed(range(len(groups))):
        shape = tuple(operator.index(sizes.get(n, -1)) for n in groups[dim])
        if shape != (-1,):
            view = view.reshape_dim(dim, shape)
    order = [names.index(n) for n in wanted]
    if order != sorted(order):
        view = view.permute(order)
    for dim, group in enumerate(merged):  # dimensions before `dim` are merged already
        if len(group) > 1:
            view = view.flatten_dims(dim, dim + len(group) - 1)
    return view
