"""Loops whose trip count is data, differentiable in both modes.

`lax.while_loop` has a forward mode only: to go back through its turns JAX would have to keep each of them, and their
number is not known when the program is compiled.  The loops here are `lax.while_loop` until they are differentiated.
Forward mode runs the loop on pairs of values and tangents.  Reverse mode knows the trip count n, because the loop has
run, and keeps only some states:

1. it runs again and saves the state at K places, a stride of ceil(n / K) turns apart;
2. from the last stride to the first, it runs the stride from its saved state, saving each of its states (K at a time);
3. from the last state of those to the first, it takes the transpose of a turn.

Two times K states are kept, however many turns there are.  Up to K² turns cost two more runs of the loop beside a
gradient's own; beyond, each stride starts over for every K of its turns, and time grows by n / 2K² runs.  States leave
out what the turns only write (`unseen`), and what they only read is not part of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from nkijax.bits import as_before, as_bits
from nkijax.closed import Closed, close
from nkijax.linear import Linear, linear_map

SLOTS = 64  # K: of 2 K states that are kept, up to 4,096 turns run only twice again
SLOT_BYTES = 1 << 28  # what K states may take; fewer are kept where they are larger
MIN_SLOTS = 8

Carry = list[jax.Array]
Turn = Callable[[jax.Array, Carry], Carry]
"""`turn(k, carry)`: the carry after turn k."""


def fori_loop(trips: Any, turn: Turn, carry: Sequence[jax.Array], unseen: Collection[int] = ()) -> Carry:
    """`trips` turns.  `unseen`: positions in the carry whose values no turn looks at, though it may change them."""
    consts, closed = _close(turn, carry)
    loop = _Loop(closed, len(consts), None, frozenset(unseen))
    return _run(loop, jnp.asarray(trips, np.int32), consts, list(carry))[1]


def while_loop(
    running: Callable[[jax.Array, Carry], jax.Array],
    turn: Turn,
    carry: Sequence[jax.Array],
    unseen: Collection[int] = (),
) -> Carry:
    """Turns as long as `running(k, carry)` holds; `unseen` as for `fori_loop`."""
    consts, closed = _close(turn, carry)
    more, condition = _close(lambda k, carry: [running(k, carry)], carry)
    loop = _Loop(closed, len(consts), condition, frozenset(unseen))
    return _run(loop, jnp.int32(0), [*consts, *more], list(carry))[1]


def varying(x: jax.Array) -> jax.Array:
    """The same array, inside `jax.shard_map` as one that differs between devices, so that a loop may carry it."""
    for axis in jax.sharding.get_abstract_mesh().manual_axes:
        with contextlib.suppress(ValueError):  # it differs along that axis already
            x = lax.pcast(x, axis, to="varying")
    return x


def _close(f: Turn, carry: Sequence[jax.Array]) -> tuple[list[jax.Array], Closed]:
    """The arrays that `f` closes over, and `f` as a function of (constants, k, *carry)."""
    return close(lambda k, *carry: f(k, list(carry)), varying(jnp.int32(0)), *carry)


@dataclass(frozen=True, eq=False)
class _Loop:
    """What does not vary: a turn, which has the first `own` constants, the condition, which has the others (None: the
    trip count is given), and what no turn looks at.
    """

    closed: Closed
    own: int
    condition: Closed | None
    unseen: frozenset[int]

    def turn(self, consts: Sequence[jax.Array], k: jax.Array, carry: Carry) -> Carry:
        return self.closed(consts[: self.own], k, *carry)

    def running(self, consts: Sequence[jax.Array], k: jax.Array, carry: Carry) -> jax.Array:
        assert self.condition is not None
        return self.condition(consts[self.own :], k, *carry)[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _run(loop: _Loop, trips: jax.Array, consts: list[jax.Array], carry: Carry) -> tuple[jax.Array, Carry]:
    """The trip count and the last carry."""
    floats = lambda bits: [as_before(x, like.dtype) for x, like in zip(bits, carry, strict=True)]  # noqa: E731

    def running(state: tuple[jax.Array, Carry]) -> jax.Array:
        k, bits = state
        return k < trips if loop.condition is None else loop.running(consts, k, floats(bits))

    def turn(state: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
        k, bits = state
        return k + 1, [as_bits(x) for x in loop.turn(consts, k, floats(bits))]

    n, bits = lax.while_loop(running, turn, (varying(jnp.zeros_like(trips)), [as_bits(x) for x in carry]))
    return n, floats(bits)


@partial(_run.defjvp, symbolic_zeros=True)
def _differentiate(loop: _Loop, primals: Any, tangents: Any) -> tuple[Any, Any]:
    trips, consts, carry = primals
    _, dconsts, dcarry = tangents
    n, out = _run(loop, trips, consts, carry)
    moving = tuple(i for i, d in enumerate(dconsts) if not isinstance(d, SymbolicZero))
    floats = tuple(i for i, x in enumerate(carry) if jnp.issubdtype(x.dtype, jnp.inexact))
    like = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in carry)
    tangent = _Tangent(loop, moving, floats, len(consts), like)
    given = [dconsts[i] for i in moving]
    given += [jnp.zeros_like(carry[i]) if isinstance(dcarry[i], SymbolicZero) else dcarry[i] for i in floats]
    outputs = tuple(range(len(moving), len(given)))
    maps = Linear(tangent.push, tangent.pull, partial(tangent.pull, in_place=False), outputs)
    moved = linear_map(maps, [n, *consts, *(carry[i] for i in tangent.seen)], given)
    none = lambda x: SymbolicZero(jax.typeof(x).to_tangent_aval())  # noqa: E731
    douts: list[Any] = [none(x) for x in out]
    for i, d in zip(floats, moved, strict=True):
        douts[i] = d
    return (n, out), (none(n), douts)


@dataclass(frozen=True, eq=False)
class _Tangent:
    """The derivative of a loop: linear in the constants that move and in the carry's floats.

    Residuals are the trip count, the constants, and of the first carry what turns look at.
    """

    loop: _Loop
    moving: tuple[int, ...]
    floats: tuple[int, ...]
    consts: int
    like: tuple[jax.ShapeDtypeStruct, ...]  # the carry

    @property
    def seen(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.like)) if i not in self.loop.unseen)

    def whole(self, seen: Sequence[jax.Array]) -> Carry:
        """A carry, with zeros where no turn looks."""
        known = dict(zip(self.seen, seen, strict=True))
        return [known[i] if i in known else varying(jnp.zeros(x.shape, x.dtype)) for i, x in enumerate(self.like)]

    def turn(self, consts: Sequence[jax.Array], k: jax.Array, carry: Carry) -> tuple[Callable[..., Any], Any, Any]:
        """A turn as a function of the moving constants and the carry's floats, (floats, the whole carry); and those."""

        def f(moved: Sequence[jax.Array], floats: Sequence[jax.Array]) -> tuple[list[jax.Array], Carry]:
            own, state = list(consts), list(carry)
            for i, x in zip(self.moving, moved, strict=True):
                own[i] = x
            for i, x in zip(self.floats, floats, strict=True):
                state[i] = x
            out = self.loop.turn(own, k, state)
            return [out[i] for i in self.floats], out

        return f, [consts[i] for i in self.moving], [carry[i] for i in self.floats]

    def push(self, residuals: list[jax.Array], tangents: list[jax.Array]) -> list[jax.Array]:
        n, consts, seen = residuals[0], residuals[1 : self.consts + 1], residuals[self.consts + 1 :]
        dconsts, dcarry = tangents[: len(self.moving)], tangents[len(self.moving) :]

        def turn(k: jax.Array, pair: Carry) -> Carry:
            seen, dcarry = pair[: len(self.seen)], pair[len(self.seen) :]
            f, *at = self.turn(consts, k, self.whole(seen))
            _, d, out = jax.jvp(f, tuple(at), (dconsts, dcarry), has_aux=True)
            return [*(out[i] for i in self.seen), *d]

        return fori_loop(n, turn, [*seen, *dcarry])[len(self.seen) :]

    def pull(self, residuals: list[jax.Array], cotangents: list[jax.Array], in_place: bool = True) -> list[jax.Array]:
        n, consts, seen = residuals[0], residuals[1 : self.consts + 1], residuals[self.consts + 1 :]
        gathers = self.loop.closed.gathers if in_place else ()
        zeros = {i: varying(jnp.zeros_like(consts[i])) for i in self.moving}
        refs = {i: jax.new_ref(x) for i, x in zeros.items() if in_place and i < self.loop.own and gathers[i]}
        sums = [x for i, x in zeros.items() if i not in refs]
        loop = _plain_loop if in_place else fori_loop
        state = _Reverse(self, n, consts, loop, refs).run(seen, [*cotangents, *sums])
        summed = iter(state[len(self.floats) :])
        moved = [refs[i][...] if i in refs else next(summed) for i in self.moving]
        return [*moved, *state[: len(self.floats)]]


