"""`lax.scan`, made cheaper where JAX or XLA would touch all of an array in every turn.

On the way back JAX adds a cotangent of its whole size to that of a constant in every turn, though the turn looks at a
few elements (a page of a cache, a row of a table): work that grows with the turns times the constant.  `scan` gathers
those cotangents in place.  On the way forth XLA on a CPU copies all of a carried array of narrow floats in every turn
that updates a part of it: both loops here carry it as integers (see `nkijax.bits`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import eval_jaxpr
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Jaxpr, Var

from nkijax.bits import as_before, as_bits, is_narrow
from nkijax.closed import Closed, close
from nkijax.linear import Linear, linear_map
from nkijax.reversible import varying

WORTH_BYTES = 1 << 20  # of narrow floats in a carry: what a loop's body, traced once more, is worth

Arrays = list[jax.Array]
Body = Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]
Over = Callable[[Body, Sequence[jax.Array], Sequence[jax.Array]], tuple[Arrays, Arrays]]
Running = Callable[[jax.Array, Arrays], jax.Array]  # of a turn's number and the carry before it
Turn = Callable[[jax.Array, Arrays, Arrays], Arrays]  # from those, and the turn's part of the inputs


def scan(body: Body, carry: Sequence[jax.Array], xs: Sequence[jax.Array]) -> tuple[Arrays, Arrays]:
    """`lax.scan(body, carry, xs)` of lists of arrays."""
    return _closed(_scan, body, list(carry), list(xs))


def plain(body: Body, carry: Sequence[jax.Array], xs: Sequence[jax.Array]) -> tuple[Arrays, Arrays]:
    """The same with JAX's own derivative, for loops that look nothing up."""
    if sum(x.size * x.dtype.itemsize for x in carry if is_narrow(x.dtype)) < WORTH_BYTES:
        return lax.scan(body, list(carry), list(xs))
    return _closed(_plain, body, list(carry), list(xs))


def until(over: Over, running: Running, turn: Turn, carry: Sequence[jax.Array], xs: Sequence[jax.Array]) -> Arrays:
    """The carry after the turns of a scan of `xs` until `running(k, carry)` fails; it must not hold again later.

    A loop that ends there, which updates its carry in place.  Its derivative is that of a scan (`over`: `scan` or
    `plain`) that takes all turns, of which those past the end change nothing; XLA copies what these may change.
    """
    n, m, xs = len(carry), len(xs), [varying(x) for x in xs]
    like = (varying(jnp.int32(0)), *carry)
    more, condition = close(lambda k, *carry: [running(k, list(carry))], *like)
    consts, closed = close(lambda k, *args: turn(k, list(args[:n]), list(args[n:])), *like, *(x[0] for x in xs))
    return _until(_Until(closed, condition, len(consts), len(more), n, m, over), *consts, *more, *carry, *xs)


def _closed(run: Callable[..., Arrays], body: Body, carry: Arrays, xs: Arrays) -> tuple[Arrays, Arrays]:
    n, m = len(carry), len(xs)
    flat = lambda *args: [y for ys in body(list(args[:n]), list(args[n:])) for y in ys]  # noqa: E731
    consts, closed = close(flat, *carry, *(x[0] for x in xs))
    out = run(_Scan(closed, n, m), *consts, *carry, *xs)
    return out[:n], out[n:]


@dataclass(frozen=True, eq=False)
class _Scan:
    """What does not vary: a turn, how many arrays are carried, and how many go turn by turn."""

    turn: Closed
    carried: int
    turned: int

    def __call__(self, *args: jax.Array) -> Arrays:
        return self._run(args, lambda x: x)

    def in_bits(self, *args: jax.Array) -> Arrays:
        """The same with a carry of integers for narrow floats, through which nothing is differentiated."""
        return self._run(args, as_bits)

    def _run(self, args: Sequence[jax.Array], held: Callable[[jax.Array], jax.Array]) -> Arrays:
        n = len(args) - self.carried - self.turned
        consts, carry, xs = args[:n], list(args[n : n + self.carried]), list(args[n + self.carried :])
        floats = lambda kept: [as_before(x, like.dtype) for x, like in zip(kept, carry, strict=True)]  # noqa: E731

        def body(kept: Arrays, x: Arrays) -> tuple[Arrays, Arrays]:
            out = self.turn(consts, *floats(kept), *x)
            return [held(x) for x in out[: self.carried]], out[self.carried :]

        kept, ys = lax.scan(body, [held(x) for x in carry], xs)
        return [*floats(kept), *ys]


def _partly(
    f: Callable[..., Arrays], primals: Sequence[jax.Array], moving: Sequence[int]
) -> Callable[..., tuple[Arrays, Arrays]]:
    """The floats among the results as a function of the arguments that move; beside them, all results."""

    def of(*moved: jax.Array) -> tuple[Arrays, Arrays]:
        args = list(primals)
        for i, x in zip(moving, moved, strict=True):
            args[i] = x
        out = f(*args)
        return [x for x in out if jnp.issubdtype(x.dtype, jnp.inexact)], out

    return of


