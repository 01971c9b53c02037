"""What is measured: kernels, the same math in plain JAX, and the same tiles in plain NumPy."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import nkijax

nkijax.install()

import nki
import nki.isa as nisa
import nki.language as nl

from bench import by_hand
from examples.flash_attention import attention
from examples.flash_attention import reference as plain_attention
from examples.matmul_4096 import matmul
from examples.softmax import softmax

P = 128


@dataclass(frozen=True)
class Case:
    """A kernel at one size.  `numpy` does the kernel's tiles one after another; `tolerance` is of the largest value.

    `by_hand` are the same tiles in JAX.  `formula`: the kernel's formula written out, where `reference` takes a
    shortcut on the way back, as `jax.nn.softmax` does: it does not differentiate the maximum.
    """

    name: str
    kernel: Any
    inputs: tuple[np.ndarray, ...]
    reference: Callable[..., jax.Array]
    numpy: Callable[..., np.ndarray]
    tolerance: float = 1e-4
    by_hand: Mapping[str, Callable[..., jax.Array]] = field(default_factory=dict)
    formula: Callable[..., jax.Array] | None = None

    @property
    def floats(self) -> tuple[int, ...]:
        """The inputs that have a gradient."""
        return tuple(i for i, x in enumerate(self.inputs) if jnp.issubdtype(x.dtype, jnp.floating))


# ---- kernels that are no example


@nki.jit
def rmsnorm(src, weight):
    """x / sqrt(mean x² + 1e-6) · weight for each row x of src (rows, columns); weight is (1, columns)."""
    rows, columns = src.shape
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    w = nl.ndarray((P, columns), dtype=weight.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=w, src=weight.ap(pattern=[[0, P], [1, columns]]))
    for r in nl.affine_range(rows // P):
        x = nl.ndarray((P, columns), dtype=src.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=src[r * P : (r + 1) * P, :])
        square = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=square, op=nl.square, data=x, reduce_op=nl.add, reduce_res=total)
        nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=1 / columns, op1=nl.add, operand1=1e-6)
        nisa.activation(dst=total, op=nl.rsqrt, data=total)
        y = nl.ndarray((P, columns), dtype=src.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(dst=y, data=x, op0=nl.multiply, operand0=total, op1=nl.multiply, operand1=w)
        nisa.dma_copy(dst=out[r * P : (r + 1) * P, :], src=y)
    return out


@nki.jit
def paged_attention(q, k, v, table, used):
    """softmax(q.T k / sqrt(d)) v of each sequence: q (sequences, d, 128), keys and values in pages of 128.

    k is (pages, d, 128) and v (pages, 128, d); table (sequences, blocks, 1) has the pages of each sequence, of which
    the first used (sequences, 1) count: a loop whose turns are data.
    """
    sequences, d, p = q.shape
    out = nl.ndarray((sequences, p, d), dtype=q.dtype, buffer=nl.shared_hbm)

    def tile(shape, buffer=nl.sbuf):
        return nl.ndarray(shape, dtype=nl.float32, buffer=buffer)

    for s in nl.affine_range(sequences):
        rows, high, total, o = tile((d, p)), tile((p, 1)), tile((p, 1)), tile((p, d))
        nisa.dma_copy(dst=rows, src=q[s])
        nisa.tensor_scalar(dst=rows, data=rows, op0=nl.multiply, operand0=1 / math.sqrt(d))
        nisa.memset(dst=high, value=-1e30)
        nisa.memset(dst=total, value=0.0)
        nisa.memset(dst=o, value=0.0)
        turns, page = nisa.register_alloc(), nisa.register_alloc()
        nisa.register_load(turns, used[s])

        def one_page(i, s=s, rows=rows, high=high, total=total, o=o, page=page):
            nisa.register_load(page, table[s].select(0, i))
            keys, values = tile((d, p)), tile((p, d))
            nisa.dma_copy(dst=keys, src=k.ap(pattern=[[p, d], [1, p]], scalar_offset=page, indirect_dim=0))
            nisa.dma_copy(dst=values, src=v.ap(pattern=[[d, p], [1, d]], scalar_offset=page, indirect_dim=0))
            scores = tile((p, p), nl.psum)
            nisa.nc_matmul(dst=scores, stationary=rows, moving=keys)
            here, low, shrink, e, mass = tile((p, 1)), tile((p, 1)), tile((p, 1)), tile((p, p)), tile((p, 1))
            nisa.tensor_reduce(dst=here, op=nl.maximum, data=scores, axis=1)
            nisa.tensor_tensor(dst=here, data1=here, data2=high, op=nl.maximum)
            nisa.tensor_scalar(dst=low, data=here, op0=nl.multiply, operand0=-1.0)
            nisa.activation(dst=shrink, op=nl.exp, data=high, bias=low)  # exp(old maximum - new)
            nisa.tensor_copy(dst=high, src=here)
            nisa.activation_reduce(dst=e, op=nl.exp, data=scores, bias=low, reduce_op=nl.add, reduce_res=mass)
            nisa.scalar_tensor_tensor(
                dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=mass
            )
            turned, e_t, part = tile((p, p), nl.psum), tile((p, p)), tile((p, d), nl.psum)
            nisa.nc_transpose(dst=turned, data=e)
            nisa.tensor_copy(dst=e_t, src=turned)
            nisa.nc_matmul(dst=part, stationary=e_t, moving=values)
            nisa.scalar_tensor_tensor(dst=o, data=o, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=part)

        nl.fori_loop(0, turns, one_page)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=o, data=o, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[s], src=o)
    return out


@nki.jit
def tiny(src):
    """exp of one tile: what is left of a call is its overhead."""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=src)
    nisa.activation(dst=x, op=nl.exp, data=x)
    nisa.dma_copy(dst=out, src=x)
    return out


@nki.jit
def many_tiles(src):
    """exp of src (N, 128, F), a tile after another in a plain loop."""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    for i in range(src.shape[0]):
        x = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=src[i])
        nisa.activation(dst=x, op=nl.exp, data=x)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=1.0)
        nisa.dma_copy(dst=out[i], src=x)
    return out


@nki.jit
def scattered(src, n):
    """n instructions in which nothing repeats: on random columns of eight tiles like src (128, F)."""
    random, columns = Random(n), src.shape[1]
    tiles = [nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf) for _ in range(8)]
    for t in tiles:
        nisa.dma_copy(dst=t, src=src)
    for _ in range(n):
        width = random.randint(1, columns // 2)
        x, y, z = (random.choice(tiles)[:, k : k + width] for k in random.choices(range(columns // 2), k=3))
        if random.random() < 0.5:
            nisa.tensor_tensor(dst=x, data1=y, data2=z, op=random.choice([nl.add, nl.multiply, nl.maximum]))
        else:
            nisa.activation(dst=x, data=y, op=nl.tanh)
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tiles[0])
    return out


@nki.jit
def deep(a, b, turns):
    """turns³ times a.T @ b, summed: three nested plain loops of one matmul."""
    left, right = (nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.sbuf) for t in (a, b))
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    psum = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for _ in range(turns):
        for _ in range(turns):
            for _ in range(turns):
                nisa.nc_matmul(dst=psum, stationary=left, moving=right)
    out = nl.ndarray(psum.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(psum.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=total, src=psum)
    nisa.dma_copy(dst=out, src=total)
    return out


# ---- the same math in plain JAX


def plain_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return a.T @ b


def plain_softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=-1)


def written_softmax(x: jax.Array) -> jax.Array:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def plain_rmsnorm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def plain_paged(
    q: jax.Array, k: jax.Array, v: jax.Array, table: jax.Array, used: jax.Array, softmax: Callable = plain_softmax
) -> jax.Array:
    sequences, d, _ = q.shape
    keys, values = k[table[:, :, 0]], v[table[:, :, 0]]  # (sequences, blocks, d, 128), (sequences, blocks, 128, d)
    scores = jnp.einsum("sdq,sbdt->sqbt", q, keys).reshape(sequences, P, -1) / math.sqrt(d)
    inside = jnp.arange(scores.shape[2])[None, None] < P * used[:, :, None]
    return softmax(jnp.where(inside, scores, -jnp.inf)) @ values.reshape(sequences, -1, d)


# ---- the same tiles in plain NumPy


def numpy_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (k_size, m_size), n_size = a.shape, b.shape[1]
    out = np.empty((m_size, n_size), a.dtype)
    a, b = a.astype(np.float32), b.astype(np.float32)
    for m in range(0, m_size, 128):
        for n in range(0, n_size, 512):
            total = np.zeros((128, 512), np.float32)
            for k in range(0, k_size, 128):
                total += a[k : k + 128, m : m + 128].T @ b[k : k + 128, n : n + 512]
            out[m : m + 128, n : n + 512] = total
    return out


def numpy_softmax(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for r in range(0, len(x), P):
        tile = x[r : r + P]
        e = np.exp(tile - tile.max(axis=1, keepdims=True))
        out[r : r + P] = e * (1 / e.sum(axis=1, keepdims=True))
    return out


def numpy_rmsnorm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for r in range(0, len(x), P):
        tile = x[r : r + P]
        out[r : r + P] = tile / np.sqrt((tile * tile).mean(axis=1, keepdims=True) + np.float32(1e-6)) * weight
    return out


def _online(rows: np.ndarray, blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Rows (P, d) of scaled queries against blocks of keys (d, n) and values (n, d)."""
    high, total, o = (np.full((P, n), x, np.float32) for n, x in ((1, -np.inf), (1, 0), (rows.shape[1], 0)))
    for keys, values in blocks:
        scores = rows @ keys
        here = np.maximum(high, scores.max(axis=1, keepdims=True))
        e, shrink = np.exp(scores - here), np.exp(high - here)
        high, total = here, total * shrink + e.sum(axis=1, keepdims=True)
        o = o * shrink + e @ values
    return o / total


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    d, seq = q.shape
    blocks = [(k[:, c : c + 512], v[c : c + 512]) for c in range(0, seq, 512)]
    rows = q.T * np.float32(d**-0.5)
    return np.concatenate([_online(rows[r : r + P], blocks) for r in range(0, seq, P)])


