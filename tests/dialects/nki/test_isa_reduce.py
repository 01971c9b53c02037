"""Running reductions and statistics as kernels spell them; numbers of the entries are tested beside them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.isa.selecting import FLOAT32_MIN

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
RESET, REDUCE, LOAD = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce, nisa.reduce_cmd.load_reduce


def ran(emit, *shapes, dtype=nl.float32, **options):
    """What `emit(*tiles, x, y)` leaves in fresh tiles of `shapes`, compiled and eager."""

    def kernel(x, y):
        tiles = [nl.ndarray(shape, dtype) for shape in shapes]
        emit(*tiles, nl.load(x), nl.load(y))
        outs = tuple(nl.ndarray(shape, dtype, buffer=nl.shared_hbm) for shape in shapes)
        for out, tile in zip(outs, tiles, strict=True):
            nl.store(out, tile)
        return outs

    compiled, eager = (nkijax.run(kernel, X, Y, eager=eager, **options) for eager in (False, True))
    for a, b in zip(compiled, eager, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    return compiled


def refused(emit, **options):
    with pytest.raises(KernelError) as error:
        nkijax.trace(lambda x: emit(nl.load(x)), X, **options)
    assert error.value.site.startswith(__file__), error.value
    return error.value.message


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_tensor_scalar_reduce():
    out, res = ran(lambda d, r, x, y: nisa.tensor_scalar_reduce(d, x, nl.multiply, 0.5, nl.max, r), (4, 6), (4, 1))
    close(out, X / 2)
    close(res, X.max(1, keepdims=True) / 2)

    def loaded(d, r, x, y):
        nisa.tensor_scalar_reduce(
            d, data=x, op0=nl.abs, operand0=None, reduce_op=nl.add, reduce_res=r, reduce_cmd=LOAD,
            reduce_init=y[:, 0:1], reduce_res_negate=True,
        )  # fmt: skip

    close(ran(loaded, (4, 6), (4, 1))[1], -(np.abs(X).sum(1) + Y[:, 0])[:, None])


def test_case_23_the_accumulator_carries_over_three_calls():
    def emit(spare, res, x, y):
        nisa.tensor_scalar_reduce(spare, x, nl.multiply, 1.0, nl.add, reduce_res=None)
        nisa.tensor_scalar_reduce(spare, y, nl.multiply, 1.0, nl.add, reduce_res=None, reduce_cmd=REDUCE)
        nisa.tensor_scalar_reduce(spare, x, nl.multiply, 2.0, nl.add, reduce_res=res, reduce_cmd=REDUCE)

    close(ran(emit, (4, 6), (4, 1))[1], (3 * X + Y).sum(1, keepdims=True))


def test_the_vector_engine_has_one_accumulator_and_the_scalar_engine_another():
    def emit(spare, res, x, y):
        nisa.tensor_scalar_cumulative(spare, x, nl.multiply, nl.add, 1.0)
        nisa.activation_reduce(spare, nl.copy, y, nl.add, None)
        nisa.exponential(spare, x, reduce_res=res[:, 0:1], reduce_cmd=REDUCE)
        nisa.tensor_scalar_reduce(spare, x, nl.multiply, 1.0, nl.max, None, reduce_cmd=REDUCE)
        mask = nl.ndarray((4, 6), nl.uint8)
        nisa.memset(mask, 0)
        nisa.select_reduce(spare, mask, x, 1e3, res[:, 1:2], REDUCE)
        nisa.activate2(spare, nl.copy, x, 0.0, 0.0, nl.bypass, nl.bypass, reduce_op=nl.max, reduce_cmd=REDUCE)
        nisa.activation(spare, nl.copy, x, reduce_res=res[:, 2:3])

    res = ran(emit, (4, 6), (4, 3), target="trn3")[1]
    close(res[:, 0], X.sum(1) + np.exp(X).sum(1))
    close(res[:, 1], 1e3)
    close(res[:, 2], np.maximum(Y.sum(1), X.max(1)))


def test_the_accumulator_continues_through_loops():
    """Over tiles in a Python loop, which is rolled, and in a dynamic one."""
    rows = np.random.default_rng(2).standard_normal((8, 4, 6)).astype(np.float32)

    def unrolled(x):
        out, spare, sums = (nl.ndarray(s, nl.float32, buffer=b) for s, b in (((4, 1), nl.shared_hbm), *TILES))
        for k in range(8):
            nisa.tensor_scalar_reduce(
                spare, nl.load(x[k]), nl.multiply, 2.0, nl.add, sums, reduce_cmd=REDUCE if k else RESET
            )
        nl.store(out, sums)
        return out

    def dynamic(x):
        out, spare, sums = (nl.ndarray(s, nl.float32, buffer=b) for s, b in (((4, 1), nl.shared_hbm), *TILES))
        nisa.memset(spare, 0.0)
        nisa.tensor_scalar_reduce(spare, spare, nl.multiply, 2.0, nl.add)

        def body(k):
            tile = nl.ndarray((4, 6), nl.float32)
            nisa.dma_copy(tile, x.select(0, k))
            nisa.tensor_scalar_reduce(spare, tile, nl.multiply, 2.0, nl.add, sums, reduce_cmd=REDUCE)

        nl.fori_loop(0, 8, body)
        nl.store(out, sums)
        return out

    want = 2 * rows.sum((0, 2))[:, None]
    for kernel in (unrolled, dynamic):
        for eager in (False, True):
            np.testing.assert_allclose(nkijax.run(kernel, rows, eager=eager), want, rtol=1e-5, atol=1e-5)


TILES = (((4, 6), nl.sbuf), ((4, 1), nl.sbuf))


def test_tensor_scalar_cumulative():
    out, part = ran(
        lambda d, p, x, y: (
            nisa.tensor_scalar_cumulative(d, x, nl.multiply, nl.add, y[:, 0:1]),
            nisa.tensor_scalar_cumulative(p, x, op0=nl.add, op1=nl.max, imm0=1.0, imm1=1.5, reduce_cmd=LOAD),
        ),
        (4, 6),
        (4, 6),
    )
    close(out, np.cumsum(X * Y[:, :1], axis=1))
    close(part, np.maximum(np.maximum.accumulate(X + 1, axis=1), 1.5))


def test_exponential_is_a_softmax_s():
    def emit(d, r, x, y):
        most = nl.ndarray((4, 1), nl.float32)
        nisa.tensor_reduce(most, nl.maximum, x, 1)
        nisa.exponential(d, x, most, r, RESET)

    out, res = ran(emit, (4, 6), (4, 1), target="trn3")
    close(out / res, jax.nn.softmax(X, axis=1))
    assert "exponential the instruction: needs gen4 or later, got trn2" in refused(
        lambda t: nisa.exponential(t, t), target="trn2"
    )


def test_select_reduce():
    def emit(d, r, x, y):
        mask = nl.ndarray((4, 6), nl.uint8)
        nisa.tensor_scalar(mask, y, nl.greater, 0.0)
        nisa.select_reduce(d, mask, x, y[:, 0:1], r, reduce_cmd=RESET, reduce_op=nl.max, reverse_pred=True)

    out, res = ran(emit, (4, 6), (4, 1))
    want = np.where(Y > 0, Y[:, :1], X)
    close(out, want)
    close(res, want.max(1, keepdims=True))


def test_range_select():
    """As nki-library masks attention scores: bounds of each row, a tile that starts at 2, bfloat16 out."""

    def emit(d, r, x, y):
        low, high = nl.ndarray((4, 1), nl.float32), nl.ndarray((4, 1), nl.float32)
        nisa.iota(low, [[0, 1]], offset=2, channel_multiplier=1)
        nisa.iota(high, [[0, 1]], offset=5, channel_multiplier=1)
        narrow = nl.ndarray((4, 6), nl.bfloat16)
        nisa.range_select(
            narrow, on_true_tile=x, on_false_value=-3.4028235e38, comp_op0=nl.greater_equal, comp_op1=nl.less,
            bound0=low, bound1=high, reduce_op=nl.maximum, reduce_res=r, range_start=2,
        )  # fmt: skip
        nisa.activation(d, nl.exp, narrow)

    out, res = ran(emit, (4, 6), (4, 1))
    k, first = np.arange(2, 8), np.arange(2, 6)[:, None]
    keep = (k >= first) & (k < first + 3)
    close(res, np.where(keep, X, FLOAT32_MIN).max(1, keepdims=True))
    np.testing.assert_allclose(out, np.where(keep, np.exp(X), 0), rtol=2e-2)


def test_activate2():
    out, res = ran(
        lambda d, r, x, y: nisa.activate2(
            d, nl.prelu, x, 2.0, y[:, 0:1], nl.multiply, nl.subtract, 0.25, reverse1=True, reduce_op=nl.abs_max,
            reduce_res=r, reduce_cmd=RESET,
        ),
        (4, 6), (4, 1), target="trn3",
    )  # fmt: skip
    v = Y[:, :1] - 2 * X
    want = np.where(v > 0, v, 0.25 * v)
    close(out, want)
    close(res[:, 0], want[np.arange(4), np.abs(want).argmax(1)])
    assert "activate2 the instruction: needs gen4 or later" in refused(
        lambda t: nisa.activate2(t, nl.exp, t, 0.0, 0.0, nl.bypass, nl.bypass), target="trn2"
    )


def test_bn_stats_and_bn_aggr():
    def emit(d, x, y):
        stats = nl.ndarray((4, 12), nl.float32)
        nisa.bn_stats(dst=stats[:, nl.ds(0, 6)], data=x)
        nisa.bn_stats(stats[:, 6:12], y)
        nisa.bn_aggr(dst=d, data=stats)

    both = np.concatenate([X, Y], axis=1)
    np.testing.assert_allclose(ran(emit, (4, 2))[0], np.stack([both.mean(1), both.var(1)], axis=1), rtol=1e-5)


def test_tensor_partition_reduce():
    close(ran(lambda d, x, y: nisa.tensor_partition_reduce(d, nl.add, x), (1, 6))[0], X.sum(0, keepdims=True))
    close(ran(lambda d, x, y: nisa.tensor_partition_reduce(d, nl.average, x), (1, 2, 3))[0].reshape(6), X.mean(0))
    close(ran(lambda d, x, y: nisa.tensor_partition_reduce(d, op=nl.max, data=x), (1, 6))[0], X.max(0, keepdims=True))


def test_gradients_reach_through_the_accumulator():
    """A layer norm, and a softmax whose sum is accumulated over two halves."""

    def kernel(x):
        out = nl.ndarray((4, 6), nl.float32, buffer=nl.shared_hbm)
        tile, stats, mean = nl.load(x), nl.ndarray((4, 6), nl.float32), nl.ndarray((4, 2), nl.float32)
        nisa.bn_stats(stats, tile)
        nisa.bn_aggr(mean, stats)
        nisa.activation(mean[:, 1:2], nl.rsqrt, mean[:, 1:2], bias=1e-5)
        nisa.tensor_scalar(tile, tile, nl.subtract, mean[:, 0:1], op1=nl.multiply, operand1=mean[:, 1:2])
        total = nl.ndarray((4, 1), nl.float32)
        nisa.exponential(tile[:, 0:3], tile[:, 0:3], 1.0, None, RESET)
        nisa.exponential(tile[:, 3:6], tile[:, 3:6], 1.0, total, REDUCE)
        nisa.reciprocal(total, total)
        nisa.tensor_scalar(tile, tile, nl.multiply, total)
        nl.store(out, tile)
        return out

    def plain(x):
        y = (x - x.mean(1, keepdims=True)) * jax.lax.rsqrt(x.var(1, keepdims=True) + 1e-5)
        return jax.nn.softmax(y, axis=1)

    f = nkijax.function(kernel, target="trn3")
    weights = jnp.asarray(Y)
    got, want = (jax.jit(jax.grad(lambda x, g=g: jnp.sum(g(x) * weights)))(jnp.asarray(X)) for g in (f, plain))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_is_refused():
    assert "tensor_scalar_reduce reduce_op: must be one of" in refused(
        lambda t: nisa.tensor_scalar_reduce(t, t, nl.multiply, 1.0, nl.subtract)
    )
    assert "reduce_cmd: must be reduce_cmd.reset_reduce, reduce or load_reduce, got 3" in refused(
        lambda t: nisa.tensor_scalar_reduce(t, t, nl.multiply, 1.0, nl.add, reduce_cmd=3)
    )
    assert "tensor_scalar_reduce reduce_res: must be a tensor, got 1.0" in refused(
        lambda t: nisa.tensor_scalar_reduce(t, t, nl.multiply, 1.0, nl.add, 1.0)
    )
    assert "range_select the instruction: needs gen3" in refused(
        lambda t: nisa.range_select(t, t, nl.less, nl.less, t[:, 0:1], t[:, 0:1]), target="trn1"
    )
    assert "op: must be one of ['add', 'average'" in refused(
        lambda t: nisa.tensor_partition_reduce(t[0:1, :], nl.minimum, t)
    )