def _plain_loop(trips: jax.Array, turn: Turn, carry: Carry) -> Carry:
    return lax.fori_loop(jnp.int32(0), trips, turn, carry)


@dataclass(frozen=True, eq=False)
class _Reverse:
    """The way back through `n` turns: steps 1 to 3 above.

    What goes back is a list: the cotangents of the carry's floats, and the sums of those of the moving constants but
    for `refs`, in which they gather: there a turn that reads a few elements of a constant adds to those only.
    """

    tangent: _Tangent
    n: jax.Array
    consts: list[jax.Array]
    loop: Callable[[jax.Array, Turn, Carry], Carry]
    refs: dict[int, Any]

    def run(self, seen: Carry, state: Carry) -> Carry:
        slots = _slots(seen)
        stride = jnp.maximum(1, -(-self.n // slots))
        strides = -(-self.n // stride)
        saved = self.save(slots, seen, strides, lambda j, x: self.again(j * stride, stride, x))

        def one(j: jax.Array, state: Carry) -> Carry:
            j = strides - 1 - j
            return self.stride(j * stride, jnp.minimum(stride, self.n - j * stride), _get(saved, j), state)

        return self.loop(strides, one, state)

    def stride(self, first: jax.Array, turns: jax.Array, start: Carry, state: Carry) -> Carry:
        """Back through the turns from `first` on, in blocks of as many as there are slots."""
        slots = _slots(start)
        blocks = -(-turns // slots)

        def block(b: jax.Array, state: Carry) -> Carry:
            skip = (blocks - 1 - b) * slots
            size = jnp.minimum(slots, turns - skip)
            saved = self.save(slots, start, size, lambda k, x: self.again(first + k, 1, x), skip)
            back = lambda k, state: self.back(first + skip + size - 1 - k, _get(saved, size - 1 - k), state)  # noqa: E731
            return self.loop(size, back, state)

        return self.loop(blocks, block, state)

    def save(self, slots: int, start: Carry, size: jax.Array, step: Turn, skip: Any = 0) -> Carry:
        """States `skip` … `skip + size - 1` of a sequence that begins with `start`, each in a slot."""
        w = len(start)

        def turn(j: jax.Array, pair: Carry) -> Carry:
            x = step(j, pair[:w])
            return [*x, *_put(pair[w:], jnp.maximum(0, j + 1 - skip), x)]

        empty = [jnp.broadcast_to(x, (slots, *x.shape)) for x in start]
        return fori_loop(skip + size - 1, turn, [*start, *empty])[w:]

    def again(self, first: jax.Array, turns: Any, seen: Carry) -> Carry:
        """What turns look at, `turns` turns later."""
        tangent = self.tangent

        def turn(k: jax.Array, seen: Carry) -> Carry:
            out = tangent.loop.turn(self.consts, first + k, tangent.whole(seen))
            return [out[i] for i in tangent.seen]

        return turn(jnp.int32(0), seen) if isinstance(turns, int) else fori_loop(turns, turn, seen)

    def back(self, k: jax.Array, seen: Carry, state: Carry) -> Carry:
        """Through turn k alone."""
        f, moving, floats = self.tangent.turn(self.consts, k, self.tangent.whole(seen))
        _, pull, _ = jax.vjp(f, moving, floats, has_aux=True)
        sums = state[len(floats) :]
        if self.refs:
            pull = pull.with_refs(
                [self.refs.get(i, x) for i, x in zip(self.tangent.moving, moving, strict=True)], floats
            )
        dmoving, dfloats = pull(state[: len(floats)])
        summed = [d for i, d in zip(self.tangent.moving, dmoving, strict=True) if i not in self.refs]
        return [*dfloats, *(s + d for s, d in zip(sums, summed, strict=True))]


def _slots(carry: Sequence[jax.Array]) -> int:
    size = sum(x.size * x.dtype.itemsize for x in carry)
    return max(MIN_SLOTS, min(SLOTS, SLOT_BYTES // max(1, size)))


def _get(slots: Sequence[jax.Array], j: jax.Array) -> Carry:
    return [lax.dynamic_index_in_dim(s, j, 0, keepdims=False, allow_negative_indices=False) for s in slots]


def _put(slots: Sequence[jax.Array], j: jax.Array, carry: Sequence[jax.Array]) -> Carry:
    return [
        lax.dynamic_update_index_in_dim(s, x, j, 0, allow_negative_indices=False)
        for s, x in zip(slots, carry, strict=True)
    ]
