"""Functions made into functions of what they close over."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax.closed import close

TABLE = np.arange(12, dtype=np.float32)


def closed(f, x=0):
    """`f(table, x)` closed over a table that JAX traces, and its constants."""
    found = []

    def outer(table):
        consts, g = close(lambda x: f(table, x), jnp.asarray(x))
        found.append((consts, g))
        return g(consts, jnp.asarray(x))

    got = jax.jit(outer)(TABLE)
    np.testing.assert_allclose(got[0], f(TABLE, x)[0], rtol=1e-6)
    consts, g = found[0]
    return [c.shape for c in consts], g.gathers


def test_a_table_comes_as_it_is_sliced():
    assert closed(lambda t, x: [lax.dynamic_index_in_dim(t.reshape(4, 3), x)]) == ([(4, 3)], (True,))
    assert closed(lambda t, x: [jnp.sin(t)[None] + lax.dynamic_index_in_dim(t.reshape(4, 3), x)[:, :1]])[0] == [
        (12,),
        (4, 3),
    ]
    assert closed(lambda t, x: [x + jnp.ones(3, np.int32)])[0] == []


def test_a_reference_is_passed_once():
    assert closed(lambda t, x: [t * t])[1] == (True,)
    assert closed(lambda t, x: [jax.jit(jnp.multiply)(t, t)])[1] == (False,)
    assert closed(lambda t, x: [jax.jit(lambda t: jax.jit(jnp.multiply)(t, t))(t)])[1] == (False,)
    assert closed(lambda t, x: [jax.jit(lambda t: t * t)(t)])[1] == (True,)


def test_operands_of_a_condition_come_after_it():
    both = lambda f: lambda t, x: [lax.cond(x > 0, f, lambda t: t, t)]  # noqa: E731
    assert closed(both(lambda t: t + 1))[1] == (True,)
    assert closed(both(lambda t: jax.jit(jnp.multiply)(t, t)), 1)[1] == (False,)


def test_a_scan_inside_gets_no_reference():
    once = lambda t, x: [lax.scan(lambda c, x: (c * x, None), jnp.ones(3), t.reshape(4, 3))[0]]  # noqa: E731
    assert closed(once) == ([(4, 3)], (False,))
