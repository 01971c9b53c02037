"""The memory of a program while it is lowered: an array for each family of buffers, and where the walk is.

A *batched* repeat is a leading axis of arrays: a family that each turn has for itself gets one, as does a value that
differs between turns.  A *scanned* repeat is an index: a traced scalar in the offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nkijax import access, dtypes
from nkijax.address import Address, covers, reshapes
from nkijax.plan import axis
from nkijax.program import Instruction, Masked, Program, Repeat
from nkijax.reversible import varying
from nkijax.storage import Access, Bound, Family, Layout
from nkijax.tables import steps
from nkijax.view import View

Axes = tuple[Repeat, ...]
"""The batched repeats that an array has leading dimensions for, outermost first."""


@dataclass(frozen=True)
class Stored:
    """A family's array."""

    array: jax.Array
    axes: Axes = ()


TRIPS, ERROR = "trips", "error"  # the two entries that are no family: turns of each dynamic loop, and the error word
Key = Family | str


@dataclass(frozen=True)
class Place:
    """Where the walk is: the index of each scanned repeat around, the batched repeats, and their private storages.

    `loaded` has, for reads that a scan gets as inputs, this turn's elements; `deferred` collects, for writes that a
    scan hands out, this turn's values.  Both by access.
    """

    index: dict[Repeat, jax.Array] = field(default_factory=dict)
    batch: Axes = ()
    private: tuple[tuple[Repeat, frozenset[Family]], ...] = ()
    loaded: dict[Access, Stored] = field(default_factory=dict)
    deferred: dict[Access, Stored] = field(default_factory=dict)

    def axes_of(self, family: Family) -> Axes:
        """The batched repeats that each have their own copy of `family`."""
        return tuple(
            r for r in self.batch if family.is_local_to(r) or any(r is p and family in fs for p, fs in self.private)
        )

    def ordered(self, sets: Iterable[Axes]) -> Axes:
        """The union of axes, in nesting order."""
        found = {r for s in sets for r in s}
        return tuple(r for r in self.batch if r in found)


