"""tensor_tensor, tensor_scalar, scalar_tensor_tensor, reciprocal."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.elementwise import Reciprocal, ScalarTensorTensor, TensorScalar, TensorTensor
from nkijax.isa.operators import ACTIVATIONS, ALU
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from nkijax.view import View
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P, F = 4, 6
DTYPES = [
    *("float32", "bfloat16", "float16", "tfloat32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]
INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"]
BITVEC = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}
ARITHMETIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "less": lambda a, b: (a < b).astype(np.float32),
    "logical_xor": lambda a, b: ((a != 0) ^ (b != 0)).astype(np.float32),
    "divide": np.divide,
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
}
psum = Memory.psum


def two(dtype1="float32", dtype2="float32", dst="float32", seed=0):
    """Two stored tiles, a destination, and the memory of all three."""
    a, memory = store(random((P, F), dtype1, seed), dtype1)
    b, more = store(random((P, F), dtype2, seed + 1), dtype2)
    out, rest = store(np.zeros((P, F)), dst)
    return out, a, b, {**memory, **more, **rest}


def f32(view, memory):
    return load(view, memory).astype(np.float32)


# ---- tensor_tensor


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_tensor_tensor_arithmetic(name):
    dst, a, b, memory = two()
    execute(TensorTensor(dst, a, b, ALU[name]), memory)
    np.testing.assert_allclose(load(dst, memory), ARITHMETIC[name](f32(a, memory), f32(b, memory)), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensor_tensor_dtypes(dtype):
    dst, a, b, memory = two(dtype, "float32", dtype)
    execute(TensorTensor(dst, a, b, ALU["multiply"]), memory)
    want = reference_cast(f32(a, memory) * f32(b, memory), dtype)
    if dtype == "tfloat32":
        np.testing.assert_allclose(load(dst, memory), want, rtol=2**-11)
    else:
        np.testing.assert_array_equal(load(dst, memory), want)


@pytest.mark.parametrize("name", BITVEC)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_tensor_tensor_bitvec(name, dtype):
    dst, a, b, memory = two(dtype, dtype, dtype)
    unsigned = np.dtype(f"u{load(a, memory).itemsize}")
    x, y = load(a, memory).view(unsigned), load(b, memory).view(unsigned)
    if "shift" in name:
        y = y % (8 * unsigned.itemsize)
        memory[b.buffer][...] = y.view(memory[b.buffer].dtype) if dtype != "bool" else y != 0
        y = load(b, memory).view(unsigned)
    execute(TensorTensor(dst, a, b, ALU[name]), memory)
    want = BITVEC[name](x, y)
    want = want != 0 if dtype == "bool" else want.view(load(dst, memory).dtype)
    np.testing.assert_array_equal(load(dst, memory), want)


def test_case_10_uint32_above_two_to_the_24():
    dst, a, b, memory = two("uint32", "uint32", "uint32")
    x = np.uint32(2**24 + 1) * np.arange(1, P * F + 1, dtype=np.uint32).reshape(P, F)
    y = np.uint32(3) + np.arange(P * F, dtype=np.uint32).reshape(P, F)
    memory[a.buffer][...], memory[b.buffer][...] = x, y
    exact = {**BITVEC, "add": np.add, "subtract": np.subtract, "multiply": np.multiply}
    for name, function in exact.items():
        if "shift" in name:
            memory[b.buffer][...] = y % 32
        execute(TensorTensor(dst, a, b, ALU[name]), memory)
        np.testing.assert_array_equal(load(dst, memory), function(x, load(b, memory)), err_msg=name)
        memory[b.buffer][...] = y
    execute(TensorTensor(dst, a, b, ALU["add"], engine=Engine.vector), memory)
    want = reference_cast(x.astype(np.float32) + y.astype(np.float32), "uint32")
    np.testing.assert_array_equal(load(dst, memory), want)
    assert (want != x + y).any()


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "greater", "equal", "logical_and"])
def test_trap_10_tensor_tensor_words_wrap_and_compare_exactly(name, dtype):
    dst, a, b, memory = two(dtype, dtype, dtype)
    info = np.iinfo(dtype)
    values = np.array([info.max, info.max - 1, info.min, 2**24 + 1, 2**24, 0], dtype)
    memory[a.buffer][...] = values
    memory[b.buffer][...] = np.stack([values, np.roll(values, 1), np.roll(values, 2), np.roll(values, 3)])
    x, y = load(a, memory), load(b, memory)
    instruction = TensorTensor(dst, a, b, ALU[name])
    assert instruction.queue is Engine.gpsimd
    execute(instruction, memory)
    functions = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "greater": np.greater}
    with np.errstate(over="ignore"):
        want = {**functions, "equal": np.equal, "logical_and": np.logical_and}[name](x, y).astype(dtype)
    np.testing.assert_array_equal(load(dst, memory), want)


def test_tensor_tensor_of_int32_and_uint32_keeps_the_bits():
    dst, a, b, memory = two("int32", "uint32", "uint32")
    memory[a.buffer][...], memory[b.buffer][...] = -1, 2**31
    execute(TensorTensor(dst, a, b, ALU["add"]), memory)
    assert (load(dst, memory) == 2**31 - 1).all()


def test_tensor_tensor_engines():
    a, b, c = tile((P, F), "int32"), tile((P, F), "int32"), tile((P, F), "int32", psum)
    floats = tile((P, F)), tile((P, F)), tile((P, F))
    assert TensorTensor(a, a, b, ALU["add"]).queue is Engine.gpsimd
    assert TensorTensor(a, a, b, ALU["add"], Engine.vector).queue is Engine.vector
    assert TensorTensor(a, a, c, ALU["add"]).queue is Engine.vector
    assert TensorTensor(a, a, b, ALU["bitwise_and"]).queue is Engine.vector
    assert TensorTensor(*floats, ALU["add"]).queue is Engine.vector
    assert TensorTensor(*floats, ALU["power"]).queue is Engine.gpsimd
    assert TensorTensor(a, a, floats[0], ALU["add"]).queue is Engine.vector


def test_tensor_tensor_power():
    dst, a, b, memory = two("float32", "int8", "float32")
    memory[a.buffer][...] = np.abs(memory[a.buffer]) + 1
    memory[b.buffer][...] = memory[b.buffer] % 3
    execute(TensorTensor(dst, a, b, ALU["power"]), memory)
    np.testing.assert_allclose(load(dst, memory), f32(a, memory) ** f32(b, memory), rtol=1e-5)


def test_tensor_tensor_views_of_any_rank_and_stride():
    a, memory = store(random((P, 3, 4)))
    b, more = store(random((P, 24), seed=1))
    out, rest = store(np.zeros((P, 2, 12)))
    memory |= {**more, **rest}
    first = a.slice(2, 0, 4, 2).permute((0, 2, 1))  # (P, 2, 3)
    second = b.slice(1, 3, 15, 2)  # (P, 6)
    dst = out.slice(2, 1, 10, 3)  # (P, 2, 3)
    x, y, before = memory[a.buffer], memory[b.buffer], memory[out.buffer].copy()
    want = x[:, :, ::2].transpose(0, 2, 1) - y[:, 3:15:2].reshape(P, 2, 3)
    execute(TensorTensor(dst, first, second, ALU["subtract"]), memory)
    before[:, :, 1:10:3] = want
    np.testing.assert_array_equal(memory[out.buffer], before)


def test_tensor_tensor_in_place_and_on_bits_seen_as_another_dtype():
    a, memory = store(random((P, F)))
    execute(TensorTensor(a, a, a, ALU["add"]), memory)
    np.testing.assert_array_equal(load(a, memory), 2 * random((P, F)))
    word = a.reinterpret("uint32")
    execute(TensorTensor(word, word, word, ALU["bitwise_xor"]), memory)
    assert not load(a, memory).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((P, F), memory=Memory.shared_hbm)}, r"dst: dst must be in \['sbuf', 'psum'\], got shared_hbm"),
        ({"data1": tile((256, F))}, "data1 partition dimension 256 exceeds maximum 128"),
        ({"data1": tile((P + 1, F))}, r"data1: must have the 4 partitions of dst, got \(5, 6\)"),
        ({"data2": tile((P, F + 1))}, r"data2: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"op": ACTIVATIONS["abs"]}, "op: must be a math operator of nki.language, got abs"),
        ({"op": ALU["average"]}, "op: must be a math operator of nki.language, got average"),
        ({"op": ALU["reciprocal"]}, "op: must be a binary operator, got reciprocal"),
        ({"op": ALU["abs_max"]}, "op abs_max: needs gen4 or later, got trn2"),
        ({"op": ALU["bitwise_or"]}, "dst: must have an integer dtype, got float32"),
        ({"data1": tile((P, F), "float8_e5m2_x4")}, "data1: packed x4 types take no arithmetic, got float8_e5m2_x4"),
        ({"engine": Engine.scalar}, r"engine: must be one of \['vector', 'gpsimd'\], got scalar"),
        ({"engine": 5}, "engine: must be a member of nki.isa.engine, got 5"),
        ({"op": ALU["power"], "engine": Engine.vector}, "engine: power runs on gpsimd only, got vector"),
        (
            {"data2": tile((P, F), memory=psum), "op": ALU["power"]},
            "data2: the gpsimd engine cannot access psum, got a psum tile",
        ),
        (
            {"data1": tile((P, F), memory=psum), "data2": tile((P, F), memory=psum)},
            "data1, data2: at most one of them may be in psum, got both in psum",
        ),
    ],
)
def test_tensor_tensor_rules(changes, message):
    legal = TensorTensor(tile((P, F)), tile((P, F)), tile((P, F)), ALU["add"])
    assert rule(legal) == ""
    with pytest.raises(AssertionError, match="^nki.isa.tensor_tensor " + message):
        replace(legal, **changes).check(TRN2)


def test_case_32_refused_operands():
    hbm, on_psum, data = tile((P, F), memory=Memory.private_hbm), tile((P, F), memory=psum), tile((P, F))
    hbm_given = r"data2: data2 must be in \['sbuf', 'psum'\], got private_hbm"
    with pytest.raises(AssertionError, match=hbm_given):
        TensorTensor(data, data, hbm, ALU["add"]).check(TRN2)
    with pytest.raises(AssertionError, match="data1: the gpsimd engine cannot access psum"):
        TensorTensor(data, on_psum, data, ALU["add"], Engine.gpsimd).check(TRN2)
    with pytest.raises(AssertionError, match=r"operand0: must be one of \['float32'\], got int32"):
        TensorScalar(data, data, ALU["add"], tile((P, 1), "int32")).check(TRN2)


def test_tensor_tensor_may_use_gpsimd_and_gen4_operators():
    data = tile((P, F))
    assert rule(TensorTensor(data, data, data, ALU["abs_max"]), TRN3) == ""
    assert rule(TensorTensor(data, data, data, ALU["add"], Engine.gpsimd)) == ""


def tiles(*dtypes, memory=Memory.sbuf, n=2048):
    return [tile((128, n), d, memory) for d in dtypes]


@pytest.mark.parametrize(
    ("target", "views", "op", "cycles"),
    [
        (TRN1, tiles("float32", "float32", "float32"), "add", 4096),
        (TRN1, [*tiles("float32", "float32"), *tiles("float32", memory=psum)], "add", 2048),
        (TRN1, tiles("bfloat16", "bfloat16", "bfloat16"), "multiply", 2048),
        (TRN1, tiles("bfloat16", "bfloat16", "bfloat16"), "maximum", 4096),
        (TRN1, tiles("bfloat16", "bfloat16", "bfloat16", n=8), "add", 64),
        (TRN1, tiles("int32", "int32", "int32"), "add", 4096),
        (TRN2, tiles("float32", "float32", "float32"), "add", 2048),
        (TRN2, tiles("bfloat16", "bfloat16", "float16"), "maximum", 1024),
        (TRN2, tiles("bfloat16", "bfloat16", "float32"), "add", 2048),
        (TRN2, tiles("float8_e5m2", "float8_e5m2", "float8_e5m2"), "add", 2048),
        (TRN2, [*tiles("bfloat16", "bfloat16"), *tiles("bfloat16", memory=psum)], "add", 2048),
        (TRN2, tiles("float32", "float32", "float32", n=1), "add", 64),
        (TRN2, tiles("int32", "int32", "int32"), "add", 2048),
        (TRN3, tiles("float8_e5m2", "float8_e5m2", "float8_e5m2"), "add", 1024),
    ],
)
def test_tensor_tensor_cost(target, views, op, cycles):
    engine = Engine.gpsimd if views[0].dtype == "int32" else Engine.vector
    work = TensorTensor(*views, ALU[op]).cycles(target)
    assert work == Work(cycles, target.latency_cycles(engine))


# ---- tensor_scalar


def scalars():
    """A (P, 1) float32 tile that is a column of a wider one."""
    wide, memory = store(random((P, 3), seed=7) + np.float32(0.5))
    return wide.slice(1, 1, 2), memory


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
def test_tensor_scalar_two_operators_and_reversed(reverse0, reverse1):
    a, memory = store(random((P, F)))
    s, more = scalars()
    memory |= more
    column = load(s, memory)
    execute(TensorScalar(a, a, ALU["subtract"], 2.5, reverse0, ALU["divide"], s, reverse1), memory)
    t = np.float32(2.5) - random((P, F)) if reverse0 else random((P, F)) - np.float32(2.5)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(load(a, memory), column / t if reverse1 else t / column, rtol=1e-6)


def test_tensor_scalar_keeps_float32_between_the_operators():
    a, memory = store(np.full((P, F), 256), "bfloat16")
    execute(TensorScalar(a, a, ALU["add"], 1, False, ALU["subtract"], 256), memory)
    assert (load(a, memory).astype(np.float32) == 1).all()  # 256 + 1 is 256 in bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensor_scalar_dtypes(dtype):
    dst, a, _, memory = two(dtype, dst=dtype)
    execute(TensorScalar(dst, a, ALU["multiply"], 1.5, False, ALU["add"], -0.25), memory)
    want = reference_cast(f32(a, memory) * np.float32(1.5) - np.float32(0.25), dtype)
    np.testing.assert_allclose(f32(dst, memory), want.astype(np.float32), rtol=2**-11 if dtype == "tfloat32" else 0)


@pytest.mark.parametrize("dtype", INTEGERS[1:])
def test_tensor_scalar_bitvec(dtype):
    dst, a, _, memory = two(dtype, dst=dtype)
    mask, more = store(np.full((P, 1), 0x5B), dtype)
    memory |= more
    unsigned = np.dtype(f"u{memory[a.buffer].itemsize}")
    raw = load(a, memory).view(unsigned)
    execute(TensorScalar(dst, a, ALU["right_shift"], 2, False, ALU["bitwise_xor"], mask), memory)
    np.testing.assert_array_equal(load(dst, memory).view(unsigned), (raw >> 2) ^ 0x5B)
    execute(TensorScalar(dst, a, ALU["left_shift"], 1, True, ALU["bitwise_and"], -1), memory)
    shifts = raw.astype(np.uint64)
    want = np.where(shifts < 8 * unsigned.itemsize, np.uint64(1) << (shifts % 64), 0)
    np.testing.assert_array_equal(load(dst, memory).view(unsigned), want.astype(unsigned))
    execute(TensorScalar(dst, a, ALU["invert"], None), memory)
    np.testing.assert_array_equal(load(dst, memory).view(unsigned), ~raw)


def test_tensor_scalar_unary_ignores_its_zero():
    a, memory = store(random((P, F)))
    execute(TensorScalar(a, a, ALU["abs"], 0.0, True, ALU["multiply"], 2.0), memory)
    np.testing.assert_array_equal(load(a, memory), 2 * np.abs(random((P, F))))
    positive = TensorScalar(a, a, ALU["rsqrt"], 0.0)
    assert positive.queue is Engine.gpsimd
    memory[a.buffer][...] = 16
    execute(positive, memory)
    assert (load(a, memory) == 0.25).all()


def test_case_11_float32_to_int8():
    values, memory = store(np.array([[0.5, 1.5, 2.5, -0.5, -2.5, 127.5, 300, -300]]))
    dst, more = store(np.zeros((1, 8)), "int8")
    memory |= more
    execute(TensorScalar(dst, values, ALU["multiply"], 1.0), memory)
    assert load(dst, memory).tolist() == [[0, 2, 2, 0, -2, 127, 127, -128]]


def test_trap_10_tensor_scalar_of_large_integers_goes_through_float32():
    a, memory = store(np.full((P, F), 2**24 + 1), "int32")
    execute(TensorScalar(a, a, ALU["add"], 0), memory)
    assert (load(a, memory) == 2**24).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operand0": tile((P, 1), memory=Memory.shared_hbm)}, r"operand0 must be in \['sbuf', 'psum'\]"),
        ({"data": tile((P, F + 2))}, r"data: must have the 6 free elements of dst, got \(4, 8\)"),
        ({"dst": tile((129, F)), "data": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"operand0": tile((P, 2))}, r"operand0: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({"operand0": tile((1, 1))}, r"operand0: must be a number or a \(4, 1\) tile, got \(1, 1\)"),
        ({"operand0": tile((P, 1), "bfloat16")}, r"operand0: must be one of \['float32'\], got bfloat16"),
        ({"operand0": None}, r"operand0: must be a number or a \(P, 1\) tile with the binary operator add, got None"),
        ({"operand1": 2.0}, "operand1: must be None without op1, got 2.0"),
        ({"op0": ALU["abs"]}, "operand0: must be None or 0 with the unary operator abs, got 1.0"),
        ({"op0": ALU["square"], "operand0": 0}, "op0 square: needs gen4 or later, got trn2"),
        (
            {"op1": ALU["bitwise_and"], "operand1": 1},
            "op0, op1: must both be bitvec or both be arithmetic operators, got add and bitwise_and",
        ),
        ({"op0": ALU["bitwise_and"], "operand0": 1}, "dst: must have an integer dtype, got float32"),
        ({"engine": Engine.sync}, r"engine: must be one of \['vector', 'scalar', 'gpsimd'\], got sync"),
        (
            {"engine": Engine.scalar, "op0": ALU["maximum"]},
            r"engine: the scalar engine has only \(multiply, add\), multiply and add, got maximum",
        ),
        (
            {"engine": Engine.gpsimd},
            "engine: gpsimd is for rsqrt and power, and they run there only, got add on gpsimd",
        ),
        ({"engine": Engine.vector, "op0": ALU["rsqrt"], "operand0": 0}, "engine: gpsimd is for rsqrt and power"),
        ({"data": tile((P, F), memory=psum), "op0": ALU["rsqrt"], "operand0": 0}, "data: the gpsimd engine cannot"),
    ],
)
def test_tensor_scalar_rules(changes, message):
    legal = TensorScalar(tile((P, F)), tile((P, F)), ALU["add"], 1.0)
    assert rule(legal) == ""
    with pytest.raises(AssertionError, match="^nki.isa.tensor_scalar .*" + message):
        replace(legal, **changes).check(TRN2)


def test_tensor_scalar_bitvec_rules():
    data = tile((P, F), "int32")
    legal = TensorScalar(data, data, ALU["bitwise_and"], tile((P, 1), "uint8"))
    assert rule(legal) == ""
    assert "operand0: must be an integer with the bitvec operator" in rule(replace(legal, operand0=1.0))
    assert "operand0: must have an integer dtype, got float32" in rule(replace(legal, operand0=tile((P, 1))))
    assert "bitvec operators run on the vector engine, got gpsimd" in rule(replace(legal, engine=Engine.gpsimd))


def test_tensor_scalar_on_the_scalar_engine():
    data = tile((P, F))
    assert rule(TensorScalar(data, data, ALU["multiply"], 2.0, False, ALU["add"], 1.0, engine=Engine.scalar)) == ""


@pytest.mark.parametrize(
    ("target", "views", "engine", "cycles"),
    [
        (TRN1, tiles("float32", "float32"), Engine.vector, 2048),
        (TRN1, tiles("bfloat16", "bfloat16"), Engine.vector, 2048),
        (TRN1, tiles("float32", "float32", n=3), Engine.vector, 64),
        (TRN2, tiles("float32", "float32"), Engine.vector, 1024),
        (TRN2, tiles("bfloat16", "float16"), Engine.vector, 512),
        (TRN2, [v.slice(1, 0, 2048, 2) for v in tiles("bfloat16", "bfloat16")], Engine.vector, 512),
        (TRN2, [*tiles("float32"), *tiles("float32", memory=psum)], Engine.vector, 2048),
        (TRN2, [*tiles("bfloat16"), *tiles("bfloat16", memory=psum)], Engine.vector, 1024),
        (TRN2, tiles("float32", "float32"), Engine.scalar, 2048),
        (TRN3, tiles("bfloat16", "bfloat16"), Engine.scalar, 1024),
        (TRN3, tiles("float8_e5m2", "float8_e5m2"), Engine.vector, 512),
        (TRN2, tiles("float32", "float32"), Engine.gpsimd, 8192),
    ],
)
def test_tensor_scalar_cost(target, views, engine, cycles):
    op = ALU["rsqrt"] if engine is Engine.gpsimd else ALU["add"]
    work = TensorScalar(*views, op, 0.0, engine=engine).cycles(target)
    assert work == Work(cycles, target.latency_cycles(engine))


# ---- scalar_tensor_tensor


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
def test_scalar_tensor_tensor(reverse0, reverse1):
    dst, a, b, memory = two("bfloat16", "int8", "float16")
    s, more = scalars()
    memory |= more
    execute(ScalarTensorTensor(dst, a, ALU["subtract"], s, ALU["subtract"], b, reverse0, reverse1), memory)
    t = (f32(a, memory) - load(s, memory)) * (-1 if reverse0 else 1)
    want = reference_cast((t - f32(b, memory)) * (-1 if reverse1 else 1), "float16")
    np.testing.assert_array_equal(load(dst, memory), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scalar_tensor_tensor_dtypes(dtype):
    """From and into parts of tiles."""
    whole, memory = store(random((P, 2 * F), dtype), dtype)
    out, more = store(np.zeros((P, F + 2)), dtype)
    memory |= more
    a, b, dst = whole.slice(1, 0, F), whole.slice(1, F, 2 * F), out.slice(1, 2, F + 2)
    execute(ScalarTensorTensor(dst, a, ALU["multiply"], -0.5, ALU["add"], b), memory)
    want = reference_cast(f32(a, memory) * np.float32(-0.5) + f32(b, memory), dtype)
    np.testing.assert_array_equal(load(dst, memory), want)
    assert not memory[out.buffer][:, :2].any()


def test_scalar_tensor_tensor_views_and_a_bfloat16_scalar():
    a, memory = store(random((P, 2, 3)))
    s, more = store(random((P, 1)), "bfloat16")
    out, rest = store(np.zeros((P, 3, 2)))
    memory |= {**more, **rest}
    execute(ScalarTensorTensor(out, a.permute((0, 2, 1)), ALU["multiply"], s, ALU["add"], out), memory)
    want = random((P, 2, 3)).transpose(0, 2, 1) * f32(s, memory).reshape(P, 1, 1)
    np.testing.assert_array_equal(memory[out.buffer], want)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operand1": tile((P, F + 1))}, r"operand1: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"operand1": tile((P + 1, F))}, r"operand1: must have the 4 partitions of dst, got \(5, 6\)"),
        ({"data": tile((P, F), memory=Memory.shared_hbm)}, "data must be in"),
        ({"op0": ALU["bitwise_and"]}, "op0: must be an arithmetic operator, got bitwise_and"),
        ({"op1": ALU["abs"]}, "op1: must be a binary operator, got abs"),
        ({"op1": ALU["power"]}, "op1: must be an operator of the vector engine, got power"),
        ({"operand0": tile((P, 3))}, r"operand0: must be a number or a \(4, 1\) tile, got \(4, 3\)"),
        ({"operand1": tile((P, F), "float4_e2m1fn_x4")}, "operand1: packed x4 types take no arithmetic"),
        (
            {"data": tile((P, F), memory=psum), "operand1": tile((P, F), memory=psum)},
            "data, operand1: at most one of them may be in psum, got both in psum",
        ),
    ],
)
def test_scalar_tensor_tensor_rules(changes, message):
    legal = ScalarTensorTensor(tile((P, F)), tile((P, F)), ALU["multiply"], 2.0, ALU["add"], tile((P, F)))
    assert rule(legal) == ""
    with pytest.raises(AssertionError, match="^nki.isa.scalar_tensor_tensor .*" + message):
        replace(legal, **changes).check(TRN2)


def test_scalar_tensor_tensor_cost():
    def cost(target, dtype, op0, op1, n=2048):
        dst, data, operand1 = tiles(dtype, dtype, dtype, n=n)
        work = ScalarTensorTensor(dst, data, ALU[op0], 1.0, ALU[op1], operand1).cycles(target)
        assert work.latency_cycles == target.latency_cycles(Engine.vector)
        return work.issue_cycles

    assert cost(TRN1, "float32", "subtract", "multiply") == 4096
    assert cost(TRN1, "bfloat16", "subtract", "multiply") == 2048
    assert cost(TRN1, "bfloat16", "subtract", "multiply", n=2047) == 4094
    assert cost(TRN1, "bfloat16", "multiply", "add") == 4096
    assert cost(TRN2, "float32", "multiply", "add") == 2048
    assert cost(TRN2, "float32", "multiply", "add", n=5) == 64


# ---- reciprocal


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_reciprocal(dtype):
    dst, a, _, memory = two(dtype, dst=dtype)
    execute(Reciprocal(dst, a), memory)
    want = reference_cast(1 / f32(a, memory), dtype).astype(np.float32)
    np.testing.assert_allclose(f32(dst, memory), want, rtol=2**-11 if dtype == "tfloat32" else 1e-7)


def test_reciprocal_of_zeros_and_a_slice():
    a, memory = store(np.array([[0.0, -0.0, 2, 8]]))
    execute(Reciprocal(a.slice(1, 0, 3), a.slice(1, 0, 3)), memory)
    assert load(a, memory).tolist() == [[np.inf, -np.inf, 0.5, 8]]


def test_reciprocal_rules_and_cost():
    a, b = tiles("float32", "float32")
    assert rule(Reciprocal(a, b)) == ""
    assert rule(Reciprocal(a, tile((128, 7)))).startswith("nki.isa.reciprocal data: must have the 2048 free elements")
    assert rule(Reciprocal(tile((200, 2)), tile((200, 2)))).endswith("dst partition dimension 200 exceeds maximum 128")
    assert rule(Reciprocal(a, tile((64, 2048)))).startswith("nki.isa.reciprocal data: must have the 128 partitions")
    assert "data must be in ['sbuf', 'psum']" in rule(Reciprocal(a, tile((128, 2048), memory=Memory.private_hbm)))
    assert "packed" in rule(Reciprocal(a, tile((128, 2048), "float8_e4m3fn_x4")))
    for target, cycles in ((TRN1, 16384), (TRN2, 12288), (TRN3, 12288)):
        assert Reciprocal(a, b).cycles(target) == Work(cycles, target.latency_cycles(Engine.vector))


# ---- all


def test_traced_immediates_give_the_same():
    for make in (
        lambda d, a, b: TensorTensor(d, a, b, ALU["add"]),
        lambda d, a, b: TensorScalar(d, a, ALU["multiply"], 2, True, ALU["subtract"], 0.5, True),
        lambda d, a, b: TensorScalar(d, a.reinterpret("int32"), ALU["abs"], 0),
        lambda d, a, b: ScalarTensorTensor(d, a, ALU["maximum"], -3.0, ALU["add"], b),
    ):
        dst, a, b, memory = two()
        copy = {k: v.copy() for k, v in memory.items()}
        execute(make(dst, a, b), memory)
        execute(make(dst, a, b), copy, traced=True)
        np.testing.assert_array_equal(load(dst, copy), load(dst, memory))


def test_traced_bit_masks_keep_all_32_bits():
    dst, a, _, memory = two("uint32", dst="uint32")
    memory[a.buffer][...] = 0x89ABCDEF
    execute(TensorScalar(dst, a, ALU["bitwise_and"], 0xFFFFFFF1), memory, traced=True)
    assert (load(dst, memory) == 0x89ABCDE1).all()


def test_gradients_flow_through_casts():
    dst, a, b, memory = two("bfloat16", "float32", "bfloat16")
    x = jnp.asarray(load(b, memory))

    def f(x):
        read = Reader({a: jnp.asarray(load(a, memory)), b: x}, {})
        return jnp.sum(TensorTensor(dst, a, b, ALU["multiply"]).run(read)[0])

    np.testing.assert_array_equal(jax.grad(f)(x), f32(a, memory))


def test_a_view_is_one_operand_of_several():
    a = tile((P, F))
    assert TensorTensor(a, a, a, ALU["add"]).reads() == (a, a)
    assert TensorScalar(a, a, ALU["add"], View.whole(a.buffer).slice(1, 0, 1)).reads()[1].shape == (P, 1)
