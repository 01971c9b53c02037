"""activation and activation_reduce."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.activation import Activate, ActivationReduce
from nkijax.isa.operators import ACTIVATIONS, ALU, ReduceCmd
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from nkijax.view import View
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P, F = 4, 6
ADD = ALU["add"]
EXP, COPY, SQUARE, RECIPROCAL = (ACTIVATIONS[name] for name in ("exp", "copy", "square", "reciprocal"))
DTYPES = [
    *("float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]


def setup(dtype="float32", dst="float32", seed=0):
    data, memory = store(random((P, F), dtype, seed), dtype)
    out, more = store(np.zeros((P, F)), dst)
    return out, data, {**memory, **more}


def column(memory, values, dtype="float32"):
    view, more = store(np.reshape(values, (P, 1)), dtype)
    memory.update(more)
    return view


def registers(memory, value=100.0):
    """The accumulator's lanes of P partitions, every one of 128 `value`."""
    view, more = store(np.full((128, 1), value), memory=Memory.state)
    memory.update(more)
    return view.slice(0, 0, P)


def f32(view, memory):
    return load(view, memory).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    dst, data, memory = setup(dtype, dtype)
    execute(Activate(dst, SQUARE, data, scale=0.5), memory)
    want = reference_cast((f32(data, memory) * np.float32(0.5)) ** 2, dtype)
    np.testing.assert_array_equal(load(dst, memory), want)


@pytest.mark.parametrize("bias", ["number", "float32", "bfloat16", "int8"])
@pytest.mark.parametrize("scale", ["number", "tile"])
def test_scale_and_bias(scale, bias):
    dst, data, memory = setup("bfloat16")
    b = 0.75 if bias == "number" else column(memory, [1, -2, 3, 4], bias)
    s = -0.5 if scale == "number" else column(memory, [0.5, 1, -2, 0.25])
    execute(Activate(dst, ACTIVATIONS["tanh"], data, b, s), memory)
    scales, biases = (f32(v, memory) if isinstance(v, View) else np.float32(v) for v in (s, b))
    want = np.tanh(f32(data, memory) * scales + biases)
    np.testing.assert_allclose(load(dst, memory), want, rtol=1e-5, atol=1e-6)


def test_case_11_float32_to_int8():
    data, memory = store(np.array([[0.5, 1.5, 2.5, -0.5, -2.5, 127.5, 300, -300]]))
    dst, more = store(np.zeros((1, 8)), "int8")
    memory |= more
    execute(Activate(dst, COPY, data), memory)
    assert load(dst, memory).tolist() == [[0, 2, 2, 0, -2, 127, 127, -128]]


def test_sin_is_the_hardware_cubic():
    data, memory = store(np.full((P, F), 9.0))
    execute(Activate(data, ACTIVATIONS["sin"], data), memory)
    np.testing.assert_allclose(load(data, memory), (9 - math.pi) ** 3 / 6 - (9 - math.pi), rtol=1e-5)


def test_views_of_different_rank():
    data, memory = store(random((P, 2, 3, 4)))
    out, more = store(np.zeros((P, 30)))
    memory |= more
    dst = out.slice(1, 2, 26, 2)
    execute(Activate(dst, COPY, data.slice(3, 1, 3).permute((0, 3, 1, 2)), scale=2.0), memory)
    want = 2 * random((P, 2, 3, 4))[..., 1:3].transpose(0, 3, 1, 2).reshape(P, 12)
    np.testing.assert_array_equal(load(dst, memory), want)
    assert not load(out.slice(1, 3, 30, 2), memory).any()


@pytest.mark.parametrize(
    ("command", "want"),
    [("idle", 100), ("reset", 0), ("reduce", 100 + 6 * 9), ("reset_reduce", 6 * 9)],
)
def test_reduce_commands(command, want):
    data, memory = store(np.full((P, F), 3.0))
    acc, res = registers(memory), column(memory, [0] * P)
    command = ReduceCmd[command]
    execute(Activate(data, SQUARE, data, None, 1.0, ADD, res, command, acc), memory)
    assert load(res, memory).tolist() == [[want]] * P
    assert load(acc, memory).tolist() == [[want]] * P
    assert (memory[acc.buffer][P:] == 100).all()
    assert (load(data, memory) == 9).all()


def test_accumulator_carries_over_instructions_without_a_result():
    data, memory = store(random((P, F)))
    acc, res = registers(memory), column(memory, [0] * P, "float16")
    sums = 0
    for k, command in enumerate((ReduceCmd.reset, ReduceCmd.reduce, ReduceCmd.reduce)):
        execute(Activate(data, COPY, data, None, 2.0, ADD, None, command, acc), memory)
        sums = sums + (load(data, memory).sum(1, keepdims=True) if k else 0)
    execute(Activate(data, COPY, data, reduce_res=res, accumulator=acc), memory)
    np.testing.assert_array_equal(load(res, memory), sums.astype(np.float16))


