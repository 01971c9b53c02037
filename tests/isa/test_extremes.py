"""Reductions to an extreme, against JAX's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.extremes import extreme


@pytest.mark.parametrize("plain", [jnp.max, jnp.min])
def test_equal_extremes_share_their_cotangent(plain):
    x = np.float32([[1, 3, 3, -2], [-2, -2, 5, -2], [0, np.inf, 1, np.inf]])
    ours = extreme(plain)
    weights = np.float32([1, 2, 3])
    got, want = (jax.grad(lambda x, f=f: (f(x) * weights).sum())(x) for f in (ours, lambda x: plain(x, axis=-1)))
    np.testing.assert_array_equal(got, want)
    tangent = np.arange(12, dtype=np.float32).reshape(3, 4)
    pairs = (jax.jvp(f, (x,), (tangent,)) for f in (ours, lambda x: plain(x, axis=-1)))
    np.testing.assert_allclose(*pairs, rtol=1e-6)
    np.testing.assert_array_equal(ours(np.int32([[3, 4, 3]])), plain(np.int32([[3, 4, 3]]), axis=-1))
