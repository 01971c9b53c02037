"""The tensor engine, random numbers, copies and casts."""

import ml_dtypes
import numpy as np
import pytest

from nkijax.dialects.neuronxcc import language as nl

from .test_emit import X, ran

Y = np.arange(48, dtype=np.float32).reshape(8, 6) / 7


def test_matmul():
    np.testing.assert_allclose(ran(lambda x, y: nl.matmul(nl.load(x), nl.load(y)), X, Y), X @ Y, rtol=1e-5)
    np.testing.assert_allclose(ran(lambda x: nl.matmul(nl.load(x), nl.load(x), transpose_x=True)), X.T @ X, rtol=1e-5)
    mixed = ran(lambda x: nl.matmul(nl.load(x, dtype=nl.bfloat16), nl.load(x), transpose_x=True))
    np.testing.assert_allclose(mixed, X.T @ X, rtol=1e-2)


def test_masks_of_matmuls():
    i, j = nl.arange(8)[:, None], nl.arange(8)[None, :]
    want = np.zeros((8, 8), np.float32)
    want[:3, :5] = (X.T @ X)[:3, :5]
    got = ran(lambda x: nl.matmul(nl.load(x), nl.load(x), transpose_x=True, mask=(i < 3) & (j < 5)))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    p, f = nl.arange(6)[:, None], nl.arange(8)[None, :]
    got = ran(lambda x: nl.matmul(nl.load(x)[p < 4], nl.load(x)[f < 5], transpose_x=True))
    want = X[:4].T @ X[:4]
    want[:, 5:] = 0
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_transpose():
    assert (ran(lambda x: nl.transpose(nl.load(x))) == X.T).all()
    i, _ = nl.mgrid[0:6, 0:8]
    got = ran(lambda x: nl.transpose(nl.load(x), mask=i < 2))
    assert (got[:, :2] == X.T[:, :2]).all() and not got[:, 2:].any()
    words = (X * 2**24).astype(np.int32)
    assert (ran(lambda x: nl.transpose(nl.load(x)), words) == words.T).all()


def test_random_numbers():
    def rand(seed):
        def body(x):
            nl.random_seed(seed)
            return nl.rand((128, 64))

        return ran(body)

    a = rand(1)
    assert (a == rand(1)).all() and not (a == rand(2)).all()
    assert a.min() >= 0 and a.max() < 1 and abs(a.mean() - 0.5) < 0.02 and len(np.unique(a)) > 8000
    assert ran(lambda x: nl.rand((4, 4), dtype=nl.bfloat16)).dtype == ml_dtypes.bfloat16


def test_dropout_does_not_rescale():
    ones = np.ones((128, 64), np.float32)
    half = ran(lambda x: nl.dropout(nl.load(x), 0.5), ones)
    assert set(np.unique(half)) == {0, 1} and abs(half.mean() - 0.5) < 0.05
    assert (ran(lambda x: nl.dropout(nl.load(x), rate=0.0), ones) == 1).all()
    rates = ran(lambda x: nl.dropout(nl.load(x), nl.load(x[:, 0])), ones)
    assert not rates.any()


def test_casts_and_copies():
    assert nl.static_cast(X, nl.bfloat16).dtype == ml_dtypes.bfloat16
    assert ran(lambda x: nl.static_cast(nl.load(x), nl.int8)).dtype == np.int8
    wide = ran(lambda x: nl.broadcast_to(nl.load(x[0:1]), (4, 8)))
    assert (wide == X[:1]).all() and wide.shape == (4, 8)
    assert (ran(lambda x: nl.load(x[:, 0]).broadcast_to((6, 5))) == X[:, :1]).all()
    assert ran(lambda x: nl.load(x).astype(nl.bfloat16)).dtype == ml_dtypes.bfloat16

    def snapshot(x):
        t = nl.load(x)
        old = nl.copy(t)
        t[...] += 1
        return old

    assert (ran(snapshot) == X).all()


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_finfo(name):
    info = nl.finfo(getattr(nl, name))
    want = ml_dtypes.finfo(name)
    assert info.max == float(want.max) and info.min == float(want.min)
