"""Executes one collective on several ranks at once: `jax.vmap` with a named axis stands for the mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nkijax import dtypes
from nkijax.program import Instruction, Masked
from nkijax.view import View
from tests.isa.harness import Reader

AXIS = "r"


def across(inst: Any, tensors: dict[View, Any]) -> list[np.ndarray]:
    """What each written view holds after `inst`, (ranks, …): `tensors` has (ranks, …) of every view before it."""
    views = list(tensors)
    assert isinstance(inst, Instruction) and inst.axis == AXIS

    def run(*arrays: jax.Array) -> list[jax.Array]:
        memory = dict(zip(views, arrays, strict=True))
        results = inst.run(Reader({v: _flat(v, memory[v]) for v in views}, {}))
        return [_written(v, r, memory) for v, r in zip(inst.writes(), results, strict=True)]

    together = jax.jit(jax.vmap(run, axis_name=AXIS))
    return [np.asarray(x) for x in together(*(jnp.asarray(tensors[v]) for v in views))]


def _flat(view: View, x: jax.Array) -> jax.Array:
    return x.reshape(view.shape[0], -1)


def _written(view: View, result: Any, memory: dict[View, jax.Array]) -> jax.Array:
    """What a view holds afterwards."""
    if not isinstance(result, Masked):
        return dtypes.cast(result, view.dtype).reshape(view.shape)
    mask = jnp.broadcast_to(result.mask, result.value.shape).reshape(view.shape)
    value = dtypes.cast(result.value, view.dtype).reshape(view.shape)
    return jnp.where(mask, value, memory[view].reshape(view.shape))
