"""tensor_tensor_scan."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.operators import ALU
from nkijax.isa.scan import TensorTensorScan, in_parallel, in_parallel_if_exact, in_sequence
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P, F = 4, 6
FUNCTIONS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "greater": lambda a, b: (a > b).astype(np.float32),
}
PAIRS = [
    *(("multiply", "add"), ("add", "maximum"), ("add", "minimum"), ("maximum", "minimum")),
    *(("minimum", "maximum"), ("maximum", "maximum"), ("minimum", "minimum")),
]


def recurrence(a, b, initial, op0, op1, reverse0=False, reverse1=False):
    """The definition, in float32."""
    f, g = FUNCTIONS[op0], FUNCTIONS[op1]
    a, b = a.astype(np.float32), b.astype(np.float32)
    r, out = np.broadcast_to(np.float32(initial), (a.shape[0], 1))[:, 0], []
    for i in range(a.shape[1]):
        t = f(r, a[:, i]) if reverse0 else f(a[:, i], r)
        r = g(b[:, i], t) if reverse1 else g(t, b[:, i])
        out.append(r)
    return np.stack(out, axis=1)


def setup(dtype0="float32", dtype1="float32", dst="float32", n=F):
    a, memory = store(random((P, n), dtype0), dtype0)
    b, more = store(random((P, n), dtype1, 1), dtype1)
    out, rest = store(np.zeros((P, n)), dst)
    return out, a, b, {**memory, **more, **rest}


def make(dst, a, b, initial=0.5, op0="multiply", op1="add", *reverse):
    return TensorTensorScan(dst, a, b, initial, ALU[op0], ALU[op1], *reverse)


@pytest.mark.parametrize("pair", [*PAIRS, ("add", "add"), ("subtract", "multiply"), ("multiply", "greater")])
def test_pairs(pair):
    dst, a, b, memory = setup()
    execute(make(dst, a, b, 0.5, *pair), memory)
    want = recurrence(load(a, memory), load(b, memory), 0.5, *pair)
    np.testing.assert_allclose(load(dst, memory), want, rtol=1e-6)


@pytest.mark.parametrize("reverse", [(True, False), (False, True), (True, True)])
def test_reversed_operands(reverse):
    dst, a, b, memory = setup()
    execute(make(dst, a, b, -1.0, "subtract", "subtract", *reverse), memory)
    want = recurrence(load(a, memory), load(b, memory), -1.0, "subtract", "subtract", *reverse)
    np.testing.assert_array_equal(load(dst, memory), want)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2", "int8", "uint8", "int16", "int32", "uint32", "bool"]
)
def test_dtypes_and_a_carry_that_is_not_rounded(dtype):
    dst, a, b, memory = setup(dtype, dtype, dtype)
    initial, more = store(random((P, 1), dtype, 2), dtype)
    memory |= more
    execute(make(dst, a, b, initial, "maximum", "add"), memory)
    want = recurrence(load(a, memory), load(b, memory), load(initial, memory), "maximum", "add")
    np.testing.assert_array_equal(load(dst, memory), reference_cast(want, dtype))


def test_carry_is_float32():
    ones, memory = store(np.ones((P, F)), "bfloat16")
    small, more = store(np.full((P, F), 2.0**-9), "bfloat16")
    memory |= more
    execute(make(ones, ones, small, 1.0), memory)
    want = reference_cast(1 + 2.0**-9 * np.arange(1, F + 1), "bfloat16")  # a rounded carry would stay 1
    np.testing.assert_array_equal(load(ones, memory), np.tile(want, (P, 1)))


def test_views_of_different_rank():
    a, memory = store(random((P, 2, 3)))
    b, more = store(random((P, 3, 4), seed=1))
    out, rest = store(np.zeros((P, 12)))
    memory |= {**more, **rest}
    first, second = a.permute((0, 2, 1)), b.slice(2, 1, 4, 2)
    dst = out.slice(1, 0, 12, 2)
    execute(make(dst, first, second), memory)
    x = random((P, 2, 3)).transpose(0, 2, 1).reshape(P, 6)
    y = random((P, 3, 4), seed=1)[:, :, 1:4:2].reshape(P, 6)
    np.testing.assert_allclose(load(dst, memory), recurrence(x, y, 0.5, "multiply", "add"), rtol=1e-6)
    assert not memory[out.buffer][:, 1::2].any()


@pytest.mark.parametrize("pair", PAIRS)
def test_in_parallel_agrees(pair):
    dst, a, b, memory = setup(n=11)
    x, y = jnp.asarray(load(a, memory)) / 16, jnp.asarray(load(b, memory))
    initial = jnp.full((P, 1), 0.5, jnp.float32)
    instruction = make(dst, a, b, 0.5, *pair)
    got = jax.jit(lambda *args: in_parallel(instruction, *args))(x, y, initial)
    np.testing.assert_allclose(got, recurrence(np.asarray(x), np.asarray(y), 0.5, *pair), rtol=1e-4, atol=1e-5)


def test_growing_products_stay_in_sequence():
    instruction = make(*[tile((1, 16))] * 3)
    a, b, initial = jnp.full((1, 16), 1e10), jnp.zeros((1, 16)), jnp.zeros((1, 1))
    assert not np.isfinite(jax.jit(lambda *args: in_parallel(instruction, *args))(a, b, initial)).all()

    def total(a):
        return jnp.sum(in_parallel_if_exact(instruction, a, b, initial)[:, :3])

    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(total)))(jnp.stack([a, a / 1e10]))
    assert value.tolist() == [0, 0] and not gradient.any()


def test_gradients_of_the_two_ways_agree():
    instruction = make(*[tile((P, F))] * 3)
    a, b = jnp.asarray(random((P, F))) / 16, jnp.asarray(random((P, F), seed=1))
    initial = jnp.ones((P, 1), jnp.float32)

    def gradients(way):
        return jax.jit(jax.grad(lambda *args: jnp.sum(jnp.sin(way(instruction, *args))), (0, 1, 2)))(a, b, initial)

    for x, y in zip(gradients(in_sequence), gradients(in_parallel), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_on_an_accelerator_composable_pairs_run_in_parallel(monkeypatch):
    dst, a, b, memory = setup()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    read = Reader({a: jnp.asarray(load(a, memory)) / 16, b: jnp.asarray(load(b, memory))}, {})
    assert "cond" in str(jax.make_jaxpr(lambda: make(dst, a, b).run(read))())
    assert "scan" in str(jax.make_jaxpr(lambda: make(dst, a, b, 0.5, "subtract").run(read))())
    want = recurrence(load(a, memory) / 16, load(b, memory), 0.5, "multiply", "add")
    np.testing.assert_allclose(jax.jit(lambda: make(dst, a, b).run(read)[0])(), want, rtol=1e-5)


def test_traced_initial_gives_the_same():
    dst, a, b, memory = setup()
    copy = {k: v.copy() for k, v in memory.items()}
    execute(make(dst, a, b, 3), memory)
    execute(make(dst, a, b, 3), copy, traced=True)
    np.testing.assert_allclose(load(dst, copy), load(dst, memory), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data0": tile((P, F), memory=Memory.shared_hbm)}, "data0: data0 must be in"),
        ({"initial": tile((P, 1), memory=Memory.private_hbm)}, "initial: initial must be in"),
        ({"data1": tile((P, F + 1))}, r"data1: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"dst": tile((5, F))}, r"data0: must have the 5 partitions of dst, got \(4, 6\)"),
        ({"dst": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"initial": tile((P, 2))}, r"initial: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({"op0": ALU["bitwise_and"]}, "op0: must be an arithmetic operator, got bitwise_and"),
        ({"op1": ALU["abs"]}, "op1: must be a binary operator, got abs"),
        ({"op1": ALU["power"]}, "op1: must be an operator of the vector engine, got power"),
        ({"data0": tile((P, F), "float8_e4m3fn_x4")}, "data0: packed x4 types take no arithmetic"),
        (
            {"data0": tile((P, F), memory=Memory.psum), "data1": tile((P, F), memory=Memory.psum)},
            "data0, data1: at most one of them may be in psum, got both in psum",
        ),
    ],
)
def test_rules(changes, message):
    legal = make(tile((P, F)), tile((P, F)), tile((P, F)))
    assert rule(legal) == ""
    with pytest.raises(AssertionError, match="^nki.isa.tensor_tensor_scan " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_cost(target):
    for n, cycles in ((2048, 4096), (10, 64)):
        work = make(*[tile((128, n))] * 3).cycles(target)
        assert work == Work(cycles, target.latency_cycles(Engine.vector))
