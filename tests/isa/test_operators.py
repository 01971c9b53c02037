"""The operator tables, row by row, against NumPy and the mathematics module."""

from __future__ import annotations

import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa import operators
from nkijax.isa.operators import ACTIVATIONS, ALU, Activation, AluOp, ReduceCmd
from nkijax.machine import Engine, Generation
from tests.isa.harness import Reader, load, random, store, tile

X = np.array([-7.5, -2, -1, -0.25, -0.0, 0.0, 0.5, 1, 2, 3.25, 6], np.float32)
Y = np.array([2, -2, 3, 0.5, 1, 0.0, -4, 1, 2.5, 2, -6], np.float32)

NUMERIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater_equal": np.greater_equal,
    "greater": np.greater,
    "less_equal": np.less_equal,
    "less": np.less,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
    "power": np.power,
    "divide": np.divide,
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
    "bypass": lambda a, b: a,
}
UNARY = {
    "abs": np.abs,
    "square": np.square,
    "relu": lambda a: np.maximum(a, 0),
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "reciprocal": lambda a: 1 / a,
}
BITS = {
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": lambda a, b: (a << b) & 0xFFFFFFFF,
    "right_shift": operator.rshift,
}


def test_every_documented_operator_has_a_row():
    assert set(ALU) == {*NUMERIC, *UNARY, *BITS, "invert", "average"}
    assert {op.name for op in ALU.values() if op.reducible} == {
        *("bitwise_and", "bitwise_or", "bitwise_xor", "add", "subtract", "multiply", "maximum", "minimum"),
        *("logical_and", "logical_or", "logical_xor"),
    }
    assert {op.name for op in ALU.values() if op.since is Generation.gen4} == {"abs_max", "abs_min", "square", "relu"}
    assert {op.name for op in ALU.values() if op.engine is Engine.gpsimd} == {"power", "rsqrt"}


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_binary_arithmetic(name):
    op = ALU[name]
    for a, b in ((X, Y), (Y, X)):
        got = op(jnp.asarray(a), jnp.asarray(b))
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, NUMERIC[name](a, b).astype(np.float32), rtol=1e-6)
        np.testing.assert_array_equal(op(jnp.asarray(b), jnp.asarray(a), True), got)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unary_arithmetic(name):
    got = ALU[name](jnp.asarray(X), jnp.asarray(Y), True)  # the second operand is not there
    np.testing.assert_allclose(got, UNARY[name](X), rtol=2e-7)


