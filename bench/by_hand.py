"""The same tiles written by hand: in JAX, and in Pallas, to be interpreted."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

P, BLOCK = 128, 512  # queries, or rows, and keys, or columns, of a tile

Online = tuple[jax.Array, jax.Array, jax.Array]
"""A row's largest score so far, its sum of exponentials, and its unnormalised output: (P, 1), (P, 1), (P, d)."""


# ---- attention


def _start(d: int) -> Online:
    return jnp.full((P, 1), -1e30), jnp.zeros((P, 1)), jnp.zeros((P, d))


def _step(rows: jax.Array, so_far: Online, keys: jax.Array, values: jax.Array) -> Online:
    """One block of keys (d, n) and values (n, d) for rows (P, d) of queries."""
    high, total, o = so_far
    scores = rows @ keys
    here = jnp.maximum(high, scores.max(1, keepdims=True))
    e, shrink = jnp.exp(scores - here), jnp.exp(high - here)
    return here, total * shrink + e.sum(1, keepdims=True), o * shrink + e @ values


def _attention(over: Callable, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    d, seq = q.shape
    keys, values = k.reshape(d, -1, BLOCK).transpose(1, 0, 2), v.reshape(-1, BLOCK, d)

    def tile(rows: jax.Array) -> jax.Array:
        (_, total, o), _ = lax.scan(lambda c, kv: (_step(rows, c, *kv), None), _start(d), (keys, values))
        return o / total

    return over(tile)(q.T.reshape(-1, P, d) / math.sqrt(d)).reshape(seq, d)


def scanned(tile: Callable) -> Callable:
    return functools.partial(lax.map, tile)


def attention_scan(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """softmax(q.T k / sqrt(d)) v for q, k (d, seq) and v (seq, d): a scan over query tiles, in it one over blocks."""
    return _attention(scanned, q, k, v)


def attention_vmap(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same with all query tiles at once."""
    return _attention(jax.vmap, q, k, v)


def _paged(over: Callable, q: jax.Array, k: jax.Array, v: jax.Array, table: jax.Array, used: jax.Array) -> jax.Array:
    d = q.shape[1]

    def sequence(of: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        q, pages, turns = of
        rows = q.T / math.sqrt(d)
        step = lambda i, so_far: _step(rows, so_far, k[pages[i, 0]], v[pages[i, 0]])  # noqa: E731
        _, total, o = lax.fori_loop(0, turns[0], step, _start(d))
        return o / total

    return over(sequence)((q, table, used))


def paged_scan(q: jax.Array, k: jax.Array, v: jax.Array, table: jax.Array, used: jax.Array) -> jax.Array:
    """`bench.kernels.paged_attention`, one sequence after another, each over its own number of pages."""
    return _paged(scanned, q, k, v, table, used)


def paged_vmap(q: jax.Array, k: jax.Array, v: jax.Array, table: jax.Array, used: jax.Array) -> jax.Array:
    """The same with all sequences at once, as many turns as the longest has."""
    return _paged(jax.vmap, q, k, v, table, used)


# ---- Pallas


def _matmul_tile(a, b, out):
    @pl.when(pl.program_id(2) == 0)
    def _():
        out[...] = jnp.zeros_like(out)

    out[...] += jnp.dot(a[...].T, b[...], precision=lax.Precision.HIGHEST)


def pallas_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """a.T @ b in the tiles of examples/matmul_4096.py: [128, 128] by [128, 512]."""
    (k, m), n = a.shape, b.shape[1]
    return pl.pallas_call(
        _matmul_tile,
        out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(m // P, n // BLOCK, k // P),
        in_specs=[pl.BlockSpec((P, P), lambda i, j, k: (k, i)), pl.BlockSpec((P, BLOCK), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((P, BLOCK), lambda i, j, k: (i, j)),
        interpret=True,
    )(a, b)


def _softmax_tile(x, out):
    e = jnp.exp(x[...] - x[...].max(1, keepdims=True))
    out[...] = e / e.sum(1, keepdims=True)


def pallas_softmax(x: jax.Array) -> jax.Array:
    """Row softmax in the tiles of examples/softmax.py: 128 whole rows."""
    rows = pl.BlockSpec((P, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        _softmax_tile,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // P,),
        in_specs=[rows],
        out_specs=rows,
        interpret=True,
    )(x)
