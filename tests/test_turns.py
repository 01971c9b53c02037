"""Dynamic loops of kernels: gradients in every form, and what goes with them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
from examples import dynamic_loops
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl
from tests import kernels

RANDOM = np.random.default_rng(0)


def rand(*shape):
    return jnp.asarray(RANDOM.standard_normal(shape, dtype=np.float32))


def column(*values, dtype=np.int32):
    return jnp.asarray(np.array(values, dtype).reshape(-1, 1))


def close(got, want):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.isfinite(g).all()
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:nki.language.dynamic_range is deprecated:DeprecationWarning")
@pytest.mark.parametrize("mode", range(len(dynamic_loops.FORMS)), ids=dynamic_loops.FORMS)
def test_the_loop_of_the_example_in_every_form(mode):
    x, weight = rand(4, 128 * 2), rand(4, 128 * 2)
    f = nkijax.function(dynamic_loops.exp_tiles, target="trn1", mode=mode)
    close(jax.jit(jax.grad(lambda x, n: (weight * f(x, n)).sum()))(x, column(4)), weight * 2 * jnp.exp(x))


def test_ragged_attention_with_register_bounds():
    keys, lengths = 16, np.array([5, 40, 16, 20])
    tiles = -(-lengths // keys)
    first = np.cumsum([0, *tiles[:-1]])
    q, k, v, weight = rand(4, 8, 4), rand(9, 8, keys), rand(9, keys, 8), rand(3, 4, 8)

    def plain(q, k, v):
        out = []
        for b in range(3):
            mine, n = slice(first[b], first[b] + tiles[b]), lengths[b]
            own = k[mine].transpose(1, 0, 2).reshape(8, -1)[:, :n]
            out.append(jax.nn.softmax(q[b].T @ own, axis=-1) @ v[mine].reshape(-1, 8)[:n])
        return jnp.stack(out)

    f = nkijax.function(kernels.ragged_attention, target="trn2")
    data = (column(3), column(*first), column(*tiles), column(*lengths, dtype=np.float32))
    ours = lambda *a: (f(*a, *data)[:3] * weight).sum()  # noqa: E731
    want = lambda *a: (plain(*a) * weight).sum()  # noqa: E731
    close(jax.jit(jax.value_and_grad(ours, (0, 1, 2)))(q, k, v), jax.jit(jax.value_and_grad(want, (0, 1, 2)))(q, k, v))


PAGES = RANDOM.integers(-1, 64, (4, 16, 1)).astype(np.int32)


def paged(q, k, v, n):
    rows = PAGES[:n].reshape(-1)
    scores = jnp.where(rows[None] >= 0, q.T @ k[rows].T, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ v[rows]


def test_flash_attention_over_pages_whose_number_is_data():
    q, k, v, weight = rand(8, 4), rand(64, 8), rand(64, 8), rand(4, 8)
    f = nkijax.function(kernels.paged_attention, target="trn2")
    ours = jax.jit(jax.value_and_grad(lambda q, k, v, n: (f(q, k, v, PAGES, n) * weight).sum(), (0, 1, 2)))
    for n in (1, 3):
        close(
            ours(q, k, v, column(n)),
            jax.jit(jax.value_and_grad(lambda *a, n=n: (paged(*a, n) * weight).sum(), (0, 1, 2)))(q, k, v),
        )


def test_a_batch_whose_examples_have_trip_counts_and_rows_of_their_own():
    x, rows = rand(3, 6, 4), np.array([[5, 0, 2], [1, 1, 0], [3, 0, 3]], np.int32)[:, :, None]
    turns = rows[:, -1]
    used = np.arange(3)[None, :, None] < turns[:, None]
    many = jax.vmap(nkijax.function(kernels.pick_rows))
    ours = lambda x: jnp.where(used, jnp.sin(many(x, rows)), 0).sum()  # noqa: E731
    want = lambda x: jnp.where(used, jnp.sin(jnp.take_along_axis(x, rows, 1)), 0).sum()  # noqa: E731
    close(jax.jit(jax.value_and_grad(ours))(x), jax.value_and_grad(want)(x))


@nki.jit
def power(x, w, turns):
    """x ← x · w · x, `turns` (1, 1) times, in place in the HBM tensor; returns nothing."""
    left, more = kernels.loaded(turns), nisa.register_alloc()
    nisa.register_load(more, left)
    weight = kernels.loaded(w)

    def turn(more):
        t = kernels.loaded(x)
        nisa.scalar_tensor_tensor(dst=t, data=t, op0=nl.multiply, operand0=weight, op1=nl.multiply, operand1=t)
        nisa.dma_copy(dst=x, src=t)
        nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
        nisa.register_load(more, left)
        return more

    nl.while_loop(more, turn)


def plain_power(x, w, n):
    for _ in range(n):
        x = x * w * x
    return x


XW = rand(4, 3), rand(4, 1)


def test_arguments_written_in_place_and_integers():
    f = nkijax.function(power)
    close(f(*XW, column(3)), plain_power(*XW, 3))
    out, back = jax.vjp(lambda *a: f(*a), *XW, column(3))
    *got, none = back(jnp.ones_like(out))
    close(tuple(got), jax.grad(lambda *a: plain_power(*a, 3).sum(), (0, 1))(*XW))
    assert none.dtype == jax.dtypes.float0 and none.shape == (1, 1)


@pytest.mark.parametrize(
    "of",
    [
        lambda f: jax.jvp(f, XW, XW[::1]),
        lambda f: jax.linearize(f, *XW)[1](*XW),
        lambda f: jax.jit(jax.grad(jax.checkpoint(lambda *a: jnp.sin(f(*a)).sum()), (0, 1)))(*XW),
        lambda f: jax.jit(jax.hessian(lambda x: jnp.sin(f(x, XW[1])).sum()))(XW[0]),
        lambda f: jax.jit(jax.grad(lambda x, w: jax.lax.scan(lambda c, w: (f(c, w), None), x, w)[0].sum(), (0, 1)))(
            XW[0], jnp.stack([XW[1], 2 * XW[1]])
        ),
    ],
    ids=["jvp", "linearize", "checkpoint", "hessian", "scan over layers"],
)
def test_transformations(of):
    f = nkijax.function(power)
    close(of(lambda x, w: f(x, w, column(3))), of(lambda x, w: plain_power(x, w, 3)))


def test_a_bound_gives_the_same_gradient():
    f, bounded = nkijax.function(power), nkijax.function(power, max_trips=4)
    close(*(jax.jit(jax.grad(lambda *a, g=g: g(*a, column(3)).sum(), (0, 1)))(*XW) for g in (f, bounded)))


def test_text_is_printed_once_a_turn_on_the_way_there(capfd):
    def kernel(x, turns):
        out, n = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm), nisa.register_alloc()
        nisa.register_load(n, turns)
        t = kernels.loaded(x)

        def turn(i):
            nl.device_print("x", t)
            nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.multiply)

        nl.fori_loop(0, n, turn)
        nisa.dma_copy(dst=out, src=t)
        return out

    f = nkijax.function(kernel)
    close(f(XW[0], column(2)), XW[0] ** 4)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("x") == 2
    close(jax.grad(lambda x: f(x, column(2)).sum())(XW[0]), 4 * XW[0] ** 3)
