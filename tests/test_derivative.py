"""Silent lanes: what nothing depends on gets and gives no NaN, and everything else is as JAX has it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nkijax
from nkijax.derivative import silent
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl
from tests.kernels import dot, loaded, tile

X = np.array([-1.5, 0.5, 2.0], np.float32)
W = np.array([3.0, -0.25, 7.0], np.float32)
FUNCTIONS = {
    "product": lambda x, w: [x * w, w],
    "quotient": lambda x, w: [x / w],
    "activation": lambda x, w: [jax.nn.gelu(x) * w],
    "dot": lambda x, w: [jnp.outer(x, w) @ jnp.sin(w)],
    "sum": lambda x, w: [x + w, jnp.maximum(x, w)],
    "cumulative": lambda x, w: [lax.associative_scan(jnp.multiply, x), jnp.cumsum(w)],
    "integer": lambda x, w: [(x > 0).astype(np.int32), x * w],
}


def total(f):
    return lambda x, w: sum(jnp.sum(jnp.cos(y)) for y in f(x, w) if y.dtype == np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ordinary_derivatives_are_jaxs(name):
    f = FUNCTIONS[name]
    ours, want = total(lambda *a: silent(f, a)), total(f)
    for of in (
        lambda f: jax.grad(f, (0, 1))(X, W),
        lambda f: jax.jvp(f, (X, W), (W, X)),
        lambda f: jax.grad(lambda w: jax.vmap(f, (0, None))(np.stack([X, 2 * X]), w).sum())(W),
    ):
        np.testing.assert_allclose(jax.jit(of, static_argnums=0)(ours), jax.jit(of, static_argnums=0)(want), rtol=1e-5)


def test_second_derivatives():
    ours, want = (total(f) for f in (lambda *a: silent(FUNCTIONS["activation"], a), FUNCTIONS["activation"]))
    np.testing.assert_allclose(jax.jit(jax.hessian(ours))(X, W), jax.jit(jax.hessian(want))(X, W), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "f, x",
    [
        (lambda x, w: x * w, np.nan),
        (lambda x, w: w / x, np.nan),
        (lambda x, w: jnp.sqrt(x) * w, 0.0),
        (lambda x, w: lax.rsqrt(x) * w, 0.0),
        (lambda x, w: jnp.log(x) * w, 0.0),
        (lambda x, w: jnp.exp(x) * w, np.inf),
        (lambda x, w: w / x, 0.0),
        (lambda x, w: jnp.outer(x[None], w) @ w, np.nan),
    ],
)
def test_a_lane_that_nothing_uses_is_silent(f, x):
    """The last lane's result is dropped; the weight is one for all lanes."""
    lanes = np.array([1.0, 4.0, x], np.float32)

    def loss(call, lanes, w):
        return call(lambda x, w: [jax.vmap(f, (0, None))(x, w)], lanes, w)[0].reshape(3, -1)[:2].sum()

    w = jnp.array([2.0, 3.0])
    got = jax.grad(lambda *a: loss(lambda f, *b: silent(f, b), *a), (0, 1))(lanes, w)
    want = jax.grad(lambda *a: loss(lambda f, *b: f(*b), *a), (0, 1))(lanes[:2].repeat(2)[[0, 2, 2]], w)
    np.testing.assert_allclose(got[0][:2], want[0][:2], rtol=1e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-6)
    assert got[0][2] == 0


def test_a_lane_that_counts_is_nan_if_it_is():
    got = jax.grad(lambda x, w: silent(lambda x, w: [x * w], (x, w))[0].sum(), 1)(
        np.array([np.nan, 1], np.float32), 2.0
    )
    assert np.isnan(got)


def test_a_cotangent_of_zero_has_a_derivative():
    """At the minimum of a square the gradient is zero and its own derivative is not."""
    loss = lambda x: ((silent(lambda x: [x * 3.0], (x,))[0] - 6.0) ** 2).sum()  # noqa: E731
    np.testing.assert_allclose(jax.hessian(loss)(jnp.array([2.0])), [[18.0]])
    np.testing.assert_allclose(jax.grad(loss)(jnp.array([2.0])), [0.0])


# ---- kernels


def stored(t):
    out = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
    return out


def norm_of_a_part(x, w):
    """RMSNorm of the first rows of a tile, whose others nothing wrote."""
    n, f = x.shape
    t, weight, y, square, s = tile((8, f)), tile((8, f)), tile((8, f)), tile((8, f)), tile((8, 1))
    nisa.dma_copy(dst=t[0:n], src=x)
    nisa.dma_copy(dst=weight, src=w.ap([[0, 8], [1, f]]))
    nisa.activation_reduce(dst=square, op=nl.square, data=t, reduce_op=nl.add, reduce_res=s)
    nisa.tensor_scalar(dst=s, data=s, op0=nl.multiply, operand0=1 / f)
    nisa.activation(dst=s, op=nl.rsqrt, data=s)
    nisa.scalar_tensor_tensor(dst=y, data=t, op0=nl.multiply, operand0=s, op1=nl.multiply, operand1=weight)
    return stored(y[0:n])


