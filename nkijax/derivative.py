"""Derivatives in which a lane that nothing depends on stays silent.

A kernel computes on whole tiles, of which it may use a part: the rest holds poison, or what a mask or a skipped index
leaves out.  JAX multiplies the cotangent of such a lane, zero, by a derivative that is NaN or infinite there, and the
NaN reaches whatever else the lane was computed with: a weight, a scale, an operand of a matmul.  Here zero times
anything is zero.  What a lane that counts is NaN for, its cotangent still is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import eval_jaxpr
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from nkijax.linear import Linear, linear_map
from nkijax.products import of_matrices

Function = Callable[..., list[jax.Array]]


def silent(f: Function, args: Sequence[jax.Array]) -> list[jax.Array]:
    """`f(*args)`, a list of arrays, with such a derivative."""
    closed, n = jax.make_jaxpr(f)(*args), len(args)
    jaxpr = of_matrices(closed.jaxpr)
    return _call(lambda *given: eval_jaxpr(jaxpr, given[n:], *given[:n]), *args, *closed.consts)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _call(f: Function, *args: jax.Array) -> list[jax.Array]:
    return f(*args)


@partial(_call.defjvp, symbolic_zeros=True)
def _differentiate(f: Function, primals: Any, tangents: Any) -> tuple[Any, Any]:
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

    def partly(*moved: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        args = list(primals)
        for i, x in zip(moving, moved, strict=True):
            args[i] = x
        out = f(*args)
        return [x for x in out if jnp.issubdtype(x.dtype, jnp.inexact)], out

    _, derivative, out = jax.linearize(partly, *(primals[i] for i in moving), has_aux=True)
    moved = iter(_tangents(derivative, [tangents[i] for i in moving]))
    inexact = (jnp.issubdtype(x.dtype, jnp.inexact) for x in out)
    return out, [
        next(moved) if ok else SymbolicZero(jax.typeof(x).to_tangent_aval()) for ok, x in zip(inexact, out, strict=True)
    ]


def _tangents(derivative: Function, tangents: list[jax.Array]) -> list[jax.Array]:
    closed = jax.make_jaxpr(derivative)(*tangents)
    if not _multiplies(closed.jaxpr):
        return derivative(*tangents)
    jaxpr = closed.jaxpr
    like = [jax.typeof(x) for x in tangents]

    def push(residuals: list[jax.Array], args: list[jax.Array]) -> list[jax.Array]:
        return _evaluate(jaxpr, residuals, args)

    def pull(residuals: list[jax.Array], cotangents: list[jax.Array]) -> list[jax.Array]:
        linear = lambda *args: eval_jaxpr(jaxpr, residuals, *args)  # noqa: E731
        back = jax.make_jaxpr(jax.linear_transpose(linear, *like))(cotangents)
        return _evaluate(back.jaxpr, back.consts, cotangents)

    return linear_map(Linear(push, pull, pull), closed.consts, tangents)


_PRODUCTS = (lax.mul_p, lax.div_p, lax.dot_general_p)


def _inner(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """What a call executes once, on its own operands."""
    return eqn.params["jaxpr"] if eqn.primitive.name == "jit" else None


def _multiplies(jaxpr: Jaxpr) -> bool:
    return any(
        e.primitive in _PRODUCTS or (inner := _inner(e)) is not None and _multiplies(inner.jaxpr) for e in jaxpr.eqns
    )


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[jax.Array]:
    """A linear function of `args`, with products in which zero times anything is zero."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= zip(jaxpr.invars, args, strict=True)
    linear = set(jaxpr.invars)
    return _walk(jaxpr, known, linear)


def _walk(jaxpr: Jaxpr, known: dict[Any, Any], linear: set[Any]) -> list[jax.Array]:
    read = lambda v: v.val if isinstance(v, Literal) else known[v]  # noqa: E731
    for e in jaxpr.eqns:
        operands = [read(v) for v in e.invars]
        moves = [not isinstance(v, Literal) and v in linear for v in e.invars]
        inner = _inner(e)
        if inner is not None:
            own = dict(zip(inner.jaxpr.constvars, inner.consts, strict=True))
            own |= zip(inner.jaxpr.invars, operands, strict=True)
            moving = {v for v, m in zip(inner.jaxpr.invars, moves, strict=True) if m}
            results = _walk(inner.jaxpr, own, moving)
        else:
            results = _product(e, operands, moves) if e.primitive in _PRODUCTS and any(moves) else _bind(e, operands)
        known |= zip(e.outvars, results, strict=True)
        linear |= set(e.outvars) if any(moves) else set()
    return [read(v) for v in jaxpr.outvars]


def _bind(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[jax.Array]:
    params = eqn.primitive.get_bind_params(eqn.params)
    out = eqn.primitive.bind(*operands, **params)
    return out if eqn.primitive.multiple_results else [out]


def _product(eqn: JaxprEqn, operands: Sequence[Any], moves: Sequence[bool]) -> Sequence[jax.Array]:
    k = moves.index(True)
    if eqn.primitive is lax.dot_general_p:
        fixed = operands[1 - k]
        operands = list(operands)
        operands[1 - k] = jnp.where(jnp.isfinite(fixed), fixed, jnp.zeros_like(fixed))
        return _bind(eqn, operands)
    (out,) = _bind(eqn, operands)
    return [jnp.where(operands[k] == 0, jnp.zeros_like(out), out)]
