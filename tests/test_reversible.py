"""Loops of a trip count that is data: both modes of differentiation, at every way that slots can fill."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from nkijax import reversible
from nkijax.reversible import fori_loop, while_loop
from nkijax.update import updated

X, W = np.linspace(0.1, 1, 5, dtype=np.float32), np.float32(0.7)
TRIPS = (0, 1, 2, 3, 4, 9, 10, 31)  # of 3 slots: none, some, all; two levels; strides of more than 3


@pytest.fixture
def few_slots(monkeypatch):
    monkeypatch.setattr(reversible, "SLOTS", 3)
    monkeypatch.setattr(reversible, "MIN_SLOTS", 3)


def counting(x, w, n):
    """Reads constants, its own number and its carry."""
    return fori_loop(
        n, lambda k, c: [jnp.sin(c[0] * w + 0.1 * k.astype(np.float32)) + x, c[1] + 1], [2 * x, jnp.int32(0)]
    )[0].sum()


def conditional(x, w, n):
    """Its condition is a number that it carries."""
    running = lambda k, c: c[1] < n  # noqa: E731
    return while_loop(
        running, lambda k, c: [jnp.sin(c[0] * w + 0.1 * k.astype(np.float32)) + x, c[1] + 1], [2 * x, jnp.int32(0)]
    )[0].sum()


def plain(x, w, n):
    c = 2 * x
    for k in range(int(n)):
        c = jnp.sin(c * w + 0.1 * k) + x
    return c.sum()


def nested(x, w, n):
    """The inner trip count differs from turn to turn, and both loops use constants of both levels."""

    def turn(k, c):
        a, i = c
        left = [a * x, 1 + k % 3]
        inner = while_loop(lambda _, c: c[1] > 0, lambda _, c: [jnp.cos(c[0] * w) + a, c[1] - 1], left)
        return [inner[0], i + 1]

    return fori_loop(n, turn, [x, jnp.int32(0)])[0].sum()


def plain_nested(x, w, n):
    a = x
    for k in range(int(n)):
        b = a * x
        for _ in range(1 + k % 3):
            b = jnp.cos(b * w) + a
        a = b
    return a.sum()


def same(got, want):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=3e-4, atol=1e-5)


@pytest.mark.parametrize("ours, want", [(counting, plain), (conditional, plain), (nested, plain_nested)])
def test_values_and_gradients(few_slots, ours, want):
    once = jax.jit(jax.value_and_grad(ours, (0, 1)))
    for n in TRIPS:
        same(once(X, W, np.int32(n)), jax.value_and_grad(want, (0, 1))(X, W, n))


def test_forward_mode_and_linearize():
    f, g = (lambda x, w: counting(x, w, jnp.int32(5))), (lambda x, w: plain(x, w, 5))
    same(jax.jvp(f, (X, W), (W * X, W)), jax.jvp(g, (X, W), (W * X, W)))
    same(jax.linearize(f, X, W)[1](X, W), jax.linearize(g, X, W)[1](X, W))


def test_reverse_over_forward_mode(few_slots):
    """Forward over reverse is `jax.hessian`, which the test of kernels has."""
    n = np.int32(4)
    along = lambda f, n: jax.grad(lambda x, w: jax.jvp(lambda x: f(x, w, n), (x,), (x,))[1], 1)  # noqa: E731
    same(jax.jit(along(counting, n))(X, W), jax.jit(along(plain, 4))(X, W))


def test_reverse_over_reverse_mode(few_slots):
    twice = lambda f, n: jax.grad(lambda w: (jax.grad(f, 1)(X, w, n) ** 2).sum())  # noqa: E731
    same(jax.jit(twice(counting, np.int32(3)))(W), jax.jit(twice(plain, 3))(W))


def test_checkpoint():
    same(jax.jit(jax.grad(jax.checkpoint(counting)))(X, W, np.int32(5)), jax.grad(plain)(X, W, 5))


def test_examples_of_a_batch_have_trip_counts_of_their_own(few_slots):
    ours, want = counting, plain
    xs, ns = np.stack([X, X + 1, 2 * X]), np.array([1, 7, 4], np.int32)
    many = lambda xs, w: jax.vmap(ours, (0, None, 0))(xs, w, ns).sum()  # noqa: E731
    each = [jax.value_and_grad(want, (0, 1))(x, W, n) for x, n in zip(xs, ns, strict=True)]
    value, (by_x, by_w) = jax.jit(jax.value_and_grad(many, (0, 1)))(xs, W)
    same(value, sum(v for v, _ in each))
    same(by_x, np.stack([g for _, (g, _) in each]))
    same(by_w, sum(g for _, (_, g) in each))
    same(jax.jit(jax.vmap(jax.grad(ours), (0, None, 0)))(xs, W, ns), by_x)


def test_inside_scan():
    def net(f, x):
        return lax.scan(lambda c, n: (c + jnp.sin(f(c, W, n)), None), x, jnp.array([2, 0, 3], np.int32))[0].sum()

    def layers(x):
        for n in (2, 0, 3):
            x = x + jnp.sin(plain(x, W, n))
        return x.sum()

    same(jax.jit(jax.grad(lambda x: net(counting, x)))(X), jax.grad(layers)(X))


def test_what_no_turn_looks_at_takes_no_slot(monkeypatch):
    """A big array that turns write is no part of the states that are kept, and its gradient is right."""
    kept = []
    monkeypatch.setattr(reversible, "_slots", lambda carry: kept.append([x.shape for x in carry]) or 3)
    x = np.random.default_rng(0).standard_normal((10, 4), dtype=np.float32)

    def loss(x, trips):
        def turn(k, c):
            row = jnp.sin(lax.dynamic_slice(x, (k, jnp.int32(0)), (1, 4)) + c[1])
            return [lax.dynamic_update_slice(c[0], row, (k, jnp.int32(0))), row]

        return (fori_loop(trips, turn, [x, x[:1]], unseen={0})[0] ** 2).sum()

    def plain(x, row):
        total = 0
        for k in range(8):
            row = jnp.sin(x[k : k + 1] + row)
            total += (row**2).sum()
        return total + (x[8:] ** 2).sum()

    want = jax.jit(jax.grad(lambda x: plain(x, x[:1])))(x)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x, jnp.int32(8)), want, rtol=1e-4, atol=1e-5)
    assert kept and all(shapes == [(1, 4)] for shapes in kept)


def test_constants_gather_their_cotangents_in_place(monkeypatch):
    """A turn that reads one row costs one row on the way back: no array of the constant's size is added to."""
    n, f = 64, 256

    def loss(x, trips):
        turn = lambda k, c: [jnp.sin(c[0] + lax.dynamic_slice(x.reshape(n * 2, f // 2), (2 * k, 0), (2, f // 2)))]  # noqa: E731
        return fori_loop(trips, turn, [jnp.zeros((2, f // 2))])[0].sum()

    text = jax.jit(jax.grad(loss)).lower(jnp.ones((n, f)), jnp.int32(n)).compile().as_text()
    whole = [line for line in text.splitlines() if f"= f32[{2 * n},{f // 2}]" in line or f"= f32[{n},{f}]" in line]
    assert whole and not any(" add(" in line or " copy(" in line for line in whole)


def test_narrow_floats_are_updated_in_place():
    """XLA on a CPU would copy all of them in each turn."""

    def put(k, carry):
        whole, row = carry
        return [updated(lambda old, x, k: lax.dynamic_update_slice(old, x, (k, 0)), whole, row + 1, k), row + 1]

    given = jnp.zeros((32, 96), jnp.bfloat16), jnp.zeros((1, 96), jnp.bfloat16)
    compiled = jax.jit(lambda n, *carry: fori_loop(n, put, carry)[0]).lower(jnp.int32(3), *given).compile()
    assert compiled(jnp.int32(3), *given)[:5, 0].tolist() == [1, 2, 3, 0, 0]
    if jax.default_backend() == "cpu":
        inner = [part for part in compiled.as_text().split("\n\n") if part.startswith("%")]
        assert any("u16[32,96]" in part for part in inner) and not any("bf16[32,96]" in part for part in inner)
    slope = jax.grad(lambda row: fori_loop(3, put, [given[0], row])[0].astype(jnp.float32).sum())(given[1])
    assert (slope == 3).all()


def test_larger_states_get_fewer_slots():
    sizes = [reversible._slots([jax.ShapeDtypeStruct((1 << k,), np.float32)]) for k in (10, 20, 21, 30)]
    assert sizes == [64, 64, 32, 8]


def test_a_constant_that_a_scan_inside_gets_twice():
    """JAX would gather the cotangent of one of them only."""
    table = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)

    def turn(k, carry):
        return [lax.scan(lambda c, x: (c * x[0] + x[1], None), carry[0], (table_, table_))[0]]

    def loss(table, loop):
        nonlocal table_
        table_ = table
        return loop(turn)[0].sum()

    table_ = None
    plain = jax.grad(loss)(table, lambda turn: turn(1, turn(0, [jnp.ones(2)])))
    np.testing.assert_allclose(jax.grad(loss)(table, lambda turn: fori_loop(2, turn, [jnp.ones(2)])), plain, rtol=1e-6)


def test_a_constant_that_a_scan_inside_looks_up_beside_another():
    """JAX would take the cotangent of one for that of the other."""
    table, rows = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2), jnp.array([2, 0, 2])

    def loss(table, loop):
        def turn(k, carry):
            scaled = table * carry[0][None]
            step = lambda c, row: (c * scaled[row] + lax.dynamic_index_in_dim(table, row, keepdims=False), None)  # noqa: E731
            return [lax.scan(step, carry[0], rows)[0]]

        return loop(turn)[0].sum()

    plain = jax.grad(loss)(table, lambda turn: turn(1, turn(0, [jnp.ones(2)])))
    np.testing.assert_allclose(jax.grad(loss)(table, lambda turn: fori_loop(2, turn, [jnp.ones(2)])), plain, rtol=1e-6)
