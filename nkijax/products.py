"""Products of many tiles as one product of matrices.

Batched over tiles, a product of two tiles has several free dimensions: (tiles, K, M) and (tiles, K, N).  XLA would copy
both operands into an order of its own.  As matrices (K, tiles · M) and (K, tiles · N) they are what the tiles were cut
from, and the transposes cancel: of a matmul that is tiled in all dimensions, nothing is left but the matmul.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Var

TILE = 128  # partitions: a longer contraction is one over several tiles, each a dimension of the array it came from


def of_matrices(jaxpr: Jaxpr) -> Jaxpr:
    """The same function, its products without batch dimensions taken as those of matrices."""
    return jaxpr.replace(eqns=[new for e in jaxpr.eqns for new in (_taken(e) if _is_of_tiles(e) else (e,))])


def _taken(e: JaxprEqn) -> Sequence[JaxprEqn]:
    inner = jax.make_jaxpr(partial(_product, **e.params))(*(v.aval for v in e.invars)).jaxpr
    known: dict[Any, Any] = {**dict(zip(inner.invars, e.invars, strict=True)), inner.outvars[0]: e.outvars[0]}
    seen = lambda vs: [known.get(v, v) if isinstance(v, Var) else v for v in vs]  # noqa: E731
    return [new.replace(invars=seen(new.invars), outvars=seen(new.outvars)) for new in inner.eqns]


def _is_of_tiles(e: JaxprEqn) -> bool:
    """Whether both operands are of many tiles: with one tile there is but one operand to copy, and that is cheaper."""
    if e.primitive is not lax.dot_general_p:
        return False
    (contracted, _), (batch, _) = e.params["dimension_numbers"]
    return not batch and len(contracted) == 1 and all(v.aval.ndim > 2 for v in e.invars)  # type: ignore[attr-defined]


def _product(x: jax.Array, y: jax.Array, dimension_numbers: Any, **params: Any) -> jax.Array:
    ((k,), (j,)), _ = dimension_numbers
    x, left = _matrix(x, k)
    y, right = _matrix(y, j)
    return lax.dot_general_p.bind(x, y, dimension_numbers=(((0,), (0,)), ((), ())), **params).reshape(*left, *right)


def _matrix(x: jax.Array, k: int) -> tuple[jax.Array, tuple[int, ...]]:
    """(K, everything else), and the sizes of everything else."""
    n, free = x.shape[k], (*x.shape[:k], *x.shape[k + 1 :])
    parts = (n // TILE, TILE) if n % TILE == 0 else (n,)
    x = x.reshape(*x.shape[:k], *parts, *x.shape[k + 1 :])
    first = range(k, k + len(parts))
    return x.transpose(*first, *(d for d in range(x.ndim) if d not in first)).reshape(n, math.prod(free)), free
