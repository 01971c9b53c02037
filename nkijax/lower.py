"""Lowering: a program becomes one pure JAX function.

Memory is the function's environment: an array for each family of buffers.  A scanned repeat carries the arrays that it
shares and writes; a batched repeat runs each instruction for all turns at once (`jax.vmap` over the axes that its
operands depend on), its index having become one more dimension of the access patterns.  Dynamic loops carry their trip
counts and the error word with the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import access, dtypes
from nkijax.access import Address
from nkijax.errors import KernelError
from nkijax.machine import Memory
from nkijax.plan import Plan, axis, plan
from nkijax.program import Instruction, Loop, LoopLeaf, Masked, Node, Program, Repeat
from nkijax.storage import Access, Bound, Family, Immediate, Layout, layout
from nkijax.view import View


@dataclass(frozen=True)
class Result:
    """What the lowered function returns.

    `outputs` of the program; `written`: the final arrays of the arguments it wrote; `trips`: turns of each dynamic
    loop, by ident; `error`: (site + 1, index, limit) of the first run-time index outside its tensor, or zeros.
    """

    outputs: tuple[jax.Array, ...]
    written: tuple[jax.Array, ...]
    trips: jax.Array
    error: jax.Array


jax.tree_util.register_dataclass(Result, ("outputs", "written", "trips", "error"), ())


@dataclass(frozen=True)
class Lowered:
    """A program as a function of its argument arrays, and the sites that its error word counts."""

    function: Callable[..., Result]
    sites: tuple[str, ...]

    def check(self, error: np.ndarray) -> None:
        """Raise the KernelError that a run's error word tells of."""
        site, index, limit = (int(x) for x in error)
        if site:
            raise KernelError(*_error_text(self.sites[site - 1], index, limit))


def _error_text(site: str, index: int, limit: int) -> tuple[str, str]:
    operand, place = site.split("@", 1)
    if limit < 0:
        return f"{operand}: a dynamic loop turned more often than max_trips={index} allows", place
    return f"{operand}: run-time index out of bounds: must be in [0, {limit}), got {index}", place


def lower(program: Program, max_trips: int | None = None, loops: str = "auto") -> Lowered:
    """The pure function of a program.

    `max_trips` bounds every dynamic loop whose trip count is data, so that it becomes a masked scan, which has a
    reverse mode.  `loops` chooses how repeats run: see `nkijax.plan`.
    """
    where = layout(program)
    machine = _Lowering(program, where, plan(program, where, loops), max_trips)
    return Lowered(machine.function, tuple(machine.sites))


@dataclass(frozen=True)
class Stored:
    """A family's array; `axes` are the batched repeats that it has a leading dimension for, outermost first."""

    array: jax.Array
    axes: tuple[Repeat, ...] = ()


_TRIPS, _ERROR = "trips", "error"  # the two entries of the environment that are no family
Key = Family | str
Env = dict[Key, Stored]


@dataclass(frozen=True)
class _Place:
    """Where the walk is: the index of each scanned repeat around, the batched repeats, and the private storages."""

    index: dict[Repeat, jax.Array]
    batch: tuple[Repeat, ...] = ()
    private: tuple[tuple[Repeat, frozenset[Family]], ...] = ()

    def axes_of(self, family: Family) -> tuple[Repeat, ...]:
        """The batched repeats that each have their own copy of `family`."""
        return tuple(
            r for r in self.batch if family.is_local_to(r) or any(r is p and family in fs for p, fs in self.private)
        )


class _Reader:
    """The `read` of one execution: arrays by operand, already loaded."""

    def __init__(self, arrays: dict[int, jax.Array], valid: dict[int, jax.Array]):
        self._arrays, self._valid = arrays, valid

    def __call__(self, operand: Any, dtype: Any = None) -> jax.Array:
        found = self._arrays.get(id(operand)) if isinstance(operand, View | Immediate) else None
        x = jnp.asarray(operand) if found is None else found
        return x if dtype is None or x.dtype == dtype else x.astype(dtype)

    def valid(self, operand: View) -> jax.Array:
        return self._valid[id(operand)]


