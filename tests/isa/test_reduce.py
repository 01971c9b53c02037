"""tensor_reduce and tensor_partition_reduce."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.operators import ACTIVATIONS, ALU
from nkijax.isa.reduce import TensorPartitionReduce, TensorReduce
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P = 4
DTYPES = [
    *("float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]
FOLDS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logical_and": lambda a, b: ((a != 0) & (b != 0)).astype(np.float32),
    "logical_or": lambda a, b: ((a != 0) | (b != 0)).astype(np.float32),
    "logical_xor": lambda a, b: ((a != 0) ^ (b != 0)).astype(np.float32),
}
BITS = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}


def fold(function, x, axes):
    """Element after element, in float32 or in bits."""
    rows = x.reshape(*x.shape[: min(axes)], -1)
    return functools.reduce(function, [rows[..., k] for k in range(rows.shape[-1])])


def setup(shape, out, dtype="float32", dst="float32"):
    data, memory = store(random(shape, dtype), dtype)
    view, more = store(np.zeros(out), dst)
    return view, data, {**memory, **more}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("axis", [1, (1,)])
def test_operators(name, axis):
    dst, data, memory = setup((P, 5), (P, 1))
    memory[data.buffer][0, 2:4] = 0
    execute(TensorReduce(dst, ALU[name], data, axis), memory)
    np.testing.assert_allclose(load(dst, memory)[:, 0], fold(FOLDS[name], memory[data.buffer], (1,)), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    dst, data, memory = setup((P, 6, 3), (P, 6), dtype, dtype)
    execute(TensorReduce(dst, ALU["add"], data, 2, negate=True), memory)
    want = reference_cast(-fold(np.add, memory[data.buffer].astype(np.float32), (2,)), dtype)
    np.testing.assert_array_equal(load(dst, memory), want)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"])
def test_bitvec(name, dtype):
    dst, data, memory = setup((P, 5), (P, 1), dtype, dtype)
    memory[data.buffer][1] = 1
    execute(TensorReduce(dst, ALU[name], data, 1), memory)
    np.testing.assert_array_equal(load(dst, memory)[:, 0], fold(BITS[name], memory[data.buffer], (1,)))


def test_maximum_propagates_unwritten_memory():
    dst, data, memory = setup((P, 5), (P, 1))
    memory[data.buffer][2, 3] = np.nan
    execute(TensorReduce(dst, ALU["maximum"], data, 1), memory)
    assert np.isnan(load(dst, memory)[:, 0]).tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("axis", "out", "want"),
    [
        (2, (128, 2), 4),
        ((2,), (128, 2), 4),
        ([2], (128, 2, 1), 4),
        (-1, (128, 2), 4),
        ((1, 2), (128, 1), 8),
        ([2, 1], (128, 1, 1), 8),
    ],
)
def test_case_22_trailing_axes(axis, out, want):
    data, memory = store(np.ones((128, 2, 4)))
    dst, more = store(np.zeros(out))
    memory |= more
    instruction = TensorReduce(dst, ALU["add"], data, axis, keepdims=len(out) == 3)
    assert rule(instruction) == ""
    execute(instruction, memory)
    assert (memory[dst.buffer] == want).all()


def test_case_22_an_inner_axis_alone_is_refused():
    given = rule(TensorReduce(tile((128, 4)), ALU["add"], tile((128, 2, 4)), 1))
    assert given == (
        "nki.isa.tensor_reduce axis: tensor_reduce axis must be the last contiguous dim(s) of the tile, "
        "got (1,) of shape (128, 2, 4)"
    )


def test_case_22_the_legacy_dialect_puts_the_axis_last():
    data, memory = store(np.ones((128, 2, 4)))
    dst, more = store(np.zeros((128, 4)))
    memory |= more
    execute(TensorReduce(dst, ALU["add"], data.permute((0, 2, 1)), 2), memory)
    assert (memory[dst.buffer] == 2).all()


def test_views():
    data, memory = store(random((P, 4, 3, 5)))
    out, more = store(np.zeros((P, 20)))
    memory |= more
    dst = out.slice(1, 1, 20, 3).slice(1, 0, 6)  # (P, 6)
    source = data.slice(1, 1, 4, 2).permute((0, 2, 1, 3))  # (P, 3, 2, 5)
    execute(TensorReduce(dst, ALU["minimum"], source, 3), memory)
    want = random((P, 4, 3, 5))[:, 1:4:2].transpose(0, 2, 1, 3).min(3).reshape(P, 6)
    np.testing.assert_array_equal(load(dst, memory), want)
    assert np.count_nonzero(memory[out.buffer]) <= want.size


def test_axis_is_kept_as_a_tuple():
    assert TensorReduce(tile((P, 1)), ALU["add"], tile((P, 2, 3)), [-1, 1]).axis == (1, 2)


@pytest.mark.parametrize("axis", [0, (0, 1, 2), (1,), (0, 2), 3, -4, (2, 2), ()])
def test_axis_rules(axis):
    text = rule(TensorReduce(tile((P, 2)), ALU["add"], tile((P, 2, 3)), axis))
    assert "tensor_reduce axis must be the last contiguous dim(s) of the tile, got" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((P, 3))}, r"dst: must have 2 free elements, those of data not reduced, got \(4, 3\)"),
        ({"dst": tile((P + 1, 2))}, r"data: must have the 5 partitions of dst, got \(4, 2, 3\)"),
        ({"data": tile((130, 2, 3)), "dst": tile((130, 2))}, "dst partition dimension 130 exceeds maximum 128"),
        ({"data": tile((P, 2, 3), memory=Memory.shared_hbm)}, "data: data must be in"),
        ({"op": ALU["equal"]}, r"op: must be a reduction operator, one of \['bitwise_and', .*\], got equal"),
        ({"op": ALU["abs_max"]}, "op abs_max: needs gen4 or later, got trn2"),
        ({"op": ALU["average"]}, "op: must be a math operator of nki.language, got average"),
        ({"op": ACTIVATIONS["abs"]}, "op: must be a math operator of nki.language, got abs"),
        ({"op": ALU["bitwise_or"]}, "dst: must have an integer dtype, got float32"),
        ({"data": tile((P, 2, 3), "float8_e5m2_x4")}, "data: packed x4 types take no arithmetic"),
    ],
)
def test_rules(changes, message):
    legal = TensorReduce(tile((P, 2)), ALU["add"], tile((P, 2, 3)), 2)
    assert rule(legal) == ""
    with pytest.raises(AssertionError, match="^nki.isa.tensor_reduce " + message):
        replace(legal, **changes).check(TRN2)


def test_negate_needs_arithmetic():
    legal = TensorReduce(tile((P, 2), "int32"), ALU["bitwise_xor"], tile((P, 2, 3), "int32"), 2)
    assert rule(legal) == ""
    given = "nki.isa.tensor_reduce negate: must be False with a bitvec operator, got bitwise_xor"
    assert rule(replace(legal, negate=True)) == given


@pytest.mark.parametrize(
    ("target", "dtypes", "op", "cycles"),
    [
        (TRN1, ("float32", "float32"), "add", 2048),
        (TRN1, ("bfloat16", "bfloat16"), "maximum", 1024),
        (TRN1, ("bfloat16", "bfloat16"), "minimum", 2048),
        (TRN1, ("float32", "bfloat16"), "add", 2048),
        (TRN2, ("float32", "float32"), "add", 2048),
        (TRN2, ("bfloat16", "bfloat16"), "add", 2048),
        (TRN3, ("bfloat16", "bfloat16"), "add", 2048),
    ],
)
def test_cost(target, dtypes, op, cycles):
    dst, data = tile((128, 4), dtypes[0]), tile((128, 4, 512), dtypes[1])
    latency = target.latency_cycles(Engine.vector)
    assert TensorReduce(dst, ALU[op], data, 2).cycles(target) == Work(cycles, latency)
    small = TensorReduce(dst, ALU[op], tile((128, 4, 2), dtypes[1]), 2)
    assert small.cycles(target) == Work(64, latency)


def test_gradient_of_a_maximum():
    dst, data, memory = setup((P, 5), (P, 1))
    memory[data.buffer][...] = np.arange(20).reshape(P, 5)
    instruction = TensorReduce(dst, ALU["maximum"], data, 1, negate=True)
    f = jax.grad(lambda x: jnp.sum(instruction.run(Reader({data: x}, {}))[0]))
    np.testing.assert_array_equal(f(jnp.asarray(load(data, memory))), np.tile([0, 0, 0, 0, -1], (P, 1)))


# ---- over the partitions


def partitions(shape, out, dtype="float32", dst="float32"):
    """dst (1, ...), data, memory."""
    data, memory = store(random(shape, dtype), dtype)
    view, more = store(np.zeros(out), dst)
    return view, data, {**memory, **more}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("add", d) for d in DTYPES),
        ("average", "float32"),
        ("average", "int8"),
        ("maximum", "float32"),
        ("maximum", "int16"),
    ],
)
def test_partition_operators(name, dtype):
    dst, data, memory = partitions((8, 5), (1, 5), dtype, dtype)
    execute(TensorPartitionReduce(dst, ALU[name], data), memory)
    rows = memory[data.buffer].astype(np.float32)
    want = {"add": rows.sum(0), "average": rows.sum(0) / 8, "maximum": rows.max(0)}[name]
    np.testing.assert_array_equal(load(dst, memory)[0], reference_cast(want, dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "bool"])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or"])
def test_partition_bitvec(name, dtype):
    dst, data, memory = partitions((7, 5), (1, 5), dtype, dtype)
    memory[data.buffer][:, 1] = 1
    execute(TensorPartitionReduce(dst, ALU[name], data), memory)
    np.testing.assert_array_equal(load(dst, memory)[0], functools.reduce(BITS[name], memory[data.buffer]))


def test_partition_views():
    """dst is (1, 2, 3) in a kernel of nki-library; the data starts at another partition."""
    dst, data, memory = partitions((40, 6, 4), (1, 2, 3))
    execute(TensorPartitionReduce(dst, ALU["maximum"], data.slice(0, 32, 40).select(2, 1)), memory)
    np.testing.assert_array_equal(memory[dst.buffer].reshape(6), random((40, 6, 4))[32:, :, 1].max(0))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "part",  # of a (3, 13) tile
    [
        lambda t: t.slice(0, 1, 2).slice(1, 2, 8),
        lambda t: t.slice(0, 2, 3).slice(1, 1, 13, 2),
        lambda t: t.slice(0, 1, 2).slice(1, 1, 13).reshape_dim(1, (2, 6)).select(1, 1),
        lambda t: t.slice(0, 1, 2).slice(1, 0, 6).reshape_dim(1, (3, 2)).permute((0, 2, 1)),
        lambda t: t.slice(0, 0, 1).slice(1, 0, 12, 2).reshape_dim(1, (2, 3)),
    ],
)
def test_partition_writes_part_of_a_tile(part, traced):
    out, data, memory = partitions((10, 3, 8), (3, 13))
    memory[out.buffer][...] = np.nan
    dst, source = part(out), data.slice(0, 2, 10).slice(2, 1, 8, 4).permute((0, 2, 1))  # (8, 2, 3)
    assert rule(instruction := TensorPartitionReduce(dst, ALU["add"], source)) == ""
    execute(instruction, memory, traced)
    want = random((10, 3, 8))[2:, :, 1::4].transpose(0, 2, 1).sum(0)
    np.testing.assert_array_equal(load(dst, memory).reshape(2, 3), want)
    assert np.isfinite(memory[out.buffer]).sum() == want.size, "nothing else is written"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": ALU["minimum"]}, r"op: must be one of \['add', 'average', 'maximum', .*\], got minimum"),
        ({"op": "exp"}, "op: must be one of .*, got exp"),
        ({"data": tile((P, 6), memory=Memory.psum)}, r"data: data must be in \['sbuf'\], got psum"),
        ({"dst": tile((1, 6), memory=Memory.psum)}, r"dst: dst must be in \['sbuf'\], got psum"),
        ({"data": tile((129, 6))}, "data partition dimension 129 exceeds maximum 128"),
        ({"dst": tile((2, 6))}, r"dst: must have one partition, got \(2, 6\)"),
        ({"dst": tile((1, 5))}, r"data: must have the 5 free elements of dst, got \(4, 6\)"),
        ({"op": ALU["bitwise_or"]}, "dst: must have an integer dtype, got float32"),
        ({"data": tile((P, 6), "float8_e5m2_x4")}, "data: packed x4 types take no arithmetic"),
    ],
)
def test_partition_rules(changes, message):
    legal = TensorPartitionReduce(tile((1, 6)), ALU["average"], tile((P, 6)))
    assert rule(legal) == rule(legal, TRN1) == ""
    with pytest.raises(AssertionError, match="^nki.isa.tensor_partition_reduce " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_partition_cost(target):
    latency = target.latency_cycles(Engine.gpsimd)
    for p, n, cycles in ((128, 512, 7 * 512), (65, 512, 7 * 512), (64, 512, 6 * 512), (2, 8, 64), (1, 512, 64)):
        instruction = TensorPartitionReduce(tile((1, n)), ALU["add"], tile((p, n)))
        assert instruction.cycles(target) == Work(cycles, latency)


def test_partition_gradient():
    dst, data, memory = partitions((P, 5), (1, 5))
    instruction = TensorPartitionReduce(dst, ALU["average"], data)
    f = jax.jit(jax.vmap(jax.grad(lambda x: jnp.sum(instruction.run(Reader({data: x}, {}))[0]))))
    np.testing.assert_allclose(f(jnp.asarray(load(data, memory))[None])[0], 1 / P)