def numpy_paged(q: np.ndarray, k: np.ndarray, v: np.ndarray, table: np.ndarray, used: np.ndarray) -> np.ndarray:
    scale = np.float32(q.shape[1] ** -0.5)
    every = zip(q, table[:, :, 0], used[:, 0], strict=True)
    return np.stack([_online(x.T * scale, [(k[i], v[i]) for i in pages[:n]]) for x, pages, n in every])


# ---- the cases


def _random(*shapes: tuple[int, ...], dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    return tuple(random.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes)


def paged_inputs(sequences: int, blocks: int, d: int = P) -> tuple[np.ndarray, ...]:
    """Sequences of half to all of `blocks` pages, which lie anywhere in a cache."""
    random = np.random.default_rng(1)
    pages = sequences * blocks
    q, k, v = _random((sequences, d, P), (pages, d, P), (pages, P, d))
    table = random.permutation(pages).astype(np.int32).reshape(sequences, blocks, 1)
    used = random.integers(blocks // 2, blocks, (sequences, 1), np.int32, endpoint=True)
    return q, k, v, table, used


def attention_case(seq: int, d: int = P) -> Case:
    tiles = {"scan": by_hand.attention_scan, "vmap": by_hand.attention_vmap}
    inputs = _random((d, seq), (d, seq), (seq, d))
    return Case(f"attention {seq}, d {d}", attention, inputs, plain_attention, numpy_attention, by_hand=tiles)


def paged_case(sequences: int, blocks: int) -> Case:
    tiles = {"scan": by_hand.paged_scan, "vmap": by_hand.paged_vmap}
    name, inputs = f"paged attention, {sequences} x {blocks} pages", paged_inputs(sequences, blocks)
    formula = partial(plain_paged, softmax=written_softmax)
    return Case(name, paged_attention, inputs, plain_paged, numpy_paged, by_hand=tiles, formula=formula)


def matmul_case(n: int, dtype: Any = np.float32, label: str = "fp32", tolerance: float = 1e-4) -> Case:
    inputs = _random((n, n), (n, n), dtype=dtype)
    return Case(f"matmul {n}³ {label}", matmul, inputs, plain_matmul, numpy_matmul, tolerance)


def softmax_case(rows: int) -> Case:
    inputs = _random((rows, rows))
    return Case(f"softmax {rows}²", softmax, inputs, plain_softmax, numpy_softmax, formula=written_softmax)


def cases(quick: bool) -> list[Case]:
    """Every case, at the sizes of the README's tables, or small."""
    rows = 512 if quick else 4096
    out = [matmul_case(n) for n in ((512,) if quick else (1024, 2048, 4096))]
    out.append(matmul_case(512 if quick else 2048, ml_dtypes.bfloat16, "bf16", 1e-2))
    out.append(softmax_case(rows))
    weight = (rows, rows), (1, rows)
    out.append(Case(f"RMSNorm {rows}²", rmsnorm, _random(*weight), plain_rmsnorm, numpy_rmsnorm))
    out.append(attention_case(rows))
    out.append(paged_case(2, 4) if quick else paged_case(8, 32))
    return out
