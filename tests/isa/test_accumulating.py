"""tensor_scalar_reduce, tensor_scalar_cumulative and exponential."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.accumulating import Exponential, TensorScalarCumulative, TensorScalarReduce, in_parallel, in_sequence
from nkijax.isa.operators import ALU, ReduceCmd
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from nkijax.view import View
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P, F = 4, 6
INF = np.inf
IDLE, RESET, REDUCE, RESET_REDUCE, LOAD = ReduceCmd
FUNCTIONS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "greater": lambda a, b: (a > b).astype(np.float32),
    "logical_and": lambda a, b: ((a != 0) & (b != 0)).astype(np.float32),
    "abs": lambda a, b: np.abs(a),
}
IDENTITIES = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -INF, "minimum": INF}
SMALL = [
    *("float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16"),
]
DTYPES = [*SMALL, "tfloat32", "int32", "uint32", "bool"]


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
    return load(view, memory).astype(np.float32)


def running(op, x, initial):
    """r[i] = x[i] <op> r[i-1], in float32."""
    r, out = np.broadcast_to(np.float32(initial), (x.shape[0], 1))[:, 0], []
    for k in range(x.shape[1]):
        r = FUNCTIONS[op](x[:, k], r).astype(np.float32)
        out.append(r)
    return np.stack(out, axis=1)


def folded(op, x, initial):
    """`initial` <op> x[0] <op> x[1] ..., (P, 1)."""
    return running(op, x, initial)[:, -1:]


def start(command, op, before, loaded):
    return {RESET_REDUCE: IDENTITIES[op], REDUCE: before, LOAD: loaded}[command]


# ---- tensor_scalar_reduce


def tsr(dst, data, op0="multiply", operand0=0.5, reduce_op="add", *args, **fields):
    return TensorScalarReduce(dst, data, ALU[op0], operand0, ALU[reduce_op], *args, **fields)


@pytest.mark.parametrize("command", [RESET_REDUCE, REDUCE, LOAD])
@pytest.mark.parametrize("reduce_op", ["add", "multiply", "maximum", "minimum"])
def test_reductions(reduce_op, command):
    dst, data, memory = setup()
    acc, res = registers(memory, 2.0), column(memory, 0)
    init = -3.0 if command is LOAD else None
    execute(tsr(dst, data, "add", 0.25, reduce_op, res, False, command, init, accumulator=acc), memory)
    t = f32(data, memory) + np.float32(0.25)
    np.testing.assert_array_equal(load(dst, memory), t)
    want = folded(reduce_op, t, start(command, reduce_op, 2.0, -3.0))
    np.testing.assert_allclose(load(res, memory), want, rtol=1e-6)
    np.testing.assert_array_equal(load(acc, memory), load(res, memory))
    assert (memory[acc.buffer][P:] == 2).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensor_scalar_reduce_dtypes(dtype):
    dst, data, memory = setup(dtype, dtype)
    acc, res = registers(memory), column(memory, 0, dtype)
    execute(tsr(dst, data, "subtract", 1.0, "maximum", res, accumulator=acc), memory)
    t = f32(data, memory) - np.float32(1)
    np.testing.assert_array_equal(load(dst, memory), reference_cast(t, dtype))
    np.testing.assert_array_equal(load(res, memory), reference_cast(t.max(1, keepdims=True), dtype))
    np.testing.assert_array_equal(load(acc, memory), t.max(1, keepdims=True))


@pytest.mark.parametrize(("op0", "operand"), [("abs", None), ("abs", 0.0), ("greater", 1.0), ("logical_and", 1.0)])
def test_operators(op0, operand):
    dst, data, memory = setup()
    acc = registers(memory)
    execute(tsr(dst, data, op0, operand, "add", accumulator=acc), memory)
    t = FUNCTIONS[op0](f32(data, memory), operand)
    np.testing.assert_array_equal(load(dst, memory), t)
    np.testing.assert_array_equal(load(acc, memory), t.sum(1, keepdims=True))


def test_operands_and_initial_values_of_each_partition():
    dst, data, memory = setup()
    acc, res = registers(memory), column(memory, 0)
    operand, init = column(memory, [1, 2, 3, 4]), column(memory, [1, -2, 300, 4])
    execute(tsr(dst, data, "multiply", operand, "maximum", res, False, LOAD, init, accumulator=acc), memory)
    t = f32(data, memory) * np.array([[1], [2], [3], [4]], np.float32)
    np.testing.assert_array_equal(load(res, memory), np.maximum(t.max(1, keepdims=True), load(init, memory)))


def test_case_23_the_accumulator_carries_over_three_calls():
    dst, data, memory = setup()
    acc, res = registers(memory), column(memory, 0)
    parts = [data.slice(1, k, k + 2) for k in (0, 2, 4)]
    out = dst.slice(1, 0, 2)
    for part, command, where in zip(parts, (RESET_REDUCE, REDUCE, REDUCE), (None, None, res), strict=True):
        execute(tsr(out, part, "multiply", 2.0, "add", where, False, command, accumulator=acc), memory)
    np.testing.assert_array_equal(load(res, memory), 2 * f32(data, memory).sum(1, keepdims=True))


def test_only_a_command_that_continues_reads_the_accumulator():
    dst, data, acc = tile((P, F)), tile((P, F)), tile((P, 1), memory=Memory.state)
    assert acc not in tsr(dst, data, accumulator=acc).reads()
    assert acc not in tsr(dst, data, reduce_cmd=LOAD, reduce_init=0.0, accumulator=acc).reads()
    assert acc in tsr(dst, data, reduce_cmd=REDUCE, accumulator=acc).reads()
    assert acc in tsr(dst, data, accumulator=acc).writes()


def test_trap_11_the_result_is_kept_inside_dst_and_counted_once():
    data, memory = store(np.full((P, F), 2.0))
    acc, res = registers(memory, 1.0), data.slice(1, 3, 4)
    execute(tsr(data, data, "multiply", 2.0, "add", res, False, REDUCE, accumulator=acc), memory)
    assert load(data, memory).tolist() == [[4, 4, 4, 1 + 6 * 4, 4, 4]] * P


def test_the_result_alone_is_negated():
    dst, data, memory = setup()
    acc, res = registers(memory), column(memory, 0)
    execute(tsr(dst, data, "multiply", 1.0, "minimum", res, reduce_res_negate=True, accumulator=acc), memory)
    least = f32(data, memory).min(1, keepdims=True)
    np.testing.assert_array_equal(load(res, memory), -least)
    np.testing.assert_array_equal(load(acc, memory), least)


def test_reduced_before_the_cast():
    data, memory = store(np.full((P, F), 1.25))
    dst, more = store(np.zeros((P, F)), "int32")
    memory |= more
    acc, res = registers(memory), column(memory, 0)
    execute(tsr(dst, data, "multiply", 1.0, "add", res, accumulator=acc), memory)
    assert (load(dst, memory) == 1).all() and (load(res, memory) == 7.5).all()


def test_views_of_different_rank():
    data, memory = store(random((P, 2, 3, 4)))
    out, more = store(np.zeros((P, 30)))
    memory |= more
    acc = registers(memory)
    dst = out.slice(1, 2, 26, 2)
    execute(tsr(dst, data.slice(3, 1, 3).permute((0, 3, 1, 2)), "multiply", 2.0, accumulator=acc), memory)
    want = 2 * random((P, 2, 3, 4))[..., 1:3].transpose(0, 3, 1, 2).reshape(P, 12)
    np.testing.assert_array_equal(load(dst, memory), want)
    np.testing.assert_array_equal(load(acc, memory), want.sum(1, keepdims=True))
    assert not load(out.slice(1, 3, 30, 2), memory).any()


def test_uninitialised_memory_is_seen_in_the_result():
    dst, data, memory = setup()
    memory[data.buffer][1, 2] = np.nan
    acc = registers(memory)
    execute(tsr(dst, data, "multiply", 1.0, "maximum", accumulator=acc), memory)
    assert np.isnan(load(acc, memory)[:, 0]).tolist() == [False, True, False, False]


def test_traced_immediates_give_the_same():
    dst, data, memory = setup()
    acc, res = registers(memory), column(memory, 0)
    copy = {k: v.copy() for k, v in memory.items()}
    instruction = tsr(dst, data, "multiply", 3, "add", res, False, LOAD, 7, True, acc)
    execute(instruction, memory)
    execute(instruction, copy, traced=True)
    for view in (dst, res, acc):
        np.testing.assert_allclose(load(view, copy), load(view, memory), rtol=1e-6)


def gradient(instruction, memory, view):
    """The gradient of the sum of all results in `view`, under vmap and jit."""
    tiles = {v: jnp.asarray(load(v, memory)) for v in instruction.reads()}

    def total(x):
        return sum(jnp.sum(r) for r in instruction.run(Reader({**tiles, view: x}, {})))

    return np.asarray(jax.jit(jax.vmap(jax.grad(total)))(jnp.stack([tiles[view]] * 2))[1])


@pytest.mark.parametrize("reduce_op", ["add", "multiply", "maximum", "minimum"])
def test_gradients_of_tensor_scalar_reduce(reduce_op):
    dst, data, memory = setup()
    acc, res = registers(memory, 1.0), column(memory, 0)
    memory[data.buffer][0, :3] = 0  # two zeros in a product, equals in a maximum
    instruction = tsr(dst, data, "multiply", 0.5, reduce_op, res, False, REDUCE, accumulator=acc)
    assert np.isfinite(gradient(instruction, memory, data)).all()
    if reduce_op == "add":
        np.testing.assert_allclose(gradient(instruction, memory, data), 1.5)
        np.testing.assert_allclose(gradient(instruction, memory, acc), 2)


STATE = tile((P, 1), memory=Memory.state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": tile((P, F), memory=Memory.private_hbm)},
            r"data: data must be in \['sbuf', 'psum'\], got private_hbm",
        ),
        ({"reduce_res": tile((P, 1), memory=Memory.shared_hbm)}, "reduce_res: reduce_res must be in"),
        ({"dst": tile((129, F)), "data": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"data": tile((P, F + 1))}, r"data: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"data": tile((P, F), "float8_e5m2_x4")}, "data: packed x4 types take no arithmetic"),
        ({"op0": ALU["bitwise_and"]}, "op0: must be an arithmetic operator, got bitwise_and"),
        ({"op0": ALU["power"]}, "op0: must be an operator of the vector engine, got power"),
        ({"op0": ALU["square"]}, "op0 square: needs gen4 or later, got trn2"),
        ({"op0": "exp"}, "op0: must be a math operator of nki.language, got exp"),
        (
            {"operand0": None},
            r"operand0: must be a number or a \(P, 1\) tile with the binary operator multiply, got None",
        ),
        ({"operand0": tile((P, 2))}, r"operand0: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({"operand0": tile((P, 1), "bfloat16")}, r"operand0: must be one of \['float32'\], got bfloat16"),
        ({"op0": ALU["abs"]}, "operand0: must be None or 0 with the unary operator abs, got 0.5"),
        ({"reduce_op": ALU["subtract"]}, r"reduce_op: must be one of \['add', 'multiply', .*\], got subtract"),
        ({"reverse0": True}, "reverse0: must be False, NKI does not support it, got True"),
        ({"reduce_cmd": IDLE}, "reduce_cmd: must be reduce_cmd.reset_reduce, reduce or load_reduce, got idle"),
        ({"reduce_cmd": 3}, "reduce_cmd: must be reduce_cmd.reset_reduce, reduce or load_reduce, got 3"),
        ({"reduce_cmd": LOAD}, r"reduce_init: must be a number or a \(P, 1\) float32 tile, got None"),
        ({"reduce_cmd": LOAD, "reduce_init": tile((P, F))}, r"reduce_init: must be a number or a \(4, 1\) tile"),
        (
            {"reduce_cmd": LOAD, "reduce_init": tile((P, 1), "int8")},
            r"reduce_init: must be one of \['float32'\], got int8",
        ),
        ({"reduce_init": 0.0}, "reduce_init: must be None without reduce_cmd.load_reduce, got 0.0"),
        ({"reduce_res": tile((P, 2))}, r"reduce_res: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({"accumulator": None}, "accumulator: must be given with a reduce_cmd or reduce_res, got None"),
        ({"accumulator": tile((P, 1))}, r"accumulator: must be a column of float32 state for 4 .* \(4, 1\) in sbuf"),
    ],
)
def test_tensor_scalar_reduce_rules(changes, message):
    legal = tsr(tile((P, F)), tile((P, F), memory=Memory.psum), accumulator=STATE)
    assert rule(legal) == rule(legal, TRN1) == rule(replace(legal, op0=ALU["abs"], operand0=0)) == ""
    with pytest.raises(AssertionError, match="^nki.isa.tensor_scalar_reduce " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_tensor_scalar_reduce_cost(target):
    latency = target.latency_cycles(Engine.vector)
    for n, cycles in ((2048, 2048), (10, 64)):
        x = tile((128, n), "bfloat16")
        assert tsr(x, x).cycles(target) == Work(cycles, latency)
        assert tsr(x, x, reduce_res=tile((128, 1))).cycles(target) == Work(cycles + 64, latency)


# ---- tensor_scalar_cumulative


def tsc(dst, src, op0="multiply", op1="add", imm0=0.5, *args, **fields):
    return TensorScalarCumulative(dst, src, ALU[op0], ALU[op1], imm0, *args, **fields)


CUMULATIVE = ["add", "subtract", "multiply", "maximum", "minimum"]


@pytest.mark.parametrize("command", [RESET_REDUCE, REDUCE, LOAD])
@pytest.mark.parametrize("op1", CUMULATIVE)
def test_running_reductions(op1, command):
    dst, src, memory = setup()
    acc = registers(memory, 2.0)
    execute(tsc(dst, src, "add", op1, 0.25, -3.0 if command is LOAD else None, command, acc), memory)
    want = running(op1, f32(src, memory) + np.float32(0.25), start(command, op1, 2.0, -3.0))
    np.testing.assert_allclose(load(dst, memory), want, rtol=1e-6)
    np.testing.assert_array_equal(load(acc, memory), load(dst, memory)[:, -1:])


def test_new_element_comes_first():
    """subtract: op0(x) - acc, so x0 - 0, x1 - x0, x2 - x1 + x0, ..."""
    src, memory = store([[1.0, 10.0, 100.0]] * P)
    execute(tsc(src, src, "multiply", "subtract", 1.0, accumulator=registers(memory)), memory)
    assert load(src, memory).tolist() == [[1, 9, 91]] * P


@pytest.mark.parametrize("dtype", SMALL)
def test_cumulative_dtypes_and_a_carry_that_is_not_rounded(dtype):
    dst, src, memory = setup(dtype, dtype)
    acc = registers(memory)
    execute(tsc(dst, src, "multiply", "add", 0.125, accumulator=acc), memory)
    want = running("add", f32(src, memory) * np.float32(0.125), 0)
    np.testing.assert_array_equal(load(dst, memory), reference_cast(want, dtype))
    np.testing.assert_array_equal(load(acc, memory), want[:, -1:])


def test_cumulative_continues_a_row_in_pieces():
    dst, src, memory = setup()
    acc, imm0 = registers(memory), column(memory, [1, 2, -1, 0.5])
    for k, command in ((0, RESET_REDUCE), (2, REDUCE), (4, REDUCE)):
        part, of = dst.slice(1, k, k + 2), src.slice(1, k, k + 2)
        execute(tsc(part, of, "multiply", "add", imm0, None, command, acc), memory)
    want = running("add", f32(src, memory) * load(imm0, memory), 0)
    np.testing.assert_array_equal(load(dst, memory), want)


def test_cumulative_views():
    src, memory = store(random((P, 2, 3)))
    out, more = store(np.zeros((P, 12)))
    memory |= more
    acc = registers(memory)
    execute(tsc(out.slice(1, 0, 12, 2), src.permute((0, 2, 1)), "abs", "maximum", None, accumulator=acc), memory)
    want = running("maximum", np.abs(random((P, 2, 3))).transpose(0, 2, 1).reshape(P, 6), -INF)
    np.testing.assert_array_equal(memory[out.buffer][:, ::2], want)
    assert not memory[out.buffer][:, 1::2].any()


@pytest.mark.parametrize("op1", CUMULATIVE)
def test_in_parallel_agrees(op1, monkeypatch):
    x, initial = jnp.asarray(random((P, 11))) / 4, jnp.full((P, 1), 0.5, jnp.float32)
    got = jax.jit(lambda *args: in_parallel(ALU[op1], *args))(x, initial)
    np.testing.assert_allclose(got, running(op1, np.asarray(x), 0.5), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(in_sequence(ALU[op1], x, initial), running(op1, np.asarray(x), 0.5), rtol=1e-6)
    dst, src, memory = setup()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    read = Reader({src: jnp.asarray(load(src, memory))}, {})
    assert "scan" not in str(jax.make_jaxpr(lambda: tsc(dst, src, op1=op1).run(read))())


@pytest.mark.parametrize("op1", CUMULATIVE)
def test_cumulative_gradients(op1):
    dst, src, memory = setup()
    memory[src.buffer][0, :3] = 0
    acc = registers(memory, 1.0)
    instruction = tsc(dst, src, "multiply", op1, 0.5, None, REDUCE, acc)
    assert np.isfinite(gradient(instruction, memory, src)).all()
    if op1 == "add":
        np.testing.assert_allclose(gradient(instruction, memory, src), [[3.5, 3, 2.5, 2, 1.5, 1]] * P)


def test_cumulative_traced_immediates_give_the_same():
    dst, src, memory = setup()
    acc = registers(memory)
    copy = {k: v.copy() for k, v in memory.items()}
    instruction = tsc(dst, src, "multiply", "add", 3, 2, LOAD, acc)
    execute(instruction, memory)
    execute(instruction, copy, traced=True)
    for view in (dst, acc):
        np.testing.assert_allclose(load(view, copy), load(view, memory), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src": tile((P, F), "int32")}, r"src: must have one of the dtypes \['bfloat16', .*\], got int32"),
        ({"dst": tile((P, F), "uint32")}, r"dst: must have one of the dtypes \['bfloat16', .*\], got uint32"),
        ({"src": tile((P, F), "float8_e4m3fn_x4")}, "src: must have one of the dtypes"),
        ({"src": tile((P, F), memory=Memory.shared_hbm)}, "src: src must be in"),
        ({"dst": tile((P, F + 1))}, r"src: must have the 7 free elements of dst, got \(4, 6\)"),
        ({"dst": tile((5, F))}, r"src: must have the 5 partitions of dst, got \(4, 6\)"),
        ({"dst": tile((129, F)), "src": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"op0": ALU["bitwise_or"]}, "op0: must be an arithmetic operator, got bitwise_or"),
        ({"op0": ALU["rsqrt"]}, "op0: must be an operator of the vector engine, got rsqrt"),
        ({"op1": ALU["logical_or"]}, r"op1: must be one of \['add', 'subtract', .*\], got logical_or"),
        ({"imm0": None}, "imm0: must be a number or a .* tile with the binary operator multiply, got None"),
        ({"imm0": tile((P, 1), "float16")}, r"imm0: must be one of \['float32'\], got float16"),
        ({"imm1": tile((P, F))}, r"imm1: must be a number or a \(4, 1\) tile, got \(4, 6\)"),
        ({"reduce_cmd": LOAD}, r"imm1: must be a number or a \(P, 1\) float32 tile, got None"),
        ({"reduce_cmd": RESET}, "reduce_cmd: must be reduce_cmd.reset_reduce, reduce or load_reduce, got reset"),
        ({"accumulator": None}, "accumulator: must be given with a reduce_cmd or reduce_res, got None"),
    ],
)
def test_cumulative_rules(changes, message):
    legal = tsc(tile((P, F)), tile((P, F)), accumulator=STATE)
    assert rule(legal) == rule(legal, TRN1) == rule(replace(legal, imm1=0.0)) == ""
    with pytest.raises(AssertionError, match="^nki.isa.tensor_scalar_cumulative " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_cumulative_cost(target):
    for n, cycles in ((2048, 2048), (10, 64)):
        x = tile((128, n))
        assert tsc(x, x).cycles(target) == Work(cycles, target.latency_cycles(Engine.vector))


# ---- exponential


@pytest.mark.parametrize(
    ("command", "want"), [(RESET_REDUCE, 0), (REDUCE, 100), (LOAD, 7)], ids=["reset_reduce", "reduce", "load_reduce"]
)
@pytest.mark.parametrize("tiles", [False, True])
def test_exponential(command, want, tiles):
    dst, src, memory = setup("bfloat16", "bfloat16")
    acc, res = registers(memory), column(memory, 0)
    greatest = column(memory, [16, 15, 14, 13]) if tiles else 16.0
    init = (column(memory, 7) if tiles else 7.0) if command is LOAD else 0.0
    execute(Exponential(dst, src, greatest, res, command, init, acc), memory)
    maximum = load(greatest, memory) if isinstance(greatest, View) else np.float32(16)
    e = np.exp(f32(src, memory) - maximum)
    np.testing.assert_allclose(f32(dst, memory), e, rtol=2**-8)
    np.testing.assert_allclose(load(res, memory), want + e.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(load(acc, memory), load(res, memory))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_exponential_dtypes(dtype):
    dst, src, memory = setup(dtype, "float32" if dtype == "uint32" else dtype)
    memory[src.buffer][...] = memory[src.buffer] % 4
    execute(Exponential(dst, src, 1.0), memory)
    want = reference_cast(np.exp(f32(src, memory) - 1), dst.dtype)
    got = load(dst, memory)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-2)


def test_exponential_of_idle_leaves_the_accumulator_undefined():
    dst, src, memory = setup()
    acc, res = registers(memory), column(memory, 0)
    execute(Exponential(dst, src, 16.0, res, accumulator=acc), memory)
    assert np.isnan(load(acc, memory)).all() and np.isnan(load(res, memory)).all()
    assert rule(Exponential(dst, src), TRN3) == "" and Exponential(dst, src).writes() == (dst,)
    execute(Exponential(dst, src, 16.0, res, RESET_REDUCE, accumulator=acc), memory)
    assert np.isfinite(load(res, memory)).all()


def test_exponential_views_and_gradients():
    src, memory = store(random((P, 3, 4)) / 4)
    acc, greatest = registers(memory, 0.0), column(memory, 4)
    execute(Exponential(src, src.permute((0, 2, 1)).reshape((P, 4, 3)), greatest, accumulator=acc), memory)
    x = (random((P, 3, 4)) / 4).transpose(0, 2, 1).reshape(P, 3, 4)
    np.testing.assert_allclose(memory[src.buffer], np.exp(x - 4), rtol=1e-6)
    instruction = Exponential(src, src, greatest, None, REDUCE, accumulator=acc)
    e = np.exp(load(src, memory) - 4)
    np.testing.assert_allclose(gradient(instruction, memory, src), 2 * e, rtol=1e-5)
    np.testing.assert_allclose(gradient(instruction, memory, greatest), -2 * e.sum(1, keepdims=True), rtol=1e-5)
    memory[src.buffer][0] = -INF
    assert np.isfinite(gradient(instruction, memory, src)).all()


def test_exponential_traced_immediates_give_the_same():
    dst, src, memory = setup()
    acc = registers(memory)
    copy = {k: v.copy() for k, v in memory.items()}
    instruction = Exponential(dst, src, 16, None, LOAD, 2, acc)
    execute(instruction, memory)
    execute(instruction, copy, traced=True)
    for view in (dst, acc):
        np.testing.assert_allclose(load(view, copy), load(view, memory), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src": tile((P, F), memory=Memory.shared_hbm)}, "src: src must be in"),
        ({"dst": tile((P, F + 1))}, r"src: must have the 7 free elements of dst, got \(4, 6\)"),
        ({"dst": tile((5, F))}, r"src: must have the 5 partitions of dst, got \(4, 6\)"),
        ({"dst": tile((P, F), "uint32")}, r"dst: must have one of the dtypes \['float8_e4m3', .*\], got uint32"),
        ({"src": tile((P, F), "bool")}, r"src: must have one of the dtypes \['float8_e4m3', .*\], got bool"),
        ({"reduce_res": tile((P, 1), "int32")}, "reduce_res: must have one of the dtypes .*, got int32"),
        ({"reduce_res": tile((P, 3))}, r"reduce_res: must be a number or a \(4, 1\) tile, got \(4, 3\)"),
        ({"max_value": None}, r"max_value: must be a number or a \(P, 1\) float32 tile, got None"),
        ({"max_value": tile((P, 1), "bfloat16")}, r"max_value: must be one of \['float32'\], got bfloat16"),
        ({"reduce_init": 1.0}, "reduce_init: must be 0.0 without reduce_cmd.load_reduce, got 1.0"),
        ({"reduce_init": tile((P, 1))}, "reduce_init: must be 0.0 without reduce_cmd.load_reduce, got"),
        ({"reduce_init": tile((P, 1), "int32"), "reduce_cmd": LOAD}, r"reduce_init: must be one of \['float32'\]"),
        ({"reduce_cmd": RESET}, "reduce_cmd: must be reduce_cmd.idle, reset_reduce, reduce or load_reduce, got reset"),
        ({"accumulator": None}, "accumulator: must be given with a reduce_cmd or reduce_res, got None"),
    ],
)
def test_exponential_rules(changes, message):
    legal = Exponential(tile((P, F)), tile((P, F)), reduce_cmd=RESET_REDUCE, accumulator=STATE)
    assert rule(legal, TRN3) == rule(replace(legal, src=tile((P, F), "uint32")), TRN3) == ""
    assert rule(legal, TRN2) == "nki.isa.exponential the instruction: needs gen4 or later, got trn2"
    with pytest.raises(AssertionError, match="^nki.isa.exponential " + message):
        replace(legal, **changes).check(TRN3)


def test_exponential_cost():
    latency = TRN3.latency_cycles(Engine.vector)
    for n, cycles in ((2048, 512), (10, 64)):
        x = tile((128, n))
        assert Exponential(x, x).cycles(TRN3) == Work(cycles, latency)
        assert Exponential(x, x, 0.0, tile((128, 1))).cycles(TRN3) == Work(cycles + 64, latency)
