"""Narrow floats as integers, there and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import bits

NARROW = ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"]


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_floats_keep_every_bit(dtype):
    kind = jnp.dtype(dtype)
    words = np.arange(256, dtype=f"uint{8 * kind.itemsize}") * (257 if kind.itemsize > 1 else 1)  # NaNs of all sorts
    x = jnp.asarray(words.view(kind))
    there, moved = bits.as_bits(x), jax.default_backend() == "cpu"
    assert bits.is_narrow(kind) == moved and there.dtype == (words.dtype if moved else kind)
    assert np.asarray(bits.as_before(there, kind)).tobytes() == words.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool"])
def test_others_stay_as_they_are(dtype):
    x = jnp.zeros(3, dtype)
    assert not bits.is_narrow(x.dtype) and bits.as_bits(x) is x and bits.as_before(x, x.dtype) is x
