"""activate2."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.activate2 import Activate2
from nkijax.isa.activation import Activate
from nkijax.isa.operators import ACTIVATIONS, ALU, ReduceCmd
from nkijax.machine import TRN2, TRN3, Engine, Memory, Work
from nkijax.view import View
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P, F = 4, 6
INF = np.inf
IDLE, RESET, REDUCE, RESET_REDUCE, LOAD = ReduceCmd
ADD, MULTIPLY, SUBTRACT, BYPASS = (ALU[name] for name in ("add", "multiply", "subtract", "bypass"))
COPY, PRELU, TANH = (ACTIVATIONS[name] for name in ("copy", "prelu", "tanh"))
PAIRS = [(MULTIPLY, ADD), (MULTIPLY, SUBTRACT), (MULTIPLY, BYPASS), (ADD, BYPASS), (SUBTRACT, BYPASS), (BYPASS, BYPASS)]
FUNCTIONS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "bypass": lambda a, b: a}
FOLDS = {
    "add": lambda a, v: a + v,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs_max": lambda a, v: np.where(np.abs(a) > np.abs(v), a, v),
    "abs_min": lambda a, v: np.where(np.abs(a) < np.abs(v), a, v),
}
IDENTITIES = {"add": 0, "maximum": -INF, "minimum": INF, "abs_max": 0, "abs_min": INF}
DTYPES = [
    *("float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]


def setup(dtype="float32", dst="float32"):
    data, memory = store(random((P, F), dtype), dtype)
    out, more = store(np.zeros((P, F)), dst)
    return out, data, {**memory, **more}


def column(memory, values, dtype="float32"):
    view, more = store(np.broadcast_to(np.reshape(values, (-1, 1)), (P, 1)), dtype)
    memory.update(more)
    return view


def registers(memory, value=100.0):
    """The accumulator's lanes of P partitions, every one of 128 `value`."""
    view, more = store(np.full((128, 1), value), memory=Memory.state)
    memory.update(more)
    return view.slice(0, 0, P)


def f32(view, memory):
    return load(view, memory).astype(np.float32) if isinstance(view, View) else np.float32(view)


def step(name, x, imm, reverse):
    return FUNCTIONS[name](imm, x) if reverse else FUNCTIONS[name](x, imm)


def make(dst, data, op=COPY, imm0=0.5, imm1=2.0, op0=MULTIPLY, op1=ADD, *args, **fields):
    return Activate2(dst, op, data, imm0, imm1, op0, op1, *args, **fields)


