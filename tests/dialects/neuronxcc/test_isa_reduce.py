"""Reductions, statistics and running maxima, as kernels spell them."""

import ml_dtypes
import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from tests.dialects.neuronxcc.running import close, computed, ran

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 6)).astype(np.float32)
Y = RNG.standard_normal((8, 6)).astype(np.float32)
F = np.float32(np.finfo(np.float32).min)


@pytest.mark.parametrize("op, fold", [(np.add, np.sum), (nl.max, np.max), (np.amin, np.min), (np.multiply, np.prod)])
def test_tensor_reduce(op, fold):
    cube = RNG.standard_normal((8, 3, 4, 2)).astype(np.float32)
    close(computed(lambda x: nisa.tensor_reduce(op, x, axis=(1,)), X), fold(X, 1, keepdims=True), 1e-5)
    close(
        computed(lambda x: nisa.tensor_reduce(op, x, axis=[-1], keepdims=True), cube),
        fold(cube, 3, keepdims=True),
        1e-5,
    )
    close(computed(lambda x: nisa.tensor_reduce(op, x, axis=[1, 3]), cube), fold(cube, (1, 3)), 1e-5)
    close(computed(lambda x: nisa.tensor_reduce(op, x, axis=2, negate=True), cube), -fold(cube, 2), 1e-5)


def test_a_masked_reduction_leaves_lanes_out():
    def emit(x):
        i, j = nl.mgrid[0:8, 0:6]
        return nisa.tensor_reduce(np.max, x, axis=(1,), mask=(i < 5) & (j < 4))

    close(computed(emit, X), np.where(np.arange(8) < 5, X[:, :4].max(1), 0)[:, None])

    def diagonal(x):
        i, j = nl.mgrid[0:8, 0:6]
        return nisa.tensor_reduce(np.add, x, axis=(1,), mask=i >= j)

    close(computed(diagonal, X), (X * np.tri(8, 6)).sum(1, keepdims=True), 1e-5)


def test_tensor_partition_reduce():
    cube = RNG.standard_normal((8, 3, 4)).astype(np.float32)
    close(computed(lambda x: nisa.tensor_partition_reduce(np.add, x), cube), cube.sum(0, keepdims=True), 1e-5)

    def masked(x):
        i, j = nl.mgrid[0:8, 0:6]
        return nisa.tensor_partition_reduce(np.max, x, mask=(i < 5) & (j < 4))

    close(computed(masked, X), np.where(np.arange(6) < 4, X[:5].max(0), 0)[None])


def test_statistics_leave_masked_columns_out():
    def emit(x):
        i, j = nl.mgrid[0:8, 0:100]
        return nisa.bn_aggr(nisa.bn_stats(x, mask=j < 77))

    data = RNG.standard_normal((8, 100)).astype(np.float32)
    want = np.stack([data[:, :77].mean(1), data[:, :77].var(1)], axis=1)
    close(computed(emit, data), want, 1e-5)
    assert computed(lambda x: nisa.bn_stats(x, dtype=np.float32), data).shape == (8, 6)
    odd = computed(lambda x: nisa.bn_stats(x, mask=nl.arange(100)[None, :] >= 97), data)  # columns 98; 97 and 99
    close(odd[:, :3], np.stack([np.ones(8), data[:, 98], np.zeros(8)], 1), 1e-5)
    close(odd[:, 3:5], np.stack([np.full(8, 2), data[:, 97::2].mean(1)], 1), 1e-5)


@pytest.mark.parametrize("flags", [np.uint8, np.int32, np.uint32, np.float32])
def test_select_reduce_carries_its_maximum(flags):
    chosen = (Y > 0).astype(flags)

    def kernel(x, p):
        out, most = (nl.ndarray(s, dtype=np.float32, buffer=nl.shared_hbm) for s in ((8, 6), (8, 1)))
        tile, where, res = nl.load(x), nl.load(p), nl.ndarray((8, 1), dtype=np.float32)
        to = nl.ndarray((8, 6), dtype=np.float32)
        commands = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce
        for k, command in enumerate(commands):
            part = slice(3 * k, 3 * k + 3)
            nisa.select_reduce(
                dst=to[:, part], predicate=where[:, part], on_true=tile[:, part], on_false=-9.0,
                reduce_cmd=command, reduce_res=res if k else None, reduce_op=np.max,
            )  # fmt: skip
        nl.store(out, to)
        nl.store(most, res)
        return out, most

    want = np.where(Y > 0, X, -9)
    out, most = ran(kernel, X, chosen)
    close(out, want)
    close(most, want.max(1, keepdims=True))


