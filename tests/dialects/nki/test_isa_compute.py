"""Compute instructions as kernels spell them; numbers of the entries are tested beside them."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)


def ran(emit, shape=(4, 6), dtype=nl.float32, **options):
    """What `emit(dst, x, y)` leaves in `dst`, compiled and eager."""

    def kernel(x, y):
        out = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
        dst = nl.ndarray(shape, dtype)
        emit(dst, nl.load(x), nl.load(y))
        nl.store(out, dst)
        return out

    results = [nkijax.run(kernel, X, Y, eager=eager, **options) for eager in (False, True)]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6, atol=1e-6)
    return results[0]


def refused(emit, **options):
    with pytest.raises(KernelError) as error:
        nkijax.trace(lambda x: emit(nl.load(x)), X, **options)
    assert error.value.site.startswith(__file__), error.value
    return error.value.message


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_tensor_tensor():
    close(ran(lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.add)), X + Y)
    close(ran(lambda d, x, y: nisa.tensor_tensor(dst=d, data1=x, data2=y, op=nl.max)), np.maximum(X, Y))
    exact = ran(lambda d, x, y: nisa.tensor_tensor(d, x, y, nl.greater, engine=nisa.engine.gpsimd), dtype=nl.int8)
    np.testing.assert_array_equal(exact, X > Y)


def test_tensor_scalar():
    close(ran(lambda d, x, y: nisa.tensor_scalar(d, x, nl.multiply, 2)), 2 * X)
    close(ran(lambda d, x, y: nisa.tensor_scalar(d, x, nl.subtract, np.float64(1.5), True)), 1.5 - X)
    close(ran(lambda d, x, y: nisa.tensor_scalar(d, x, nl.multiply, y[:, 0:1], False, nl.add, 3.0)), X * Y[:, :1] + 3)
    close(ran(lambda d, x, y: nisa.tensor_scalar(d, x, op0=nl.abs, operand0=None)), np.abs(X))


def test_scalar_tensor_tensor():
    emit = lambda d, x, y: nisa.scalar_tensor_tensor(d, x, nl.add, 1.0, nl.subtract, y, reverse1=True)  # noqa: E731
    close(ran(emit), Y - (X + 1))
    close(ran(lambda d, x, y: nisa.scalar_tensor_tensor(d, x, nl.add, 1.0, nl.multiply, y, dtype=nl.int8)), (X + 1) * Y)


def test_reciprocal():
    close(ran(lambda d, x, y: nisa.reciprocal(d, x)), 1 / X)


def test_activation():
    close(ran(lambda d, x, y: nisa.activation(d, nl.exp, x)), np.exp(X))
    close(ran(lambda d, x, y: nisa.activation(d, nl.copy, x, bias=y[:, 0:1], scale=2)), 2 * X + Y[:, :1])
    close(ran(lambda d, x, y: nisa.activation(d, op=nl.square, data=x, scale=np.float32(0.5))), (X / 2) ** 2)


def test_activation_accumulates():
    """The accumulator outlives instructions: reset and add, then add."""

    def emit(dst, x, y):
        spare, idle = nl.ndarray((4, 6), nl.float32), nl.ndarray((4, 1), nl.float32)
        nisa.activation_reduce(spare, nl.square, x, nl.add, dst[:, 0:1])
        nisa.activation(spare, nl.copy, y, reduce_op=nl.add, reduce_res=dst[:, 1:2], reduce_cmd=nisa.reduce_cmd.reduce)
        nisa.activation(spare, nl.exp, y, reduce_res=idle)
        nisa.tensor_copy(dst[:, 2:3], idle)

    squares = (X**2).sum(axis=1)
    want = np.stack([squares, squares + Y.sum(axis=1), squares + Y.sum(axis=1)], axis=1)
    close(ran(emit, (4, 3)), want)


def test_tensor_reduce():
    close(ran(lambda d, x, y: nisa.tensor_reduce(d, nl.add, x, 1), (4, 1)), X.sum(1, keepdims=True))
    close(
        ran(lambda d, x, y: nisa.tensor_reduce(d, nl.max, x, axis=[1], keepdims=True), (4, 1)), X.max(1, keepdims=True)
    )
    last = lambda d, x, y: nisa.tensor_reduce(d, nl.add, x.reshape((4, 2, 3)), (2,), negate=True)  # noqa: E731
    close(ran(last, (4, 2)), -X.reshape(4, 2, 3).sum(2))


def test_tensor_tensor_scan():
    want, carry = np.empty_like(X), np.full(4, 0.5, np.float32)
    for i in range(6):
        carry = X[:, i] * carry + Y[:, i]
        want[:, i] = carry
    close(ran(lambda d, x, y: nisa.tensor_tensor_scan(d, x, y, 0.5, nl.multiply, nl.add)), want)


def test_iota_and_affine_select():
    def index(offset):
        return lambda d, x, y: nisa.iota(d, [[2, 3], [1, 2]], offset=offset(), channel_multiplier=np.int64(10))

    want = np.arange(4)[:, None] * 10 + np.arange(6) + 5
    np.testing.assert_array_equal(ran(index(lambda: 5), dtype=nl.int32), want)
    np.testing.assert_array_equal(ran(index(lambda: nisa.register_alloc(5)), dtype=nl.int32), want)
    causal = lambda d, x, y: nisa.affine_select(d, [[-1, 6]], 1, x, -9.0, cmp_op=nl.greater_equal)  # noqa: E731
    close(ran(causal), np.where(np.arange(4)[:, None] >= np.arange(6), X, -9))


def test_what_is_no_operator():
    assert "tensor_tensor op: must be a math operator of nki.language, got exp" in refused(
        lambda t: nisa.tensor_tensor(t, t, t, nl.exp)
    )
    assert "got add" in refused(lambda t: nisa.tensor_tensor(t, t, t, "add"))
    assert "got None" in refused(lambda t: nisa.tensor_tensor(t, t, t, None))
    assert "op: must be an activation function, one of" in refused(lambda t: nisa.activation(t, nl.add, t))
    assert "op: must be an activation function" in refused(lambda t: nisa.activation(t, np.exp, t))
    assert "takes no relu_param" in refused(lambda t: nisa.activation(t, nl.prelu, t))
    assert "op0: must be a math operator" in refused(lambda t: nisa.tensor_scalar(t, t, [], 1.0))
    assert "cmp_op: must be a comparison, got add" in refused(
        lambda t: nisa.affine_select(t, [[1, 6]], 0, t, 0.0, cmp_op=nl.add)
    )


def test_what_is_no_operand():
    assert "data1: must be a tensor, got 1.0" in refused(lambda t: nisa.tensor_tensor(t, 1.0, t, nl.add))
    assert "must be in ['sbuf', 'psum'], got private_hbm" in refused(
        lambda t: nisa.reciprocal(t, nl.ndarray((4, 6), nl.float32, buffer=nl.hbm))
    )
    assert "axis: must be an int or a sequence of ints" in refused(
        lambda t: nisa.tensor_reduce(t[:, 0:1], nl.add, t, 1.0)
    )
    assert "axis: tensor_reduce axis must be the last contiguous dim(s)" in refused(
        lambda t: nisa.tensor_reduce(t[:, 0:3], nl.add, t.reshape((4, 3, 2)), axis=1)
    )
    assert "reduce_cmd: must be reduce_cmd.idle" in refused(lambda t: nisa.activation(t, nl.exp, t, reduce_cmd=3))


def test_trap_16_more_partitions_than_the_machine_has():
    def kernel(x):
        tile = nl.ndarray((129, 4), nl.float32)
        nisa.tensor_tensor(tile, tile, tile, nl.add)

    with pytest.raises(KernelError, match="dst partition dimension 129 exceeds maximum 128"):
        nkijax.trace(kernel, X)