@pytest.mark.parametrize(
    ("op0", "op1", "reverse0", "reverse1"),
    [(a, b, r, s) for a, b in PAIRS for r in {False, a != BYPASS} for s in {False, b != BYPASS}],
)
def test_pairs_and_reversed_operands(op0, op1, reverse0, reverse1):
    dst, data, memory = setup()
    execute(make(dst, data, COPY, 0.5, 2.0, op0, op1, 0.0, reverse0, reverse1), memory)
    want = step(op1.name, step(op0.name, f32(data, memory), np.float32(0.5), reverse0), np.float32(2), reverse1)
    np.testing.assert_array_equal(load(dst, memory), want)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_immediates_of_each_partition(kind):
    dst, data, memory = setup("bfloat16")
    imm0, imm1 = column(memory, [1, 2, 3, -4], kind), column(memory, [5, -6, 7, 8], kind)
    execute(make(dst, data, TANH, imm0, imm1, MULTIPLY, SUBTRACT), memory)
    want = np.tanh(f32(data, memory) * f32(imm0, memory) - f32(imm1, memory))
    np.testing.assert_allclose(load(dst, memory), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tiles", [False, True])
def test_prelu_takes_its_slope(tiles):
    dst, data, memory = setup()
    slope = column(memory, [0.5, -1, 2, 0]) if tiles else 0.25
    execute(make(dst, data, PRELU, 0.0, 0.0, BYPASS, BYPASS, slope), memory)
    x = f32(data, memory)
    np.testing.assert_array_equal(load(dst, memory), np.where(x > 0, x, f32(slope, memory) * x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    dst, data, memory = setup(dtype, dtype)
    acc, res = registers(memory), column(memory, 0, dtype)
    execute(make(dst, data, reduce_op=ADD, reduce_res=res, reduce_cmd=RESET_REDUCE, accumulator=acc), memory)
    out = f32(data, memory) * np.float32(0.5) + np.float32(2)
    np.testing.assert_array_equal(load(dst, memory), reference_cast(out, dtype))
    np.testing.assert_array_equal(load(res, memory), reference_cast(out.sum(1, keepdims=True), dtype))
    np.testing.assert_array_equal(load(acc, memory), out.sum(1, keepdims=True))


@pytest.mark.parametrize("command", [IDLE, RESET, REDUCE, RESET_REDUCE])
@pytest.mark.parametrize("name", FOLDS)
def test_reductions(name, command):
    dst, data, memory = setup()
    acc, res = registers(memory, -3.0), column(memory, 0)
    fields = {"reduce_op": ALU[name], "reduce_res": res, "reduce_cmd": command, "accumulator": acc}
    execute(make(dst, data, **fields), memory)
    want = np.full(P, -3.0 if command in (IDLE, REDUCE) else IDENTITIES[name], np.float32)
    if command in (REDUCE, RESET_REDUCE):
        for values in load(dst, memory).T:
            want = FOLDS[name](want, values)
    np.testing.assert_allclose(load(res, memory)[:, 0], want, rtol=1e-6)
    np.testing.assert_array_equal(load(acc, memory), load(res, memory))
    assert (memory[acc.buffer][P:] == -3).all()


def test_8_8_the_default_command_is_idle():
    dst, data, memory = setup()
    assert make(dst, data).reduce_cmd is IDLE and make(dst, data).writes() == (dst,)
    acc, res = registers(memory), column(memory, 0)
    execute(make(dst, data, reduce_res=res, accumulator=acc), memory)
    assert (load(res, memory) == 100).all() and (load(acc, memory) == 100).all()


def test_the_accumulator_is_that_of_activation():
    data, memory = store(random((P, F)))
    acc, res = registers(memory), column(memory, 0)
    execute(Activate(data, COPY, data, None, 1.0, ADD, None, RESET_REDUCE, acc), memory)
    fields = {"reduce_op": ALU["maximum"], "reduce_cmd": REDUCE, "accumulator": acc}
    execute(make(data, data, COPY, 100.0, 0.0, ADD, BYPASS, **fields), memory)
    execute(make(data, data, reduce_res=res, accumulator=acc), memory)
    x = random((P, F))
    np.testing.assert_array_equal(load(res, memory), np.maximum(x.sum(1), x.max(1) + 100)[:, None])


def test_trap_11_the_result_is_kept_inside_dst_and_counted_once():
    data, memory = store(np.full((P, F), 2.0))
    acc = registers(memory, 1.0)
    fields = {"reduce_op": ADD, "reduce_res": data.slice(1, 3, 4), "reduce_cmd": REDUCE, "accumulator": acc}
    execute(make(data, data, COPY, 2.0, 0.0, MULTIPLY, BYPASS, **fields), memory)
    assert load(data, memory).tolist() == [[4, 4, 4, 25, 4, 4]] * P


def test_views_of_different_rank():
    data, memory = store(random((P, 2, 3, 4)))
    out, more = store(np.zeros((P, 30)))
    memory |= more
    view = data.slice(3, 1, 3).permute((0, 3, 1, 2))
    execute(make(out.slice(1, 2, 26, 2), view, COPY, 1.0, 0.0, SUBTRACT, BYPASS), memory)
    want = random((P, 2, 3, 4))[..., 1:3].transpose(0, 3, 1, 2).reshape(P, 12) - 1
    np.testing.assert_array_equal(memory[out.buffer][:, 2:26:2], want)
    assert not memory[out.buffer][:, 3:30:2].any()


def test_traced_immediates_give_the_same():
    dst, data, memory = setup()
    acc = registers(memory)
    copy = {k: v.copy() for k, v in memory.items()}
    fields = {"reduce_op": ADD, "reduce_cmd": REDUCE, "accumulator": acc}
    instruction = make(dst, data, PRELU, 3, -2.0, MULTIPLY, SUBTRACT, 2, True, True, **fields)
    execute(instruction, memory)
    execute(instruction, copy, traced=True)
    for view in (dst, acc):
        np.testing.assert_allclose(load(view, copy), load(view, memory), rtol=1e-6)


@pytest.mark.parametrize("name", FOLDS)
def test_gradients(name):
    dst, data, memory = setup()
    memory[data.buffer][0, :3] = 0
    acc, imm0, slope = registers(memory, 1.0), column(memory, 0.5), column(memory, 0.25)
    fields = {"reduce_op": ALU[name], "reduce_cmd": REDUCE, "accumulator": acc}
    instruction = make(dst, data, PRELU, imm0, 0.0, MULTIPLY, BYPASS, slope, **fields)
    tiles = {v: jnp.asarray(load(v, memory)) for v in instruction.reads()}

    def total(x, a, s):
        return sum(jnp.sum(r) for r in instruction.run(Reader({**tiles, data: x, imm0: a, slope: s}, {})))

    gradients = jax.jit(jax.grad(total, (0, 1, 2)))(tiles[data], tiles[imm0], tiles[slope])
    assert all(np.isfinite(g).all() for g in gradients)
    if name == "add":
        x = load(data, memory)
        np.testing.assert_allclose(gradients[0], np.where(x > 0, 1.0, 0.25))
        np.testing.assert_allclose(gradients[1][:, 0], (2 * np.where(x > 0, x, 0.25 * x)).sum(1), rtol=1e-6)


STATE = tile((P, 1), memory=Memory.state)
WITH_SUM = {"reduce_op": ADD, "reduce_cmd": REDUCE, "accumulator": STATE}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": tile((P, F), memory=Memory.private_hbm)}, "data: data must be in .*, got private_hbm"),
        ({"imm0": tile((P, 1), memory=Memory.private_hbm)}, "imm0: imm0 must be in"),
        ({"dst": tile((129, F)), "data": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"data": tile((P, F + 1))}, r"data: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"data": tile((P + 1, F))}, r"data: must have the 4 partitions of dst, got \(5, 6\)"),
        ({"data": tile((P, F), "float4_e2m1fn_x4")}, "data: packed x4 types take no arithmetic"),
        ({"op": ALU["abs"]}, "op: must be an activation function, one of"),
        ({"op0": ADD}, r"op0, op1: must be one of the pairs .*, got \('add', 'add'\)"),
        ({"op0": BYPASS}, r"op0, op1: must be one of the pairs .*, got \('bypass', 'add'\)"),
        ({"op1": None}, r"op0, op1: must be one of the pairs .*, got \('multiply', None\)"),
        ({"imm0": None}, r"imm0: must be a number or a \(P, 1\) tile, got None"),
        ({"imm1": tile((P, 2))}, r"imm1: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({"relu_param": None}, r"relu_param: must be a number or a \(P, 1\) tile, got None"),
        (
            {"imm0": tile((P, 1)), "imm1": tile((P, 1), "bfloat16")},
            "imm1: must have the dtype float32 of imm0, got bfloat16",
        ),
        ({"op1": BYPASS, "reverse1": True}, "reverse1: must be False where the operator is bypass, got True"),
        (
            {"op0": BYPASS, "op1": BYPASS, "reverse0": True},
            "reverse0: must be False where the operator is bypass, got True",
        ),
        ({**WITH_SUM, "reduce_op": MULTIPLY}, r"reduce_op: must be one of \['add', .*'abs_min'\], got multiply"),
        ({**WITH_SUM, "reduce_op": None}, "reduce_op: must be one of .* with reduce_cmd.reduce, got None"),
        ({**WITH_SUM, "reduce_cmd": LOAD}, "reduce_cmd: must be reduce_cmd.idle, reset, reduce or reset_reduce, got"),
        ({**WITH_SUM, "reduce_res": tile((P, 2))}, r"reduce_res: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({**WITH_SUM, "accumulator": None}, "accumulator: must be given with a reduce_cmd or reduce_res, got None"),
    ],
)
def test_rules(changes, message):
    legal = make(tile((P, F)), tile((P, F)))
    assert rule(legal, TRN3) == rule(replace(legal, **WITH_SUM), TRN3) == rule(replace(legal, op=PRELU), TRN3) == ""
    assert rule(legal, TRN2) == "nki.isa.activate2 the instruction: needs gen4 or later, got trn2"
    with pytest.raises(AssertionError, match="^nki.isa.activate2 " + message):
        replace(legal, **changes).check(TRN3)


def test_cost():
    latency = TRN3.latency_cycles(Engine.scalar)
    for n, cycles in ((2048, 2048), (10, 64)):
        x = tile((128, n))
        assert make(x, x, TANH).cycles(TRN3) == Work(cycles, latency)
        read_out = make(x, x, TANH, reduce_res=tile((128, 1)), accumulator=STATE).cycles(TRN3)
        assert read_out == Work(pytest.approx(cycles + 222), latency)
        assert make(x, x).cycles(TRN3).latency_cycles == TRN3.latency_cycles(Engine.scalar, copy=True)
