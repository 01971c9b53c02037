"""What is measured: kernels, the same math in plain JAX, and the same tiles in plain NumPy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

from examples.flash_attention import attention
from examples.flash_attention import reference as plain_attention
from examples.matmul_4096 import matmul
from examples.softmax import softmax

P = 128


@dataclass(frozen=True)
class Case:
    """A kernel at one size.  `numpy` does the kernel's tiles one after another; `tolerance` is of the largest value."""

    name: str
    kernel: Any
    inputs: tuple[np.ndarray, ...]
    reference: Callable[..., jax.Array]
    numpy: Callable[..., np.ndarray]
    tolerance: float = 1e-4


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


# ---- the same math in plain JAX


def plain_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return a.T @ b


def plain_softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=-1)


def plain_rmsnorm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


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


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    d, seq = q.shape
    out = np.empty((seq, d), np.float32)
    for r in range(0, seq, P):
        q_tile = q[:, r : r + P] * np.float32(d**-0.5)
        high, total, o = (
            np.full((P, 1), -np.inf, np.float32),
            np.zeros((P, 1), np.float32),
            np.zeros((P, d), np.float32),
        )
        for c in range(0, seq, 512):
            scores = q_tile.T @ k[:, c : c + 512]
            here = np.maximum(high, scores.max(axis=1, keepdims=True))
            e, shrink = np.exp(scores - here), np.exp(high - here)
            high, total = here, total * shrink + e.sum(axis=1, keepdims=True)
            o = o * shrink + e @ v[c : c + 512]
        out[r : r + P] = o / total
    return out


# ---- the cases


def _random(*shapes: tuple[int, ...], dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    return tuple(random.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes)


def cases(quick: bool) -> list[Case]:
    """Every case, at the sizes of the README's tables, or small."""
    sizes: Sequence[int] = (512, 1024) if quick else (1024, 2048, 4096)
    rows = 1024 if quick else 4096
    out = []
    for dtype, label, tolerance in ((np.float32, "fp32", 1e-4), (ml_dtypes.bfloat16, "bf16", 1e-2)):
        for n in sizes:
            inputs = _random((n, n), (n, n), dtype=dtype)
            out.append(Case(f"matmul {n}³ {label}", matmul, inputs, plain_matmul, numpy_matmul, tolerance))
    square = _random((rows, rows))
    out.append(Case(f"softmax {rows}²", softmax, square, plain_softmax, numpy_softmax))
    out.append(Case(f"RMSNorm {rows}²", rmsnorm, _random((rows, rows), (1, rows)), plain_rmsnorm, numpy_rmsnorm))
    qkv = _random((P, rows), (P, rows), (rows, P))
    out.append(Case(f"attention {rows}, d {P}", attention, qkv, plain_attention, numpy_attention))
    return out
