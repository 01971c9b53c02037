"""Lowering: a program becomes one pure JAX function.

A scanned repeat carries the arrays that it shares and writes; what it only reads, or writes in disjoint places, goes
through the scan's inputs and outputs.  A batched repeat runs each instruction for all turns at once (`jax.vmap` over
the axes that its operands depend on), its index having become one more dimension of the access patterns.  Dynamic
loops carry their trip counts and the error word with the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import access, dtypes
from nkijax.environment import ERROR, TRIPS, Axes, Environment, Key, Place, Stored
from nkijax.errors import KernelError, OutOfRange
from nkijax.machine import Memory
from nkijax.plan import Plan, plan
from nkijax.program import Instruction, Loop, LoopLeaf, Masked, Node, Program, Repeat, steps
from nkijax.storage import Access, Bound, Immediate, layout
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
    views: Mapping[int, View] = field(default_factory=dict)  # the run-time indexed view of each site that has one

    def check(self, error: np.ndarray) -> None:
        """Raise the KernelError that a run's error word tells of."""
        site, index, limit = (int(x) for x in error)
        if not site:
            return
        what, place = self.sites[site - 1].split("@", 1)
        if limit < 0:
            raise KernelError(f"{what} max_trips: must bound its turns, got {index} and more turns", place)
        raise OutOfRange(what, index, limit, place, self.views.get(site))


def lower(program: Program, max_trips: int | None = None, loops: str = "auto") -> Lowered:
    """The pure function of a program.

    `max_trips` bounds every dynamic loop whose trip count is data, so that it becomes a masked scan, which has a
    reverse mode.  `loops` chooses how repeats run: see `nkijax.plan`.
    """
    machine = _Lowering(program, max_trips, loops)
    return Lowered(machine.function, tuple(machine.sites), machine.views)


class _Reader:
    """The `read` of one execution: arrays by operand, already loaded."""

    def __init__(self, arrays: dict[int, jax.Array], valid: dict[int, jax.Array]):
        self._arrays, self._valid = arrays, valid

    def __call__(self, operand: Any, dtype: Any = None) -> jax.Array:
        found = self._arrays.get(id(operand)) if isinstance(operand, View | Immediate) else None
        x = _constant(operand, dtype) if found is None else found
        return x if dtype is None or x.dtype == dtype else x.astype(dtype)

    def valid(self, operand: View) -> jax.Array:
        return self._valid[id(operand)]


