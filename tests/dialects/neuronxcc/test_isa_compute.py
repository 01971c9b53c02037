"""Element-by-element instructions, as kernels spell them."""

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
C = RNG.standard_normal((8, 1)).astype(np.float32)
I = RNG.integers(0, 100, (8, 6)).astype(np.int32)  # noqa: E741


# ---- two tiles


@pytest.mark.parametrize(
    "op, want",
    [(np.add, X + Y), (nl.add, X + Y), (np.sum, X + Y), (nl.max, np.maximum(X, Y)), (np.amin, np.minimum(X, Y))],
)
def test_operators_count_by_name(op, want):
    close(computed(lambda x, y: nisa.tensor_tensor(x, y, op), X, Y), want)


def test_tensor_tensor():
    close(computed(lambda x, y: nisa.tensor_tensor(x, y, np.greater, dtype=np.uint8), X, Y), X > Y)
    low = X.astype(ml_dtypes.bfloat16)
    assert computed(lambda x, y: nisa.tensor_tensor(x, y, np.add), low, Y).dtype == np.float32
    big = np.full((8, 6), 2**24 + 1, np.int32)
    np.testing.assert_array_equal(computed(lambda x, y: nisa.tensor_tensor(x, y, np.add), big, I), big + I)
    np.testing.assert_array_equal(
        computed(lambda x, y: nisa.tensor_tensor(x, y, np.bitwise_and), I, I[::-1]), I & I[::-1]
    )


def test_ranks_align_from_the_left():
    three = RNG.standard_normal((8, 6, 5)).astype(np.float32)
    close(computed(lambda x, y: nisa.tensor_tensor(x, y, np.add), three, X), three + X[:, :, None])
    close(computed(lambda x, y: nisa.tensor_tensor(x, y, np.multiply), X, C), X * C)


def test_two_streams_from_psum():
    eye = np.eye(8, dtype=np.float32)

    def emit(e, x, y):
        return nisa.tensor_tensor(nisa.nc_matmul(e, x), nisa.nc_matmul(e, y), np.add, engine=nisa.gpsimd_engine)

    close(computed(emit, eye, X, Y), X + Y)


def test_unknown_operators_and_operands():
    with pytest.raises(KernelError, match="tensor_tensor op: must be a math operator of nl or NumPy, got numpy.fft"):
        nkijax.trace(lambda x: nisa.tensor_tensor(nl.load(x), nl.load(x), np.fft), X)
    with pytest.raises(KernelError, match="tensor_tensor data2: must be a tile"):
        nkijax.trace(lambda x: nisa.tensor_tensor(nl.load(x), 3, np.add), X)


# ---- scalars


def test_tensor_scalar():
    close(computed(lambda x: nisa.tensor_scalar(x, np.multiply, 2.0), X), X * 2)
    close(computed(lambda x: nisa.tensor_scalar(x, np.subtract, 1.5, True, np.multiply, 2), X), (1.5 - X) * 2)
    close(
        computed(lambda x, c: nisa.tensor_scalar(x, op0=np.multiply, operand0=c, op1=np.add, operand1=c), X, C),
        X * C + C,
    )
    low = C.astype(ml_dtypes.bfloat16)
    close(computed(lambda x, c: nisa.tensor_scalar(x, np.multiply, c), X, low), X * low.astype(np.float32))
    close(computed(lambda x: nisa.tensor_scalar(x, nl.abs, 0.0, op1=np.multiply, operand1=2.0), X), np.abs(X) * 2)
    np.testing.assert_array_equal(computed(lambda x: nisa.tensor_scalar(x, np.right_shift, 2), I), I >> 2)
    close(computed(lambda x: nisa.tensor_scalar(x, nl.rsqrt, 0.0), X * X + 1), 1 / np.sqrt(X * X + 1), 1e-5)
    one = C[:1]
    close(computed(lambda x, c: nisa.tensor_scalar(x, np.add, c, engine=nisa.vector_engine), X, one), X + one)


def test_a_column_has_one_element_a_partition():
    with pytest.raises(KernelError, match=r"tensor_scalar operand0: must be a number or a \(P, 1\) tile"):
        nkijax.trace(lambda x: nisa.tensor_scalar(nl.load(x), np.add, nl.load(x)), X)


def test_a_column_view_without_its_dimension():
    def emit(x, c):
        wide = nl.ndarray((8, 3), dtype=np.float32)
        wide[...] = 0
        wide[:, 1] = c[:, 0]
        return nisa.tensor_scalar(x, np.add, wide[:, 1])

    close(computed(emit, X, C), X + C)


def test_scalar_tensor_tensor():
    emit = lambda x, y, c: nisa.scalar_tensor_tensor(data=x, op0=np.multiply, operand0=c, op1=np.subtract, operand1=y)  # noqa: E731
    close(computed(emit, X, Y, C), X * C - Y)
    emit = lambda x, y: nisa.scalar_tensor_tensor(  # noqa: E731
        data=x, op0=np.subtract, operand0=1.0, op1=np.subtract, operand1=y, reverse0=True, reverse1=True
    )
    close(computed(emit, X, Y), Y - (1 - X))


def test_reciprocal():
    close(computed(lambda x: nisa.reciprocal(x), X), 1 / X)