class Environment:
    """Arrays by family, and the place of the walk."""

    def __init__(
        self,
        program: Program,
        where: Layout,
        arrays: dict[Key, Stored] | None = None,
        place: Place | None = None,
        sources: dict[Family, frozenset[Family]] | None = None,
        looks: dict[Family, dict[Any, bool]] | None = None,
    ):
        self.program, self.where = program, where
        self.sources = {} if sources is None else sources  # see `feeds`
        self.looks = {} if looks is None else looks  # which reads of each family reshape it, or are of another dtype
        self.precise = program.target.precise
        self.arrays = {} if arrays is None else arrays
        self.place = place or Place()

    def at(self, place: Place) -> Environment:
        """The same memory, elsewhere in the walk."""
        return Environment(self.program, self.where, self.arrays, place, self.sources, self.looks)

    def fork(self, place: Place) -> Environment:
        """A copy: what the body of a loop does to it stays there."""
        return Environment(self.program, self.where, dict(self.arrays), place, looks=self.looks)

    # ---- whole arrays

    def fresh(self, family: Family) -> Stored:
        """Memory that nothing has written: poison, or zero where the program says so."""
        buffer = family.buffer
        kind = dtypes.storage(buffer.dtype, self.precise)
        zero = buffer.index in self.program.zeros
        fill = np.zeros((), kind) if zero else dtypes.poison(buffer.dtype, self.precise)
        return Stored(jnp.full(family.shape, fill, kind))

    def stored(self, family: Family) -> Stored:
        if family not in self.arrays:
            self.arrays[family] = self.fresh(family)
        return self.arrays[family]

    def pack(self, keys: Sequence[Key]) -> list[jax.Array]:
        """Arrays to carry, each with all the axes that it may get here: a carry keeps its shape and type."""
        out = []
        for key in keys:
            if isinstance(key, Family):
                s = self.stored(key)
                out.append(spread(s.array, s.axes, self.place.axes_of(key)))
            else:
                out.append(self.arrays[key].array)
        return [varying(x) for x in out]

    def unpack(self, keys: Sequence[Key], arrays: Sequence[jax.Array]) -> None:
        """The inverse of `pack`."""
        for key, array in zip(keys, arrays, strict=True):
            if isinstance(key, Family):
                self.sources.pop(key, None)
            self.arrays[key] = Stored(array, self.place.axes_of(key) if isinstance(key, Family) else ())

    def leave(self, repeat: Repeat, private: frozenset[Family]) -> None:
        """End of a batched repeat: its locals are gone; of a private storage the last turn's copy stays."""
        for key in list(self.arrays):
            s = self.arrays[key]
            if not isinstance(key, Family):
                continue
            if key.is_local_to(repeat):
                del self.arrays[key]
            elif repeat in s.axes:
                at = s.axes.index(repeat)
                rest = tuple(r for r in s.axes if r is not repeat)
                self.arrays[key] = Stored(jnp.take(s.array, repeat.count - 1, axis=at), rest)

    # ---- accesses

    def address(self, a: Access, own: Axes) -> tuple[Address, Axes]:
        """Where an access is in its family's array, and the batched repeats that became dimensions of its pattern."""
        table, strides, shape = a.table, list(a.view.strides), list(a.view.shape)
        moving: list[Repeat] = []
        indices: list[jax.Array] = []
        for repeat in reversed(a.repeats):
            k = axis(a, repeat)
            if repeat in self.place.index:
                indices.insert(0, self.place.index[repeat])
                continue
            step = int(np.diff(table, axis=k).flat[0])
            table = table.take(0, axis=k)
            if step and repeat not in own:
                moving.insert(0, repeat)
                strides.insert(0, step)
                shape.insert(0, repeat.count)
        size = a.view.storage_size * a.family.slots
        natural = in_elements(a.family, a.view)
        address = Address(size, natural, a.view.dtype, tuple(strides), tuple(shape), table, tuple(indices))
        if a.index is not None:
            address = self._with_index(address, a, len(moving))
        return address, tuple(moving)

    def _with_index(self, address: Address, a: Access, lead: int) -> Address:
        dynamic = a.view.dynamic
        assert dynamic is not None and a.index is not None
        index, axes = self.load(a.index)
        assert not axes, "the plan scans repeats with run-time indices of their own"
        index = index.astype(np.int32)  # uint32 beyond int32 turns negative: out of bounds all the same
        if dynamic.vector:
            moved = {"rows": index.T.reshape(-1)[: a.view.shape[0]], "row_dim": lead}
        elif dynamic.columns:
            assert isinstance(a.owner, Instruction)
            moved = {"columns": access.columns_of(index, a.owner.index_group, a.view.shape[1])}
        else:
            moved = {"scalar": index.reshape(())}
        return replace(address, stride=dynamic.stride, limit=dynamic.limit, **moved)

    def load(self, a: Access, summing: Axes = ()) -> tuple[jax.Array, Axes]:
        """The elements of an access, in its view's shape behind one dimension for each of the returned axes.

        Turns of the repeats in `summing` become more partitions instead of an axis.
        """
        if a in self.place.loaded:
            found = self.place.loaded[a]
            return contract(found.array, found.axes, summing)
        s = self.stored(a.family)
        address, moving = self.address(a, s.axes)
        if summing:
            merged = _merged(address, moving, summing)
            if merged is None:
                return contract(*self.load(a), summing)
            address, moving = merged
        self._look(a, address, self.looks.setdefault(a.family, {}))
        read = partial(access.read, address=address)
        for _ in s.axes:
            read = jax.vmap(read)
        x = read(s.array)
        axes = (*s.axes, *moving)
        order = self.place.ordered([axes])
        return x.transpose([*(axes.index(r) for r in order), *range(len(axes), x.ndim)]), order

    def _look(self, a: Access, address: Address, looks: dict[Any, bool]) -> None:
        if a.family.buffer.memory.on_chip:
            key = address.dtype, address.strides, address.shape, address.offsets.shape, address.offsets.tobytes()
            if key not in looks:
                looks[key] = a.view.dtype != a.family.buffer.dtype or reshapes(address)

    def _reshaped(self, a: Access, address: Address) -> bool:
        """Whether a write, or a read so far, takes a storage in a shape or as a dtype that is not its own."""
        looks = dict(self.looks.get(a.family, {}))
        self._look(a, address, looks)
        return any(looks.values())

    def immediate(self, table: np.ndarray, bound: Bound) -> tuple[jax.Array, Axes]:
        """An immediate that varies over the repeats around, and its axes."""
        axes: list[Repeat] = []
        indices: list[jax.Array] = []
        scanned: list[int] = []
        for k, r in reversed(list(enumerate(n for n in bound.path if isinstance(n, Repeat)))):
            if not steps(table, k).any():
                table = table.take(0, axis=k)
                scanned = [j - 1 for j in scanned]
            elif r in self.place.index:
                indices.insert(0, self.place.index[r])
                scanned = [k, *scanned]
            else:
                axes.insert(0, r)
        x = jnp.moveaxis(jnp.asarray(table, _kind(table)), scanned, range(len(scanned)))
        return (x[tuple(indices)] if indices else x), tuple(axes)

    def note(self, bad: jax.Array, word: jax.Array) -> None:
        """Set the error word if `bad`, unless it is set."""
        error = self.arrays[ERROR].array
        self.arrays[ERROR] = Stored(jnp.where((error[0] == 0) & bad, word, error))

    def feeds(self, a: Access, reads: Iterable[Access]) -> frozenset[Family]:
        """The on-chip storages whose elements the result for `a` may be made of, in the eyes of XLA's loop fusion.

        Reductions end a fusion.  An operand at the very place of the result is taken to be used elementwise.
        """
        found: set[Family] = set()
        for r in reads:
            if r.view.size > a.view.size or not r.family.buffer.memory.on_chip:
                continue
            found |= self.sources.get(r.family, frozenset())
            if not (r.family is a.family and _same_place(r, a)):
                found.add(r.family)
        return frozenset(found)

    def store(self, a: Access, value: Any, axes: Axes, sources: frozenset[Family] = frozenset()) -> None:
        """Write a result, (…axes, anything of the view's size), casting it to the view's dtype."""
        mask = None
        if isinstance(value, Masked):
            value, mask = value.value, value.mask
        lead = tuple(r.count for r in axes)
        x = dtypes.cast(jnp.asarray(value), a.view.dtype, self.precise).reshape(lead + a.view.shape)
        if a in self.place.deferred:
            self.place.deferred[a] = self._last(a, Stored(x, axes))
            return
        if mask is not None:
            old, old_axes = self.load(a)
            every = self.place.ordered([axes, old_axes])
            mask = spread(mask.reshape(lead + a.view.shape), axes, every)
            x, axes = jnp.where(mask, spread(x, axes, every), spread(old, old_axes, every)), every
        self.put(a, x, axes, sources)

    def _last(self, a: Access, s: Stored) -> Stored:
        """What a scan hands out of the batched repeats in it to which a storage is private: the last turn's."""
        scanned = max(k for k, r in enumerate(a.repeats) if r in self.place.index)
        for r in self.place.axes_of(a.family):
            if r in s.axes and r in a.repeats[scanned:]:
                rest = tuple(other for other in s.axes if other is not r)
                s = Stored(jnp.take(s.array, r.count - 1, axis=s.axes.index(r)), rest)
        return s

    def put(self, a: Access, x: jax.Array, axes: Axes, sources: frozenset[Family] = frozenset()) -> None:
        """Write elements as they are: in the view's dtype and shape, behind `axes`."""
        allowed = self.place.axes_of(a.family)
        address, moving = self.address(a, allowed)
        if covers(address):
            s, own = self.fresh(a.family), tuple(r for r in allowed if r in axes)
        else:
            s = self.stored(a.family)
            own = tuple(r for r in allowed if r in axes or r in s.axes)
        x = spread(x, axes, (*own, *moving))
        write = partial(access.write, address=address, apart=a.family in sources and self._reshaped(a, address))
        for _ in own:
            write = jax.vmap(write)
        self.sources[a.family] = sources | self.sources.get(a.family, frozenset())
        self.arrays[a.family] = Stored(write(spread(s.array, s.axes, own), value=x), own)

    def read_view(self, view: View) -> jax.Array:
        """A view of the flat program (an output) at the end of the walk."""
        family = self.where.family[view.buffer.index]
        offset = np.asarray(self.where.slot[view.buffer.index] * view.storage_size + view.offset)
        size = view.storage_size * family.slots
        address = Address(size, in_elements(family, view), view.dtype, view.strides, view.shape, offset)
        return access.read(self.stored(family).array, address)


