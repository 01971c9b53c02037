"""Floats of fewer than four bytes as integers of their size, as which XLA on a CPU moves them as they are.

It converts such arrays, whole, to a wider float and back: that makes signalling NaNs quiet, and takes 4 (bfloat16) to
50 (float8) times as long.  A loop that carries them as floats copies each in every turn that updates a part of it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def is_narrow(dtype: np.dtype) -> bool:
    """Whether arrays of a dtype are better moved as integers, here."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < np.dtype(np.float32).itemsize
    return narrow and jax.default_backend() == "cpu"


def as_bits(x: jax.Array) -> jax.Array:
    """An array of narrow floats as unsigned integers; any other as it is."""
    return lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}")) if is_narrow(x.dtype) else x


def as_before(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """What `as_bits` made of an array of this dtype, as that array."""
    return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)
