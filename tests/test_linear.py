"""Linear maps that bring their transpose, under every transformation."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from nkijax.linear import Linear, linear_map

A = np.arange(6, dtype=np.float32).reshape(2, 3)
X, CT = np.array([1, -2, 3], np.float32), np.array([5, 7], np.float32)
CALLS: list[str] = []


def push(residuals, args):
    return [residuals[0] @ args[0]]


def pull(residuals, cotangents):
    CALLS.append("pull")
    return [2 * (residuals[0].T @ cotangents[0])]  # twice the transpose: it shows who was asked


def plain(residuals, cotangents):
    CALLS.append("plain")
    return [2 * (residuals[0].T @ cotangents[0])]


def apply(a, x):
    return linear_map(Linear(push, pull, plain), [a], [x])[0]


@pytest.fixture(autouse=True)
def _calls():
    CALLS.clear()


def test_forward():
    np.testing.assert_array_equal(apply(A, X), A @ X)
    np.testing.assert_array_equal(jax.jit(apply)(A, X), A @ X)
    out, moved = jax.jvp(lambda x: apply(A, x), (X,), (2 * X,))
    np.testing.assert_array_equal((out, moved), (A @ X, 2 * A @ X))
    assert not CALLS


def test_a_tangent_of_both():
    _, moved = jax.jvp(apply, (A, X), (3 * A, 2 * X))
    np.testing.assert_array_equal(moved, 5 * A @ X)
    _, moved = jax.jvp(lambda a: apply(a, X), (A,), (A,))
    np.testing.assert_array_equal(moved, A @ X)


def test_transposed_by_pull_and_back_by_push():
    (ct,) = jax.linear_transpose(lambda x: apply(A, x), X)(CT)
    np.testing.assert_array_equal(ct, 2 * A.T @ CT)
    assert CALLS == ["pull"]
    twice = jax.linear_transpose(jax.linear_transpose(lambda x: apply(A, x), X), CT)
    np.testing.assert_array_equal(twice((X,))[0], A @ X)


def test_the_derivative_of_the_transpose_is_that_of_plain():
    back = lambda a, ct: jax.vjp(lambda x: apply(a, x), X)[1](ct)[0]  # noqa: E731
    _, moved = jax.jvp(back, (A, CT), (A, 3 * CT))
    np.testing.assert_array_equal(moved, 8 * A.T @ CT)
    assert "plain" in CALLS


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (2, 0)])
def test_batches(axes):
    a = A if axes[0] is None else np.stack([A, 2 * A], axes[0])
    x = X if axes[1] is None else np.stack([X, -X], axes[1])
    cts = np.stack([CT, CT + 1])
    many = jax.vmap(apply, axes)
    one = lambda v, axis, k: v if axis is None else v.take(k, axis)  # noqa: E731
    pairs = [(one(a, axes[0], k), one(x, axes[1], k)) for k in range(2)]
    np.testing.assert_array_equal(many(a, x), [a @ x for a, x in pairs])
    got = jax.vjp(lambda x: many(a, x), x)[1](cts)[0]
    each = [2 * a.T @ ct for (a, _), ct in zip(pairs, cts, strict=True)]
    np.testing.assert_array_equal(got, np.sum(each, 0) if axes[1] is None else np.stack(each, axes[1]))
