"""Lowering of whole kernels; random programs are in `test_programs`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl
from nkijax.program import Repeat
from tests.kernels import chains


def chained(x, c):
    tiles = jnp.split(c, c.shape[0] // 16)
    rows = []
    for i in range(len(tiles)):
        t = x[:, 16 * i : 16 * i + 16]
        for tile in tiles[: i + 1]:
            t = t * tile[None] + tile[None]
        rows.append(t)
    return jnp.concatenate(rows, axis=1)


@pytest.mark.parametrize("loops", ["auto", "scan"])
def test_ragged_repeats_and_their_gradients(loops):
    rng = np.random.default_rng(0)
    x, c = (rng.normal(size=s).astype(np.float32) for s in ((3, 96, 8), (96, 8)))
    f = nkijax.function(chains, loops=loops)
    assert any(n.counts is not None for n in repeats(nkijax.trace(chains, x, c).body))
    np.testing.assert_allclose(f(x, c), chained(x, c), rtol=1e-4, atol=1e-6)
    got = jax.grad(lambda x, c: (f(x, c) ** 2).sum(), (0, 1))(x, c)
    want = jax.grad(lambda x, c: (chained(x, c) ** 2).sum(), (0, 1))(x, c)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


def repeats(nodes):
    for node in nodes:
        if isinstance(node, Repeat):
            yield node
            yield from repeats(node.body)


@nki.jit
def powers(a, b, turns):
    """`turns` times a.T @: a (n, n), b (n, m)."""
    out = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.shared_hbm)
    left, x = (nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.sbuf) for t in (a, b))
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=x, src=b)

    def turn(i):
        product = nl.ndarray(b.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=left, moving=x)
        nisa.tensor_copy(dst=x, src=product)

    nl.fori_loop(0, turns, turn)
    nisa.dma_copy(dst=out, src=x)
    return out


def test_a_loop_transposes_once_what_it_keeps():
    a, b = (np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((32, 32), (32, 16)))
    f = jax.jit(nkijax.function(powers, turns=3))
    np.testing.assert_allclose(f(a, b), np.linalg.matrix_power(a.T, 3) @ b, rtol=1e-3)
    text = f.lower(a, b).compile().as_text()
    assert text and "lhs_contracting_dims={1}" in text  # XLA would make it part of the product


@nki.jit
def squares(c, turns):
    """x = x + c[k]^2 for the tiles k of c (4, n, m), `turns` times, from zero."""
    out = nl.ndarray(c.shape[1:], dtype=c.dtype, buffer=nl.shared_hbm)
    tiles = [nl.ndarray(c.shape[1:], dtype=c.dtype, buffer=nl.sbuf) for _ in range(c.shape[0])]
    for k, t in enumerate(tiles):
        nisa.dma_copy(dst=t, src=c[k])
    x = nl.ndarray(c.shape[1:], dtype=c.dtype, buffer=nl.sbuf)
    nisa.memset(dst=x, value=0.0)
    n = nisa.register_alloc()
    nisa.register_load(n, turns)

    def turn(i):
        for t in tiles:
            square = nl.ndarray(t.shape, dtype=c.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=square, data1=t, data2=t, op=nl.multiply)
            nisa.tensor_tensor(dst=x, data1=x, data2=square, op=nl.add)

    nl.fori_loop(0, n, turn)
    nisa.dma_copy(dst=out, src=x)
    return out


def test_what_a_turn_reads_twice_goes_through_the_scan_once():
    c, n = np.random.default_rng(0).normal(size=(4, 8, 8)).astype(np.float32), np.full((1, 1), 3, np.int32)
    f = nkijax.function(squares, loops="scan")
    np.testing.assert_allclose(f(c, n), 3 * (c**2).sum(0), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda c: f(c, n).sum())(c), 6 * c, rtol=1e-5)
    scans = [e for e in every(jax.make_jaxpr(f)(c, n).jaxpr) if e.primitive.name == "scan" and e.params["num_carry"]]
    assert [sum(v.aval.shape == c.shape for v in e.invars) for e in scans] == [1]


def every(jaxpr):
    """The equations of a jaxpr, and of those in it."""
    for e in jaxpr.eqns:
        yield e
        for p in e.params.values():
            inner = getattr(p, "jaxpr", p)
            yield from every(inner) if hasattr(inner, "eqns") else ()


@pytest.mark.parametrize("loops", ["scan", "vmap", "auto"])
def test_a_scan_hands_out_the_last_turn_of_what_is_private_inside(loops):
    """Products that each turn of an inner repeat overwrites, of which the outer one, a scan, gives the last."""

    def kernel(x):
        out, last = (nl.ndarray(shape, nl.float32, nl.shared_hbm) for shape in ((3, 4, 4), (4, 4)))
        chained = nl.zeros((4, 4), nl.float32)
        products = [nl.ndarray((4, 4), nl.float32, nl.psum) for _ in range(3)]
        for i in range(3):
            for j in range(2):
                t = nl.ndarray((8, 4), nl.float32)
                nisa.dma_copy(t, x[2 * i + j])
                nisa.nc_matmul(products[i], t, t, accumulate=False)
            nisa.tensor_scalar(chained, chained, nl.multiply, 0.5, op1=nl.add, operand1=1.0)
        for i in range(3):
            nisa.dma_copy(out[i], nl.copy(products[i]))
        nisa.dma_copy(last, chained)
        return out, last

    x = np.random.default_rng(0).random((6, 8, 4), np.float32)
    got, last = nkijax.run(kernel, x, loops=loops)
    np.testing.assert_allclose(got, np.einsum("ikm,ikn->imn", x[1::2], x[1::2]), rtol=1e-5)
    assert (last == 1.75).all()


def test_gradients_of_parts_of_a_constant_that_a_dynamic_loop_slices():
    """They gather in a reference; JAX (0.10.2) cannot transpose a slice without strides into one."""

    def kernel(x, n):
        out, total = nl.ndarray((4, 3), nl.float32, nl.shared_hbm), nl.zeros((4, 3), nl.float32)
        count = nisa.register_alloc()
        nisa.register_load(count, nl.load(n))

        def body(_):
            nisa.tensor_tensor(total, total, nl.load(x[2:6, 1:4]), nl.add)
            nisa.tensor_tensor(total, total, nl.load(x[0:4, 0:3]), nl.multiply)

        nl.fori_loop(0, count, body)
        nl.store(out, total)
        return out

    def plain(x):
        total = jnp.zeros((4, 3))
        for _ in range(3):
            total = (total + x[2:6, 1:4]) * x[0:4, 0:3]
        return total

    x, n = np.random.default_rng(0).random((6, 5), np.float32), np.array([[3]], np.int32)
    got = jax.jit(jax.grad(lambda x: nkijax.function(kernel)(x, n).sum()))(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: plain(x).sum())(x), rtol=1e-5)
