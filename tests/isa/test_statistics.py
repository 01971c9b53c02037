"""bn_stats and bn_aggr."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.statistics import BnAggr, BnStats
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P = 4
DTYPES = [
    *("float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]


def statistics(x):
    """(P, 6), in float64."""
    out = []
    for part in (x[:, 0::2].astype(np.float64), x[:, 1::2].astype(np.float64)):
        n = part.shape[1]
        out += [np.full(len(x), n), part.mean(1), n * part.var(1)] if n else [np.zeros(len(x))] * 3
    return np.stack(out, axis=1)


def aggregated(groups):
    """Mean and variance of what the groups (P, 3n) count, in float64."""
    out = []
    for c, m, v in groups.astype(np.float64).reshape(len(groups), -1, 3).transpose(0, 2, 1):
        mean = sum(c * m) / sum(c)
        out.append([mean, sum(v + c * (m - mean) ** 2) / sum(c)])
    return np.array(out)


def setup(values, dtype="float32", dst="float32", size=6):
    data, memory = store(values, dtype)
    out, more = store(np.zeros((P, size)), dst)
    return out, data, {**memory, **more}


def f32(view, memory):
    return load(view, memory).astype(np.float32)


@pytest.mark.parametrize("n", [2, 7, 512])
def test_even_elements_then_odd_ones(n):
    dst, data, memory = setup(random((P, n)))
    execute(BnStats(dst, data), memory)
    np.testing.assert_allclose(load(dst, memory), statistics(load(data, memory)), rtol=1e-5, atol=1e-4)
    assert (load(dst, memory)[:, 0] == (n + 1) // 2).all() and (load(dst, memory)[:, 3] == n // 2).all()


def test_one_element_has_no_odd_ones():
    dst, data, memory = setup(random((P, 1)))
    execute(BnStats(dst, data), memory)
    np.testing.assert_array_equal(load(dst, memory)[:, 1], load(data, memory)[:, 0])
    assert not load(dst, memory)[:, 2:].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bn_stats_dtypes(dtype):
    dst, data, memory = setup(random((P, 8), dtype), dtype, dtype)
    memory[data.buffer][...] = memory[data.buffer] % 4
    execute(BnStats(dst, data), memory)
    want = reference_cast(statistics(f32(data, memory)), dtype)
    np.testing.assert_array_equal(load(dst, memory), want)


def test_statistics_of_close_numbers():
    """The mean is taken out before squaring."""
    dst, data, memory = setup(1e4 + np.tile([0, 5, 1, 6], (P, 2)))
    execute(BnStats(dst, data), memory)
    np.testing.assert_allclose(load(dst, memory), [[4, 1e4 + 0.5, 1, 4, 1e4 + 5.5, 1]] * P, rtol=1e-5)


def test_the_two_together_over_tiles_and_views():
    """Tiles of 512 elements, each into its own six columns, as kernels do; the data is a strided view."""
    data, memory = store(np.random.default_rng(0).normal(3, 2, (P, 2, 1025)))
    stats, more = store(np.zeros((P, 18)))
    out, rest = store(np.zeros((P, 3)))
    memory |= {**more, **rest}
    row = data.select(1, 1)
    for k, (first, last) in enumerate(((0, 512), (512, 1024), (1024, 1025))):
        execute(BnStats(stats.slice(1, 6 * k, 6 * k + 6), row.slice(1, first, last)), memory)
    execute(BnAggr(out.slice(1, 1, 3), stats.reshape((P, 3, 6))), memory)
    x = memory[data.buffer][:, 1].astype(np.float64)
    np.testing.assert_allclose(memory[out.buffer][:, 1:], np.stack([x.mean(1), x.var(1)], axis=1), rtol=1e-5)
    assert not memory[out.buffer][:, 0].any()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_bn_aggr_dtypes(dtype):
    groups = np.array([[8, 1, 8, 8, 3, 16, 0, 2, 0], [4, -2, 4, 4, 2, 4, 8, 0, 8]] * 2)
    dst, data, memory = setup(np.abs(groups) if dtype[0] == "u" else groups, dtype, dtype, 2)
    execute(BnAggr(dst, data), memory)
    np.testing.assert_array_equal(load(dst, memory), reference_cast(aggregated(f32(data, memory)), dtype))


def test_bn_aggr_of_a_view():
    """Groups that lie three apart, each turned round: (P, 3, n) seen as (P, n, 3)."""
    groups = np.array([[8, 1, 8, 8, 3, 16], [4, -2, 4, 4, 2, 4]] * 2)
    data, memory = store(np.ascontiguousarray(groups.reshape(P, 2, 3).transpose(0, 2, 1)))
    dst, more = store(np.zeros((P, 2)))
    execute(BnAggr(dst, data.permute((0, 2, 1))), memory := memory | more)
    np.testing.assert_array_equal(load(dst, memory), aggregated(groups))


def test_gradients():
    dst, data, memory = setup(random((P, 7)))
    stats, aggregate = BnStats(dst, data), BnAggr(tile((P, 2)), dst)

    def variance(x):
        groups = stats.run(Reader({data: x}, {}))[0]
        return jnp.sum(aggregate.run(Reader({dst: groups}, {}))[0][:, 1])

    x = load(data, memory)
    got = jax.jit(jax.vmap(jax.grad(variance)))(jnp.stack([x, 0 * x]))
    np.testing.assert_allclose(got[0], 2 * (x - x.mean(1, keepdims=True)) / 7, rtol=1e-4, atol=1e-5)
    assert not np.asarray(got[1]).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": tile((P, 8), memory=Memory.shared_hbm)}, "data: data must be in"),
        ({"data": tile((P + 1, 8))}, r"data: must have the 4 partitions of dst, got \(5, 8\)"),
        ({"data": tile((129, 8)), "dst": tile((129, 6))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"data": tile((P, 513))}, r"data: must have at most 512 free elements, got \(4, 513\)"),
        ({"dst": tile((P, 2, 2))}, r"dst: must have 6 free elements, got \(4, 2, 2\)"),
        ({"data": tile((P, 8), "float8_e5m2_x4")}, "data: packed x4 types take no arithmetic"),
    ],
)
def test_bn_stats_rules(changes, message):
    legal = BnStats(tile((P, 6)), tile((P, 8), memory=Memory.psum))
    assert rule(legal) == rule(legal, TRN1) == rule(replace(legal, data=tile((P, 2, 256)))) == ""
    with pytest.raises(AssertionError, match="^nki.isa.bn_stats " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": tile((P, 6), memory=Memory.shared_hbm)}, "data: data must be in"),
        ({"data": tile((P + 1, 6))}, r"data: must have the 4 partitions of dst, got \(5, 6\)"),
        ({"data": tile((129, 6)), "dst": tile((129, 2))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"data": tile((P, 7))}, r"data: must have 3 free elements for each group, got \(4, 7\)"),
        ({"dst": tile((P, 3))}, r"dst: must have 2 free elements, got \(4, 3\)"),
        ({"dst": tile((P, 2), "float8_e5m2_x4")}, "dst: packed x4 types take no arithmetic"),
    ],
)
def test_bn_aggr_rules(changes, message):
    legal = BnAggr(tile((P, 2)), tile((P, 6)))
    assert rule(legal) == rule(legal, TRN1) == rule(replace(legal, data=tile((P, 3)))) == ""
    with pytest.raises(AssertionError, match="^nki.isa.bn_aggr " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_cost(target):
    latency = target.latency_cycles(Engine.vector)
    for n, cycles in ((512, 512), (10, 64)):
        assert BnStats(tile((128, 6)), tile((128, n))).cycles(target) == Work(cycles, latency)
    for n, cycles in ((48, 13 * 16), (6, 64)):
        assert BnAggr(tile((128, 2)), tile((128, n))).cycles(target) == Work(cycles, latency)
