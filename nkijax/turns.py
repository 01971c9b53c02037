"""Dynamic loops of a lowered program.

What is carried are the arrays of the storages that the body writes, the trip counts and the error word.  They are loops
of `nkijax.reversible`.  With `max_trips` one whose trip count is data takes at most so many turns, and its derivative
is that of a scan of as many, of which those past the end change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nkijax import reversible
from nkijax.environment import TRIPS, Environment, Key, Stored
from nkijax.program import Loop
from nkijax.scanned import scan, until
from nkijax.storage import Bound, Immediate
from nkijax.view import View

PARTED = -2  # in place of a limit in the error word: cores that meet in a loop did not turn equally often


@dataclass(frozen=True)
class Turns:
    """A dynamic loop: what is carried, and which of it the body looks at; how one turn acts on memory; the bound on
    its trips, and the site of its error.
    """

    bound: Bound
    loop: Loop
    carried: Sequence[Key]
    seen: frozenset[Key]
    body: Callable[[Environment], None]
    max_trips: int | None
    site: int


def run(turns: Turns, env: Environment) -> None:
    """Take all turns of a loop."""
    bound, loop = turns.bound, turns.loop
    register, *others = (bound.accesses[id(r)] for r in (loop.register, *loop.registers))
    own = dict.fromkeys(a.family for a in (register, *others))
    keys = [k for k in turns.carried if k not in own] + [*own]
    idents = [_ident(i, bound, env) for i in (loop.ident, *loop.idents)]
    lower, *lowers = (_scalar(bound, b, env) for b in (loop.lower, *loop.bounds[::2]))

    def turn(carry: Sequence[jax.Array], value: jax.Array) -> list[jax.Array]:
        inner = env.fork(env.place)
        inner.unpack(keys, carry)
        inner.store(register, value, ())
        for other, start in zip(others, lowers if loop.condition is None else (), strict=False):
            inner.store(other, value - lower + start, ())
        turns.body(inner)
        if loop.condition is not None:
            after = [_scalar(bound, c, inner) for c in (loop.condition, *loop.conditions)]
            _part(turns, idents, after, inner)
            for one, condition in zip((register, *others), after, strict=True):
                inner.store(one, condition, ())
        for ident in idents:
            inner.arrays[TRIPS] = Stored(inner.arrays[TRIPS].array.at[ident].add(1))
        return inner.pack(keys)

    def value(carry: Sequence[jax.Array]) -> jax.Array:
        inner = env.fork(env.place)
        inner.unpack(keys, carry)
        return _scalar(bound, loop.register, inner)

    if loop.condition is None:
        unseen = [i for i, key in enumerate(keys) if key not in turns.seen]
        _part_counting(turns, lower, lowers, env)
        carry = _count(turns, lower, _scalar(bound, loop.upper, env), turn, env.pack(keys), unseen)
    else:
        _part(turns, [], [lower, *lowers], env)
        for one, start in zip((register, *others), (lower, *lowers), strict=True):
            env.store(one, start, ())
        unseen = [i for i, key in enumerate(keys) if key not in turns.seen and key not in own]
        carry = _while(turns, value, turn, env.pack(keys), unseen)
    env.unpack(keys, carry)
    if turns.max_trips is not None:
        _overrun(turns, lower, _scalar(bound, loop.upper, env), value(carry), env)


Value = Callable[[Sequence[jax.Array]], jax.Array]
Turn = Callable[[Sequence[jax.Array], jax.Array], list[jax.Array]]  # from the carry and the loop's register


def _count(
    turns: Turns, lower: Any, upper: Any, turn: Turn, carry: list[jax.Array], unseen: Sequence[int]
) -> list[jax.Array]:
    step = turns.loop.step
    one = lambda k, c: turn(c, jnp.int32(lower) + k * jnp.int32(step))  # noqa: E731
    trips = _trips(turns.loop, lower, upper)
    if isinstance(trips, int) or turns.max_trips is None:
        return reversible.fori_loop(trips, one, carry, unseen)
    return _bounded(turns.max_trips, lambda k, c: k < trips, one, carry)


def _while(turns: Turns, value: Value, turn: Turn, carry: list[jax.Array], unseen: Sequence[int]) -> list[jax.Array]:
    running = lambda k, c: value(c) != 0  # noqa: E731
    one = lambda k, c: turn(c, value(c))  # noqa: E731
    if turns.max_trips is None:
        return reversible.while_loop(running, one, carry, unseen)
    return _bounded(turns.max_trips, running, one, carry)


def _bounded(max_trips: int, running: Callable, turn: Callable, carry: list[jax.Array]) -> list[jax.Array]:
    """At most `max_trips` turns: a gradient keeps what each of so many computed."""

    numbers = [jnp.arange(max_trips, dtype=np.int32)]
    return until(scan, running, lambda k, c, xs: turn(k, c), carry, numbers)


def _overrun(turns: Turns, lower: Any, upper: Any, condition: jax.Array, env: Environment) -> None:
    """Note a loop that `max_trips` did not let end."""
    assert turns.max_trips is not None
    if turns.loop.condition is not None:
        over = condition != 0
    elif isinstance(trips := _trips(turns.loop, lower, upper), int):
        return
    else:
        over = trips > turns.max_trips
    env.note(over, jnp.array([turns.site, turns.max_trips, -1], np.int32))


def _part_counting(turns: Turns, lower: Any, lowers: Sequence[Any], env: Environment) -> None:
    """Note that cores which meet in a counting loop do not turn equally often."""
    loop = turns.loop
    trips = _trips(loop, lower, _scalar(turns.bound, loop.upper, env))
    for start, bound in zip(lowers, loop.bounds[1::2], strict=True):
        other = jnp.asarray(_trips(loop, start, _scalar(turns.bound, bound, env)), np.int32)
        word = jnp.stack([jnp.int32(turns.site), jnp.minimum(trips, other), jnp.int32(PARTED)])
        env.note(other != trips, word)


def _part(turns: Turns, idents: Sequence[Any], conditions: Sequence[Any], env: Environment) -> None:
    """Note that of cores which meet in a loop some go on while others do not."""
    done = env.arrays[TRIPS].array[idents[0]] + 1 if idents else jnp.int32(0)
    goes, *others = (jnp.asarray(c) != 0 for c in conditions)
    for other in others:
        env.note(other != goes, jnp.stack([jnp.int32(turns.site), done, jnp.int32(PARTED)]))


def _ident(ident: Any, bound: Bound, env: Environment) -> Any:
    return env.immediate(bound.immediates[id(ident)], bound)[0] if isinstance(ident, Immediate) else ident


def _trips(loop: Loop, lower: Any, upper: Any) -> Any:
    """How often a counting loop turns: an int where both bounds are."""
    if isinstance(lower, int) and isinstance(upper, int):
        return max(0, -(-(upper - lower) // loop.step))
    return jnp.maximum(0, -((jnp.int32(lower) - upper) // loop.step)).astype(np.int32)


def _scalar(bound: Bound, value: Any, env: Environment) -> Any:
    """A bound or a register of a loop: an int, or a traced int32."""
    if isinstance(value, Immediate):
        return env.immediate(bound.immediates[id(value)], bound)[0].astype(np.int32)
    if not isinstance(value, View):
        return value
    return env.load(bound.accesses[id(value)])[0].reshape(()).astype(np.int32)
