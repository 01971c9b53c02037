"""select_reduce and range_select."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.operators import ALU, ReduceCmd
from nkijax.isa.selecting import FLOAT32_MIN, RangeSelect, SelectReduce
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import Reader, execute, load, random, reference_cast, rule, store, tile

P, F = 4, 6
INF = np.inf
IDLE, RESET, REDUCE, RESET_REDUCE, LOAD = ReduceCmd
FLOATS = ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"]
PREDICATES = ["int8", "uint8", "int16", "uint16"]
COMPARISONS = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
STATE = tile((P, 1), memory=Memory.state)


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


def gradient(instruction, memory, view):
    """The gradient of the sum of all results in `view`, under vmap and jit."""
    tiles = {v: jnp.asarray(load(v, memory)) for v in instruction.reads()}

    def total(x):
        return sum(jnp.sum(r) for r in instruction.run(Reader({**tiles, view: x}, {})))

    return np.asarray(jax.jit(jax.vmap(jax.grad(total)))(jnp.stack([tiles[view]] * 2))[1])


# ---- select_reduce


def choose(dtype="float32", dst="float32", predicate="uint8"):
    """dst, predicate (half of them set), on_true, memory."""
    on_true, memory = store(random((P, F), dtype), dtype)
    mask, more = store(random((P, F), "int32", 3) % 3 - (predicate == "int8"), predicate)
    out, rest = store(np.zeros((P, F)), dst)
    return out, mask, on_true, {**memory, **more, **rest}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("predicate", [*PREDICATES, "bool"])
def test_predicates(predicate, reverse):
    dst, mask, on_true, memory = choose(predicate=predicate)
    execute(SelectReduce(dst, mask, on_true, -7.5, reverse_pred=reverse), memory)
    chosen = (load(mask, memory) != 0) != reverse
    assert 0 < chosen.sum() < chosen.size
    np.testing.assert_array_equal(load(dst, memory), np.where(chosen, load(on_true, memory), np.float32(-7.5)))


@pytest.mark.parametrize("dtype", [*FLOATS, *PREDICATES, "bool"])
def test_select_dtypes(dtype):
    dst, mask, on_true, memory = choose(dtype, dtype)
    acc, on_false = registers(memory), column(memory, [1, 0, 3, 4], "bfloat16")
    execute(SelectReduce(dst, mask, on_true, on_false, None, RESET_REDUCE, accumulator=acc), memory)
    want = np.where(load(mask, memory) != 0, f32(on_true, memory), f32(on_false, memory))
    np.testing.assert_array_equal(load(dst, memory), reference_cast(want, dtype))
    np.testing.assert_array_equal(load(acc, memory), want.max(1, keepdims=True))


@pytest.mark.parametrize(("command", "before"), [(RESET_REDUCE, -INF), (REDUCE, 2.5)])
def test_maximum_goes_into_the_accumulator(command, before):
    dst, mask, on_true, memory = choose(dst="int8")
    acc, res = registers(memory, 2.5), column(memory, 0, "float16")
    execute(SelectReduce(dst, mask, on_true, -0.25, res, command, accumulator=acc), memory)
    out = np.where(load(mask, memory) != 0, load(on_true, memory), np.float32(-0.25))
    want = np.maximum(out.max(1, keepdims=True), np.float32(before))
    np.testing.assert_array_equal(load(acc, memory), want)
    np.testing.assert_array_equal(load(res, memory), want.astype(np.float16))
    assert (memory[acc.buffer][P:] == 2.5).all()


def test_select_of_idle_leaves_the_accumulator_undefined():
    dst, mask, on_true, memory = choose()
    acc = registers(memory)
    execute(SelectReduce(dst, mask, on_true, 0.0, accumulator=acc), memory)
    assert np.isnan(load(acc, memory)).all() and (memory[acc.buffer][P:] == 100).all()


def test_8_8_ranks_may_differ():
    on_true, memory = store(random((P, 2, 3)))
    mask, more = store(random((P, 3, 4), "int32", 3) % 2, "uint16")
    out, rest = store(np.zeros((P, 12)))
    memory |= {**more, **rest}
    dst, chosen = out.slice(1, 0, 12, 2), mask.slice(2, 1, 4, 2)
    execute(SelectReduce(dst, chosen, on_true.permute((0, 2, 1)), 9.0), memory)
    x = random((P, 2, 3)).transpose(0, 2, 1).reshape(P, 6)
    want = np.where(memory[mask.buffer][:, :, 1:4:2].reshape(P, 6) != 0, x, 9)
    np.testing.assert_array_equal(memory[out.buffer][:, ::2], want)
    assert not memory[out.buffer][:, 1::2].any()


def test_trap_11_the_maximum_is_kept_inside_dst():
    data, memory = store(np.full((P, F), 2.0))
    mask = column(memory, [1, 1, 0, 1], "uint8").broadcast(1, F)
    acc = registers(memory)
    execute(SelectReduce(data, mask, data, 5.0, data.slice(1, 2, 3), RESET_REDUCE, accumulator=acc), memory)
    assert load(data, memory)[:, 2].tolist() == [2, 2, 5, 2] and (load(data, memory)[2] == 5).all()


def test_select_gradients():
    dst, mask, on_true, memory = choose()
    on_false, acc = column(memory, [1, 2, 3, 4]), registers(memory, -100.0)
    memory[on_true.buffer][load(mask, memory) == 0] = INF  # not chosen: must not reach the gradient
    instruction = SelectReduce(dst, mask, on_true, on_false, None, REDUCE, accumulator=acc)
    by_tile, by_column = gradient(instruction, memory, on_true), gradient(instruction, memory, on_false)
    chosen = load(mask, memory) != 0
    assert np.isfinite(by_tile).all() and (by_tile[~chosen] == 0).all() and (by_tile[chosen] >= 1).all()
    np.testing.assert_allclose(by_tile.sum(1) + by_column[:, 0], F + 1)


def test_select_traced_immediates_give_the_same():
    dst, mask, on_true, memory = choose()
    copy = {k: v.copy() for k, v in memory.items()}
    instruction = SelectReduce(dst, mask, on_true, 3)
    execute(instruction, memory)
    execute(instruction, copy, traced=True)
    np.testing.assert_array_equal(load(dst, copy), load(dst, memory))


PSUM = tile((P, F), memory=Memory.psum)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((P, F), memory=Memory.private_hbm)}, r"dst: dst must be in \['sbuf', 'psum'\], got private_hbm"),
        ({"predicate": tile((P, F + 1), "uint8")}, r"predicate: must have the 6 free elements of dst, got \(4, 7\)"),
        ({"on_true": tile((P + 1, F))}, r"on_true: must have the 4 partitions of dst, got \(5, 6\)"),
        ({"predicate": tile((P, F))}, r"predicate: must have one of the dtypes \['int8', .*\], got float32"),
        ({"predicate": tile((P, F), "uint32")}, "predicate: must have one of the dtypes .*, got uint32"),
        ({"on_true": tile((P, F), "int32")}, r"on_true: must have one of the dtypes \['float16', .*\], got int32"),
        ({"on_true": tile((P, F), "tfloat32")}, "on_true: must have one of the dtypes .*, got tfloat32"),
        ({"dst": tile((P, F), "float4_e2m1fn_x4")}, "dst: packed x4 types take no arithmetic, got float4_e2m1fn_x4"),
        ({"on_false": None}, r"on_false: must be a number or a \(P, 1\) tile, got None"),
        ({"on_false": tile((P, 2))}, r"on_false: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({"reduce_res": tile((P, 1), "int32")}, "reduce_res: must have one of the dtypes .*, got int32"),
        ({"reduce_op": ALU["add"]}, r"reduce_op: must be one of \['maximum'\], got add"),
        ({"reduce_cmd": LOAD}, "reduce_cmd: must be reduce_cmd.idle, reduce or reset_reduce, got load_reduce"),
        ({"reduce_cmd": RESET}, "reduce_cmd: must be reduce_cmd.idle, reduce or reset_reduce, got reset"),
        ({"accumulator": None}, "accumulator: must be given with a reduce_cmd or reduce_res, got None"),
        (
            {"on_true": PSUM, "predicate": tile((P, F), "uint8", Memory.psum)},
            "on_true, predicate: at most one of them may be in psum, got both in psum",
        ),
    ],
)
def test_select_rules(changes, message):
    x = tile((P, F))
    legal = SelectReduce(x, tile((P, F), "uint8"), x, 0.0, reduce_cmd=RESET_REDUCE, accumulator=STATE)
    assert rule(legal) == rule(legal, TRN1) == rule(replace(legal, on_true=PSUM)) == ""
    with pytest.raises(AssertionError, match="^nki.isa.select_reduce " + message):
        replace(legal, **changes).check(TRN2)


def test_select_cost():
    x, psum, res = tile((128, 512)), tile((128, 512), memory=Memory.psum), tile((128, 1))
    for target in (TRN1, TRN2, TRN3):
        later, latency = target is not TRN1, target.latency_cycles(Engine.vector)
        cycles = 1.065 * 512 if later else 1024
        assert SelectReduce(x, x, x, 0.0).cycles(target) == Work(cycles, latency)
        assert SelectReduce(x, x, x, 0.0, res).cycles(target) == Work(cycles + 64, latency)
        assert SelectReduce(x, x, psum, 0.0).cycles(target) == Work(1.065 * 512 if later else 512, latency)
        assert SelectReduce(res, res, res, 0.0).cycles(target) == Work(64, latency)


# ---- range_select


def ranged(memory, shape=(P, F), dtype="float32", dst="float32", low=(0, 1, 2, 9), high=(9, 4, 3, 0)):
    """dst, on_true_tile and the two bounds, in `memory`."""
    x, more = store(random(shape, dtype), dtype)
    out, rest = store(np.zeros((P, int(np.prod(shape[1:])))), dst)
    memory |= {**more, **rest}
    return out, x, column(memory, low), column(memory, high)


def rs(dst, x, low, high, op0="greater_equal", op1="less", *args, **fields):
    return RangeSelect(dst, x, ALU[op0], ALU[op1], low, high, *args, **fields)


def selected(x, low, high, op0="greater_equal", op1="less", first=0):
    k = np.float32(first) + np.arange(x.shape[1], dtype=np.float32)
    return np.where(COMPARISONS[op0](k, low) & COMPARISONS[op1](k, high), x, np.float32(FLOAT32_MIN))


@pytest.mark.parametrize("op0", COMPARISONS)
@pytest.mark.parametrize("op1", COMPARISONS)
def test_comparisons(op0, op1):
    memory = {}
    dst, x, low, high = ranged(memory, low=(11, 12, 13, 14), high=(14, 12, 11, 16))
    execute(rs(dst, x, low, high, op0, op1, range_start=10), memory)
    want = selected(*(load(v, memory) for v in (x, low, high)), op0, op1, 10)
    np.testing.assert_array_equal(load(dst, memory), want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_range_dtypes(dtype):
    memory = {}
    dst, x, low, high = ranged(memory, dtype=dtype, dst=dtype)
    acc = registers(memory)
    execute(rs(dst, x, low, high, accumulator=acc), memory)
    want = selected(f32(x, memory), load(low, memory), load(high, memory))
    np.testing.assert_array_equal(f32(dst, memory), reference_cast(want, dtype).astype(np.float32))
    np.testing.assert_array_equal(load(acc, memory), want.max(1, keepdims=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2"])
def test_trap_26_a_narrow_dst_stores_minus_infinity_and_a_float32_result_does_not(dtype):
    memory = {}
    dst, x, low, high = ranged(memory, dtype=dtype, dst=dtype, low=(9,), high=(0,))
    acc, res = registers(memory), column(memory, 0)
    execute(rs(dst, x, low, high, reduce_res=res, accumulator=acc), memory)
    assert (load(dst, memory).astype(np.float32) == -INF).all()
    assert (load(res, memory) == np.float32(FLOAT32_MIN)).all()
    exponents = f32(dst, memory) - load(res, memory)  # what the next activation computes: no NaN
    assert (np.exp(exponents) == 0).all()


@pytest.mark.parametrize(
    ("command", "want"), [(RESET_REDUCE, 5), (REDUCE, 7), (RESET, -INF)], ids=["reset_reduce", "reduce", "reset"]
)
def test_range_commands(command, want):
    memory = {}
    dst, x, low, high = ranged(memory)
    memory[x.buffer][...] = 5
    acc, res = registers(memory, 7.0), column(memory, 0)
    execute(rs(dst, x, low, high, "equal", "less_equal", command, res, accumulator=acc), memory)
    assert load(res, memory)[0].tolist() == load(acc, memory)[0].tolist() == [want]
    assert load(dst, memory)[0].tolist() == [5] + [np.float32(FLOAT32_MIN)] * 5


def test_range_of_idle_leaves_the_accumulator_undefined():
    memory = {}
    acc = registers(memory)
    execute(rs(*ranged(memory), reduce_cmd=IDLE, accumulator=acc), memory)
    assert np.isnan(load(acc, memory)).all()


def test_range_counts_along_all_free_dimensions_of_a_view():
    memory = {}
    dst, x, low, high = ranged(memory, (P, 2, 3, 4), low=(3,), high=(9,))
    view = x.slice(3, 1, 3).permute((0, 3, 1, 2))
    execute(rs(dst.slice(1, 2, 14), view, low, high, range_start=np.int64(1)), memory)
    flat = random((P, 2, 3, 4))[..., 1:3].transpose(0, 3, 1, 2).reshape(P, 12)
    np.testing.assert_array_equal(memory[dst.buffer][:, 2:14], selected(flat, 3, 9, first=1))
    assert not memory[dst.buffer][:, 14:].any()


def test_range_skips_what_is_not_a_number():
    memory = {}
    dst, x, low, high = ranged(memory, low=(2,), high=(4,))
    memory[x.buffer][:, 4:] = np.nan
    acc = registers(memory)
    execute(rs(dst, x, low, high, accumulator=acc), memory)
    assert np.isfinite(load(dst, memory)).all() and np.isfinite(load(acc, memory)).all()
    memory[x.buffer][1, 3] = np.nan
    execute(rs(dst, x, low, high, accumulator=acc), memory)
    assert np.isnan(load(acc, memory)[:, 0]).tolist() == [False, True, False, False]


def test_range_gradients():
    memory = {}
    dst, x, low, high = ranged(memory)
    acc = registers(memory, -1e9)
    memory[x.buffer][:, 5] = np.nan
    memory[high.buffer][...] = 5
    instruction = rs(dst, x, low, high, reduce_cmd=REDUCE, accumulator=acc)
    by_tile = gradient(instruction, memory, x)
    assert np.isfinite(by_tile).all() and (by_tile[:, 5] == 0).all() and (by_tile[0, :5] >= 1).all()
    assert not gradient(instruction, memory, low).any()


def test_range_traced_start_gives_the_same():
    memory = {}
    dst, x, low, high = ranged(memory)
    acc = registers(memory)
    copy = {k: v.copy() for k, v in memory.items()}
    instruction = rs(dst, x, low, high, range_start=1, accumulator=acc)
    execute(instruction, memory)
    execute(instruction, copy, traced=True)
    np.testing.assert_array_equal(load(dst, copy), load(dst, memory))


@pytest.mark.parametrize("value", [FLOAT32_MIN, -3.4028235e38, np.float32(-3.4028235e38)])
def test_8_8_on_false_may_be_a_python_float(value):
    assert rule(replace(LEGAL, on_false_value=value)) == ""


LEGAL = rs(tile((P, F)), tile((P, F)), tile((P, 1)), tile((P, 1)), accumulator=STATE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on_true_tile": tile((P, F), memory=Memory.shared_hbm)}, "on_true_tile: on_true_tile must be in"),
        ({"dst": tile((P, F + 1))}, r"on_true_tile: must have the 7 free elements of dst, got \(4, 6\)"),
        ({"dst": tile((5, F))}, r"on_true_tile: must have the 5 partitions of dst, got \(4, 6\)"),
        ({"on_true_tile": tile((P, F), "int32")}, r"on_true_tile: must have one of the dtypes \[.*\], got int32"),
        ({"dst": tile((P, F), "float8_e5m2_x4")}, "dst: packed x4 types take no arithmetic"),
        ({"bound0": 0.0}, r"bound0: must be a \(P, 1\) float32 tile, got 0.0"),
        ({"bound0": tile((P, 1), "int32")}, r"bound0: must be one of \['float32'\], got int32"),
        ({"bound1": tile((P, 2))}, r"bound1: must be a number or a \(4, 1\) tile, got \(4, 2\)"),
        ({"comp_op0": ALU["not_equal"]}, r"comp_op0: must be one of \['equal', .*\], got not_equal"),
        ({"comp_op1": ALU["add"]}, r"comp_op1: must be one of \['equal', .*\], got add"),
        ({"reduce_op": ALU["minimum"]}, r"reduce_op: must be one of \['maximum'\], got minimum"),
        ({"reduce_cmd": LOAD}, "reduce_cmd: must be reduce_cmd.idle, reset, reduce or reset_reduce, got load_reduce"),
        ({"reduce_res": tile((P, F))}, r"reduce_res: must be a number or a \(4, 1\) tile, got \(4, 6\)"),
        ({"accumulator": None}, "accumulator: must be given with a reduce_cmd or reduce_res, got None"),
        ({"range_start": 1.0}, "range_start: must be a static integer, got 1.0"),
        (
            {"range_start": 2**24 - F + 1},
            r"range_start: must be within 2\*\*24, and so must the last of 6 .*, got 16777211",
        ),
        ({"on_false_value": 0.0}, r"on_false_value: must be the least float32, -3.4028235e\+38, got 0.0"),
        ({"on_false_value": -INF}, "on_false_value: must be the least float32, .*, got -inf"),
    ],
)
def test_range_rules(changes, message):
    assert rule(LEGAL) == rule(replace(LEGAL, range_start=2**24 - F)) == ""
    assert rule(LEGAL, TRN1) == "nki.isa.range_select the instruction: needs gen3 or later, got trn1"
    with pytest.raises(AssertionError, match="^nki.isa.range_select " + message):
        replace(LEGAL, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN2, TRN3])
def test_range_cost(target):
    for n, cycles in ((2048, 2048), (10, 64)):
        instruction = replace(LEGAL, dst=tile((P, n)), on_true_tile=tile((P, n), memory=Memory.psum))
        assert instruction.cycles(target) == Work(cycles, target.latency_cycles(Engine.vector))
        assert replace(instruction, reduce_res=tile((P, 1))).cycles(target) == instruction.cycles(target)
