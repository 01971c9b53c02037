"""Math on tiles, element by element; the numbers of the entries are tested beside them."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.language as nl
from nkijax.machine import Engine
from nkijax.program import instructions
from tests.dialects.nki.test_ops import BINARY, UNARY
from tests.dialects.nki.tiles import COLUMN, X, Y, close, ran, refused

erf = np.vectorize(math.erf)


def phi(x):
    return 0.5 * (1 + erf(x / np.sqrt(2)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


REFERENCE = {
    "abs": np.abs,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arctan": np.arctan,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * phi(x),
    "gelu_dx": lambda x: phi(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))),
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf": erf,
    "erf_dx": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
    "reciprocal": lambda x: 1 / x,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "negative": np.negative,
    "sign": np.sign,
    "logical_not": lambda x: (x == 0).astype(np.float32),
    "copy": lambda x: x,
}
POSITIVE = ("sqrt", "rsqrt", "log")
TWO = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
    "power": lambda a, b: np.power(np.abs(a), b),
    "fmod": np.fmod,
    "mod": np.mod,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
}
BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": lambda a, b: (a.astype(np.uint32) >> np.asarray(b, np.uint32)).astype(np.int32),
}
X[0, :3] = Y[0, :3]  # some are equal
X[1, 0] = Y[1, 1] = 0


def test_every_function_is_here():
    assert {*REFERENCE, "invert"} == set(UNARY) and {*TWO, *BITS} == set(BINARY)


def test_one_operand():
    def kernel(x, positive):
        return tuple(getattr(nl, n)(positive if n in POSITIVE else x) for n in REFERENCE)

    positive = np.abs(X) + np.float32(0.1)
    angles = np.where(X == 0, 1, X * 3).astype(np.float32)
    for name, got in zip(REFERENCE, ran(kernel, angles, positive, both=True), strict=True):
        x = (positive if name in POSITIVE else angles).astype(np.float64)
        np.testing.assert_allclose(got, REFERENCE[name](x), rtol=2e-5, atol=2e-6, err_msg=name)


def test_invert():
    x = np.array([[0, 1, -5, 2**30]], np.int32)
    np.testing.assert_array_equal(ran(nl.invert, x), ~x)


def forms(name, a, b, c):
    """name(tile, tile), (tile, number), (number, tile), (tile, column), (column, tile)."""
    f = getattr(nl, name)
    return f(a, b), f(a, 0.75), f(1.25, a), f(a, c), f(c, a)


def test_two_operands():
    """All binary functions, in all forms, in one kernel."""
    x, y = (np.where(v == 0, 2, v).astype(np.float32) for v in (X, Y))
    bases = np.abs(x)

    def kernel(x, y, c, bases):
        return tuple(t for n in TWO for t in forms(n, *((bases, y, bases[:, 0:1]) if n == "power" else (x, y, c))))

    got = iter(ran(kernel, x, y, COLUMN, bases))
    for name, function in TWO.items():
        a, b, c = (bases, y, bases[:, 0:1]) if name == "power" else (x, y, COLUMN)
        for first, second in ((a, b), (a, 0.75), (1.25, a), (a, c), (c, a)):
            want = function(np.asarray(first, np.float32), np.asarray(second, np.float32))
            want = np.broadcast_to(want, X.shape).astype(np.float32)
            np.testing.assert_allclose(next(got), want, rtol=1e-5, atol=1e-6, err_msg=name)


def test_bits():
    a = np.array([[1, -2, 2**30, 7, 0, -(2**31)]] * 4, np.int32)
    b = np.array([[3, 1, 2, 5, 4, 1]] * 4, np.int32)
    c = np.array([[1], [2], [3], [4]], np.int32)
    got = iter(ran(lambda x, y, z: tuple(getattr(nl, n)(x, v) for n in BITS for v in (y, 3, z)), a, b, c, both=True))
    for name, function in BITS.items():
        for other in (b, np.int32(3), c):
            np.testing.assert_array_equal(next(got), np.broadcast_to(function(a, other), a.shape), name)


def test_result_dtypes():
    """That of the first tile, or the one asked for; comparisons are no exception."""
    f, h, i = X, X.astype(ml_dtypes.bfloat16), np.arange(24, dtype=np.int32).reshape(4, 6)
    got = ran(
        lambda f, h, i: (
            nl.add(f, h), nl.add(h, f), nl.add(i, f), nl.add(2.5, i), nl.less(h, f), nl.less(f, h, dtype=nl.uint8),
            nl.exp(h), nl.exp(h, nl.float32), nl.exp(f, dtype=jnp.bfloat16), nl.floor(i), nl.add(f, h, nl.int8),
        ),
        f, h, i,
    )  # fmt: skip
    want = "float32 bfloat16 int32 int32 bfloat16 uint8 bfloat16 float32 bfloat16 int32 int8".split()
    assert [g.dtype.name for g in got] == want
    np.testing.assert_array_equal(got[3], np.rint(i + 2.5), "rounded to nearest even on the write")


def test_32_bit_integers_are_exact_between_tiles():
    """Case 10: tiles of uint32 above 2^24; with a number the sum goes through float32."""
    x = np.array([[2**24 + 1, 2**31 + 3]] * 4, np.uint32)
    c = np.array([[1], [2], [3], [4]], np.uint32)
    both, column, number = ran(lambda x, c: (nl.add(x, x), nl.add(x, c), nl.add(x, 2)), x, c)
    np.testing.assert_array_equal(both, x + x)
    np.testing.assert_array_equal(column, x + c)
    assert number[0, 0] == np.float32(2**24 + 1) + 2 != x[0, 0] + 2


def test_more_dimensions_and_views():
    x = np.random.default_rng(3).standard_normal((4, 2, 6)).astype(np.float32)
    got = ran(lambda t, c: (nl.multiply(t[:, 1], t[:, 0]), nl.add(t, c), nl.exp(t[:, :, ::2])), x, COLUMN)
    close(got[0], x[:, 1] * x[:, 0])
    close(got[1], x + COLUMN[:, :, None])
    close(got[2], np.exp(x[:, :, ::2]))


def test_case_1_a_broadcast_view_multiplies_as_its_slices_do():
    """Case 1: a 3-D tile times a 2-D one, broadcast along the middle axis."""
    x = np.random.default_rng(3).standard_normal((4, 3, 6)).astype(np.float32)
    got = ran(lambda t, y: nl.multiply(t, y.expand_dim(1).broadcast(1, 3)), x, Y)
    np.testing.assert_array_equal(got, np.stack([x[:, k] * Y for k in range(3)], axis=1))


def test_ties_of_magnitudes_give_the_second():
    one, minus = np.ones((1, 2), np.float32), -np.ones((1, 1), np.float32)
    for f in (nl.abs_max, nl.abs_min):
        assert (ran(f, one, minus) == -1).all()


def test_comparisons_with_nan():
    x = np.array([[np.nan, 1.0]], np.float32)
    got = ran(lambda a: (nl.equal(a, a), nl.not_equal(a, a), nl.less(a, 2.0)), x)
    assert [g.tolist() for g in got] == [[[0, 1]], [[1, 0]], [[0, 1]]]


def test_tiles_are_true():
    """Trap 19: documentation says `assert nl.equal(a, b)`."""
    assert ran(lambda a: nl.equal(a, a) and a, X).shape == X.shape


def test_operators_stay_what_they_are():
    """Trap 1: function objects are tokens too."""
    assert nl.add is nl.add and {nl.exp: 1}[nl.exp] == 1 and nl.exp.__name__ == "exp"


def test_engines():
    def queues(function, target="trn2"):
        program = nkijax.trace(lambda x, c: function(nl.load(x), nl.load(c)) and None, X, COLUMN, target=target)
        return [i.queue for i in instructions(program.body)][2:]

    assert queues(lambda x, c: nl.rsqrt(x)) == [Engine.gpsimd] == queues(lambda x, c: nl.power(x, x))
    assert queues(lambda x, c: nl.exp(x)) == [Engine.scalar]
    assert queues(lambda x, c: nl.add(x, c)) == queues(lambda x, c: nl.floor(x)) == [Engine.vector]


def test_cost_of_a_column_is_that_of_a_scalar():
    """AWS: a (P, 1) operand becomes tensor_scalar, equal shapes tensor_tensor."""

    def kernel(x, c):
        tile = nl.load(x)
        nl.add(tile, nl.load(c))
        nl.add(tile, tile)

    emitted = nkijax.trace(kernel, X, COLUMN, rolled=False).body
    assert [type(i).__name__ for i in emitted if i.queue is Engine.vector] == ["TensorScalar", "TensorTensor"]


def test_psum():
    def kernel(x, y):
        product = nl.matmul(x, y, transpose_x=True)
        return nl.exp(nl.multiply(product, 0.1)), nl.add(product, nl.copy(product))

    got = ran(kernel, X, Y)
    close(got[1], 2 * X.T @ Y)


def test_rules():
    psum = lambda x: nl.matmul(x, x, transpose_x=True)  # noqa: E731
    assert refused(lambda x: nl.add(1, 2), X) == "nki.language.add x, y: one of them must be a tile, got 1 and 2"
    assert refused(lambda x: nl.add(x, "a"), X) == "nki.language.add y: must be a tile or a number, got 'a'"
    assert refused(lambda x: nl.exp(2.0), X) == "nki.language.exp x: must be a tile, got 2.0"
    assert refused(lambda x, y: nl.add(x, y), X, X[:2]).startswith(
        "nki.language.add y: must have the shape (4, 6) of the other operand, or one element a partition, got (2, 6)"
    )
    assert "nki.language.add x: must have the shape" in refused(lambda x, y: nl.add(x, y), X[:, :3], X)
    assert "nki.language.rsqrt: nki.isa.tensor_scalar data: the gpsimd engine cannot access psum" in refused(
        lambda x: nl.rsqrt(psum(x)), X
    )
    assert "nki.language.power: " in refused(lambda x: nl.power(psum(x), 2.0), X)
    assert "at most one of them may be in psum" in refused(lambda x: nl.add(psum(x), psum(x)), X)
    assert "nki.language.abs_max: nki.isa.tensor_tensor op abs_max: needs gen4 or later, got trn2" in refused(
        lambda x: nl.abs_max(x, x), X, target="trn2"
    )
    assert "nki.language.bitwise_and: " in refused(lambda x: nl.bitwise_and(x, x), X)
    assert "is not an NKI dtype" in refused(lambda x: nl.add(x, x, dtype="int64"), X)
    words = "nki.language.add x: must be in sbuf or psum; load it first, got a tensor in private_hbm"
    with pytest.raises(nkijax.KernelError, match=words):
        nkijax.run(lambda x: nl.add(x, 1.0), X)


def test_gradients():
    def kernel(a, b):
        a, b = nl.load(a), nl.load(b)
        total = nl.add(nl.multiply(nl.exp(a), nl.sin(b)), nl.divide(a, nl.add(nl.square(b), 1.0)))
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(total, nl.floor(a)))
        return out

    f = nkijax.function(kernel)
    plain = lambda a, b: jnp.exp(a) * jnp.sin(b) + a / (b * b + 1) + jnp.floor(a)  # noqa: E731
    got = jax.jit(jax.grad(lambda a, b: f(a, b).sum(), (0, 1)))(X, Y)
    want = jax.grad(lambda a, b: plain(a, b).sum(), (0, 1))(X, Y)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)
