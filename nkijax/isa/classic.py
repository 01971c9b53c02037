"""Operators that only the old dialect has: rows beside those of `operators`, for the same instructions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nkijax.isa.operators import ACTIVATIONS, ALU, Activation, AluOp


def _cos(x: jax.Array) -> jax.Array:
    return jnp.cos(x)


_ACTIVATION_ROWS = (
    Activation("cos", _cos),
    Activation("tan", jnp.tan),
    Activation("floor", jnp.floor),
    Activation("ceil", jnp.ceil),
    Activation("trunc", jnp.trunc),
    Activation("logical_not", lambda x: (x == 0).astype(jnp.float32)),
    Activation("negative", jnp.negative),
)

_ALU_ROWS = (
    AluOp("mod", "arithmetic", jnp.mod),
    AluOp("fmod", "arithmetic", jnp.fmod),
)

CLASSIC_ACTIVATIONS: dict[str, Activation] = {a.name: a for a in _ACTIVATION_ROWS} | ACTIVATIONS
"""Every function of one tile that `neuronxcc.nki.language` has, by name."""

CLASSIC_ALU: dict[str, AluOp] = {a.name: a for a in _ALU_ROWS} | ALU
"""Every operator of two operands that it has; `mod` has the sign of the divisor, `fmod` that of the dividend."""
