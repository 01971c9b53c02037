"""Updates of a part of an array: values, both derivatives, and that XLA makes them in place."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from nkijax.update import Placed, updated

OLD, X, AT = np.arange(40, dtype=np.float32).reshape(5, 8), np.full((2, 3), -1, np.float32), (2, 1)


def reference(old, x, inside, step):
    return old.at[2:4, 1 : 2 + 2 * step : step].set(x) if inside else old


@pytest.mark.parametrize("apart, step", [(False, 1), (False, 2), (True, 1)])
@pytest.mark.parametrize("inside", [None, True, False])
def test_values_and_derivatives(inside, apart, step):
    placed = Placed((2, 2 * step + 1), (1, step), inside is not None, apart)
    at = [*(() if inside is None else (jnp.bool_(inside),)), *map(jnp.int32, AT)]
    ours = lambda old, x: placed(old, x, *at)  # noqa: E731
    want = lambda old, x: reference(old, x, inside is not False, step)  # noqa: E731
    args, ct = (jnp.asarray(OLD), jnp.asarray(X)), jnp.sin(jnp.asarray(OLD))
    np.testing.assert_array_equal(ours(*args), want(*args))
    np.testing.assert_array_equal(jax.jvp(ours, args, (ct, X * 2))[1], jax.jvp(want, args, (ct, X * 2))[1])
    for got, expected in zip(jax.vjp(ours, *args)[1](ct), jax.vjp(want, *args)[1](ct), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_integers_have_no_derivative():
    placed = Placed((2, 3), (1, 1))
    out = jax.jit(placed)(OLD.astype(np.int32), X.astype(np.int32), *map(jnp.int32, AT))
    assert out[2, 1] == -1 and out[0, 0] == 0 and out.dtype == np.int32


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_narrow_floats_keep_their_bits(dtype):
    """A signalling NaN stays one, in the update and where the array is left as it is."""
    bits = np.dtype(f"uint{8 * jnp.dtype(dtype).itemsize}")
    odd = np.array(0x7F81 if dtype == "bfloat16" else 0xFF, bits)
    old = lax.bitcast_convert_type(jnp.full((4, 4), odd), jnp.dtype(dtype))
    put = lambda old, x, *at: lax.dynamic_update_slice(old, x, at)  # noqa: E731
    out = jax.jit(lambda o: updated(put, o, o[:2, :2] * 0 + 1, jnp.int32(1), jnp.int32(1)))(old)
    kept = np.array(lax.bitcast_convert_type(out, bits))
    kept[1:3, 1:3] = odd
    assert (kept == odd).all()


def test_cotangents_are_updated_in_place():
    """The loop that takes rows of a cotangent, and gives what was made of them to another, copies neither."""
    n, f = 64, 256
    placed = Placed((1, f), (1, 1), checked=True)

    def turn(k, pair):
        ct, total = pair
        left, taken = placed.pull([k < 63, k, jnp.int32(0)], [ct])
        return left, lax.dynamic_update_slice(total, jnp.sin(taken), (k, jnp.int32(0)))

    loop = jax.jit(lambda ct: lax.fori_loop(0, n, turn, (ct, jnp.zeros_like(ct))))
    text = loop.lower(jnp.ones((n, f))).compile().as_text()
    bodies = [b for b in text.split("\n\n") if "conditional(" in b]
    assert bodies and not any(re.search(rf"= f32\[{n},{f}\]\S* copy\(", b) for b in bodies)
