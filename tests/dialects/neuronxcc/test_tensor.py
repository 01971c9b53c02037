"""Tensors and tiles: facts, views, and what is shared."""

import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc import simulate_kernel
from nkijax.dialects.neuronxcc.bounds import OutOfBounds
from nkijax.dialects.neuronxcc.tensor import allocate, boxed, broadcast, face

from .test_subscript import inside

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_facts():
    def body(x):
        t = nl.ndarray((4, 2, 3), dtype=nl.bfloat16, name="t")
        assert (t.shape, t.dtype, t.ndim, t.size, t.itemsize) == ((4, 2, 3), nl.bfloat16, 3, 24, 2)
        assert t.buffer is nl.sbuf and t.shape_2d == (4, 6) and t.name == "t" and t.as_tile() is t
        assert (t == None) is False and t == t and (t == "t") is False and bool(t)  # noqa: E711
        assert x.dtype == np.float32 and x.buffer in (nl.hbm, nl.private_hbm) and len({t, x}) == 2
        assert "bfloat16[4, 2, 3] in sbuf" in repr(t)
        with pytest.raises(TypeError, match="not iterable"):
            list(t)
        with pytest.raises(TypeError, match="only at run time"):
            int(t[0, 0, 0])

    inside(body, X)


def test_views_share_storage():
    def kernel(x):
        out = nl.ndarray((3, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        column = t[:, 1]
        column[...] = 7
        flat = t.reshape((3, 2, 2))
        flat[:, 1, 1] = 8
        t.reshape(shape=(3, 4))[0:1][0, 0] = 9
        t.view(nl.int32)[1, 0] = 0
        t.expand_dims(1)[2, 0, 0] = 5
        nl.store(out, t)
        return out

    want = X.copy()
    want[:, 1], want[:, 3], want[0, 0], want[1, 0], want[2, 0] = 7, 8, 9, 0, 5
    assert (simulate_kernel(kernel, X) == want).all()


def test_broadcasts_align_from_the_left():
    def body(x):
        v = allocate((4, 1), "float32", nl.sbuf)
        assert broadcast(v, (4, 3, 2)).strides == (1, 0, 0)
        assert broadcast(allocate((4, 1, 1), "float32", nl.sbuf), (4, 1)).shape == (4, 1)
        with pytest.raises(KernelError, match="does not broadcast"):
            broadcast(v, (3, 4))
        part = boxed(broadcast(v, (4, 3)), ((1, 3), (0, 2)))
        assert (part.offset, part.shape) == (1, (2, 2)) and face(v).on_chip

    inside(body, X)


def test_a_result_is_a_snapshot_though_its_copy_was_spared():
    def kernel(x):
        out = nl.ndarray((2, 3, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((3, 4), dtype=x.dtype)
        loaded = nl.load(x)
        t[...] = loaded
        t[...] += 1
        nl.store(out[0], t)
        nl.store(out[1], loaded)
        return out

    got = simulate_kernel(kernel, X)
    assert (got[0] == X + 1).all() and (got[1] == X).all()


def test_out_of_bounds_is_an_index_error():
    assert issubclass(OutOfBounds, IndexError) and issubclass(OutOfBounds, nkijax.KernelError)

    def kernel(x):
        return nl.load(x[0:9])

    with pytest.raises(IndexError, match="exceed dimension size of 3"):
        simulate_kernel(kernel, X)
