"""Lowering: a program becomes one pure JAX function.

A scanned repeat carries the arrays that it shares and writes; what it only reads, or writes in disjoint places, goes
through the scan's inputs and outputs.  A batched repeat runs each instruction for all turns at once (`jax.vmap` over
the axes that its operands depend on), its index having become one more dimension of the access patterns.  Dynamic
loops carry their trip counts and the error word with the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes, scanned, turns
from nkijax.address import Index, index_of, valid
from nkijax.derivative import silent
from nkijax.environment import ERROR, TRIPS, Axes, Environment, Key, Place, Stored
from nkijax.errors import KernelError, OutOfRange
from nkijax.machine import Memory
from nkijax.plan import Plan, plan
from nkijax.program import Instruction, Loop, LoopLeaf, Masked, Node, Program, Repeat
from nkijax.reversible import varying
from nkijax.storage import Access, Bound, Immediate, layout
from nkijax.turns import Turns
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
        if limit == turns.PARTED:
            rule = "cores meet in it and must turn equally often"
            raise KernelError(f"{what}: {rule}, got one that stops after {index} turns", place)
        if limit < 0:
            raise KernelError(f"{what} max_trips: must bound its turns, got {index} and more turns", place)
        raise OutOfRange(what, index, limit, place, self.views.get(site))


def lower(program: Program, max_trips: int | None = None, loops: str = "auto") -> Lowered:
    """The pure function of a program.

    `max_trips` bounds every dynamic loop whose trip count is data, with the derivative of a masked scan: see
    `nkijax.turns`.  `loops` chooses how repeats run: see `nkijax.plan`.
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
            x = jnp.asarray(array).astype(kind).reshape(buffer.shape)
            env.arrays[family[buffer.index]] = Stored(varying(x) if program.loops else x)
        self.walk(program.body, env)
        outputs = tuple(env.read_view(v) for v in program.outputs)
        written = tuple(env.read_view(View.whole(program.arguments[i])) for i in program.written)
        return Result(outputs, written, env.arrays[TRIPS].array, env.arrays[ERROR].array)

    def walk(self, nodes: Sequence[Node], env: Environment) -> None:
        for node in nodes:
            if isinstance(node, Repeat):
                (self._batch if self.how.is_batch(node) else self._scan)(node, env)
            elif isinstance(node, Loop | LoopLeaf):
                turns.run(self._turns(node), env)
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
                x = x.reshape(*x.shape[:n], *_flat(a.view.memory, x.shape[n:]))
                kept = a.operand in record.contracts[:1] and self.how.is_kept(a)
                arrays[key], axes[key] = _turned(x) if kept else x, own
        for key, table in bound.immediates.items():
            arrays[key], axes[key] = env.immediate(table, bound)
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
        results = _silently(call, list(arrays.values()))
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
        ok = valid(address)
        if not record.skips():
            index = address.index
            assert index is not None
            bad = index.reshape(-1)[jnp.argmin(ok.reshape(-1))]
            site = self._site(f"{record.api} {a.operand}@{record.site}")
            env.note(~ok.all(), jnp.stack([jnp.int32(site), bad.astype(np.int32), jnp.int32(address.limit)]))
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
        reads = {a: _pattern(a) for a in streams.reads if a.family in env.arrays}
        inputs = {pattern: _all_turns(a, node, env) for pattern, a in {p: a for a, p in reads.items()}.items()}
        outputs = list(streams.writes)
        keys = self._carried(node, streams.families)
        axes: dict[Access, Axes] = {}

        def body(carry: list[jax.Array], xs: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            i, *turn = xs
            now = {p: Stored(x, s.axes) for (p, s), x in zip(inputs.items(), turn, strict=True)}
            loaded = {a: now[p] for a, p in reads.items()}
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
        xs = [turns, *(s.array for s in inputs.values())]
        scan = scanned.scan if id(node) in self.how.lookups else scanned.plain
        if node.counts is None:
            carry, ys = scan(body, env.pack(keys), xs)
        else:  # it has no outputs
            count = varying(jnp.int32(self._count(node, env.place)))
            turn = lambda i, carry, xs: body(carry, xs)[0]  # noqa: E731
            carry, ys = scanned.until(scan, lambda i, carry: i < count, turn, env.pack(keys), xs), []
        env.unpack(keys, carry)
        for a, y in zip(outputs, ys, strict=True):
            inside = _inside(a, node, env.place)
            order = inside.ordered([(node, *axes[a])])
            y = jnp.moveaxis(y, 0, order.index(node))
            env.at(inside).put(a, y, order)

    def _count(self, node: Repeat, place: Place) -> Index:
        """The turns of a ragged repeat, here."""
        assert node.counts is not None
        repeats = self.where.inside[id(node)][0].repeats
        around = repeats[: repeats.index(node)]  # the counts are the same in all turns of batched ones
        zero = jnp.int32(0)
        return index_of(node.counts, [place.index[r] if r in place.index else zero for r in around])

    def _carried(self, node: Repeat | Loop | LoopLeaf, apart: frozenset = frozenset()) -> list[Key]:
        written = sorted(self.how.written[id(node)] - apart, key=lambda f: f.buffer.index)
        return [TRIPS, ERROR, *written]

    # ---- dynamic loops

    def _turns(self, node: Loop | LoopLeaf) -> Turns:
        bound = self.where.bound[id(node)]
        assert isinstance(bound.record, Loop)
        site = self._site(f"dynamic loop@{bound.record.site}")
        seen = frozenset(a.family for a in self.where.inside[id(node)] if a.reads)
        body = partial(self.walk, node.body)
        return Turns(bound, bound.record, self._carried(node), seen, body, self.max_trips, site)


def _turned(x: jax.Array) -> jax.Array:
    """The same array, (…, K, M), laid out as (…, M, K): a loop in which it is kept does so once.

    XLA would make it part of each product; on a CPU those of (M, K) and (K, N) take 0.6 to 0.9 of the time.
    """
    return lax.optimization_barrier(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def _silently(f: Callable[..., tuple[Any, ...]], args: Sequence[jax.Array]) -> tuple[Any, ...]:
    """`f(*args)`, whose results may come with masks, with the derivative of `nkijax.derivative`."""
    trees: list[Any] = []

    def flat(*args: jax.Array) -> list[jax.Array]:
        leaves, tree = jax.tree.flatten(f(*args))
        trees.append(tree)
        return [jnp.asarray(x) for x in leaves]

    if not any(jnp.issubdtype(x.dtype, jnp.inexact) for x in args):
        return f(*args)
    results = silent(flat, args)
    return jax.tree.unflatten(trees[0], results)


def _flat(memory: Memory, shape: Sequence[int]) -> tuple[int, ...]:
    """(P, F) of a view's shape; () of a register."""
    return () if memory is Memory.register else (shape[0], int(np.prod(shape[1:], dtype=np.int64)))


def _constant(operand: Any, dtype: Any) -> jax.Array:
    """An immediate as an array; integers wrap to the dtype's width."""
    if isinstance(operand, int) and not isinstance(operand, bool):
        kind = np.dtype(dtype or np.int32)
        if kind.kind in "iu":
            return jnp.asarray(np.array(operand & (2 ** (8 * kind.itemsize) - 1), np.uint64).astype(kind))
    return jnp.asarray(operand, dtype)


def _inside(a: Access, node: Repeat, place: Place) -> Place:
    """The place of an access in a scanned repeat, if that and the batched ones below it ran at once."""
    below = a.repeats[a.repeats.index(node) :]
    return replace(place, batch=(*place.batch, *below), deferred={})


def _pattern(a: Access) -> tuple:
    """What two accesses have in common that read the same elements in all turns."""
    view = a.view
    return a.family, tuple(map(id, a.path)), view.dtype, view.strides, view.shape, a.table.tobytes()


def _all_turns(a: Access, node: Repeat, env: Environment) -> Stored:
    """What an access reads in every turn of a scanned repeat: (turns, …axes, …shape), and the other axes."""
    inside = _inside(a, node, env.place)
    x, axes = env.at(inside).load(a)
    return Stored(jnp.moveaxis(x, axes.index(node), 0), tuple(r for r in axes if r is not node))