def _same_place(a: Access, b: Access) -> bool:
    """Whether two operands of one instruction have the same addresses."""
    if a.index is not None or b.index is not None:
        return False
    same = (a.view.strides, a.view.shape, a.view.dtype) == (b.view.strides, b.view.shape, b.view.dtype)
    return same and bool(np.array_equal(a.table, b.table))


def _kind(table: np.ndarray) -> Any:
    """The 32-bit dtype of a table of immediates."""
    if table.dtype.kind == "f":
        return np.float32
    return np.uint32 if table.max(initial=0) > np.iinfo(np.int32).max else np.int32


# ---- axes


def in_elements(family: Family, view: View) -> tuple[int, ...]:
    """The family's shape in elements of the view's dtype."""
    shape = family.shape
    own, seen = family.buffer.size, view.storage_size
    if own == seen:
        return shape
    return (*shape[:-1], shape[-1] * seen // own) if shape[-1] * seen % own == 0 else (seen * family.slots,)


def spread(x: jax.Array, axes: Axes, every: Axes) -> jax.Array:
    """The array with leading axes `axes` broadcast to `every`, in that order."""
    if axes == every:
        return x
    rest = x.shape[len(axes) :]
    order = [axes.index(r) for r in every if r in axes]
    assert len(order) == len(axes), "a value may not lose an axis"
    x = x.transpose([*order, *range(len(axes), x.ndim)])
    x = x.reshape([r.count if r in axes else 1 for r in every] + list(rest))
    return jnp.broadcast_to(x, (*(r.count for r in every), *rest))


def contract(x: jax.Array, axes: Axes, summing: Axes) -> tuple[jax.Array, Axes]:
    """Merge the summed axes into the partition dimension; an operand that lacks one is repeated along it."""
    if not summing:
        return x, axes
    keep = tuple(r for r in axes if r not in summing)
    x = spread(x, axes, (*keep, *summing))
    n, m = len(keep), len(keep) + len(summing) + 1
    terms = int(np.prod(x.shape[n:m], dtype=np.int64))
    return x.reshape(*x.shape[:n], terms, *x.shape[m:]), keep


def _merged(address: Address, moving: Axes, summing: Axes) -> tuple[Address, Axes] | None:
    """The pattern with the summed turns as more partitions, where those lie one after another in storage.

    As `contract` does to elements that were read, but without a copy.
    """
    if any(r not in moving for r in summing):
        return None
    lead = len(moving)
    keep = [k for k, r in enumerate(moving) if r not in summing]
    stride, count = address.strides[lead], address.shape[lead]
    for r in reversed(summing):
        k = moving.index(r)
        if address.strides[k] != stride * count:
            return None
        count *= r.count
    strides = (*(address.strides[k] for k in keep), stride, *address.strides[lead + 1 :])
    shape = (*(address.shape[k] for k in keep), count, *address.shape[lead + 1 :])
    return replace(address, strides=strides, shape=shape), tuple(moving[k] for k in keep)
