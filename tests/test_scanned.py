"""Scans whose cotangents gather in place: `lax.scan`'s values and derivatives, without its sums of whole constants."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from nkijax import scanned
from nkijax.update import updated

TABLE = np.linspace(-1, 1, 35, dtype=np.float32).reshape(7, 5)
FIRST, STEPS = np.ones(5, np.float32), np.arange(12, dtype=np.float32).reshape(4, 3) / 12
ROWS = np.array([3, 0, 3, 6], np.int32)


def chain(scan, table, first, steps):
    """Rows of the table, one after another, as they are looked up; a count is carried too."""

    def body(carry, xs):
        (x, n), (row, step) = carry, xs
        x = jnp.sin(x * lax.dynamic_index_in_dim(table.reshape(7, 5), row, keepdims=False)) + step.sum()
        return [x, n + 1], [x[:2] * step[0], n]

    (x, n), (y, counts) = scan(body, [first, jnp.int32(0)], [jnp.asarray(ROWS), steps])
    return x, n, y, counts


def loss(scan, *args):
    x, _, y, counts = chain(scan, *args)
    return (x**2).sum() + (y * counts[:, None].astype(np.float32)).sum()


def alike(f, *args):
    got, want = (jax.jit(partial(f, scan))(*args) for scan in (scanned.scan, lax.scan))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by", [(0, 1, 2), (0,), (2,)])
def test_reverse_mode(by):
    alike(chain, TABLE, FIRST, STEPS)
    alike(lambda scan, *a: jax.grad(partial(loss, scan), by)(*a), TABLE, FIRST, STEPS)


def test_other_transformations():
    every = (TABLE, FIRST, STEPS)
    alike(lambda scan, *a: jax.jvp(partial(chain, scan), a, tuple(2 * x for x in a))[0], *every)
    alike(lambda scan, *a: jax.hessian(partial(loss, scan))(*a), *every)
    alike(lambda scan, *a: jax.jvp(jax.grad(partial(loss, scan)), a, a)[1], *every)
    alike(lambda scan, *a: jax.grad(jax.checkpoint(partial(loss, scan)))(*a), *every)
    tables = np.stack([TABLE, 2 * TABLE])
    alike(lambda scan, t: jax.vmap(jax.grad(partial(loss, scan)), (0, None, None))(t, FIRST, STEPS), tables)
    alike(lambda scan, t: jax.grad(lambda t: jax.vmap(lambda f: loss(scan, t, f, STEPS))(tables[:, 0]).sum())(t), TABLE)


def two_tables(scan, whole, table):
    """A product with all rows of one table, in a scan of its own, and then with one row of another."""

    def body(carry, xs):
        every = lax.scan(lambda x, row: (x * row + xs[1], None), carry[0], whole)[0]
        return [every * lax.dynamic_index_in_dim(table, xs[0], keepdims=False) + carry[0]], []

    return scan(body, [FIRST], [jnp.asarray(ROWS), STEPS[:, :1]])[0][0].sum()


def test_of_two_tables_one_gathers():
    """Passed on together, JAX would take one for the other."""
    alike(lambda scan, *a: jax.grad(partial(two_tables, scan), (0, 1))(*a), TABLE, 2 * TABLE)


def test_no_turn_adds_a_whole_constant():
    grads = (jax.jit(jax.grad(partial(loss, scan))).lower(TABLE, FIRST, STEPS) for scan in (scanned.scan, lax.scan))
    own, plain = (len(re.findall(r"stablehlo.add .*tensor<7x5xf32>", g.as_text())) for g in grads)
    assert plain == 1 and own == 0


# ---- narrow floats


def written(scan, whole, row):
    """Rows put into a matrix of narrow floats, each the sine of the one before."""

    def body(carry, k):
        (whole, row, n), (k,) = carry, k
        row = jnp.sin(row * 1.5).astype(row.dtype)
        return [updated(lambda old, x, k: lax.dynamic_update_slice(old, x, (k, 0)), whole, row, k), row, n + 1], [
            row[0]
        ]

    (whole, row, n), (rows,) = scan(body, [whole, row, jnp.int32(0)], [jnp.asarray(ROWS)])
    return whole, row, rows, n


def weighed(scan, whole, row):
    whole, row, rows, _ = written(scan, whole, row)
    return sum((jnp.float32(x) ** 2).sum() for x in (whole, row, rows))


@pytest.mark.parametrize("ours", [scanned.scan, scanned.plain])
def test_a_carry_of_narrow_floats(monkeypatch, ours):
    monkeypatch.setattr(scanned, "WORTH_BYTES", 0)
    given = jnp.asarray(TABLE, jnp.bfloat16), jnp.full((1, 5), 0.5, jnp.bfloat16)

    def same(f):
        got, want = (jax.tree.leaves(jax.jit(partial(f, scan))(*given)) for scan in (ours, lax.scan))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(np.float32(g), np.float32(w))

    same(written)
    same(lambda scan, *a: jax.grad(partial(weighed, scan), (0, 1))(*a))
    if jax.default_backend() == "cpu":  # XLA would copy all of them in each turn
        text = jax.jit(partial(written, ours)).lower(*given).compile().as_text()
        inner = [part for part in text.split("\n\n") if part.startswith("%")]
        assert any("u16[7,5]" in part for part in inner) and not any("bf16[7,5]" in part for part in inner)


def test_a_small_carry_is_left_to_jax(monkeypatch):
    monkeypatch.setattr(scanned, "_closed", None)
    assert written(scanned.plain, jnp.zeros((7, 5), jnp.bfloat16), jnp.ones((1, 5), jnp.bfloat16))[3] == len(ROWS)


def some_turns(table, first, steps, count):
    """As `chain`, but as long as turns are left and x[0] is small; or by a loop over the turns that there are."""
    rows = jnp.asarray(ROWS)

    def turn(k, carry, xs):
        (x, n), (row, step) = carry, xs
        return [jnp.sin(x * lax.dynamic_index_in_dim(table, row, keepdims=False)) + step.sum() + x, n + 1]

    running = lambda k, carry: (k < count) & (carry[0][0] < 2)  # noqa: E731
    return scanned.until(scanned.scan, running, turn, [first, jnp.int32(0)], [rows, steps])


def by_turns(table, first, steps, n):
    x = first
    for k in range(n):
        x = jnp.sin(x * table[ROWS[k]]) + steps[k].sum() + x
    return x


@pytest.mark.parametrize("count, start, turns", [(0, 1.0, 0), (2, 1.0, 2), (4, 1.0, 3), (4, 9.0, 0), (9, -9.0, 4)])
def test_a_scan_that_ends_early(count, start, turns):
    first, count = FIRST * np.float32(start), jnp.int32(count)
    x, n = jax.jit(some_turns)(TABLE, first, STEPS, count)
    assert n == turns
    np.testing.assert_allclose(x, by_turns(TABLE, first, STEPS, turns), rtol=1e-6)
    loss = lambda f, last: lambda *a: (f(*a, last)[0] if f is some_turns else f(*a, last)).sum()  # noqa: E731
    got, want = (
        jax.jit(jax.grad(loss(f, last), (0, 1, 2)))(TABLE, first, STEPS)
        for f, last in ((some_turns, count), (by_turns, turns))
    )
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_a_scan_that_ends_early_takes_no_more_turns_and_copies_nothing():
    """As a conditional in a scan, each turn copied the whole array."""
    turn = lambda k, carry, xs: [lax.dynamic_update_slice(carry[0], jnp.sin(xs[0])[None], (k, 0))]  # noqa: E731

    def run(x, xs, n):
        return scanned.until(scanned.plain, lambda k, carry: k < n, turn, [x], [xs])

    args = jnp.ones((64, 128)), jnp.ones((64, 128)), jnp.int32(5)
    text = jax.jit(run, donate_argnums=0).lower(*args).compile().as_text() or ""
    assert "conditional(" not in text and not re.search(r"= f32\[64,128\]\S* copy\(", text)
    both = jax.vmap(run, (0, None, 0))(jnp.ones((2, 64, 128)), args[1], jnp.array([1, 70], np.int32))[0]
    assert [int((x == 1).all(1).sum()) for x in both] == [63, 0]