def test_tensor_scalar_reduce():
    def kernel(x):
        out, most = (nl.ndarray(s, dtype=np.float32, buffer=nl.shared_hbm) for s in ((8, 6), (8, 2)))
        columns = nl.zeros((8, 2), dtype=np.float32)
        tile = nisa.tensor_scalar_reduce(
            data=nl.load(x), op0=nl.abs, operand0=0.0, reduce_op=nl.max, reduce_res=columns[:, 1], name="n"
        )
        nl.store(out, tile)
        nl.store(most, columns)
        return out, most

    out, most = ran(kernel, X)
    close(out, np.abs(X))
    close(most, np.stack([np.zeros(8), np.abs(X).max(1)], axis=1))
    with pytest.raises(KernelError, match="reverse0"):
        nkijax.trace(
            lambda x: nisa.tensor_scalar_reduce(
                data=nl.load(x), op0=np.subtract, operand0=1.0, reduce_op=np.add, reduce_res=None, reverse0=True
            ),
            X,
        )


def test_tensor_tensor_scan():
    def want(initial):
        r, out = initial, []
        for i in range(6):
            r = X[:, i : i + 1] * r + Y[:, i : i + 1]
            out.append(r)
        return np.concatenate(out, axis=1)

    scan = nisa.tensor_tensor_scan
    close(computed(lambda x, y, c: scan(x, y, initial=c, op0=np.multiply, op1=np.add), X, Y, C), want(C))
    close(computed(lambda x, y: scan(x, y, 0.0, np.multiply, np.add), X, Y), want(np.zeros((8, 1))))


def test_dropout():
    ones = np.ones((16, 64), np.float32)
    half = computed(lambda x: nisa.dropout(x, 0.5), ones)
    assert set(np.unique(half)) == {0, 1} and 0.4 < half.mean() < 0.6
    np.testing.assert_array_equal(computed(lambda x: nisa.dropout(x, prob=0.0), ones), ones)


# ---- the scalar engine


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_activation(target):
    close(computed(lambda x: nisa.activation(np.exp, x, scale=0.5), X, target=target), np.exp(X * 0.5))
    close(
        computed(lambda x, c: nisa.activation(op=nl.exp, data=x, bias=c, scale=c), X, C, target=target),
        np.exp(X * C + C),
    )
    close(computed(lambda x: nisa.activation(nl.tanh, x, 1.0), X, target=target), np.tanh(X + 1), 1e-5)
    low = C.astype(ml_dtypes.bfloat16)
    emit = lambda x, c: nisa.activation(nl.copy, x, scale=c, bias=c, dtype=nl.float32)  # noqa: E731
    close(computed(emit, X, low, target=target), X * low.astype(np.float32) + low.astype(np.float32))


def test_activation_accumulates():
    def kernel(x, y):
        out = nl.ndarray((8, 2), dtype=np.float32, buffer=nl.shared_hbm)
        sums = nl.zeros((8, 2), dtype=np.float32)
        nisa.activation(np.square, nl.load(x), reduce_op=np.add, reduce_cmd=nisa.reduce_cmd.reset_reduce)
        nisa.activation(
            np.square, nl.load(y), reduce_op=np.add, reduce_res=sums[:, 1], reduce_cmd=nisa.reduce_cmd.reduce
        )
        nl.store(out, sums)
        return out

    close(ran(kernel, X, Y)[:, 1], (X**2).sum(1) + (Y**2).sum(1), 1e-5)


def test_activation_reduce_into_columns():
    def kernel(x):
        out = nl.ndarray((8, 4), dtype=np.float32, buffer=nl.shared_hbm)
        sums, ip = nl.zeros((8, 4), dtype=np.float32), nl.arange(8)[:, None]
        tile = nl.load(x)
        for i in nl.affine_range(4):
            nisa.activation_reduce(np.exp, tile, bias=None, scale=float(i), reduce_op=np.add, reduce_res=sums[ip, i])
        nl.store(out, sums)
        return out

    close(ran(kernel, X), np.stack([np.exp(X * i).sum(1) for i in range(4)], axis=1), 1e-5)


# ---- masks


def test_masked_lanes_keep_their_value():
    def kernel(x, y):
        out = nl.ndarray((8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0:8, 0:6]
        tile = nl.load(y)
        tile[i, j] = nisa.activation(np.exp, nl.load(x)[i, j], mask=(i < 5) & (j < 4))
        tile[i, j] = nisa.tensor_scalar(tile[i, j], np.add, 100.0, mask=i < 2)
        nl.store(out, tile)
        return out

    i, j = np.mgrid[0:8, 0:6]
    want = np.where((i < 5) & (j < 4), np.exp(X), Y)
    close(ran(kernel, X, Y), np.where(i < 2, want + 100, want), 1e-5)


def test_a_mask_that_is_no_box():
    def kernel(x, y):
        out = nl.ndarray((8, 6), dtype=np.float32, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0:8, 0:6]
        tile = nl.load(y)
        tile[i, j] = nisa.tensor_tensor(nl.load(x), nl.load(y), np.multiply, mask=i >= j)
        nl.store(out, tile)
        return out

    close(ran(kernel, X, Y), np.where(np.tri(8, 6).astype(bool), X * Y, Y))


def test_a_reduction_of_what_a_mask_leaves():
    def kernel(x):
        out = nl.zeros((8, 1), dtype=np.float32, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0:8, 0:6]
        sums = nl.zeros((8, 1), dtype=np.float32)
        nisa.activation_reduce(nl.copy, nl.load(x), reduce_op=np.add, reduce_res=sums, mask=(i < 5) & (j < 4))
        nl.store(out, sums)
        return out

    close(ran(kernel, X), np.where(np.arange(8) < 5, X[:, :4].sum(1), 0)[:, None])
