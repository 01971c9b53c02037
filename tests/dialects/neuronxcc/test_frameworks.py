"""Kernels that write into their last arguments, as frameworks called them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
from nkijax import Unsupported
from nkijax.dialects.neuronxcc import frameworks, jit
from nkijax.dialects.neuronxcc import language as nl

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def sums(a, b, total, twice):
    k = nl.program_id(0) if nl.program_ndim() else 0
    for _ in nl.affine_range(1):
        row = nl.load(a[nl.ds(k, 3 - k), :])
        row = row + nl.load(b[nl.ds(k, 3 - k), :])
    nl.store(total[nl.ds(k, 3 - k), :], row)
    nl.store(twice[nl.ds(k, 3 - k), :], row * 2.0)


def doubled(a, out):
    nl.store(out, nl.load(a) * 2.0)


SHAPE = jax.ShapeDtypeStruct(X.shape, np.float32)


def test_nki_jit_updates_the_last_arguments():
    total, twice = np.zeros_like(X), np.zeros_like(X)
    assert frameworks.nki_jit(sums)(X, X, total, twice) is None
    assert (total == 2 * X).all() and (twice == 4 * X).all()
    assert (frameworks.nki_jit()(doubled)(jnp.asarray(X), jnp.zeros_like(X)) == 2 * X).all()


def test_nki_call_returns_what_the_kernel_writes():
    x = jnp.asarray(X)
    total, twice = frameworks.nki_call(jit(sums), x, x, grid=(3,), out_shape=(SHAPE, SHAPE))
    assert (total == 2 * X).all() and (twice == 4 * X).all()
    assert (frameworks.nki_call(doubled, X, out_shape=SHAPE) == 2 * X).all()


def test_nki_call_inside_jax():
    f = jax.jit(lambda x: frameworks.nki_call(doubled, x, out_shape=SHAPE).sum())
    assert f(X) == 2 * X.sum() and (jax.grad(f)(jnp.asarray(X)) == 2).all()


def test_a_second_call_records_nothing():
    frameworks.nki_call(doubled, X, out_shape=SHAPE)
    before = dict(nkijax.api.counters)
    frameworks.nki_call(doubled, X, out_shape=SHAPE)
    assert nkijax.api.counters == before


def test_custom_calls_are_not_made():
    with pytest.raises(Unsupported, match="nkijax.function"):
        frameworks.FrameworkKernel("f", sums)
