"""Leading axes of arrays in a batched walk."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.environment import Place, contract, spread
from nkijax.program import Repeat

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
