"""Functions that no single instruction has."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.mathematics import FUNCTIONS, Elementwise, MathFunction
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P, F = 4, 6
ONE = {"sin": np.sin, "cos": np.cos, "tan": np.tan, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}
TWO = {"divide": np.divide, "fmod": np.fmod, "mod": np.mod}
DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "int8", "uint8", "int16", "int32", "bool"]


def two(name, a, b, shape=(P, F), dst="float32"):
    """The instruction on arrays or numbers, and the memory that holds them."""
    out, memory = store(np.zeros(shape), dst)
    views = []
    for x in (a, b):
        view, more = store(x) if isinstance(x, np.ndarray) else (x, {})
        memory |= more
        views.append(view)
    return out, Elementwise(out, *views, FUNCTIONS[name]), memory


def test_the_table():
    assert set(FUNCTIONS) == {*ONE, *TWO}
    assert {f.arity for n, f in FUNCTIONS.items() if n in TWO} == {2}
    for bad in ({"name": "a b"}, {"arity": 3}, {"steps": 0}, {"function": None}):
        with pytest.raises(AssertionError):
            MathFunction(**{"name": "f", "function": np.sin, "arity": 1, "steps": 1, **bad})


@pytest.mark.parametrize("name", ONE)
def test_one_operand(name):
    x = np.linspace(-9, 9, P * F, dtype=np.float32).reshape(P, F)
    out, inst, memory = two(name, x, None)
    execute(inst, memory)
    np.testing.assert_allclose(load(out, memory), ONE[name](x), rtol=1e-5, atol=1e-6)


def test_sin_is_right_for_every_angle():
    """Trap: the activation function is a cubic outside of [-pi, pi]; sin(9) is 27.65 there."""
    out, inst, memory = two("sin", np.array([[9.0, -100.0]], np.float32), None, (1, 2))
    execute(inst, memory)
    np.testing.assert_allclose(load(out, memory), np.sin([[9.0, -100.0]]), atol=1e-5)


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize(
    ("a", "b"), [("tile", "tile"), ("tile", "column"), ("column", "tile"), ("tile", "number"), ("number", "tile")]
)
def test_two_operands(name, a, b):
    values = {"tile": random((P, F)), "column": random((P, 1), seed=1), "number": -2.5}
    x, y = values[a], np.where(values[b] == 0, 0.75, values[b]) if b != "number" else values[b]
    x, y = (v.astype(np.float32) if isinstance(v, np.ndarray) else v for v in (x, y))
    out, inst, memory = two(name, x, y)
    execute(inst, memory)
    np.testing.assert_allclose(load(out, memory), np.broadcast_to(TWO[name](x, np.float32(y)), (P, F)), rtol=1e-6)


def test_signs_of_remainders():
    """fmod has the sign of the dividend, mod that of the divisor."""
    x = np.array([[5.5, -5.5, 5.5, -5.5]], np.float32)
    y = np.array([[2.0, 2.0, -2.0, -2.0]], np.float32)
    for name, want in (("fmod", [1.5, -1.5, 1.5, -1.5]), ("mod", [1.5, 0.5, -0.5, -1.5])):
        out, inst, memory = two(name, x, y, (1, 4))
        execute(inst, memory)
        np.testing.assert_array_equal(load(out, memory), [want])


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    x, memory = store(random((P, F), dtype), dtype)
    out, more = store(np.zeros((P, F)), dtype)
    memory |= more
    execute(Elementwise(out, x, 4.0, FUNCTIONS["divide"]), memory)
    want = reference_cast(memory[x.buffer].astype(np.float32) / np.float32(4), dtype)
    np.testing.assert_array_equal(load(out, memory), want)


def test_views():
    x, memory = store(random((P, 2, 8)))
    out, more = store(np.zeros((P, 3, 4)))
    memory |= more
    execute(Elementwise(out.slice(1, 1, 3), x.slice(2, 0, 8, 2), None, FUNCTIONS["floor"]), memory)
    np.testing.assert_array_equal(memory[out.buffer][:, 1:], np.floor(memory[x.buffer][:, :, ::2]))
    assert not memory[out.buffer][:, 0].any()


RULES = [
    (lambda a: Elementwise(a, a, None, "sin"), r"nki\.language\.sin function: must be one of \['sin', .*got sin"),
    (
        lambda a: Elementwise(a, a, a, FUNCTIONS["sin"]),
        "nki.language.sin b: must be None with the unary function sin, got",
    ),
    (
        lambda a: Elementwise(a, a, None, FUNCTIONS["mod"]),
        "mod b: must be given with the binary function mod, got None",
    ),
    (lambda a: Elementwise(a, 1.0, 2.0, FUNCTIONS["mod"]), "mod a, b: one of them must be a tile, got 1.0 and 2.0"),
    (lambda a: Elementwise(a, tile((P, 3)), None, FUNCTIONS["sin"]), "a: must have the 6 free elements of dst, or one"),
    (lambda a: Elementwise(a, tile((2, F)), None, FUNCTIONS["sin"]), "sin a: must have the 4 partitions of dst"),
    (
        lambda a: Elementwise(tile((256, 1)), a, None, FUNCTIONS["sin"]),
        "sin dst partition dimension 256 exceeds maximum",
    ),
    (
        lambda a: Elementwise(a, tile((P, F), memory=Memory.private_hbm), None, FUNCTIONS["sin"]),
        r"sin a: a must be in \['sbuf', 'psum'\], got private_hbm",
    ),
    (lambda a: Elementwise(a, tile((P, F), "float8_e5m2_x4"), None, FUNCTIONS["sin"]), "packed x4 types take no arith"),
    (
        lambda a: Elementwise(a, *(tile((P, F), memory=Memory.psum) for _ in range(2)), FUNCTIONS["divide"]),
        "divide a, b: at most one of them may be in psum",
    ),
]


@pytest.mark.parametrize("make, words", RULES, ids=[words[:40] for _, words in RULES])
def test_rules(make, words):
    assert re.search(words, rule(make(tile((P, F)))))


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3], ids=lambda t: t.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_cost(target, name):
    """Each step is an add of a number to dst: N cycles, from trn2 on N / 2; a reciprocal 8 N, from trn2 on 6 N."""
    dst, row = tile((P, 512)), FUNCTIONS[name]
    step, reciprocal = (512, 8 * 512) if target is TRN1 else (256, 6 * 512)
    want = row.steps * step + row.reciprocals * reciprocal
    inst = Elementwise(dst, dst, dst if row.arity == 2 else None, row)
    assert inst.cycles(target) == Work(want, target.latency_cycles(Engine.vector)) and inst.queue is Engine.vector
    small = Elementwise(tile((P, 1)), tile((P, 1)), 2.0 if row.arity == 2 else None, row)
    assert small.cycles(target).issue_cycles == 64 * (row.steps + row.reciprocals)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_finite(name):
    dst, a, b = tile((P, F)), tile((P, F)), tile((P, 1))
    inst = Elementwise(dst, a, b if name in TWO else None, FUNCTIONS[name])

    def total(x, y):
        return jnp.sum(inst.run(Reader({a: x, b: y}, {}))[0])

    x = jnp.linspace(-3, 3, P * F).reshape(P, F)
    for g in jax.grad(total, (0, 1))(x, jnp.full((P, 1), 0.7)):
        assert np.isfinite(g).all()
    if name == "sin":
        np.testing.assert_allclose(jax.grad(total)(x, jnp.ones((P, 1))), np.cos(x), atol=1e-6)


def test_division_by_zero_is_infinite():
    out, inst, memory = two("divide", np.array([[1.0, -1.0]], np.float32), 0.0, (1, 2))
    execute(inst, memory)
    assert load(out, memory).tolist() == [[math.inf, -math.inf]]
