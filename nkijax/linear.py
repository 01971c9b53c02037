"""A linear map that brings its own transpose.

JAX transposes what it can take apart, and a loop whose trip count is data it cannot.  `linear_map` is one operation to
JAX: it is evaluated by `push` and transposed by `pull`, and both compose with jit, vmap, scan and further derivatives.
(`jax.custom_derivatives.linear_call` has neither a batching rule nor a derivative in its residuals.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Map = Callable[[list[jax.Array], list[jax.Array]], list[jax.Array]]


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear map and its transpose, as functions of (residuals, arguments).

    Both must be closed: what they need comes as residuals.  `push` may be differentiated and batched.  Of `pull`,
    `plain` is a form for which that holds too, where it does not hold for `pull` itself.  `outputs`: for each result
    of `push`, which argument has its shape and dtype; None if that is to be found out.
    """

    push: Map
    pull: Map
    plain: Map
    outputs: tuple[int, ...] | None = None


def linear_map(linear: Linear, residuals: Sequence[jax.Array], arguments: Sequence[jax.Array]) -> list[jax.Array]:
    """`linear.push(residuals, arguments)`, transposed by `linear.pull(residuals, cotangents)`."""
    types = None if linear.outputs is None else _types([arguments[i] for i in linear.outputs])
    call = _Call(linear.push, linear.push, linear, len(residuals), types)
    return linear_map_p.bind(*residuals, *arguments, call=call)


@dataclass(frozen=True, eq=False)
class _Call:
    """A map as it is executed, as it is differentiated, the pair that it is half of, and what it returns if known."""

    fast: Map
    plain: Map
    linear: Linear
    residuals: int
    types: tuple[ShapedArray, ...] | None

    def run(self, *args: Any) -> list[jax.Array]:
        return self.fast(list(args[: self.residuals]), list(args[self.residuals :]))

    def differentiable(self, *args: Any) -> list[jax.Array]:
        return self.plain(list(args[: self.residuals]), list(args[self.residuals :]))

    def transpose(self, arguments: Sequence[Any]) -> _Call:
        linear = self.linear
        forward = self.plain is linear.push
        fast, plain = (linear.pull, linear.plain) if forward else (linear.push, linear.push)
        return replace(self, fast=fast, plain=plain, types=_types(arguments))


def _types(like: Sequence[Any]) -> tuple[ShapedArray, ...] | None:
    """Types of results, which need not be traced for them; inside `jax.shard_map` they depend on the residuals too."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return None if manual else tuple(ShapedArray(x.shape, x.dtype) for x in like)


def _evaluate(*args: Any, call: _Call) -> list[jax.Array]:
    return jax.jit(call.run)(*args)


def _abstract(*types: Any, call: _Call) -> Any:
    return jax.make_jaxpr(call.differentiable)(*types).out_avals if call.types is None else call.types


def _lower(*args: Any, call: _Call) -> list[jax.Array]:
    return call.run(*args)


def _differentiate(primals: Sequence[Any], tangents: Sequence[Any], *, call: _Call) -> tuple[Any, Any]:
    """d(L(r) x) = L(r) dx + (dL(r)/dr dr) x."""
    n, out = call.residuals, linear_map_p.bind(*primals, call=call)
    moved = None
    if any(type(t) is not ad.Zero for t in tangents[n:]):
        arguments = [ad.instantiate_zeros(t) for t in tangents[n:]]
        moved = linear_map_p.bind(*primals[:n], *arguments, call=call)
    if all(type(t) is ad.Zero for t in tangents[:n]):
        return out, moved
    of_residuals = lambda *residuals: call.differentiable(*residuals, *primals[n:])  # noqa: E731
    given = tuple(_tangent(x, t) for x, t in zip(primals[:n], tangents[:n], strict=True))
    changed = jax.jvp(of_residuals, tuple(primals[:n]), given)[1]
    return out, changed if moved is None else [a + b for a, b in zip(moved, changed, strict=True)]


def _tangent(x: Any, t: Any) -> Any:
    """A tangent as an array, of integers too."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return ad.instantiate_zeros(t)
    return np.zeros(np.shape(x), jax.dtypes.float0)


def _transpose(cotangents: Sequence[Any], *args: Any, call: _Call) -> list[Any]:
    n = call.residuals
    given = [ad.instantiate_zeros(ct) for ct in cotangents]
    transposed = call.transpose([x.aval for x in args[n:]])
    return [None] * n + linear_map_p.bind(*args[:n], *given, call=transposed)


def _batch(args: Sequence[Any], dims: Sequence[int | None], *, call: _Call) -> tuple[list[jax.Array], list[int]]:
    n = call.residuals
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    arguments = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args[n:], dims[n:], strict=True)
    ]
    axes = (list(dims[:n]), 0)
    push, plain = (jax.vmap(f, in_axes=axes) for f in (call.linear.push, call.linear.plain))
    linear = Linear(push, plain, plain, call.linear.outputs)
    f = push if call.plain is call.linear.push else plain
    out = linear_map_p.bind(*args[:n], *arguments, call=_Call(f, f, linear, n, None))
    return out, [0] * len(out)


linear_map_p = Primitive("linear_map")
linear_map_p.multiple_results = True
linear_map_p.def_impl(_evaluate)
linear_map_p.def_abstract_eval(_abstract)
mlir.register_lowering(linear_map_p, mlir.lower_fun(_lower, multiple_results=True))
ad.primitive_jvps[linear_map_p] = _differentiate
ad.primitive_transposes[linear_map_p] = _transpose
batching.primitive_batchers[linear_map_p] = _batch