@pytest.mark.parametrize("name", BITS)
def test_bitvec(name):
    a = np.array([0, 1, 0xFFFFFFFF, 0x80000000, 0x01234567, 200], np.uint32)
    b = np.array([5, 1, 4, 31, 9, 0], np.uint32)
    want = [BITS[name](int(x), int(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(ALU[name](jnp.asarray(a), jnp.asarray(b)), np.array(want, np.uint32))
    np.testing.assert_array_equal(ALU["invert"](jnp.asarray(a)), ~a)


def test_right_shift_fills_with_zeros_also_for_signed_integers():
    got = ALU["right_shift"](jnp.array([-1, -(2**31)], jnp.int32), jnp.array([28, 31], jnp.int32))
    assert got.tolist() == [15, 1]


def test_comparisons_with_nan_are_false_and_not_equal_is_true():
    nan, one = jnp.float32(np.nan), jnp.float32(1)
    names = [name for name, op in ALU.items() if op.kind == "compare" and float(op(nan, one))]
    assert names == ["not_equal"]


@pytest.mark.parametrize("name", [op.name for op in ALU.values() if op.reduction is not None])
def test_reduction_is_the_fold_and_identity_starts_it(name):
    op = ALU[name]
    if op.bitvec:
        x = np.random.default_rng(1).integers(0, 2**32, (3, 2, 5), np.uint32)
    else:
        x = random((3, 2, 5), seed=1)
        x[0, 0, :] = 0
    got = op.reduction(jnp.asarray(x))
    columns = [x[..., k] for k in range(5)]
    if name == "average":
        want = functools.reduce(np.add, columns) / 5
    elif op.bitvec:
        want = functools.reduce(BITS[name], columns)
    else:
        want = functools.reduce(NUMERIC[name], columns)
    np.testing.assert_allclose(got, want.astype(got.dtype), rtol=1e-6)
    if name not in ("subtract", "average"):
        start = np.full(x.shape[:2], op.identity, x.dtype)
        np.testing.assert_array_equal(op(jnp.asarray(start), got), got)


def test_maximum_propagates_nan():
    assert np.isnan(ALU["maximum"].reduction(jnp.array([[1, np.nan, 3]], jnp.float32))).all()
    assert np.isnan(ALU["minimum"](jnp.float32(1), jnp.float32(np.nan)))


def test_rows_are_equal_by_name():
    twin = AluOp("add", "arithmetic", jnp.subtract)
    assert twin == ALU["add"] and hash(twin) == hash(ALU["add"]) and twin != ALU["subtract"]
    assert Activation("abs", jnp.abs) == ACTIVATIONS["abs"] and ALU["abs"] != ACTIVATIONS["abs"]


@pytest.mark.parametrize(
    "row",
    [
        {"name": "two words", "kind": "arithmetic", "function": jnp.add},
        {"name": "a", "kind": "other", "function": jnp.add},
        {"name": "a", "kind": "arithmetic", "function": None},
        {"name": "a", "kind": "arithmetic", "function": jnp.add, "arity": 3},
        {"name": "a", "kind": "arithmetic", "function": jnp.add, "identity": 0.0},
        {"name": "a", "kind": "arithmetic", "function": jnp.add, "reducible": True},
    ],
)
def test_a_wrong_row_cannot_be_made(row):
    with pytest.raises(AssertionError):
        AluOp(**row)


# ---- activation functions


def phi(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


def hardware_sin(x):
    t = x - math.copysign(math.pi, x)
    return math.sin(x) if abs(x) <= math.pi else t**3 / 6 - t


FUNCTIONS = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "relu": lambda x: max(x, 0),
    "sigmoid": sigmoid,
    "tanh": math.tanh,
    "exp": math.exp,
    "gelu": lambda x: x * phi(x),
    "gelu_dx": lambda x: phi(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * sigmoid(-1.702 * x)),
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
    "softplus": softplus,
    "mish": lambda x: x * math.tanh(softplus(x)),
    "erf": math.erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
    "sin": hardware_sin,
    "arctan": math.atan,
}
POSITIVE = {"log": math.log, "sqrt": math.sqrt, "rsqrt": lambda x: x**-0.5, "reciprocal": lambda x: 1 / x}


def test_every_documented_function_has_a_row():
    assert set(ACTIVATIONS) == {*FUNCTIONS, *POSITIVE, "prelu"}
    assert [a.name for a in ACTIVATIONS.values() if a.parameter] == ["prelu"]


@pytest.mark.parametrize("name", [*FUNCTIONS, *POSITIVE])
def test_function_and_a_finite_gradient(name):
    x = np.linspace(-9, 9, 73, dtype=np.float32)  # with 0
    if name in POSITIVE:
        x = np.float32(2.0) ** np.arange(-30, 43)
    value, gradient = jax.jit(lambda x: jax.jvp(ACTIVATIONS[name].function, (x,), (jnp.ones_like(x),)))(x)
    want = np.array([{**FUNCTIONS, **POSITIVE}[name](float(v)) for v in x])
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, want, rtol=2e-5, atol=2e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["gelu", "silu", "erf", "gelu_apprx_sigmoid"])
def test_the_dx_functions_are_derivatives(name):
    x = jnp.linspace(-5, 5, 41)
    gradient = jax.jit(jax.vmap(jax.grad(ACTIVATIONS[name].function)))(x)
    np.testing.assert_allclose(ACTIVATIONS[name + "_dx"].function(x), gradient, atol=2e-6)


def test_trap_9_sin_extrapolates_a_cubic():
    got = ACTIVATIONS["sin"].function(jnp.array([9.0, -9.0, math.pi], jnp.float32))
    np.testing.assert_allclose(got, [27.65, -27.65, 0], atol=5e-3)


def test_extreme_arguments():
    x = jnp.array([-1e4, -100, 100, 1e4], jnp.float32)
    np.testing.assert_allclose(ACTIVATIONS["softplus"].function(x), [0, 0, 100, 1e4], atol=1e-40)
    np.testing.assert_array_equal(ACTIVATIONS["sigmoid"].function(x)[2:], [1, 1])
    np.testing.assert_array_equal(ACTIVATIONS["gelu"].function(x), [0, 0, 100, 1e4])
    zeros = jnp.array([0.0, -0.0], jnp.float32)
    np.testing.assert_array_equal(ACTIVATIONS["reciprocal"].function(zeros), [np.inf, -np.inf])
    assert np.isposinf(ACTIVATIONS["exp"].function(x)[3])


def test_prelu():
    got = ACTIVATIONS["prelu"].function(jnp.asarray(X), jnp.float32(0.25))
    np.testing.assert_array_equal(got, np.where(X > 0, X, np.float32(0.25) * X))


# ---- bits and accumulators


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_bits_are_zero_extended_and_come_back(dtype):
    view, memory = store(random((3, 4), dtype), dtype)
    raw = operators.bits(Reader({view: load(view, memory)}, {}), view)
    unsigned = np.dtype(f"u{memory[view.buffer].itemsize}")
    np.testing.assert_array_equal(raw, memory[view.buffer].view(unsigned).astype(np.uint32))
    back = operators.from_bits(raw, dtype)
    assert back.dtype == memory[view.buffer].dtype
    np.testing.assert_array_equal(back, memory[view.buffer])


def test_bits_of_an_immediate():
    read = Reader({}, {})
    assert int(operators.bits(read, -1)) == int(operators.bits(read, 0xFFFFFFFF)) == 0xFFFFFFFF


@pytest.mark.parametrize(
    ("command", "want"),
    [
        (ReduceCmd.idle, [10, 20]),
        (ReduceCmd.reset, [-np.inf, -np.inf]),
        (ReduceCmd.reduce, [10, 30]),
        (ReduceCmd.reset_reduce, [5, 30]),
        (ReduceCmd.load_reduce, [7, 30]),
    ],
)
def test_accumulate(command, want):
    before, reduced = jnp.array([[10.0], [20.0]]), jnp.array([[5.0], [30.0]])
    got = operators.accumulate(command, ALU["maximum"], before, reduced, jnp.float32(7))
    np.testing.assert_array_equal(got[:, 0], want)


def test_reduce_cmd_has_the_documented_numbers():
    assert [(c.name, c.value) for c in ReduceCmd] == [
        ("idle", 0),
        ("reset", 1),
        ("reduce", 2),
        ("reset_reduce", 3),
        ("load_reduce", 4),
    ]


def test_packed_dtypes_take_no_arithmetic():
    class Fake:
        api, dst = "nki.isa.some", tile((4, 4), "float8_e4m3fn_x4")

    with pytest.raises(
        AssertionError, match="nki.isa.some dst: packed x4 types take no arithmetic, got float8_e4m3fn_x4"
    ):
        operators.not_packed(Fake(), "dst")  # type: ignore[arg-type]


def test_the_sign_of_minus_zero_is_zero_however_it_is_compiled():
    """XLA folds sign(-0.0) to 0.0 and computes -0.0, of which the reciprocal is -inf."""
    sign = ACTIVATIONS["sign"].function
    for x in (sign(jnp.float32(-0.0)), jax.jit(sign)(jnp.float32(-0.0)), jax.jit(lambda: sign(jnp.float32(-0.0)))()):
        assert x == 0 and not np.signbit(x)
    assert np.isnan(sign(jnp.float32(np.nan)))
