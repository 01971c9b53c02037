"""Causal flash attention in the old dialect: the gradient of the forward kernel is the backward kernel's, and JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl

S, D, T = 384, 32, 128  # sequence, head, tile
TILES = S // T
HIDDEN = -9984.0
SCALE = D**-0.5


def scores_of(q, k, i, j):
    """The scores [T queries, T keys] of tiles i and j, without those of keys that come after their query."""
    p, f = nl.arange(T)[:, None], nl.arange(T)[None, :]
    scores = nisa.nc_matmul(q, k)
    return nisa.affine_select(pred=(i * T + p >= j * T + f), on_true_tile=scores, on_false_value=HIDDEN)


def by_rows(x, i):
    """Rows of tile i: [T, D]."""
    return nl.load(x[nl.ds(i * T, T), :])


def by_columns(x, i):
    """The same, transposed: [D, T]."""
    return nl.load_transpose2d(x[nl.ds(i * T, T), :])


@jit
def forward(q, k, v):
    """Attention of [S, D] arrays with an online softmax; the output, and the log of each query's sum, [S, 1]."""
    out = nl.ndarray((S, D), dtype=q.dtype, buffer=nl.shared_hbm)
    logs = nl.ndarray((S, 1), dtype=q.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(TILES):
        query = nl.multiply(by_columns(q, i), SCALE)
        top = nl.full((T, 1), HIDDEN, dtype=nl.float32)
        total, acc = nl.zeros((T, 1), dtype=nl.float32), nl.zeros((T, D), dtype=nl.float32)
        for j in nl.sequential_range(TILES):
            if j <= i:
                scores = scores_of(query, by_columns(k, j), i, j)
                above = nl.maximum(top, nl.max(scores, axis=1, keepdims=True))
                shrink = nl.exp(top - above)
                weights = nisa.activation(nl.exp, scores, bias=nl.negative(above))
                total[...] = total * shrink + nl.sum(weights, axis=1, keepdims=True)
                acc[...] = acc * shrink + nisa.nc_matmul(nl.copy(nisa.nc_transpose(weights)), by_rows(v, j))
                top[...] = above
        nl.store(out[nl.ds(i * T, T), :], acc / total)
        nl.store(logs[nl.ds(i * T, T), :], top + nl.log(total))
    return out, logs


@jit
def backward(q, k, v, out, logs, dout):
    """The gradients of q, k and v, from the weights computed again."""
    dq, dk, dv = (nl.zeros((S, D), dtype=q.dtype, buffer=nl.shared_hbm) for _ in range(3))
    sums = nl.zeros((TILES, nl.par_dim(T), D), dtype=nl.float32)
    for j in nl.affine_range(TILES):
        key_sum, value_sum = (nl.zeros((T, D), dtype=nl.float32, buffer=nl.psum) for _ in range(2))
        for i in nl.affine_range(j, TILES):
            d = by_rows(dout, i)
            scores = scores_of(nl.multiply(by_columns(q, i), SCALE), by_columns(k, j), i, j)
            weights = nisa.activation(nl.exp, scores, bias=nl.negative(by_rows(logs, i)))
            value_sum += nisa.nc_matmul(weights, d)
            share = nl.sum(d * by_rows(out, i), axis=1, keepdims=True)
            moved = nisa.nc_matmul(by_columns(dout, i), by_columns(v, j))
            slope = nl.multiply((moved - share) * weights, SCALE)
            key_sum += nisa.nc_matmul(slope, by_rows(q, i))
            sums[i] += nisa.nc_matmul(nl.copy(nisa.nc_transpose(slope)), by_rows(k, j))
        nl.store(dk[nl.ds(j * T, T), :], key_sum)
        nl.store(dv[nl.ds(j * T, T), :], value_sum)
    for i in nl.affine_range(TILES):
        nl.store(dq[nl.ds(i * T, T), :], sums[i])
    return dq, dk, dv


def plain(q, k, v):
    scores = jnp.matmul(q, k.T, precision="highest") * SCALE
    scores = jnp.where(np.tril(np.ones((S, S), bool)), scores, -np.inf)
    return jnp.matmul(jax.nn.softmax(scores, axis=-1), v, precision="highest")


@pytest.fixture(scope="module")
def arrays():
    r = np.random.default_rng(3)
    return [jnp.asarray(r.standard_normal((S, D)), np.float32) for _ in range(4)]


@pytest.fixture(scope="module")
def gradients(arrays):
    *qkv, dout = arrays
    return jax.grad(lambda *x: (plain(*x) * dout).sum(), (0, 1, 2))(*qkv)


def close(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-4, rtol=1e-4)


def test_forward_is_attention(arrays):
    out, _ = forward(*arrays[:3])
    close([out], [plain(*arrays[:3])])


def test_gradient_of_the_forward_kernel_is_jaxs(arrays, gradients):
    *qkv, dout = arrays
    f = nkijax.function(forward)
    close(jax.grad(lambda *x: (f(*x)[0] * dout).sum(), (0, 1, 2))(*qkv), gradients)


def test_backward_kernel_gives_the_same(arrays, gradients):
    *qkv, dout = arrays
    close(backward(*qkv, *forward(*qkv), dout), gradients)