def test_select_reduce_without_a_maximum():
    def emit(x, p, c):
        to = nl.ndarray((8, 6), dtype=nl.bfloat16)
        nisa.select_reduce(dst=to, predicate=p, on_true=x, on_false=c, reverse_pred=True)
        return to

    c = X[:, :1].copy()
    want = np.where(Y > 0, c, X).astype(ml_dtypes.bfloat16)
    close(computed(emit, X, (Y > 0).astype(np.uint8), c), want)


def test_tensor_scalar_cumulative_goes_on_from_where_it_was():
    def emit(x, start):
        to = nl.ndarray((8, 6), dtype=np.float32)
        for part, command in ((slice(0, 2), "reset_reduce"), (slice(2, 4), "reduce"), (slice(4, 6), "load_reduce")):
            nisa.tensor_scalar_cumulative(
                src=x[:, part], dst=to[:, part], op0=np.multiply, op1=np.add, imm0=2.0,
                imm1=start if command == "load_reduce" else None, reduce_cmd=getattr(nisa.reduce_cmd, command),
            )  # fmt: skip
        return to

    start = X[:, :1].copy()
    want = 2 * np.cumsum(X, 1)
    want[:, 4:] = start + 2 * np.cumsum(X[:, 4:], 1)
    close(computed(emit, X, start), want, 1e-5)


def test_tensor_scalar_cumulative_under_a_mask():
    def emit(x, mask):
        to = nl.full((8, 6), 7.0, dtype=np.float32)
        nisa.tensor_scalar_cumulative(x, to, np.add, np.maximum, imm0=1.0, mask=mask())
        return to

    want = np.full((8, 6), 7, np.float32)
    want[:5, :4] = np.maximum.accumulate(X[:5, :4] + 1, 1)
    box = lambda: (nl.arange(8)[:, None] < 5) & (nl.arange(6)[None, :] < 4)  # noqa: E731
    close(computed(lambda x: emit(x, box), X), want, 1e-6)
    with pytest.raises(nkijax.Unsupported, match="mask: must leave a box"):
        computed(lambda x: emit(x, lambda: nl.arange(8)[:, None] >= nl.arange(6)[None, :]), X)


def test_range_select():
    low, high = np.full((8, 1), 2, np.float32), np.arange(8, dtype=np.float32)[:, None]

    def kernel(x, a, b):
        out, most = (nl.ndarray(s, dtype=np.float32, buffer=nl.shared_hbm) for s in ((8, 6), (8, 1)))
        res = nl.ndarray((8, 1), dtype=np.float32)
        tile = nisa.range_select(
            on_true_tile=nl.load(x), comp_op0=np.greater_equal, comp_op1=np.less, bound0=nl.load(a), bound1=nl.load(b),
            reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=res, range_start=1, on_false_value=nl.fp32.min,
        )  # fmt: skip
        nl.store(out, tile)
        nl.store(most, res)
        return out, most

    k = 1 + np.arange(6)[None]
    want = np.where((k >= low) & (k < high), X, F)
    out, most = ran(kernel, X, low, high, target="trn2")
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(most, want.max(1, keepdims=True))

    def masked(x):
        res, i, j = nl.full((8, 1), -1, dtype=np.float32), *nl.mgrid[0:8, 0:6]
        low, high = (nl.full((8, 1), k, dtype=np.float32) for k in (1, 5))
        tile = nisa.range_select(
            on_true_tile=nl.load(x), comp_op0=np.greater_equal, comp_op1=np.less, bound0=low, bound1=high,
            reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=res, mask=j < i,
        )  # fmt: skip
        out = nl.full((8, 7), -1, dtype=np.float32)
        out[:, 0:6], out[:, 6:7] = tile, res
        return out

    i, j = np.indices((8, 6))
    want = np.where((j >= 1) & (j < 5), X, F)
    most = np.where(j < i, want, F).max(1)
    most[0] = -1  # a row of which nothing is left
    got = ran(masked, X, target="trn2")
    np.testing.assert_array_equal(got, np.concatenate([np.where(j < i, want, -1), most[:, None]], 1))
    with pytest.raises(KernelError, match="range_select: needs gen3 or later, got trn1"):
        nkijax.trace(kernel, X, low, high)
