"""Kernel objects and their wrappers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
from nkijax import Unsupported
from nkijax.dialects.neuronxcc import baremetal, benchmark, jit, profile, simulate_kernel, trace, typing
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.machine import Generation

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def doubled(x, factor=2):
    """Twice x."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * float(factor))
    return out


def test_wrappers_take_functions_and_kernels_bare_or_with_keywords():
    for wrap in (jit, trace, baremetal, benchmark, profile):
        for kernel in (wrap(doubled), wrap(save_neff_name="a.neff")(doubled), wrap(jit(doubled), mode="simulation")):
            assert (kernel(X) == 2 * X).all() and kernel.__name__ == "doubled" and kernel.func is doubled
    assert (baremetal(jit(doubled))[1](X, factor=3) == 3 * X).all()
    with pytest.raises(TypeError, match="nki.jit func: must be"):
        jit(3)


def test_output_kind_follows_input_kind():
    assert isinstance(jit(doubled)(X), np.ndarray) and isinstance(jit(doubled)(jnp.asarray(X)), jax.Array)


def test_simulation_updates_arguments():
    def into(x, out):
        nl.store(out, nl.load(x) + 1)

    out = np.zeros_like(X)
    simulate_kernel(into, X, out)
    assert (out == X + 1).all()
    assert (simulate_kernel(jit(doubled)[1], X) == 2 * X).all()


def test_kernels_inline():
    @jit(mode="trace")
    def helper(t, *, by):
        return t * by

    @jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, helper(nl.load(x), by=3.0))
        return out

    assert (kernel(X) == 3 * X).all()


def test_plain_functions_are_spoken_for():
    assert (nkijax.run(doubled, X) == 2 * X).all()
    assert "on trn1" in str(nkijax.trace(doubled, X))


def test_targets(monkeypatch):
    seen = []

    def kernel(x):
        nl.arange(1)
        seen.append((nisa.get_nc_version(), nl.tile_size.pmax))

    jit(kernel)(X)
    jit(kernel, platform_target="trn2")(X)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    jit(lambda x: kernel(x))(X)
    assert [v for v, _ in seen] == [Generation.gen2, Generation.gen3, Generation.gen3] and seen[0][1] == 128


def test_a_benchmark_tells_modelled_latencies():
    bench = benchmark(warmup=5, iters=10)(jit(doubled))[1]
    assert (bench(X) == 2 * X).all()
    latency = bench.benchmark_result.nc_latency
    assert latency.get_latency_percentile(50) == latency.get_latency_percentile(99) > 0


def test_a_benchmark_of_specs_runs_nothing():
    bench = benchmark(warmup=5, iters=10)(doubled)
    assert bench(typing.tensor[[128, 4096], nl.bfloat16], factor=3) is None
    small = benchmark(doubled)
    small(typing.tensor[[128, 64], nl.bfloat16])
    latencies = [b.benchmark_result.nc_latency.get_latency_percentile(99) for b in (bench, small)]
    assert latencies[0] > latencies[1] > 0

    def looping(n):
        for _ in nl.affine_range(nl.load(n)):
            pass

    with pytest.raises(Unsupported, match="call it with arrays"):
        benchmark(looping)(typing.tensor[[1, 1], nl.int32])


def test_results_on_chip_are_given_too():
    def kernel(x):
        return nl.load(x) + 1, x

    got, same = simulate_kernel(kernel, X)
    assert (got == X + 1).all() and (same == X).all()


def test_gradients():
    f = nkijax.function(jit(doubled))
    assert (jax.grad(lambda x: (f(x) ** 2).sum())(jnp.asarray(X)) == 8 * X).all()
