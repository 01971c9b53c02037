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

        JAX passes the reference on to what the function calls.  It loses a part where a call gets it twice, and a scan
        takes it for another operand's.
        """
        return tuple(_may_gather(v, self.jaxpr) for v in self.jaxpr.constvars)


def close(f: Callable[..., list[jax.Array]], *like: Any) -> tuple[list[jax.Array], Closed]:
    """The arrays that `f` closes over, and `f` as a function of those and of arguments like these.

    Arrays that it reshapes come reshaped, so that it slices them directly: then their cotangents gather in place.
    Those of which that is so come first.
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
    jaxpr = jaxpr.replace(constvars=[v for v in given if v in used], eqns=kept)
    order = sorted(jaxpr.constvars, key=lambda v: not _may_gather(v, jaxpr))
    return [given[v] for v in order], Closed(jaxpr.replace(constvars=order))


_CALLS = {"jit": 0, "checkpoint": 0, "cond": 1}  # what may get a reference, and how many operands are not the callee's


def _may_gather(v: Var, jaxpr: Jaxpr) -> bool:
    for e in jaxpr.eqns:
        called, given = list(_called(e)), sum(x is v for x in e.invars)
        if called and given and (given > 1 or e.primitive.name not in _CALLS):
            return False
        for j in called if given else ():
            operands = e.invars[_CALLS[e.primitive.name] :]
            if not all(_may_gather(own, j) for x, own in zip(operands, j.invars, strict=True) if x is v):
                return False
    return True


def _called(e: JaxprEqn) -> Iterator[Jaxpr]:
    for p in e.params.values():
        for j in p if isinstance(p, tuple) else (p,):
            if isinstance(j, ClosedJaxpr | Jaxpr):
                yield j.jaxpr if isinstance(j, ClosedJaxpr) else j