def matmul_of_a_part(x, w):
    left, right, y = tile((8, 16)), tile((8, 32)), tile((16, 32))
    nisa.dma_copy(dst=left[0 : x.shape[0], 0 : x.shape[1]], src=x)
    nisa.dma_copy(dst=right[:, 0 : w.shape[1]], src=w.ap([[0, 8], [1, w.shape[1]]]))
    nisa.tensor_copy(dst=y[:, 0 : w.shape[1]], src=dot(left[0 : x.shape[0]], right[0 : x.shape[0]])[:, 0 : w.shape[1]])
    return stored(y[0 : x.shape[1], 0 : w.shape[1]])


def masked_logarithm(x, w):
    """log(x) where x > 0, else w."""
    t, y, z, positive = loaded(x), tile(x.shape), tile(x.shape), tile(x.shape, nl.uint32)
    nisa.tensor_scalar(dst=positive, data=t, op0=nl.greater, operand0=0.0)
    nisa.activation(dst=y, op=nl.log, data=t)
    nisa.dma_copy(dst=z, src=w.ap([[0, x.shape[0]], [1, x.shape[1]]]))
    nisa.tensor_copy_predicated(dst=z, src=y, predicate=positive)
    return stored(z)


def softmax_of_a_range(x, w):
    """Row p over its first p + 1 elements: the others are the least float32, and exp of them zero."""
    p = x.shape[0]
    t, bound, zero, y, e = loaded(x), tile((p, 1)), tile((p, 1)), tile(x.shape), tile(x.shape)
    nisa.iota(dst=bound, pattern=[[1, 1]], offset=1, channel_multiplier=1)
    nisa.memset(dst=zero, value=0.0)
    high, total = tile((p, 1)), tile((p, 1))
    nisa.range_select(y, t, nl.greater_equal, nl.less, zero, bound, reduce_res=high)
    nisa.tensor_scalar(dst=high, data=high, op0=nl.multiply, operand0=-1.0)
    nisa.activation_reduce(dst=e, op=nl.exp, data=y, bias=high, reduce_op=nl.add, reduce_res=total)
    nisa.reciprocal(dst=total, data=total)
    nisa.tensor_scalar(dst=e, data=e, op0=nl.multiply, operand0=total)
    return stored(e)


def rows_that_exist(x, w):
    """x[p + 1] · w, and 0 · w for the last row, whose index is outside: the copy leaves it unwritten."""
    n, f = x.shape
    index, t, weight, z = tile((n, 1), nl.int32), tile(x.shape), tile(x.shape), tile(x.shape)
    nisa.iota(dst=index, pattern=[[1, 1]], offset=1, channel_multiplier=1)
    nisa.dma_copy(dst=t, src=x.ap([[f, n], [1, f]], vector_offset=index), oob_mode=nisa.oob_mode.skip)
    nisa.dma_copy(dst=weight, src=w.ap([[0, n], [1, f]]))
    nisa.tensor_tensor(dst=t, data1=t, data2=weight, op=nl.multiply)
    nisa.memset(dst=z, value=0.0)
    nisa.tensor_copy(dst=z[0 : n - 1], src=t[0 : n - 1])
    return stored(z)


ROWS = np.random.default_rng(0).standard_normal((5, 6), dtype=np.float32)
ROWS[ROWS < -1] = 0


@pytest.mark.parametrize(
    "kernel, want",
    [
        (norm_of_a_part, lambda x, w: x * lax.rsqrt((x * x).mean(1, keepdims=True)) * w),
        (matmul_of_a_part, lambda x, w: x.T @ jnp.broadcast_to(w, (5, 6))),
        (masked_logarithm, lambda x, w: jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), w)),
        (softmax_of_a_range, lambda x, w: jax.nn.softmax(jnp.where(jnp.tri(5, 6) > 0, x, -jnp.inf), axis=1)),
        (rows_that_exist, lambda x, w: jnp.concatenate([x[1:] * w, 0 * x[:1]])),
    ],
)
def test_kernels_whose_unused_lanes_are_poison_infinite_or_skipped(kernel, want):
    f, w = nkijax.function(kernel, target="trn2"), W.repeat(2)[None]
    got, expected = (
        jax.jit(jax.value_and_grad(lambda x, w, g=g: jnp.sin(g(x, w)).sum(), (0, 1)))(ROWS, w) for g in (f, want)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
