"""Leading axes of arrays in a batched walk."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import access, dtypes
from nkijax.environment import Place, contract, spread
from nkijax.program import Repeat
from tests import SHIPPED

A, B, C = Repeat(2, ()), Repeat(3, ()), Repeat(4, ())


def test_spread_broadcasts_and_orders():
    x = jnp.arange(12.0).reshape(3, 4)
    out = spread(x, (B,), (A, B))
    assert out.shape == (2, 3, 4)
    np.testing.assert_array_equal(out, np.broadcast_to(x, (2, 3, 4)))
    y = jnp.arange(24.0).reshape(3, 2, 4)
    np.testing.assert_array_equal(spread(y, (B, A), (A, B)), np.swapaxes(y, 0, 1))
    assert spread(x, (B,), (B,)) is x


def test_a_value_may_not_lose_an_axis():
    with pytest.raises(AssertionError, match="may not lose an axis"):
        spread(jnp.ones((2, 3)), (A,), (B,))


def test_contract_makes_turns_partitions():
    x = jnp.arange(2 * 3 * 5 * 7.0).reshape(2, 3, 5, 7)
    out, axes = contract(x, (A, B), (B,))
    assert axes == (A,) and out.shape == (2, 15, 7)
    np.testing.assert_array_equal(out, np.asarray(x).reshape(2, 15, 7))
    out, axes = contract(x[0, 0], (), (C,))  # an operand that is the same in every turn counts in every one
    np.testing.assert_array_equal(out, np.tile(x[0, 0], (4, 1)))


def test_places_order_axes_by_nesting():
    place = Place(batch=(A, B, C))
    assert place.ordered([(C,), (A,)]) == (A, C)


def transposed_in_place(x, g):
    """Turns four blocks of a tile around through PSUM, into the tile itself, and multiplies them with it."""
    n = x.shape[0]
    tile = nl.zeros((128, 512), x.dtype)
    nisa.dma_copy(tile[0:n], x)
    scale = nl.ndarray((128, 4), nl.float32)
    nisa.dma_copy(scale, g)
    turned = nl.ndarray((128, 512), x.dtype, nl.psum)
    for k in range(4):
        nisa.nc_transpose(turned[:, nl.ds(128 * k, n)], tile[0:n, nl.ds(128 * k, 128)])
    for k in range(4):
        nisa.tensor_scalar(tile[:, nl.ds(128 * k, n)], turned[:, nl.ds(128 * k, n)], nl.multiply, scale[:, k : k + 1])
    total = nl.ndarray((n, 512), nl.float32, nl.psum)
    for k in range(4):
        nisa.nc_matmul(total, tile[:, nl.ds(128 * k, n)], tile)
    out = nl.ndarray((n, 512), nl.float32, nl.shared_hbm)
    nisa.dma_copy(out, nl.copy(total))
    return out


@pytest.mark.parametrize("loops", ["scan", "vmap"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_storage_is_not_updated_while_its_old_elements_are_needed(dtype, loops):
    """XLA on a CPU would (openxla/xla#49176); nki-library's QKV and MLP kernels transpose tiles in place."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 512)).astype(dtypes.storage(dtype))
    g = rng.normal(size=(128, 4)).astype(np.float32)
    want = nkijax.run(transposed_in_place, x, g, eager=True)
    options = SHIPPED if jax.default_backend() == "cpu" else None
    run = jax.jit(nkijax.function(transposed_in_place, loops=loops), compiler_options=options)
    np.testing.assert_allclose(run(x, g), want, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("windows, apart", [(([1, 3], [1, 100]), True), (([100, 3], [1, 100]), False)])
def test_updates_are_kept_apart_from_reads_that_reshape(monkeypatch, windows, apart):
    """XLA on a CPU would update the rows of (128, 600) while it reads them flat, by a gather: too late for some."""
    seen = []
    write = access.write

    def spy(array, value, address, apart):
        seen.append(apart)
        return write(array, address, value, apart)

    def kernel(x):
        tile = nl.ndarray((128, 600), nl.float32)
        nisa.dma_copy(tile, x)
        data = tile.ap([[600, 128], *map(list, windows)], offset=50)
        nisa.tensor_scalar(tile[:, 0:300].reshape((128, 3, 100)), data, nl.multiply, 3.0)
        out = nl.ndarray((128, 600), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    x = np.random.default_rng(0).normal(size=(128, 600)).astype(np.float32)
    want = nkijax.run(kernel, x, eager=True)
    monkeypatch.setattr(access, "write", spy)
    np.testing.assert_array_equal(jax.jit(nkijax.function(kernel))(x), want)
    assert seen == [False, apart, False]
