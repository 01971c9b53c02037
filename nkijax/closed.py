"""Functions that close over arrays, made into functions of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var


@dataclass(frozen=True, eq=False)
class Closed:
    """A function of (constants, *arguments) that closes over no array; all are arrays, as is each result."""

    jaxpr: Jaxpr

    def __call__(self, consts: Any, *args: Any) -> list[jax.Array]:
        return eval_jaxpr(self.jaxpr, consts, *args)

    @property
    def gathers(self) -> tuple[bool, ...]:
        """Of each constant, whether `jax.vjp(…).with_refs` may gather its cotangent.

        JAX passes the reference on to scans and calls inside, and loses a part if one of them gets it twice.
        """
        return tuple(_is_passed_once(v, self.jaxpr) for v in self.jaxpr.constvars)


def close(f: Callable[..., list[jax.Array]], *like: Any) -> tuple[list[jax.Array], Closed]:
    """The arrays that `f` closes over, and `f` as a function of those and of arguments like these.

    Arrays that it reshapes come reshaped, so that it slices them directly: then their cotangents gather in place.
    """
    closed = jax.make_jaxpr(f)(*like)
    jaxpr, given = closed.jaxpr, dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    kept = []
    for e in jaxpr.eqns:
        if e.primitive is lax.reshape_p and isinstance(e.invars[0], Var) and e.invars[0] in given:
            given[e.outvars[0]] = lax.reshape(given[e.invars[0]], e.params["new_sizes"], e.params["dimensions"])
        else:
            kept.append(e)
    used = {v for vs in (jaxpr.outvars, *(e.invars for e in kept)) for v in vs if isinstance(v, Var)}
    given = {v: x for v, x in given.items() if v in used}
    return list(given.values()), Closed(jaxpr.replace(constvars=list(given), eqns=kept))


# What a reference is passed on to, and how many operands come before those of the function called.
_CALLS = {"jit": 0, "scan": 0, "checkpoint": 0, "cond": 1}


def _is_passed_once(v: Var, jaxpr: Jaxpr) -> bool:
    for e in jaxpr.eqns:
        called = list(_called(e))
        if called and sum(x is v for x in e.invars) > 1:
            return False
        if e.primitive.name in _CALLS:
            operands = e.invars[_CALLS[e.primitive.name] :]
            inner = ((own, j) for j in called for x, own in zip(operands, j.invars, strict=True) if x is v)
            if not all(_is_passed_once(own, j) for own, j in inner):
                return False
    return True


def _called(e: JaxprEqn) -> Iterator[Jaxpr]:
    for p in e.params.values():
        for j in p if isinstance(p, tuple) else (p,):
            if isinstance(j, ClosedJaxpr | Jaxpr):
                yield j.jaxpr if isinstance(j, ClosedJaxpr) else j
