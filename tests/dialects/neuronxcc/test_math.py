"""Elementwise functions, against NumPy."""

import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.math import FUNCTIONS

from .test_emit import X, ran

Y = np.linspace(-3, 3, 48, dtype=np.float32).reshape(6, 8)

UNARY = {
    "abs": np.abs, "arctan": np.arctan, "ceil": np.ceil, "cos": np.cos, "exp": np.exp, "floor": np.floor,
    "negative": np.negative, "reciprocal": np.reciprocal, "relu": lambda x: np.maximum(x, 0), "sign": np.sign,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sin": np.sin, "square": np.square, "tan": np.tan, "tanh": np.tanh,
    "trunc": np.trunc, "silu": lambda x: x / (1 + np.exp(-x)), "softplus": lambda x: np.log1p(np.exp(x)),
    "silu_dx": lambda x: (s := 1 / (1 + np.exp(-x))) * (1 + x * (1 - s)),
    "logical_not": lambda x: x == 0,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    got = ran(lambda x: FUNCTIONS[name](nl.load(x)), Y)
    np.testing.assert_allclose(got, UNARY[name](Y), rtol=2e-5, atol=1e-6)
    assert FUNCTIONS[name].__name__ == name


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt"])
def test_unary_of_positive_numbers(name):
    want = 1 / np.sqrt(X) if name == "rsqrt" else getattr(np, name)(X)
    np.testing.assert_allclose(ran(lambda x: FUNCTIONS[name](nl.load(x))), want, rtol=1e-5)


BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "mod": np.mod, "fmod": np.fmod, "equal": np.equal, "not_equal": np.not_equal,
    "less": np.less, "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    f, want = FUNCTIONS[name], BINARY[name]
    for got, other in [
        (ran(lambda x, y: f(nl.load(y), nl.load(x)), X, Y), X),
        (ran(lambda x, y: f(nl.load(y), nl.load(x[:, 0:1])), X, Y), X[:, :1]),
        (ran(lambda x, y: f(nl.load(y), nl.load(x[0:1])), X, Y), X[:1]),
        (ran(lambda x, y: f(nl.load(y), 2.5), X, Y), np.float32(2.5)),
    ]:
        np.testing.assert_allclose(got, want(Y, other), rtol=1e-6)
    np.testing.assert_allclose(ran(lambda x, y: f(1.5, nl.load(x)), X, Y), want(np.float32(1.5), X), rtol=1e-6)
    np.testing.assert_allclose(ran(lambda x, y: f(nl.load(x[:, 0]), nl.load(y)), X, Y), want(X[:, :1], Y), rtol=1e-6)


def test_power_in_sbuf():
    np.testing.assert_allclose(ran(lambda x: nl.power(nl.load(x), 2.0)), X**2, rtol=1e-5)


def test_operators_and_updates():
    def body(x):
        t = nl.load(x)
        u = (2 * t - 1) / (t + 3) - 1 / t
        u += t
        u -= 1
        u *= t
        u /= 2
        return -u

    want = ((2 * X - 1) / (X + 3) - 1 / X + X - 1) * X / 2
    np.testing.assert_allclose(ran(body), -want, rtol=1e-5, atol=1e-6)
    names = [type(i).__name__ for i in nkijax.trace(jit(lambda x: (nl.arange(1), 1.0 / nl.load(x), None)[2]), X).body]
    assert names == ["DmaCopy", "Reciprocal"]


def test_words_are_exact():
    big = np.array([[2**30 + 1, 7], [2**24 + 1, -5]], np.int32)

    def body(x):
        t = nl.load(x)
        return t + 1 - t * 3 + nl.bitwise_and(t, 255)

    assert (ran(body, big) == big + 1 - big * 3 + (big & 255)).all()
    assert (ran(lambda x: nl.right_shift(nl.load(x), 1), big[:1]) == big[:1] >> 1).all()
    assert (ran(lambda x: nl.invert(nl.load(x)), big) == ~big).all()


def test_dtypes_of_results():
    def kinds(x):
        a, b = nl.load(x, dtype=nl.bfloat16), nl.load(x, dtype=nl.int32)
        floats = a * 0.125, b + 1.5, b / b
        assert all(r.dtype == nl.float32 for r in floats)
        assert all(r.dtype == nl.bfloat16 for r in (a * 2, a + b, a * True, nl.exp(a)))
        assert (b + 1).dtype == nl.int32 and (a < b).dtype == nl.bool_ and nl.add(a, b, dtype=nl.int8).dtype == nl.int8
        return a

    ran(kinds)


def test_choosing():
    got = ran(lambda x, y: nl.where(nl.greater(nl.load(y), 0), nl.load(x), nl.load(y)), X, Y)
    assert (got == np.where(Y > 0, X, Y)).all()
    got = ran(lambda x, y: nl.where(nl.greater(nl.load(y[:, 0:1]), -1), nl.load(x), 0.0), X, Y)
    assert (got == np.where(Y[:, :1] > -1, X, 0)).all()
    got = ran(lambda x, y: nl.where(nl.equal(nl.load(y), nl.load(y)), 2, nl.load(x, dtype=nl.bfloat16)), X, Y)
    assert (got == 2).all()


def test_index_grids_and_tiles():
    i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]

    def body(x):
        t = nl.load(x, dtype=nl.int32)
        return t + (10 * i + j) - (nl.load(x[0:1, 0:1], dtype=nl.int32) + i)

    a, b = np.indices((6, 8))
    assert (ran(body) == X.astype(int) + 10 * a + b - 1 - a).all()


def test_refused():
    with pytest.raises(KernelError, match="nl.add: one operand must be a tile"):
        ran(lambda x: nl.add(1, 2))
    with pytest.raises(KernelError, match="nl.exp x: must be a tile"):
        ran(lambda x: nl.exp(x))
    with pytest.raises(KernelError, match="agree from the left"):
        ran(lambda x: nl.load(x) + nl.load(x[0:3]))
