"""Buffers and views: access patterns and their algebra.

A `View` addresses element (i0, i1, …) of its buffer's flat storage at

    offset + Σ strides[k]·i_k  (+ index · dynamic.stride)

counted in elements of the view's dtype.  Views share storage.  On chip, dimension 0 is the partition dimension and may
not be reordered, merged or split.  Source: NkiTensor of `nki` 0.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nkijax import dtypes
from nkijax.buffer import Buffer, resolve, restride, suffix_products
from nkijax.errors import KernelError, Outside
from nkijax.machine import Memory

GROUP, WIDE_GROUP = 16, 32  # partitions that share a list of columns (`View.indirect`); the wide one is TensorE's


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The run-time part of an address: `index` (a register, or a tile of integers) times `stride` elements.

    A scalar index moves the whole view; with `vector`, the p-th index moves row p of dimension 0.  A tile of indices
    counts column by column (most have one).  With `columns` each element of the view, (P, n), has an index: partitions
    share a list of n in groups (see `Instruction.index_group`), and a group has its list in its rows of the tile,
    column by column.
    Legal index values are 0 ≤ value < `limit`.
    """

    index: View
    stride: int
    limit: int
    vector: bool = False
    columns: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """An access pattern on a buffer; see the module's docstring for the address of an element."""

    buffer: Buffer
    offset: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    dynamic: Dynamic | None = None

    @staticmethod
    def whole(buffer: Buffer) -> View:
        return View(buffer, 0, suffix_products(buffer.shape), buffer.shape, buffer.dtype)

    # ---- facts

    @property
    def memory(self) -> Memory:
        return self.buffer.memory

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def partitions(self) -> int:
        """P: the partition dimension."""
        return self.shape[0]

    @property
    def free(self) -> int:
        """F: elements of one partition."""
        return math.prod(self.shape[1:])

    @property
    def storage_size(self) -> int:
        """Elements of the buffer, counted in the view's dtype."""
        return self.buffer.size * dtypes.size(self.buffer.dtype) // dtypes.size(self.dtype)

    @property
    def partition_stride(self) -> int:
        """Elements of one partition of the storage, in the view's dtype."""
        return self.storage_size // self.buffer.shape[0]

    @property
    def extent(self) -> int:
        """Distance between the first and the last address."""
        return sum(s * (n - 1) for s, n in zip(self.strides, self.shape, strict=True))

    def is_contiguous(self) -> bool:
        """Row-major dense; dimensions of size 1, and dimension 0 on chip, do not matter."""
        first = 1 if self.memory.on_chip else 0
        dims = [(s, n) for s, n in zip(self.strides[first:], self.shape[first:], strict=True) if n != 1]
        return all(s == want for (s, _), want in zip(dims, suffix_products([n for _, n in dims]), strict=True))

    def __repr__(self) -> str:
        name = self.buffer.name or f"{self.memory.value}{self.buffer.index}"
        if self.buffer.memory is Memory.register:
            return name
        text = f"{name}"
        if self.shape != self.buffer.shape or self.offset or self.dtype != self.buffer.dtype:
            pattern = ",".join(f"{s}:{n}" for s, n in zip(self.strides, self.shape, strict=True))
            text += f"[{self.offset}; {pattern}]"
        if self.dynamic:
            text += f"@{self.dynamic.index!r}*{self.dynamic.stride}"
        return text if self.dtype == self.buffer.dtype else f"{text}:{self.dtype}"

    # ---- algebra; every method returns a new view on the same storage

    def _axis(self, dim: int, method: str) -> int:
        if not -self.ndim <= dim < self.ndim:
            raise KernelError(f"{method} dim: must be in [0, {self.ndim}), got {dim}")
        return dim % self.ndim

    def _not_partition(self, dim: int, method: str) -> None:
        if dim == 0 and self.memory.on_chip:
            raise KernelError(
                f"{method} dim: the partition dimension of an on-chip tensor stays as it is, got dim 0 "
                f"of {self.memory.value} tensor {self.shape}"
            )
        if dim == 0 and self.dynamic and self.dynamic.vector:
            raise KernelError(f"{method} dim: dimension 0 of a vector-indirect view stays as it is")

    def _with(self, offset: int, strides: Sequence[int], shape: Sequence[int]) -> View:
        if self.dynamic and self.dynamic.columns and (self.strides, self.shape) != (tuple(strides), tuple(shape)):
            raise KernelError(f"indirect view: must be used as it is, in its shape {self.shape}")
        return View(self.buffer, offset, tuple(strides), tuple(shape), self.dtype, self.dynamic)

    def out_of_bounds(self, dim: int, first: int, last: int | None = None) -> KernelError:
        """The error of an access beyond dimension `dim`."""
        name = self.buffer.name or "unnamed"
        what = f"index {first}" if last is None else f"index range [{first}, {last}]"
        return KernelError(
            f"Out-of-bound access for tensor `{name}` on dimension {dim}: {what} exceed dimension size of "
            f"{self.shape[dim]}."
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> View:
        """Elements start, start+step, … below `end` of dimension `dim`."""
        dim = self._axis(dim, "slice")
        if step < 1:
            raise KernelError(f"slice step: must be at least 1, got {step}")
        if not 0 <= start < end <= self.shape[dim]:
            raise self.out_of_bounds(dim, start, end - 1)
        if dim == 0 and self.dynamic and self.dynamic.vector and (start, end, step) != (0, self.shape[0], 1):
            raise KernelError("slice dim: dimension 0 of a vector-indirect view takes part in the indirection")
        strides, shape = list(self.strides), list(self.shape)
        offset = self.offset + start * strides[dim]
        shape[dim] = -(-(end - start) // step)
        strides[dim] *= step
        return self._with(offset, strides, shape)

    def select(self, dim: int, index: int | View) -> View:
        """Drop dimension `dim` at `index`: an int, or a register or 1-element tile (then a scalar-indirect view)."""
        dim = self._axis(dim, "select")
        if isinstance(index, View):
            moved = self.shifted(dim, index, 1)
            return moved._drop(dim)
        if not 0 <= index < self.shape[dim]:
            raise self.out_of_bounds(dim, index)
        return self._with(self.offset + index * self.strides[dim], self.strides, self.shape)._drop(dim)

    def _drop(self, dim: int) -> View:
        """Drop dimension `dim` at its first element, keeping at least (P, 1) on chip and (1,) in HBM."""
        strides, shape = list(self.strides), list(self.shape)
        if self.memory.on_chip and (dim == 0 or len(shape) == 2) or len(shape) == 1:
            shape[dim] = 1
        else:
            del strides[dim], shape[dim]
        return self._with(self.offset, strides, shape)

    def shifted(self, dim: int, index: View, size: int) -> View:
        """`size` elements of dimension `dim` from run-time `index` on (`nl.ds`, `select` with a register)."""
        if self.dynamic:
            raise KernelError("dynamic index: a view has at most one run-time index")
        if self.memory.on_chip and dim == 0:
            raise KernelError(
                "dynamic index: the partition dimension of an on-chip tensor cannot be indexed at run time"
            )
        if not 1 <= size <= self.shape[dim]:
            raise self.out_of_bounds(dim, 0, size - 1)
        _one_integer("dynamic index", index)
        shape = tuple(size if k == dim else n for k, n in enumerate(self.shape))
        dynamic = Dynamic(index, self.strides[dim], self.shape[dim] - size + 1)
        return View(self.buffer, self.offset, self.strides, shape, self.dtype, dynamic)

    def vector_select(self, dim: int, vector_offset: View) -> View:
        """Row p of the result is row `vector_offset[p]`; HBM only, dimension 0 only."""
        if dim != 0 or not self.memory.is_hbm or self.dynamic:
            raise KernelError("vector_select: takes dimension 0 of an HBM tensor that is not yet indirect")
        dynamic = Dynamic(vector_offset, self.strides[0], self.shape[0], vector=True)
        shape = (vector_offset.shape[0], *self.shape[1:])
        return View(self.buffer, self.offset, (0, *self.strides[1:]), shape, self.dtype, dynamic)

    def indirect(self, index: View, num_elem: int | None = None) -> View:
        """Column i of the result is column `index`[i] of this on-chip view, in each group of partitions another one.

        The tile `index` is (P, K): number i of a group of G partitions is in row i % G of the group, column i // G.
        """
        if not self.memory.on_chip or self.dynamic:
            raise KernelError("indirect: takes a tile in sbuf or psum that is not yet indirect")
        if index.memory is not Memory.sbuf or not dtypes.is_int(index.dtype) or index.shape[0] != self.shape[0]:
            rule = f"must be a tile of {self.shape[0]} rows of integers in sbuf"
            raise KernelError(f"indirect index: {rule}, got {index.dtype} {index.shape} in {index.memory.value}")
        if num_elem is None:
            num_elem = min(index.size, GROUP * index.free) if index.shape[0] > WIDE_GROUP else index.size
        if not 1 <= num_elem <= WIDE_GROUP * index.free:
            rule = f"must be at most {WIDE_GROUP} a column of index"
            raise KernelError(f"indirect num_elem: {rule}, got {num_elem} for {index.shape}")
        flat = self.flatten_dims(1, self.ndim - 1)
        dynamic = Dynamic(index, flat.strides[1], flat.shape[1], columns=True)
        return View(self.buffer, self.offset, (self.strides[0], 0), (self.shape[0], num_elem), self.dtype, dynamic)

    def permute(self, dims: Sequence[int]) -> View:
        if sorted(dims) != list(range(self.ndim)):
            raise KernelError(f"permute dims: must be a permutation of {tuple(range(self.ndim))}, got {tuple(dims)}")
        if dims[0] != 0:
            self._not_partition(0, "permute")
        return self._with(self.offset, [self.strides[d] for d in dims], [self.shape[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> View:
        dim = self._axis(dim, "broadcast")
        self._not_partition(dim, "broadcast")
        if self.shape[dim] != 1:
            raise KernelError(f"broadcast dim: dimension {dim} must have size 1, got {self.shape[dim]}")
        strides, shape = list(self.strides), list(self.shape)
        strides[dim], shape[dim] = 0, size
        return self._with(self.offset, strides, shape)

    def expand_dim(self, dim: int) -> View:
        if not 0 <= dim <= self.ndim:
            raise KernelError(f"expand_dim dim: must be in [0, {self.ndim}], got {dim}")
        self._not_partition(dim, "expand_dim")
        strides, shape = list(self.strides), list(self.shape)
        strides.insert(dim, strides[dim] * shape[dim] if dim < self.ndim else 1)
        shape.insert(dim, 1)
        return self._with(self.offset, strides, shape)

    def squeeze_dim(self, dim: int) -> View:
        dim = self._axis(dim, "squeeze_dim")
        self._not_partition(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            raise KernelError(f"squeeze_dim dim: dimension {dim} must have size 1, got {self.shape[dim]}")
        keep = [k for k in range(self.ndim) if k != dim]
        return self._with(self.offset, [self.strides[k] for k in keep], [self.shape[k] for k in keep])

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> View:
        """Split dimension `dim` into `shape`, of which one may be -1."""
        dim = self._axis(dim, "reshape_dim")
        if len(shape) != 1:
            self._not_partition(dim, "reshape_dim")
        sizes = resolve(tuple(shape), self.shape[dim], "reshape_dim shape")
        inner = [s * self.strides[dim] for s in suffix_products(sizes)]
        strides = [*self.strides[:dim], *inner, *self.strides[dim + 1 :]]
        return self._with(self.offset, strides, [*self.shape[:dim], *sizes, *self.shape[dim + 1 :]])

    def flatten_dims(self, start: int, end: int) -> View:
        """Merge dimensions start … end (inclusive) into one."""
        start, end = self._axis(start, "flatten_dims"), self._axis(end, "flatten_dims")
        if end > start:
            self._not_partition(start, "flatten_dims")
        dims = [
            (s, n) for s, n in zip(self.strides[start : end + 1], self.shape[start : end + 1], strict=True) if n != 1
        ]
        for (s, _), (t, n) in zip(dims, dims[1:], strict=False):
            if s != t * n:
                raise KernelError(
                    f"flatten_dims: dimensions {start} to {end} must be contiguous, got strides {self.strides} "
                    f"of shape {self.shape}"
                )
        size = math.prod(self.shape[start : end + 1])
        stride = dims[-1][0] if dims else self.strides[end]
        strides = [*self.strides[:start], stride, *self.strides[end + 1 :]]
        return self._with(self.offset, strides, [*self.shape[:start], size, *self.shape[end + 1 :]])

    def reshape(self, shape: Sequence[int]) -> View:
        """The same elements in another shape, without a copy; one size may be -1."""
        sizes = resolve(tuple(int(n) for n in shape), self.size, "reshape shape")
        frozen = self.memory.on_chip or bool(self.dynamic and self.dynamic.vector)
        if frozen and (not sizes or sizes[0] != self.shape[0]):
            raise KernelError(
                f"reshape shape: Partition dim size must be preserved, got {self.shape[0]} -> {sizes[:1]}"
            )
        first = 1 if frozen else 0
        strides = restride(self.strides[first:], self.shape[first:], sizes[first:])
        if strides is None:
            raise KernelError(f"reshape shape: strides {self.strides} of shape {self.shape} do not allow {sizes}")
        return self._with(self.offset, [*self.strides[:first], *strides], sizes)

    def reinterpret(self, dtype: str) -> View:
        """The same bytes as another dtype; the last dimension is scaled by the ratio of the sizes."""
        old, new = dtypes.size(self.dtype), dtypes.size(dtype)
        if old == new:
            return replace(self, dtype=dtype)
        if self.dynamic:
            raise KernelError("view dtype: an indirect view keeps the size of its dtype")
        if self.strides[-1] != 1:
            raise KernelError(f"view dtype: the last dimension must have stride 1, got {self.strides[-1]}")
        outer, last = self.strides[:-1], self.shape[-1]
        scaled = [last * old, self.offset * old, *(s * old for s, n in zip(outer, self.shape, strict=False) if n != 1)]
        if any(x % new for x in scaled):
            raise KernelError(
                f"view dtype: {dtype} ({new} bytes) does not divide the pattern of {self.dtype} ({old} bytes): "
                f"shape {self.shape}, strides {self.strides}, offset {self.offset}"
            )
        strides = [*(s * old // new for s in outer), 1]
        return View(self.buffer, self.offset * old // new, tuple(strides), (*self.shape[:-1], last * old // new), dtype)

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int = 0,
        scalar_offset: View | None = None,
        vector_offset: View | None = None,
        indirect_dim: int = 0,
        dtype: str | None = None,
    ) -> View:
        """An explicit pattern of [step, count] pairs, outermost first, from this view's first element on.

        A run-time index moves it by the stride of `indirect_dim` in this tensor's own shape.
        """
        own = dtypes.size(self.dtype)
        dtype = dtype or self.dtype
        new = dtypes.size(dtype)
        base = self.offset * own // new + offset
        strides, shape = tuple(int(s) for s, _ in pattern), tuple(int(n) for _, n in pattern)
        if scalar_offset is not None and vector_offset is not None:
            raise KernelError("ap: scalar_offset and vector_offset exclude each other")
        view = View(self.buffer, base, strides, shape, dtype)
        if self.memory.on_chip and shape[0] != 1 and strides[0] != view.partition_stride:
            raise KernelError(
                "ap() pattern has invalid partition stride. Partition step 0 must equal tensor free dimension size "
                f"{view.partition_stride}. Pattern: {[list(p) for p in pattern]}"
            )
        if vector_offset is not None:
            view = view._vector_ap(self, vector_offset, indirect_dim, own)
        elif scalar_offset is not None:
            view = view._scalar_ap(self, scalar_offset, indirect_dim, own)
        view.check_inside("ap pattern")
        return view

    def _scalar_ap(self, base: View, index: View, dim: int, own: int) -> View:
        dim = base._axis(dim, "ap indirect_dim")
        _one_integer("ap scalar_offset", index)
        stride = math.prod(base.shape[dim + 1 :]) * own // dtypes.size(self.dtype)
        room = (self.storage_size - 1 - self.offset - self.extent) // max(stride, 1)
        return replace(self, dynamic=Dynamic(index, stride, min(base.shape[dim], room + 1)))

    def _vector_ap(self, base: View, index: View, dim: int, own: int) -> View:
        if not base.memory.is_hbm:
            raise KernelError(f"ap vector_offset: the tensor must be in HBM, got {base.memory.value}")
        if dim != 0:
            raise KernelError(f"ap indirect_dim: must be 0 with vector_offset, got {dim}")
        if index.size < self.shape[0]:
            raise KernelError(f"ap vector_offset: needs an index a row, got {index.size} for {self.shape[0]} rows")
        if index.ndim == 1 or not dtypes.is_int(index.dtype):
            raise KernelError(f"ap vector_offset: must be an (n, 1) tile of integers, got {index.dtype} {index.shape}")
        index = index.reshape((index.shape[0], -1))  # real kernels have (n, 1, 1) too
        if index.shape[1] == 1 and index.shape[0] > self.shape[0]:
            index = index.slice(0, 0, self.shape[0])
        stride = math.prod(base.shape[1:]) * own // dtypes.size(self.dtype)
        strides = (0, *self.strides[1:])
        flat = replace(self, strides=strides)
        room = (self.storage_size - 1 - self.offset - flat.extent) // max(stride, 1)
        return replace(flat, dynamic=Dynamic(index, stride, min(base.shape[0], room + 1), vector=True))

    def check_inside(self, api: str) -> None:
        """Raise unless every static address is inside the storage."""
        last = self.offset + self.extent
        if self.offset < 0 or last >= self.storage_size or min(self.strides, default=0) < 0:
            name = self.buffer.name or "unnamed"
            raise Outside(
                f"{api}: Out-of-bound access for tensor `{name}`: addresses [{self.offset}, {last}] exceed its "
                f"{self.storage_size} elements"
            )


def _one_integer(api: str, index: View) -> None:
    if index.size != 1 or not dtypes.is_int(index.dtype):
        raise KernelError(f"{api}: must be a register or a 1-element integer tile, got {index.dtype} {index.shape}")
