"""Writing some elements of an array, fast in both directions of differentiation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax.bits import as_before, as_bits, is_narrow
from nkijax.linear import Linear, linear_map


@dataclass(frozen=True)
class Placed:
    """Puts elements into the box of `spans` at a run-time place, at every `steps`-th place of it.

    A place is (start, …), or if `checked` (inside, start, …): where not `inside` the array stays as it is.  `apart`:
    the elements were computed from others of the array (heeded where there is neither a check nor a step).
    """

    spans: tuple[int, ...]
    steps: tuple[int, ...]
    checked: bool = False
    apart: bool = False

    def __call__(self, old: jax.Array, x: jax.Array, *at: jax.Array) -> jax.Array:
        """`old` with `x` in the box.  Its derivative updates cotangents in place, too."""
        return _place(self, old, x, *at) if jnp.issubdtype(old.dtype, jnp.inexact) else self.put(old, x, *at)

    def put(self, old: jax.Array, x: jax.Array, *at: jax.Array) -> jax.Array:
        """The same, differentiated by JAX."""
        chosen = self.apart and not self.checked and max(self.steps) == 1
        return updated(self._chosen if chosen else self._update, old, x, *at)

    def _update(self, old: jax.Array, x: jax.Array, *at: jax.Array) -> jax.Array:
        starts = at[-old.ndim :]
        if self.checked or max(self.steps) > 1:
            now = lax.dynamic_slice(old, starts, self.spans, allow_negative_indices=False)
            x = jnp.where(at[0], x, now[self._strided]) if self.checked else x
            x = now.at[self._strided].set(x) if max(self.steps) > 1 else x
        return _put(old, x, *starts)

    def _chosen(self, old: jax.Array, x: jax.Array, *starts: jax.Array) -> jax.Array:
        """The update as a choice between elements of `old` and of another array.

        XLA on a CPU updates a reshaped array in place even while it computes `x` from other elements of `old`, which it
        then reads too late (openxla/xla#49176).
        """
        new = self._update(jnp.zeros_like(old), x, *starts)
        inside = True
        for k, (start, n) in enumerate(zip(starts, self.spans, strict=True)):
            where = lax.broadcasted_iota(np.int32, old.shape, k)
            inside = inside & (where >= start) & (where < start + n) if n < old.shape[k] else inside
        return new if inside is True else jnp.where(inside, new, old)

    @property
    def _strided(self) -> tuple[slice, ...]:
        return tuple(slice(None, None, step) for step in self.steps)

    def push(self, at: list[jax.Array], tangents: list[jax.Array]) -> list[jax.Array]:
        return [self.put(*tangents, *at)]

    def pull(self, at: list[jax.Array], cotangents: list[jax.Array]) -> list[jax.Array]:
        """Cotangents of the array and of the elements; these are taken before the array's is updated in place.

        XLA would take them again wherever they are used, and copy the array for that: a branch keeps it from that.
        """
        whole, starts = cotangents[0], at[-cotangents[0].ndim :]
        part = lax.dynamic_slice(whole, starts, self.spans, allow_negative_indices=False)
        take = lambda x: (x.at[self._strided].set(0), x[self._strided])  # noqa: E731
        leave = lambda x: (x, jnp.zeros_like(x[self._strided]))  # noqa: E731
        inside = at[0] if self.checked else starts[0] >= 0
        left, taken = lax.cond(inside, take, leave, part)
        return [updated(_put, whole, left, *starts), taken]


def _put(old: jax.Array, x: jax.Array, *starts: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(old, x, starts, allow_negative_indices=False)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _place(placed: Placed, old: jax.Array, x: jax.Array, *at: jax.Array) -> jax.Array:
    return placed.put(old, x, *at)


@_place.defjvp
def _place_jvp(placed, primals, tangents):
    _, _, *at = primals
    linear = Linear(placed.push, placed.pull, placed.pull, outputs=(0,))
    return _place(placed, *primals), linear_map(linear, at, tangents[:2])[0]


def updated(update: Callable[..., jax.Array], old: jax.Array, x: jax.Array, *at: jax.Array) -> jax.Array:
    """`update(old, x, *at)`, which puts elements of `x` into `old`; narrow floats bit by bit."""
    return _on_bits(update, old, x, *at) if is_narrow(old.dtype) else update(old, x, *at)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _on_bits(update: Callable[..., jax.Array], old: jax.Array, x: jax.Array, *at: jax.Array) -> jax.Array:
    return as_before(update(as_bits(old), as_bits(x), *at), old.dtype)


@_on_bits.defjvp
def _on_bits_jvp(update, primals, tangents):
    _, _, *at = primals
    return _on_bits(update, *primals), update(*tangents[:2], *at)