class _Lowering:
    """The walk over one program."""

    def __init__(self, program: Program, where: Layout, how: Plan, max_trips: int | None):
        self.program, self.where, self.how, self.max_trips = program, where, how, max_trips
        self.precise = program.target.precise
        self.sites: list[str] = []
        self._site_ids: dict[str, int] = {}
        for bound in where.bound.values():  # sites are known before the function runs
            for a in bound.accesses.values():
                if a.index is not None and isinstance(bound.record, Instruction):
                    self._site_id(bound.record, a.operand)
            if max_trips is not None and isinstance(bound.record, Loop):
                self._loop_site(bound.record)

    def _site_id(self, record: Instruction, operand: str) -> int:
        return self._site(f"{record.api} {operand}@{record.site}")

    def _loop_site(self, loop: Loop) -> int:
        return self._site(f"dynamic loop@{loop.site}")

    def _site(self, text: str) -> int:
        if text not in self._site_ids:
            self.sites.append(text)
            self._site_ids[text] = len(self.sites)
        return self._site_ids[text]

    # ---- the function

    def function(self, *arguments: jax.Array) -> Result:
        """The program on arrays; each argument has its buffer's shape and storage dtype."""
        program = self.program
        env: Env = {
            _TRIPS: Stored(jnp.zeros(max(len(program.loops), 1), np.int32)),
            _ERROR: Stored(jnp.zeros(3, np.int32)),
        }
        for buffer, array in zip(program.arguments, arguments, strict=True):
            kind = dtypes.storage(buffer.dtype, self.precise)
            env[self.where.family[buffer.index]] = Stored(jnp.asarray(array).astype(kind).reshape(buffer.shape))
        for index, data in program.constants.items():
            if index in self.where.family:
                kind = dtypes.storage(program.buffers[index].dtype, self.precise)
                env[self.where.family[index]] = Stored(jnp.asarray(data).astype(kind))
        self.walk(program.body, env, _Place({}))
        outputs = tuple(self._output(v, env) for v in program.outputs)
        written = tuple(self._output(View.whole(program.arguments[i]), env) for i in program.written)
        return Result(outputs, written, env[_TRIPS].array, env[_ERROR].array)

    def _output(self, view: View, env: Env) -> jax.Array:
        family = self.where.family[view.buffer.index]
        offset = np.asarray(self.where.slot[view.buffer.index] * view.storage_size + view.offset)
        stored = self._stored(family, env)
        address = Address(
            view.storage_size * family.slots, _natural(family, view), view.dtype, view.strides, view.shape, offset
        )
        return access.read(stored.array, address)

    def walk(self, nodes: Sequence[Node], env: Env, place: _Place) -> None:
        for node in nodes:
            if isinstance(node, Repeat):
                if self.how.is_batch(node):
                    self._batch(node, env, place)
                else:
                    self._scan(node, env, place)
            elif isinstance(node, Loop | LoopLeaf):
                self._loop(node, env, place)
            else:
                self._execute(self.where.bound[id(node)], env, place)

    # ---- memory

    def _fresh(self, family: Family) -> Stored:
        buffer = family.buffer
        kind = dtypes.storage(buffer.dtype, self.precise)
        zero = buffer.index in self.program.zeros
        fill = np.zeros((), kind) if zero else dtypes.poison(buffer.dtype, self.precise)
        return Stored(jnp.full(family.shape, fill, kind))

    def _stored(self, family: Family, env: Env) -> Stored:
        if family not in env:
            env[family] = self._fresh(family)
        return env[family]

    def _address(self, a: Access, place: _Place, own: tuple[Repeat, ...], env: Env) -> tuple[Address, tuple[Repeat, ...]]:
        """The address of an access, and the batched repeats that became leading dimensions of its pattern."""
        table, strides, shape = a.table, list(a.view.strides), list(a.view.shape)
        moving: list[Repeat] = []
        indices: list[jax.Array] = []
        for repeat in reversed(a.repeats):
            k = axis(a, repeat)
            if repeat in place.index:
                indices.insert(0, place.index[repeat])
                continue
            step = int(np.diff(table, axis=k).flat[0])
            table = table.take(0, axis=k)
            if step and repeat not in own:
                moving.insert(0, repeat)
                strides.insert(0, step)
                shape.insert(0, repeat.count)
        address = Address(
            a.view.storage_size * a.family.slots,
            _natural(a.family, a.view),
            a.view.dtype,
            tuple(strides),
            tuple(shape),
            table,
            tuple(indices),
        )
        if a.index is not None:
            address = self._with_index(address, a, len(moving), place, env)
        return address, tuple(moving)

    def _with_index(self, address: Address, a: Access, lead: int, place: _Place, env: Env) -> Address:
        dynamic = a.view.dynamic
        assert dynamic is not None and a.index is not None
        index, axes = self._load(a.index, env, place)
        assert not axes, "the plan scans repeats with run-time indices of their own"
        index = _unsigned(index)
        moved = {"rows": index.reshape(-1), "row_dim": lead} if dynamic.vector else {"scalar": index.reshape(())}
        return replace(address, stride=dynamic.stride, limit=dynamic.limit, **moved)

    def _load(self, a: Access, env: Env, place: _Place) -> tuple[jax.Array, tuple[Repeat, ...]]:
        """The elements of an access, in its view's shape behind one dimension for each of the returned axes."""
        stored = self._stored(a.family, env)
        address, moving = self._address(a, place, stored.axes, env)
        negative = [k for k, r in enumerate(moving) if address.strides[k] < 0]
        address = _upward(address, negative)
        read = partial(access.read, address=address)
        for _ in stored.axes:
            read = jax.vmap(read)
        x = read(stored.array)
        for k in negative:
            x = jnp.flip(x, len(stored.axes) + k)
        return _sorted_axes(x, (*stored.axes, *moving), place)

    def _store(self, a: Access, value: Any, axes: tuple[Repeat, ...], env: Env, place: _Place) -> None:
        """Write a result, (…axes, anything of the view's size), casting it to the view's dtype."""
        mask = None
        if isinstance(value, Masked):
            value, mask = value.value, value.mask
        lead = tuple(r.count for r in axes)
        x = dtypes.cast(jnp.asarray(value), a.view.dtype, self.precise).reshape(lead + a.view.shape)
        if mask is not None:
            old, old_axes = self._load(a, env, place)
            every = _union([axes, old_axes], place)
            mask = mask.reshape(lead + a.view.shape)
            mask, x = _spread(mask, axes, every), _spread(x, axes, every)
            x, axes = jnp.where(mask, x, _spread(old, old_axes, every)), every
        allowed = place.axes_of(a.family)
        address, moving = self._address(a, place, allowed, env)
        negative = [k for k in range(len(moving)) if address.strides[k] < 0]
        address = _upward(address, negative)
        if access.covers(address):
            stored, own = self._fresh(a.family), tuple(r for r in allowed if r in axes)
        else:
            stored = self._stored(a.family, env)
            own = tuple(r for r in allowed if r in axes or r in stored.axes)
        x = _flip(_spread(x, axes, (*own, *moving)), [len(own) + k for k in negative])
        write = partial(access.write, address=address)
        for _ in own:
            write = jax.vmap(write)
        array = _spread(stored.array, stored.axes, own)
        env[a.family] = Stored(write(array, value=x), own)

    # ---- instructions

    def _execute(self, bound: Bound, env: Env, place: _Place) -> None:
        record = bound.record
        assert isinstance(record, Instruction)
        summing = self._summing(bound, place)
        arrays: dict[int, jax.Array] = {}
        axes: dict[int, tuple[Repeat, ...]] = {}
        valid: dict[int, jax.Array] = {}
        for key, a in bound.accesses.items():
            if a.index is not None:
                valid[key] = self._valid(record, a, env, place)
            if a.reads:
                x, own = self._load(a, env, place)
                if summing and a.operand in record.contracts:
                    x, own = _contract(x, own, summing)
                n = len(own)
                arrays[key] = x.reshape(*x.shape[:n], *_flat_shape(a.view.memory, x.shape[n:]))
                axes[key] = own
        for key, table in bound.immediates.items():
            arrays[key], axes[key] = self._immediate(table, bound, place)
        every = _union(axes.values(), place)
        keys = list(arrays)

        def run(*values: jax.Array) -> tuple[Any, ...]:
            results = record.run(_Reader(dict(zip(keys, values, strict=True)), valid))
            return tuple(
                (r.value, jnp.broadcast_to(r.mask, jnp.shape(r.value))) if isinstance(r, Masked) else r for r in results
            )

        call: Callable[..., tuple[Any, ...]] = run
        for r in reversed(every):
            call = jax.vmap(call, in_axes=tuple(0 if r in axes[k] else None for k in keys))
        results = call(*arrays.values()) if keys else run()
        writes = [a for a in bound.accesses.values() if a.writes]
        for a, value in zip(writes, results, strict=True):
            value = Masked(*value) if isinstance(value, tuple) else value
            self._store(a, value, every, env, place)

    def _summing(self, bound: Bound, place: _Place) -> tuple[Repeat, ...]:
        """The batched repeats whose turns are terms of this instruction's contraction."""
        record = bound.record
        if not record.contracts:  # type: ignore[union-attr]
            return ()
        target = next(a.family for a in bound.accesses.values() if a.writes)
        return tuple(r for r in place.batch if target in self.how.sums[id(r)])

    def _immediate(self, table: np.ndarray, bound: Bound, place: _Place) -> tuple[jax.Array, tuple[Repeat, ...]]:
        axes: list[Repeat] = []
        indices: list[jax.Array] = []
        scanned: list[int] = []
        for k, r in reversed(list(enumerate(n for n in bound.path if isinstance(n, Repeat)))):
            if not np.diff(table, axis=k).any():
                table = table.take(0, axis=k)
                scanned = [j - 1 for j in scanned]
            elif r in place.index:
                indices.insert(0, place.index[r])
                scanned = [k, *scanned]
            else:
                axes.insert(0, r)
        x = jnp.moveaxis(jnp.asarray(table, _kind(table)), scanned, range(len(scanned)))
        return (x[tuple(indices)] if indices else x), tuple(axes)

    def _valid(self, record: Instruction, a: Access, env: Env, place: _Place) -> jax.Array:
        """Which run-time indices are inside; where the instruction does not skip, note the first that is not."""
        address, _ = self._address(a, place, (), env)
        ok = access.valid(address)
        if not record.skips():
            index = address.scalar if address.rows is None else address.rows.reshape(-1, 1)
            self._note(env, self._site_id(record, a.operand), ok, index, address.limit)
        return ok

    def _note(self, env: Env, site: int, ok: jax.Array, index: Any, limit: int) -> None:
        error = env[_ERROR].array
        worst = index.reshape(-1)[jnp.argmin(ok.reshape(-1))]
        word = jnp.stack([jnp.int32(site), worst.astype(np.int32), jnp.int32(limit)])
        env[_ERROR] = Stored(jnp.where((error[0] == 0) & ~ok.all(), word, error))

    # ---- repeats and loops

    def _batch(self, node: Repeat, env: Env, place: _Place) -> None:
        private = frozenset(self.how.private[id(node)])
        inner = replace(place, batch=(*place.batch, node), private=(*place.private, (node, private)))
        self.walk(node.body, env, inner)
        for key in list(env):
            stored = env[key]
            if not isinstance(key, Family):
                continue
            if key.is_local_to(node):
                del env[key]
            elif node in stored.axes:  # private: the last turn's values stay
                at = stored.axes.index(node)
                rest = tuple(r for r in stored.axes if r is not node)
                env[key] = Stored(jnp.take(stored.array, node.count - 1, axis=at), rest)

    def _scan(self, node: Repeat, env: Env, place: _Place) -> None:
        keys = self._carried(node, env, place)

        def body(carry: list[jax.Array], i: jax.Array) -> tuple[list[jax.Array], None]:
            return self._turn(node, keys, carry, env, replace(place, index={**place.index, node: i})), None

        carry, _ = lax.scan(body, self._pack(keys, env, place), jnp.arange(node.count, dtype=np.int32))
        self._unpack(keys, carry, env, place)

    def _carried(self, node: Repeat | Loop | LoopLeaf, env: Env, place: _Place) -> list[Key]:
        written = self.how.written[id(node)]
        return [_TRIPS, _ERROR, *sorted(written, key=lambda f: f.buffer.index)]

    def _pack(self, keys: Sequence[Key], env: Env, place: _Place) -> list[jax.Array]:
        """The carried arrays, each with all the axes that it may get: a carry keeps its shape."""
        out = []
        for key in keys:
            if isinstance(key, Family):
                stored = self._stored(key, env)
                out.append(_spread(stored.array, stored.axes, place.axes_of(key)))
            else:
                out.append(env[key].array)
        return out

    def _unpack(self, keys: Sequence[Key], carry: Sequence[jax.Array], env: Env, place: _Place) -> None:
        for key, array in zip(keys, carry, strict=True):
            env[key] = Stored(array, place.axes_of(key) if isinstance(key, Family) else ())

    def _turn(
        self, node: Repeat | Loop | LoopLeaf, keys: Sequence[Key], carry: Sequence[jax.Array], env: Env, place: _Place
    ) -> list[jax.Array]:
        inner = dict(env)
        self._unpack(keys, carry, inner, place)
        self.walk(node.body, inner, place)
        return self._pack(keys, inner, place)

    def _loop(self, node: Loop | LoopLeaf, env: Env, place: _Place) -> None:
        bound = self.where.bound[id(node)]
        loop = bound.record
        assert isinstance(loop, Loop)
        get = lambda v: v if not isinstance(v, View) else self._register(bound, v, env, place)  # noqa: E731
        ident = self._loop_ident(bound, place)
        register = bound.accesses[id(loop.register)]
        keys = [k for k in self._carried(node, env, place) if k is not register.family] + [register.family]

        def turn(carry: Sequence[jax.Array], value: jax.Array) -> list[jax.Array]:
            start = dict(env)
            self._unpack(keys, carry, start, place)
            self._store(register, value, (), start, place)
            self.walk(node.body, start, place)
            if loop.condition is not None:
                self._store(register, get_in(loop.condition, start), (), start, place)
            start[_TRIPS] = Stored(start[_TRIPS].array.at[ident].add(1))
            return self._pack(keys, start, place)

        def get_in(v: View, inner: Env) -> jax.Array:
            return self._register(bound, v, inner, place)

        if loop.condition is None:
            carry = self._count(loop, get(loop.lower), get(loop.upper), turn, self._pack(keys, env, place), keys)
        else:
            self._store(register, get(loop.lower), (), env, place)
            carry = self._while(loop, register, turn, self._pack(keys, env, place), keys, place)
        self._unpack(keys, carry, env, place)

    def _loop_ident(self, bound: Bound, place: _Place) -> Any:
        loop = bound.record
        assert isinstance(loop, Loop)
        if isinstance(loop.ident, Immediate):
            return self._immediate(bound.immediates[id(loop.ident)], bound, place)[0]
        return int(loop.ident)

    def _register(self, bound: Bound, view: View, env: Env, place: _Place) -> jax.Array:
        x, _ = self._load(bound.accesses[id(view)], env, place)
        return x.reshape(()).astype(np.int32)

    def _count(
        self, loop: Loop, lower: Any, upper: Any, turn: Callable, carry: list[jax.Array], keys: list[Key]
    ) -> list[jax.Array]:
        step = loop.step
        if isinstance(lower, int) and isinstance(upper, int):
            trips = max(0, -(-(upper - lower) // step))
            return lax.fori_loop(0, trips, lambda k, c: turn(c, jnp.int32(lower) + k * jnp.int32(step)), carry)
        trips = jnp.maximum(0, -((lower - upper) // step)).astype(np.int32)
        one = lambda k, c: turn(c, lower + k * jnp.int32(step))  # noqa: E731
        if self.max_trips is None:
            return lax.fori_loop(jnp.int32(0), trips, one, carry)
        carry = self._bounded(lambda k, c: k < trips, one, carry)
        return self._overrun(loop, trips > self.max_trips, carry, keys)

    def _while(
        self, loop: Loop, register: Access, turn: Callable, carry: list[jax.Array], keys: list[Key], place: _Place
    ) -> list[jax.Array]:
        def value(c: Sequence[jax.Array]) -> jax.Array:
            env: Env = {}
            self._unpack(keys, c, env, place)
            return self._load(register, env, place)[0].reshape(()).astype(np.int32)

        if self.max_trips is None:
            return lax.while_loop(lambda c: value(c) != 0, lambda c: turn(c, value(c)), carry)
        carry = self._bounded(lambda k, c: value(c) != 0, lambda k, c: turn(c, value(c)), carry)
        return self._overrun(loop, value(carry) != 0, carry, keys)

    def _bounded(self, running: Callable, turn: Callable, carry: list[jax.Array]) -> list[jax.Array]:
        """`max_trips` turns, of which those past the end change nothing."""

        def body(c: list[jax.Array], k: jax.Array) -> tuple[list[jax.Array], None]:
            return lax.cond(running(k, c), lambda c: turn(c=c, k=k), lambda c: c, c), None

        turn = lambda c, k, turn=turn: turn(k, c)  # noqa: E731
        return lax.scan(body, carry, jnp.arange(self.max_trips, dtype=np.int32))[0]

    def _overrun(self, loop: Loop, over: jax.Array, carry: list[jax.Array], keys: list[Key]) -> list[jax.Array]:
        at = keys.index(_ERROR)
        word = jnp.array([self._loop_site(loop), self.max_trips, -1], np.int32)
        return [jnp.where((c[0] == 0) & over, word, c) if k == at else c for k, c in enumerate(carry)]


# ---- shapes and axes


def _natural(family: Family, view: View) -> tuple[int, ...]:
    """The family's shape in elements of the view's dtype."""
    shape = family.shape
    ratio = family.buffer.size * family.slots
    total = view.storage_size * family.slots
    if total == ratio:
        return shape
    return (*shape[:-1], shape[-1] * total // ratio) if (shape[-1] * total) % ratio == 0 else (total,)


def _flat_shape(memory: Memory, shape: Sequence[int]) -> tuple[int, ...]:
    """(P, F) of a view's shape; () of a register."""
    return () if memory is Memory.register else (shape[0], int(np.prod(shape[1:], dtype=np.int64)))


def _union(sets: Any, place: _Place) -> tuple[Repeat, ...]:
    found = [r for s in sets for r in s]
    return tuple(r for r in place.batch if r in found)


def _sorted_axes(x: jax.Array, axes: tuple[Repeat, ...], place: _Place) -> tuple[jax.Array, tuple[Repeat, ...]]:
    """Leading axes put in nesting order."""
    order = [axes.index(r) for r in place.batch if r in axes]
    return jnp.transpose(x, [*order, *range(len(axes), x.ndim)]), tuple(axes[k] for k in order)


def _spread(x: jax.Array, axes: tuple[Repeat, ...], every: tuple[Repeat, ...]) -> jax.Array:
    """The array with leading axes `axes` broadcast to `every` (in that order)."""
    if axes == every:
        return x
    rest = x.shape[len(axes) :]
    order = [axes.index(r) for r in every if r in axes]
    assert len(order) == len(axes), "a value may not lose an axis"
    x = x.transpose([*order, *range(len(axes), x.ndim)])
    x = x.reshape([r.count if r in axes else 1 for r in every] + list(rest))
    return jnp.broadcast_to(x, (*(r.count for r in every), *rest))


def _contract(x: jax.Array, axes: tuple[Repeat, ...], summing: tuple[Repeat, ...]) -> tuple[jax.Array, tuple[Repeat, ...]]:
    """Merge the summed axes into the partition dimension; an operand that lacks one is repeated along it."""
    keep = tuple(r for r in axes if r not in summing)
    x = _spread(x, axes, (*keep, *summing))
    n = len(keep)
    terms = int(np.prod(x.shape[n : n + len(summing) + 1], dtype=np.int64))
    return x.reshape(*x.shape[:n], terms, *x.shape[n + len(summing) + 1 :]), keep


def _upward(address: Address, negative: Sequence[int]) -> Address:
    """The same elements with these pattern dimensions counted from the other end."""
    if not negative:
        return address
    strides, offsets = list(address.strides), address.offsets
    for k in negative:
        offsets = offsets + strides[k] * (address.shape[k] - 1)
        strides[k] = -strides[k]
    return replace(address, strides=tuple(strides), offsets=offsets)


def _flip(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.flip(x, dims) if dims else x


def _kind(table: np.ndarray) -> Any:
    """The 32-bit dtype of a table of immediates."""
    if table.dtype.kind == "f":
        return np.float32
    return np.uint32 if table.max(initial=0) > np.iinfo(np.int32).max else np.int32


def _unsigned(index: jax.Array) -> jax.Array:
    """A run-time index as int32: uint32 values beyond it become negative, which is out of bounds all the same."""
    return index.astype(np.int32)
