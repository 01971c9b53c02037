"""Lowering of whole kernels; random programs are in `test_programs`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
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