def _by_jax(f: Callable[..., Arrays], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The derivative of `f` as JAX finds it."""
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
    given = [primals[i] for i in moving], [tangents[i] for i in moving]
    _, moved, out = jax.jvp(_partly(f, primals, moving), *given, has_aux=True)
    return out, _beside(out, moved)


@dataclass(frozen=True, eq=False)
class _Until:
    """What does not vary of a scan that may end before its last turn: a turn and the condition, with the numbers of
    their constants; how many arrays are carried, and how many go turn by turn; and over what its derivative goes.
    """

    turn: Closed
    condition: Closed
    consts: int
    more: int
    carried: int
    turned: int
    over: Over

    def split(self, args: Sequence[jax.Array]) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        """Constants of the turn and of the condition, carry, inputs."""
        first, last = self.consts + self.more, self.consts + self.more + self.carried
        return list(args[: self.consts]), list(args[self.consts : first]), list(args[first:last]), list(args[last:])

    def loop(self, *args: jax.Array) -> Arrays:
        consts, more, carry, xs = self.split(args)
        turns = xs[0].shape[0]
        floats = lambda kept: [as_before(x, like.dtype) for x, like in zip(kept, carry, strict=True)]  # noqa: E731
        one = lambda x, k: lax.dynamic_index_in_dim(x, k, 0, keepdims=False, allow_negative_indices=False)  # noqa: E731

        def running(state: tuple[jax.Array, Arrays]) -> jax.Array:
            k, kept = state
            return (k < turns) & self.condition(more, k, *floats(kept))[0]

        def turn(state: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
            k, kept = state
            return k + 1, [as_bits(x) for x in self.turn(consts, k, *floats(kept), *(one(x, k) for x in xs))]

        _, kept = lax.while_loop(running, turn, (varying(jnp.int32(0)), [as_bits(x) for x in carry]))
        return floats(kept)

    def scan(self, *args: jax.Array) -> Arrays:
        """The same with all turns."""
        consts, more, carry, xs = self.split(args)

        def body(carry: Arrays, turned: Arrays) -> tuple[Arrays, Arrays]:
            k, *x = turned
            take = lambda carry: self.turn(consts, k, *carry, *x)  # noqa: E731
            return lax.cond(self.condition(more, k, *carry)[0], take, lambda carry: carry, carry), []

        return self.over(body, carry, [varying(jnp.arange(xs[0].shape[0], dtype=np.int32)), *xs])[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _until(f: _Until, *args: jax.Array) -> Arrays:
    return f.loop(*args)


@partial(_until.defjvp, symbolic_zeros=True)
def _differentiate_all_turns(f: _Until, primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _by_jax(f.scan, primals, tangents)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _plain(f: _Scan, *args: jax.Array) -> Arrays:
    return f.in_bits(*args)


@partial(_plain.defjvp, symbolic_zeros=True)
def _differentiate_plainly(f: _Scan, primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _by_jax(f, primals, tangents)


def _beside(out: Arrays, moved: Arrays) -> list[Any]:
    """The tangent of each result, where `moved` has those of the floats."""
    rest = iter(moved)
    inexact = (jnp.issubdtype(x.dtype, jnp.inexact) for x in out)
    return [
        next(rest) if ok else SymbolicZero(jax.typeof(x).to_tangent_aval()) for ok, x in zip(inexact, out, strict=True)
    ]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _scan(f: _Scan, *args: jax.Array) -> Arrays:
    return f.in_bits(*args)


@partial(_scan.defjvp, symbolic_zeros=True)
def _differentiate(f: _Scan, primals: Any, tangents: Any) -> tuple[Any, Any]:
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
    gathers = f.turn.gathers
    gathered = {k for k, i in enumerate(moving) if i < len(gathers) and gathers[i]}
    _, derivative, out = jax.linearize(_partly(f, primals, moving), *(primals[i] for i in moving), has_aux=True)
    given = [tangents[i] for i in moving]
    closed = jax.make_jaxpr(derivative)(*given)
    if not _come_first({closed.jaxpr.invars[k] for k in gathered}, closed.jaxpr):
        gathered = set()

    def push(residuals: Arrays, args: Arrays) -> Arrays:
        return eval_jaxpr(closed.jaxpr, residuals, *args)

    def pull(residuals: Arrays, cotangents: Arrays, in_place: bool = True) -> Arrays:
        zeros = [varying(jnp.zeros(t.shape, t.dtype)) for t in given]
        _, back = jax.vjp(partial(eval_jaxpr, closed.jaxpr, residuals), *zeros)
        if not in_place:
            return list(back(cotangents))
        refs = [jax.new_ref(x) if k in gathered else x for k, x in enumerate(zeros)]
        out = back.with_refs(*refs)(cotangents)
        return [r[...] if k in gathered else x for k, (r, x) in enumerate(zip(refs, out, strict=True))]

    maps = Linear(push, pull, partial(pull, in_place=False))
    return out, _beside(out, linear_map(maps, closed.consts, given))


def _come_first(gathered: set[Var], jaxpr: Jaxpr) -> bool:
    """Whether in scans no constant that moves comes before one that gathers: JAX takes them in that order."""
    for e in jaxpr.eqns:
        consts = e.invars[: e.params["num_consts"]] if e.primitive is lax.scan_p else []
        moving = [v in gathered for v in consts if isinstance(v, Var) and v not in jaxpr.constvars]
        if moving != sorted(moving, reverse=True):
            return False
    return True