def test_sum_is_of_the_values_before_the_cast():
    data, memory = store(np.full((P, F), 1.25))
    dst, more = store(np.zeros((P, F)), "int32")
    memory |= more
    acc, res = registers(memory), column(memory, [0] * P)
    execute(Activate(dst, COPY, data, None, 1.0, ADD, res, ReduceCmd.reset_reduce, acc), memory)
    assert (load(dst, memory) == 1).all() and (load(res, memory) == 7.5).all()


def test_case_21_reduce_res_inside_dst_is_kept():
    data, memory = store(np.full((P, F), 2.0))
    acc = registers(memory)
    res = data.slice(1, 3, 4)
    execute(Activate(data, SQUARE, data, None, 1.0, ADD, res, ReduceCmd.reset_reduce, acc), memory)
    assert load(data, memory).tolist() == [[4, 4, 4, 24, 4, 4]] * P


def test_activation_reduce():
    dst, data, memory = setup("bfloat16", "bfloat16")
    acc, res, bias = registers(memory), column(memory, [0] * P), column(memory, [1, 2, 3, 4])
    execute(ActivationReduce(dst, EXP, data, ADD, res, bias, -0.125, acc), memory)
    want = np.exp(f32(data, memory) * np.float32(-0.125) + f32(bias, memory))
    np.testing.assert_allclose(load(res, memory), want.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(load(acc, memory)[:P], load(res, memory))
    np.testing.assert_allclose(f32(dst, memory), want, rtol=2**-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_activation_reduce_dtypes_and_views(dtype):
    """From every second column to a tile of another rank; the sum is of what is not yet cast."""
    data, memory = store(random((P, 2 * F), dtype), dtype)
    dst, more = store(np.zeros((P, 2, 3)), dtype)
    res, rest = store(np.zeros((P, 2)), dtype)
    memory |= {**more, **rest}
    part = data.slice(1, 0, 2 * F, 2)
    acc = registers(memory)
    execute(ActivationReduce(dst, SQUARE, part, ADD, res.slice(1, 1, 2), None, 0.25, acc), memory)
    want = (f32(part, memory) * np.float32(0.25)) ** 2
    np.testing.assert_array_equal(load(dst, memory), reference_cast(want, dtype))
    np.testing.assert_array_equal(load(res, memory)[:, 1:], reference_cast(want.sum(1, keepdims=True), dtype))
    assert not load(res, memory)[:, 0].any()


def test_activation_reduce_may_leave_the_sum_in_the_registers():
    data, memory = store(np.full((P, F), 2.0))
    acc = registers(memory)
    execute(ActivationReduce(data, SQUARE, data, ADD, None, accumulator=acc), memory)
    assert load(acc, memory).tolist() == [[24]] * P


def test_traced_immediates_give_the_same():
    dst, data, memory = setup()
    res, acc = column(memory, [0] * P), registers(memory)
    copy = {k: v.copy() for k, v in memory.items()}
    instruction = Activate(dst, ACTIVATIONS["silu"], data, 0.5, 2, ADD, res, ReduceCmd.reduce, acc)
    execute(instruction, memory)
    execute(instruction, copy, traced=True)
    for view in (dst, res, acc):
        np.testing.assert_allclose(load(view, copy), load(view, memory), rtol=1e-6)


def test_gradients_of_values_sums_and_registers():
    dst, data, memory = setup()
    res, acc = column(memory, [0] * P), registers(memory)
    instruction = Activate(dst, ACTIVATIONS["tanh"], data, None, 0.5, ADD, res, ReduceCmd.reduce, acc)

    def f(x, before):
        out, total, after = instruction.run(Reader({data: x, acc: before}, {}))
        return jnp.sum(out) + 2 * jnp.sum(total) + 3 * jnp.sum(after)

    x = jnp.asarray(load(data, memory))
    dx, dacc = jax.grad(f, (0, 1))(x, jnp.asarray(load(acc, memory)))
    np.testing.assert_allclose(dx, 6 * 0.5 * (1 - np.tanh(0.5 * x) ** 2), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(dacc[:, 0], [5] * P)


# ---- rules

STATE = tile((P, 1), memory=Memory.state)
WITH_SUM = {"reduce_op": ADD, "reduce_cmd": ReduceCmd.reduce, "accumulator": STATE}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": tile((P, F), memory=Memory.private_hbm)},
            r"data: data must be in \['sbuf', 'psum'\], got private_hbm",
        ),
        ({"dst": tile((129, F)), "data": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"data": tile((P, F + 1))}, r"data: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"data": tile((P + 1, F))}, r"data: must have the 4 partitions of dst, got \(5, 6\)"),
        ({"op": ALU["abs"]}, "op: must be an activation function, one of .*"),
        ({"op": ACTIVATIONS["prelu"]}, "op: takes no relu_param; use nki.isa.activate2, got prelu"),
        ({"bias": tile((P, F))}, r"bias: must be a number or a \(4, 1\) tile, got \(4, 6\)"),
        ({"bias": tile((P, 1), "tfloat32")}, "bias: may have any dtype but tfloat32, got tfloat32"),
        ({"bias": tile((P, 1), memory=Memory.shared_hbm)}, "bias: bias must be in"),
        ({"scale": tile((P, 1), "bfloat16")}, r"scale: must be one of \['float32'\], got bfloat16"),
        ({"scale": tile((P, 2))}, r"scale: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({"dst": tile((P, F), "float8_e5m2_x4")}, "dst: packed x4 types take no arithmetic"),
        ({**WITH_SUM, "reduce_op": ALU["maximum"]}, "reduce_op: must be nl.add, got maximum"),
        ({**WITH_SUM, "reduce_op": None}, "reduce_op: must be nl.add with reduce_cmd.reduce, got None"),
        (
            {**WITH_SUM, "reduce_cmd": ReduceCmd.load_reduce},
            "reduce_cmd: must be reduce_cmd.idle, reset, reduce or reset_reduce, got load_reduce",
        ),
        ({**WITH_SUM, "reduce_cmd": 3}, "reduce_cmd: must be reduce_cmd.idle, reset, reduce or reset_reduce, got 3"),
        ({**WITH_SUM, "reduce_res": tile((P, 2))}, r"reduce_res: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({**WITH_SUM, "accumulator": None}, "accumulator: must be given with a reduce_cmd or reduce_res, got None"),
        ({"accumulator": tile((2, 1), memory=Memory.state)}, "accumulator: must be a column of float32 state for 4"),
    ],
)
def test_activation_rules(changes, message):
    legal = Activate(tile((P, F)), EXP, tile((P, F)))
    assert rule(legal) == rule(replace(legal, **WITH_SUM)) == ""
    with pytest.raises(AssertionError, match="^nki.isa.activation " + message):
        replace(legal, **changes).check(TRN2)


def test_bias_of_gen2():
    data, bias = tile((P, F)), tile((P, 1))
    given = "nki.isa.activation bias: must be a (P, 1) tile on trn1; numbers need gen3 or later, got 1.0"
    assert rule(Activate(data, EXP, data, 1.0), TRN1) == given
    assert rule(Activate(data, EXP, data, bias), TRN1) == rule(Activate(data, EXP, data, 1.0), TRN2) == ""
    given = "nki.isa.activation bias: reciprocal takes no bias on trn1, got a bias"
    assert rule(Activate(data, RECIPROCAL, data, bias), TRN1) == given
    assert rule(Activate(data, RECIPROCAL, data), TRN1) == rule(Activate(data, RECIPROCAL, data, bias), TRN2) == ""


def test_activation_reduce_rules():
    legal = ActivationReduce(tile((P, F)), EXP, tile((P, F)), ADD, tile((P, 1)), accumulator=STATE)
    assert rule(legal) == rule(replace(legal, reduce_res=None)) == ""
    api = "nki.isa.activation_reduce "
    assert rule(replace(legal, reduce_op=None)) == api + "reduce_op: must be nl.add, got None"
    assert rule(replace(legal, op=ALU["add"])).startswith(api + "op: must be an activation function, one of")
    assert rule(replace(legal, reduce_op=ALU["minimum"])) == api + "reduce_op: must be nl.add, got minimum"
    assert rule(replace(legal, reduce_res=tile((P, 3)))).startswith(api + "reduce_res: must be a number or a (4, 1)")
    assert rule(replace(legal, bias=tile((P, F)))).startswith(
        api + "bias: must be a number or a (4, 1) tile, got (4, 6)"
    )
    assert rule(replace(legal, dst=tile((P, F), memory=Memory.shared_hbm))).startswith(api + "dst: dst must be in")


@pytest.mark.parametrize(
    ("target", "n", "res", "cycles"),
    [
        (TRN1, 2048, False, 2048),
        (TRN1, 2048, True, 2112),
        (TRN1, 10, False, 64),
        (TRN1, 10, True, 128),
        (TRN2, 2048, False, 2048),
        (TRN2, 2048, True, 2048 + 222),
        (TRN2, 1, False, 64),
        (TRN3, 2048, True, 2048 + 222),
    ],
)
def test_cost(target, n, res, cycles):
    data, out = tile((128, n)), tile((128, 1))
    plain = Activate(data, EXP, data, reduce_res=out if res else None, accumulator=STATE)
    reducing = ActivationReduce(data, EXP, data, ADD, out if res else None, accumulator=STATE)
    want = Work(pytest.approx(cycles), target.latency_cycles(Engine.scalar))
    assert plain.cycles(target) == reducing.cycles(target) == want


def test_a_copy_is_sooner_done():
    data = tile((128, 64))
    assert Activate(data, COPY, data).cycles(TRN2).latency_cycles == TRN2.latency_cycles(Engine.scalar, copy=True)