class _Lowering:
    """The walk over one program."""

    def __init__(self, program: Program, max_trips: int | None, loops: str):
        self.program, self.max_trips = program, max_trips
        self.where = layout(program)
        self.how: Plan = plan(program, self.where, loops)
        self.sites: list[str] = []
        self.views: dict[int, View] = {}
        self._site_ids: dict[str, int] = {}
        for bound in self.where.bound.values():  # sites are known before the function runs
            record = bound.record
            if isinstance(record, Loop):
                self._site(f"dynamic loop@{record.site}")
                continue
            for a in bound.accesses.values():
                if a.index is not None and not record.skips():
                    self.views[self._site(f"{record.api} {a.operand}@{record.site}")] = a.view

    def _site(self, text: str) -> int:
        if text not in self._site_ids:
            self.sites.append(text)
            self._site_ids[text] = len(self.sites)
        return self._site_ids[text]

    def function(self, *arguments: jax.Array) -> Result:
        """The program on arrays; each argument has its buffer's shape and storage dtype."""
        program, family = self.program, self.where.family
        env = Environment(program, self.where)
        env.arrays[TRIPS] = Stored(jnp.zeros(max(len(program.loops), 1), np.int32))
        env.arrays[ERROR] = Stored(jnp.zeros(3, np.int32))
        given = [*zip(program.arguments, arguments, strict=True)]
        given += [(program.buffers[i], data) for i, data in program.constants.items() if i in family]
        for buffer, array in given:
            kind = dtypes.storage(buffer.dtype, env.precise)
            env.arrays[family[buffer.index]] = Stored(jnp.asarray(array).astype(kind).reshape(buffer.shape))
        self.walk(program.body, env)
        outputs = tuple(env.read_view(v) for v in program.outputs)
        written = tuple(env.read_view(View.whole(program.arguments[i])) for i in program.written)
        return Result(outputs, written, env.arrays[TRIPS].array, env.arrays[ERROR].array)

    def walk(self, nodes: Sequence[Node], env: Environment) -> None:
        for node in nodes:
            if isinstance(node, Repeat):
                (self._batch if self.how.is_batch(node) else self._scan)(node, env)
            elif isinstance(node, Loop | LoopLeaf):
                self._loop(node, env)
            else:
                self._execute(self.where.bound[id(node)], env)

    # ---- instructions

    def _execute(self, bound: Bound, env: Environment) -> None:
        record = bound.record
        assert isinstance(record, Instruction)
        summing = self._summing(bound, env.place)
        arrays: dict[int, jax.Array] = {}
        axes: dict[int, Axes] = {}
        valid: dict[int, jax.Array] = {}
        for key, a in bound.accesses.items():
            if a.index is not None:
                valid[key] = self._valid(record, a, env)
            if a.reads:
                x, own = env.load(a, summing if a.operand in record.contracts else ())
                n = len(own)
                arrays[key], axes[key] = x.reshape(*x.shape[:n], *_flat(a.view.memory, x.shape[n:])), own
        for key, table in bound.immediates.items():
            arrays[key], axes[key] = _immediate(table, bound, env.place)
        every = env.place.ordered(axes.values())
        keys = list(arrays)

        def run(*values: jax.Array) -> tuple[Any, ...]:
            results = record.run(_Reader(dict(zip(keys, values, strict=True)), valid))
            return tuple(
                (r.value, jnp.broadcast_to(r.mask, jnp.shape(r.value))) if isinstance(r, Masked) else r for r in results
            )

        call: Callable[..., tuple[Any, ...]] = run
        for r in reversed(every):
            call = jax.vmap(call, in_axes=tuple(0 if r in axes[k] else None for k in keys))
        results = call(*arrays.values())
        writes = [a for a in bound.accesses.values() if a.writes]
        reads = [a for a in bound.accesses.values() if a.reads and a.operand not in record.contracts]
        for a, value in zip(writes, results, strict=True):
            env.store(a, Masked(*value) if isinstance(value, tuple) else value, every, env.feeds(a, reads))

    def _summing(self, bound: Bound, place: Place) -> Axes:
        """The batched repeats whose turns are terms of this instruction's contraction."""
        if not bound.record.contracts:  # type: ignore[union-attr]
            return ()
        target = next(a.family for a in bound.accesses.values() if a.writes)
        return tuple(r for r in place.batch if target in self.how.sums[id(r)])

    def _valid(self, record: Instruction, a: Access, env: Environment) -> jax.Array:
        """Which run-time indices are inside; where the instruction does not skip, note the first that is not."""
        address, _ = env.address(a, ())
        ok = access.valid(address)
        if not record.skips():
            index = address.index
            assert index is not None
            bad = index.reshape(-1)[jnp.argmin(ok.reshape(-1))]
            site = self._site(f"{record.api} {a.operand}@{record.site}")
            _note(env, ~ok.all(), jnp.stack([jnp.int32(site), bad.astype(np.int32), jnp.int32(address.limit)]))
        return ok

    # ---- repeats

    def _batch(self, node: Repeat, env: Environment) -> None:
        private = frozenset(self.how.private[id(node)])
        place = env.place
        inner = replace(place, batch=(*place.batch, node), private=(*place.private, (node, private)))
        self.walk(node.body, env.at(inner))
        env.leave(node, private)

    def _scan(self, node: Repeat, env: Environment) -> None:
        """One turn after another: shared storage is carried, or goes through the scan's inputs and outputs."""
        streams = self.how.streams[id(node)]
        inputs = {a: _all_turns(a, node, env) for a in streams.reads if a.family in env.arrays}
        outputs = list(streams.writes)
        keys = self._carried(node, streams.families)
        axes: dict[Access, Axes] = {}

        def body(
            carry: list[jax.Array], xs: tuple[jax.Array, list[jax.Array]]
        ) -> tuple[list[jax.Array], list[jax.Array]]:
            i, turn = xs
            loaded = {a: Stored(x, s.axes) for (a, s), x in zip(inputs.items(), turn, strict=True)}
            deferred: dict[Access, Stored] = dict.fromkeys(outputs)  # type: ignore[arg-type]
            place = replace(
                env.place,
                index={**env.place.index, node: i},
                loaded={**env.place.loaded, **loaded},
                deferred=deferred,
            )
            inner = env.fork(place)
            inner.unpack(keys, carry)
            self.walk(node.body, inner)
            axes.update((a, deferred[a].axes) for a in outputs)
            return inner.pack(keys), [deferred[a].array for a in outputs]

        turns = jnp.arange(node.count, dtype=np.int32)
        carry, ys = lax.scan(body, env.pack(keys), (turns, [s.array for s in inputs.values()]))
        env.unpack(keys, carry)
        for a, y in zip(outputs, ys, strict=True):
            inside = _inside(a, node, env.place)
            order = inside.ordered([(node, *axes[a])])
            y = jnp.moveaxis(y, 0, order.index(node))
            env.at(inside).put(a, y, order)

    def _carried(self, node: Repeat | Loop | LoopLeaf, apart: frozenset = frozenset()) -> list[Key]:
        written = sorted(self.how.written[id(node)] - apart, key=lambda f: f.buffer.index)
        return [TRIPS, ERROR, *written]

    # ---- dynamic loops

    def _loop(self, node: Loop | LoopLeaf, env: Environment) -> None:
        bound = self.where.bound[id(node)]
        loop = bound.record
        assert isinstance(loop, Loop)
        register = bound.accesses[id(loop.register)]
        keys = [k for k in self._carried(node) if k is not register.family] + [register.family]
        ident = loop.ident
        if isinstance(ident, Immediate):
            ident = _immediate(bound.immediates[id(ident)], bound, env.place)[0]

        def turn(carry: Sequence[jax.Array], value: jax.Array) -> list[jax.Array]:
            inner = env.fork(env.place)
            inner.unpack(keys, carry)
            inner.store(register, value, ())
            self.walk(node.body, inner)
            if loop.condition is not None:
                inner.store(register, _scalar(bound, loop.condition, inner), ())
            inner.arrays[TRIPS] = Stored(inner.arrays[TRIPS].array.at[ident].add(1))
            return inner.pack(keys)

        def value(carry: Sequence[jax.Array]) -> jax.Array:
            inner = env.fork(env.place)
            inner.unpack(keys, carry)
            return _scalar(bound, loop.register, inner)

        lower = _scalar(bound, loop.lower, env)
        if loop.condition is None:
            carry = self._count(loop, lower, _scalar(bound, loop.upper, env), turn, env.pack(keys))
        else:
            env.store(register, lower, ())
            carry = self._while(value, turn, env.pack(keys))
        env.unpack(keys, carry)
        if self.max_trips is not None:
            self._overrun(loop, lower, _scalar(bound, loop.upper, env), value(carry), env)

    def _count(self, loop: Loop, lower: Any, upper: Any, turn: Callable, carry: list[jax.Array]) -> list[jax.Array]:
        one = lambda k, c: turn(c, jnp.int32(lower) + k * jnp.int32(loop.step))  # noqa: E731
        trips = _trips(loop, lower, upper)
        if isinstance(trips, int) or self.max_trips is None:
            return lax.fori_loop(0 if isinstance(trips, int) else jnp.int32(0), trips, one, carry)
        return self._bounded(lambda k, c: k < trips, one, carry)

    def _while(self, value: Callable, turn: Callable, carry: list[jax.Array]) -> list[jax.Array]:
        if self.max_trips is None:
            return lax.while_loop(lambda c: value(c) != 0, lambda c: turn(c, value(c)), carry)
        return self._bounded(lambda k, c: value(c) != 0, lambda k, c: turn(c, value(c)), carry)

    def _bounded(self, running: Callable, turn: Callable, carry: list[jax.Array]) -> list[jax.Array]:
        """`max_trips` turns, of which those past the end change nothing."""

        def body(c: list[jax.Array], k: jax.Array) -> tuple[list[jax.Array], None]:
            return lax.cond(running(k, c), lambda c: turn(k, c), lambda c: c, c), None

        return lax.scan(body, carry, jnp.arange(self.max_trips, dtype=np.int32))[0]

    def _overrun(self, loop: Loop, lower: Any, upper: Any, condition: jax.Array, env: Environment) -> None:
        """Note a loop that `max_trips` did not let end."""
        assert self.max_trips is not None
        over = (
            condition != 0 if loop.condition is not None else jnp.asarray(_trips(loop, lower, upper) > self.max_trips)
        )
        if loop.condition is None and isinstance(_trips(loop, lower, upper), int):
            return
        _note(env, over, jnp.array([self._site(f"dynamic loop@{loop.site}"), self.max_trips, -1], np.int32))


