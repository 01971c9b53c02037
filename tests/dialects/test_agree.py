"""The same kernel in both dialects records the same program."""

import ml_dtypes
import numpy as np
import pytest

import nkijax
from nkijax.dialects import neuronxcc, nki
from nkijax.dialects.neuronxcc import isa as old_isa
from nkijax.dialects.neuronxcc import language as old
from nkijax.dialects.nki import isa as new_isa
from nkijax.dialects.nki import language as new
from nkijax.view import View

K, M, N = 512, 256, 1024
LEFT, RIGHT = np.ones((K, M), ml_dtypes.bfloat16), np.ones((K, N), ml_dtypes.bfloat16)
X = np.ones((250, 512), np.float32)


def old_matmul(left, right):
    out = old.ndarray((M, N), dtype=old.bfloat16, buffer=old.shared_hbm)
    i, j = old.mgrid[0:128, 0:128]
    p, f = old.mgrid[0:128, 0:512]
    for m in old.affine_range(M // 128):
        for n in old.affine_range(N // 512):
            total = old.zeros((128, 512), dtype=old.float32, buffer=old.psum)
            for k in old.affine_range(K // 128):
                a = old.load(left[k * 128 + i, m * 128 + j])
                b = old.load(right[k * 128 + p, n * 512 + f])
                total[...] += old_isa.nc_matmul(a, b)
            done = old.copy(total, dtype=old.bfloat16)
            old.store(out[m * 128 + p, n * 512 + f], done)
    return out


def new_matmul(left, right):
    out = new.ndarray((M, N), dtype=new.bfloat16, buffer=new.shared_hbm)
    for m in range(M // 128):
        for n in range(N // 512):
            total = new.ndarray((128, 512), dtype=new.float32, buffer=new.psum)
            for k in range(K // 128):
                a = new.load(left[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128])
                b = new.load(right[k * 128 : (k + 1) * 128, n * 512 : (n + 1) * 512])
                new_isa.nc_matmul(total, a, b)
            done = new.ndarray((128, 512), dtype=new.bfloat16)
            new_isa.tensor_copy(done, total)
            new.store(out[m * 128 : (m + 1) * 128, n * 512 : (n + 1) * 512], done)
    return out


def old_norm(x):
    out = old.ndarray(x.shape, dtype=x.dtype, buffer=old.shared_hbm)
    i, j = old.mgrid[0:128, 0:512]
    for k in old.affine_range(2):
        rows = k * 128 + i < 250
        t, r = old.zeros((128, 512), dtype=x.dtype), old.ndarray((128, 512), dtype=x.dtype)
        t[i, j] = old.load(x[k * 128 + i, j], mask=rows)
        mean = old.sum(old.square(t), axis=1) * (1 / 512)
        r[...] = old.multiply(t, old.rsqrt(mean))
        old.store(out[k * 128 + i, j], r, mask=rows)
    return out


def new_norm(x):
    out = new.ndarray(x.shape, dtype=x.dtype, buffer=new.shared_hbm)
    for k in range(2):
        n = min(128, 250 - k * 128)
        t, r = new.zeros((128, 512), dtype=x.dtype), new.ndarray((128, 512), dtype=x.dtype)
        new_isa.dma_copy(t[0:n], x[k * 128 : k * 128 + n])
        square = new.ndarray((128, 512), dtype=x.dtype)
        new_isa.activation(square, new.square, t)
        total, mean, scale = (new.ndarray((128, 1), dtype=x.dtype) for _ in range(3))
        new_isa.tensor_reduce(total, new.add, square, axis=1)
        new_isa.tensor_scalar(mean, total, new.multiply, 1 / 512)
        new_isa.activation(scale, new.rsqrt, mean)
        new_isa.tensor_scalar(r, t, new.multiply, scale)
        new_isa.dma_copy(out[k * 128 : k * 128 + n], r[0:n])
    return out


def numbered(program):
    """The instructions, with buffers numbered as they come, without sites."""
    order = {}

    def view(v):
        number = order.setdefault(v.buffer, len(order))
        return View(number, v.offset, v.strides, v.shape, v.dtype, v.dynamic)

    return [(type(i), i.rebind(view, lambda x: x)) for i in program.body]


@pytest.mark.parametrize(
    "one, other, arrays", [(old_matmul, new_matmul, (LEFT, RIGHT)), (old_norm, new_norm, (X,))], ids=["matmul", "norm"]
)
def test_dialects_agree(one, other, arrays):
    first = nkijax.trace(neuronxcc.jit(one), *arrays, target="trn2", rolled=False)
    second = nkijax.trace(nki.jit(other), *arrays, target="trn2", rolled=False)
    assert numbered(first) == numbered(second)
    assert nkijax.profile(neuronxcc.jit(one), *arrays, target="trn2").cost.total_us == pytest.approx(
        nkijax.profile(nki.jit(other), *arrays, target="trn2").cost.total_us
    )