def _trips(loop: Loop, lower: Any, upper: Any) -> Any:
    """How often a counting loop turns: an int where both bounds are."""
    if isinstance(lower, int) and isinstance(upper, int):
        return max(0, -(-(upper - lower) // loop.step))
    return jnp.maximum(0, -((jnp.int32(lower) - upper) // loop.step)).astype(np.int32)


def _scalar(bound: Bound, value: Any, env: Environment) -> Any:
    """A bound or a register of a loop: an int, or a traced int32."""
    if isinstance(value, Immediate):
        return _immediate(bound.immediates[id(value)], bound, env.place)[0].astype(np.int32)
    if not isinstance(value, View):
        return value
    return env.load(bound.accesses[id(value)])[0].reshape(()).astype(np.int32)


def _note(env: Environment, bad: jax.Array, word: jax.Array) -> None:
    """Set the error word if `bad`, unless it is set."""
    error = env.arrays[ERROR].array
    env.arrays[ERROR] = Stored(jnp.where((error[0] == 0) & bad, word, error))


def _flat(memory: Memory, shape: Sequence[int]) -> tuple[int, ...]:
    """(P, F) of a view's shape; () of a register."""
    return () if memory is Memory.register else (shape[0], int(np.prod(shape[1:], dtype=np.int64)))


def _immediate(table: np.ndarray, bound: Bound, place: Place) -> tuple[jax.Array, Axes]:
    """An immediate that varies over the repeats around, and its axes."""
    axes: list[Repeat] = []
    indices: list[jax.Array] = []
    scanned: list[int] = []
    for k, r in reversed(list(enumerate(_repeats(bound)))):
        if not steps(table, k).any():
            table = table.take(0, axis=k)
            scanned = [j - 1 for j in scanned]
        elif r in place.index:
            indices.insert(0, place.index[r])
            scanned = [k, *scanned]
        else:
            axes.insert(0, r)
    x = jnp.moveaxis(jnp.asarray(table, _kind(table)), scanned, range(len(scanned)))
    return (x[tuple(indices)] if indices else x), tuple(axes)


def _repeats(bound: Bound) -> Iterator[Repeat]:
    return (n for n in bound.path if isinstance(n, Repeat))


def _constant(operand: Any, dtype: Any) -> jax.Array:
    """An immediate as an array; integers wrap to the dtype's width."""
    if isinstance(operand, int) and not isinstance(operand, bool):
        kind = np.dtype(dtype or np.int32)
        if kind.kind in "iu":
            return jnp.asarray(np.array(operand & (2 ** (8 * kind.itemsize) - 1), np.uint64).astype(kind))
    return jnp.asarray(operand, dtype)


def _kind(table: np.ndarray) -> Any:
    """The 32-bit dtype of a table of immediates."""
    if table.dtype.kind == "f":
        return np.float32
    return np.uint32 if table.max(initial=0) > np.iinfo(np.int32).max else np.int32


def _inside(a: Access, node: Repeat, place: Place) -> Place:
    """The place of an access in a scanned repeat, if that and the batched ones below it ran at once."""
    below = a.repeats[a.repeats.index(node) :]
    return replace(place, batch=(*place.batch, *below), deferred={})


def _all_turns(a: Access, node: Repeat, env: Environment) -> Stored:
    """What an access reads in every turn of a scanned repeat: (turns, …axes, …shape), and the other axes."""
    inside = _inside(a, node, env.place)
    x, axes = env.at(inside).load(a)
    return Stored(jnp.moveaxis(x, axes.index(node), 0), tuple(r for r in axes if r is not node))
