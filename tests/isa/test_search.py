"""max8, nc_find_index8, nc_match_replace8 and topk."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.search import Max8, NcFindIndex8, NcMatchReplace8, Topk
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import Reader, execute, fresh, load, random, reference_cast, rule, store, tile

P, F = 4, 20
DTYPES = [
    *("float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]
MISSING = {"uint32": 0xFFFFFFFF, "uint16": 0xFFFF}
psum = Memory.psum


def largest(x, count=8):
    """The definition: take the largest again and again."""
    rows = []
    for row in x.astype(np.float32):
        left, out = list(row), []
        for _ in range(count):
            out.append(left.pop(left.index(max(left))))
        rows.append(out)
    return np.array(rows, np.float32)


def found(data, vals, missing):
    """The definition of nc_find_index8: each value looks behind what equal values found before."""
    out = []
    for row, wanted in zip(data.astype(np.float32), vals.astype(np.float32), strict=True):
        places = {}
        for v in wanted:
            places.setdefault(v, [i for i, x in enumerate(row) if x == v])
        out.append([places[v].pop(0) if places[v] else missing for v in wanted])
    return np.array(out)


def replaced(data, vals, imm, missing):
    """The definition of nc_match_replace8: slots 7 to 0, each marks what it found as used."""
    work, slots = data.astype(np.float32), []
    for row, wanted in zip(work, vals.astype(np.float32), strict=True):
        original, used, got = row.copy(), set(), [missing] * 8
        for k in reversed(range(8)):
            for i, x in enumerate(original):
                if x == wanted[k] and i not in used:
                    used.add(i)
                    got[k], row[i] = i, imm
                    break
        slots.append(got)
    return work, np.array(slots)


def searched(data, vals, dtype="float32", index="uint32"):
    """Tiles of data and values, one for positions, and the memory."""
    d, memory = store(data, dtype)
    v, more = store(vals, dtype)
    out = tile((len(data), 8), index)
    return d, v, out, {**memory, **more, out.buffer: fresh(out.buffer)}


# ---- max8


@pytest.mark.parametrize("dtype", DTYPES)
def test_max8(dtype):
    src, memory = store(random((P, F), dtype), dtype)
    dst, more = store(np.zeros((P, 8)), "int8" if dtype == "float32" else dtype)
    memory |= more
    execute(Max8(dst, src), memory)
    np.testing.assert_array_equal(load(dst, memory), reference_cast(largest(load(src, memory)), dst.dtype))


def test_max8_keeps_duplicates_and_infinities():
    rows = [[3, 1, 3, 3, 2, np.inf, 2, -np.inf, -np.inf], [7] * 9]
    src, memory = store(rows)
    dst, more = store(np.zeros((2, 8)))
    memory |= more
    execute(Max8(dst, src), memory, traced=True)
    np.testing.assert_array_equal(load(dst, memory), [[np.inf, 3, 3, 3, 2, 2, 1, -np.inf], [7] * 8])


def test_max8_of_views():
    values = random((P, 3, 16))
    src, memory = store(values)
    out, more = store(np.full((P, 16), 5))
    memory |= more
    dst, part = out.slice(1, 0, 16, 2), src.slice(2, 1, 16, 3).permute((0, 2, 1))
    instruction = Max8(dst, part)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    np.testing.assert_array_equal(load(dst, memory), largest(values[:, :, 1::3].reshape(P, -1)))
    assert (memory[out.buffer][:, 1::2] == 5).all()


def test_max8_shows_unwritten_memory():
    src, memory = store([[np.nan, *range(8)]])
    dst, more = store(np.zeros((1, 8)))
    execute(Max8(dst, src), memory := memory | more)
    assert np.isnan(load(dst, memory)).any()


def test_max8_gradient():
    src, dst = tile((1, 10)), tile((1, 8))
    x = jnp.asarray([[1.0, 5, 5, 2, 9, 8, 7, 6, -1, 0]])
    weights = jnp.arange(1.0, 9).reshape(1, 8)
    f = jax.jit(jax.grad(lambda x: jnp.sum(weights * Max8(dst, src).run(Reader({src: x}, {}))[0])))
    np.testing.assert_array_equal(f(x), [[8, 5, 6, 7, 1, 2, 3, 4, 0, 0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((P, 7))}, r"dst: must have 8 elements a partition, got \(4, 7\)"),
        ({"src": tile((P, 7))}, r"src: must have 8 to 16384 elements a partition, got \(4, 7\)"),
        ({"src": tile((P, 5, 4096))}, r"src: must have 8 to 16384 elements a partition, got \(4, 5, 4096\)"),
        ({"src": tile((5, F))}, r"src: must have the 4 partitions of dst, got \(5, 20\)"),
        ({"dst": tile((129, 8)), "src": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"dst": tile((P, 8), memory=Memory.shared_hbm)}, "dst: dst must be in .* got shared_hbm"),
        ({"src": tile((P, F), memory=Memory.private_hbm)}, "src: src must be in .* got private_hbm"),
        ({"src": tile((P, F), "float8_e5m2_x4")}, "src: packed x4 types take no arithmetic"),
    ],
)
def test_max8_rules(changes, message):
    legal = Max8(tile((P, 8)), tile((P, F)))
    assert rule(legal) == rule(replace(legal, src=tile((P, 16384), memory=psum))) == rule(legal, TRN1) == ""
    with pytest.raises(AssertionError, match="^nki.isa.max8 " + message):
        replace(legal, **changes).check(TRN2)


# ---- nc_find_index8


@pytest.mark.parametrize("dtype", DTYPES)
def test_find_index8(dtype):
    index = "uint16" if dtypes.size(dtype) == 1 else "uint32"
    data, vals, dst, memory = searched(random((P, F), dtype), random((P, 8), dtype, 1), dtype, index)
    memory[vals.buffer][:, ::2] = memory[data.buffer][:, 5:9]
    execute(NcFindIndex8(dst, data, vals), memory)
    np.testing.assert_array_equal(load(dst, memory), found(load(data, memory), load(vals, memory), MISSING[index]))


@pytest.mark.parametrize("index", MISSING)
def test_case_20_find_index8_ascends_over_duplicates_and_misses_with_all_ones(index):
    """A user's case: 5 twice, 3, and 9 five times, which is not there."""
    data, vals, dst, memory = searched([[5, 3, 5, 1, 0, 0, 0, 0]], [[5, 5, 3, 9, 9, 9, 9, 9]], index=index)
    execute(NcFindIndex8(dst, data, vals), memory, traced=True)
    np.testing.assert_array_equal(load(dst, memory), [[0, 2, 1, *[MISSING[index]] * 5]])


def test_find_index8_of_views():
    """An index counts along all free dimensions of the view, in its order."""
    source, memory = store(np.arange(48).reshape(2, 4, 6))
    vals, more = store(np.array([[1, 7, 13, 19, 3, 2, 0, 21], [25, 99, 31, 37, 43, 27, 33, 45]]))
    dst, rest = store(np.zeros((2, 10)), "uint32")
    memory |= {**more, **rest}
    data = source.slice(2, 1, 6, 2).permute((0, 2, 1))
    execute(NcFindIndex8(dst.slice(1, 1, 9), data, vals), memory)
    want = found(load(data, memory), load(vals, memory), MISSING["uint32"])
    np.testing.assert_array_equal(load(dst, memory)[:, 1:9], want)
    np.testing.assert_array_equal(want[0, :4], [0, 1, 2, 3])


def test_find_index8_runs_out_of_occurrences():
    data, vals, dst, memory = searched([[1, 4, 2, 4, 2, 2, 1, 3]] * 2, [[4, 2, 4, 2, 4, 2, 2, 1], [1] * 8])
    execute(NcFindIndex8(dst, data, vals), memory, traced=True)
    none = MISSING["uint32"]
    np.testing.assert_array_equal(load(dst, memory), [[1, 2, 3, 4, none, 5, none, 0], [0, 6, *[none] * 6]])


def test_find_index8_compares_in_float32():
    """Integers above 2^24 that round to one float are equal; so are the two zeros; NaN is not found."""
    data, vals, dst, memory = searched([[2**24 + 1, 2**24, *range(6)]], [[2**24] * 8], "int32")
    execute(NcFindIndex8(dst, data, vals), memory)
    np.testing.assert_array_equal(load(dst, memory)[0, :3], [0, 1, MISSING["uint32"]])
    data, vals, dst, memory = searched([[np.nan, 0.0, 1, -0.0, 4, 5, 6, 7]], [[-0.0, np.nan, 0.0, 3, 3, 3, 3, 7]])
    execute(NcFindIndex8(dst, data, vals), memory)
    none = MISSING["uint32"]
    np.testing.assert_array_equal(load(dst, memory), [[1, none, 3, none, none, none, none, 7]])


def test_find_index8_of_one_value_broadcast_eight_times():
    """nki-library's cascaded_max: the values are a (P, 1) tile, its pattern [[1, P], [0, 8]]."""
    values = random((P, F))
    data, memory = store(values)
    top, more = store(values.max(axis=1, keepdims=True))
    dst = tile((P, 8), "uint32")
    memory |= more | {dst.buffer: fresh(dst.buffer)}
    instruction = NcFindIndex8(dst, data, top.ap([[1, P], [0, 8]]))
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    np.testing.assert_array_equal(load(dst, memory)[:, 0], values.argmax(axis=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((P, 8), "int32")}, r"dst: must have one of the dtypes \('uint16', 'uint32'\), got int32"),
        ({"dst": tile((P, 16), "uint32")}, r"dst: must have 8 elements a partition, got \(4, 16\)"),
        ({"vals": tile((P, 4))}, r"vals: must have 8 elements a partition, got \(4, 4\)"),
        ({"vals": tile((1, 8))}, r"vals: must have the 4 partitions of dst, got \(1, 8\)"),
        ({"data": tile((P, 7))}, r"data: must have 8 to 16384 elements a partition, got \(4, 7\)"),
        ({"data": tile((P, 16385))}, r"data: must have 8 to 16384 elements a partition, got \(4, 16385\)"),
        ({"data": tile((129, F))}, "data partition dimension 129 exceeds maximum 128|data: must have the 4"),
        ({"data": tile((P, F), memory=Memory.private_hbm)}, "data: data must be in .* got private_hbm"),
        ({"vals": tile((P, 8), "float8_e4m3fn_x4")}, "vals: packed x4 types take no arithmetic"),
    ],
)
def test_find_index8_rules(changes, message):
    legal = NcFindIndex8(tile((P, 8), "uint32"), tile((P, F)), tile((P, 2, 4), "bfloat16", psum))
    assert rule(legal) == rule(replace(legal, dst=tile((P, 8), "uint16", psum)), TRN1) == ""
    with pytest.raises(AssertionError, match="^nki.isa.nc_find_index8 " + message):
        replace(legal, **changes).check(TRN2)


# ---- nc_match_replace8


@pytest.mark.parametrize("dtype", DTYPES)
def test_match_replace8(dtype):
    imm, index = (1, None) if "float8" in dtype else (-3.5, "uint16")
    data, vals, slots, memory = searched(random((P, F), dtype), random((P, 8), dtype, 1), dtype, index or "uint32")
    memory[vals.buffer][:, 1::2] = memory[data.buffer][:, 5:9]
    dst, more = store(np.zeros((P, F)), dtype)
    memory |= more
    execute(NcMatchReplace8(dst, data, vals, imm, slots if index else None), memory)
    want, where = replaced(load(data, memory), load(vals, memory), imm, MISSING[index or "uint32"])
    np.testing.assert_array_equal(load(dst, memory), reference_cast(want, dtype))
    if index:
        np.testing.assert_array_equal(load(slots, memory), where)


def test_8_8_match_replace8_descends_over_duplicates():
    data, vals, slots, memory = searched([[1, 2, 3, 4, *[8] * 7]], [[3, *[8] * 7]])
    execute(NcMatchReplace8(data, data, vals, 0.0, slots), memory, traced=True)
    np.testing.assert_array_equal(load(slots, memory), [[2, 10, 9, 8, 7, 6, 5, 4]])
    np.testing.assert_array_equal(load(data, memory), [[1, 2, 0, 4, *[0] * 7]])


def test_match_replace8_does_not_find_imm_again():
    """Slot 7 replaces the 2 by 5; slots 6 and 0, which look for 5, still find what was there before."""
    data, vals, slots, memory = searched([[2, 5, 7, 5, 1, 1, 1, 1]], [[5, 9, 9, 9, 9, 9, 5, 2]])
    execute(NcMatchReplace8(data, data, vals, 5.0, slots), memory, traced=True)
    none = MISSING["uint32"]
    np.testing.assert_array_equal(load(slots, memory), [[3, *[none] * 5, 1, 0]])
    np.testing.assert_array_equal(load(data, memory), [[5, 5, 7, 5, 1, 1, 1, 1]])


def test_match_replace8_with_minus_infinity_replaces_the_first_occurrences():
    data, vals, slots, memory = searched([[-np.inf, 4, 6, 4, -np.inf, 1]], [[6, 4, -np.inf, 3, 3, 3, 3, 3]])
    instruction = NcMatchReplace8(data, data, vals, float("-inf"), slots)
    assert rule(instruction) == ""  # fewer than 8 elements are legal here
    execute(instruction, memory, traced=True)
    none = MISSING["uint32"]
    np.testing.assert_array_equal(load(slots, memory), [[2, 1, 0, *[none] * 5]])
    np.testing.assert_array_equal(load(data, memory), [[-np.inf, -np.inf, -np.inf, 4, -np.inf, 1]])


def test_match_replace8_of_views():
    values = random((P, 3, 16))
    data, memory = store(values)
    vals, more = store(values[:, 0, 1::4].repeat(2, axis=1))
    out, rest = store(np.full((P, 30), 5))
    slots = tile((P, 16), "uint16")
    memory |= more | rest | {slots.buffer: fresh(slots.buffer)}
    part = data.slice(2, 1, 16, 3).permute((0, 2, 1))
    instruction = NcMatchReplace8(out.slice(1, 0, 30, 2), part, vals, 100.0, slots.slice(1, 8, 16))
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    flat = values[:, :, 1::3].transpose(0, 2, 1).reshape(P, -1)
    want, where = replaced(flat, memory[vals.buffer], 100.0, MISSING["uint16"])
    np.testing.assert_array_equal(memory[out.buffer][:, ::2], want)
    np.testing.assert_array_equal(memory[slots.buffer][:, 8:], where)
    assert (memory[out.buffer][:, 1::2] == 5).all() and (memory[slots.buffer][:, :8] == dtypes.poison("uint16")).all()


def test_match_replace8_gradient():
    data, vals, out = tile((1, 8)), tile((1, 8)), tile((1, 8))
    x, v = jnp.asarray([[1.0, 2, 3, 4, 3, 2, 1, 0]]), jnp.asarray([[3.0, 2, 9, 9, 9, 9, 9, 9]])
    instruction = NcMatchReplace8(out, data, vals, float("-inf"))

    def loss(x, v):
        y = instruction.run(Reader({data: x, vals: v}, {}))[0]
        return jnp.sum(jnp.exp(y))

    dx, dv = jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1))))(x[None], v[None])
    np.testing.assert_allclose(dx[0], np.where([[1, 0, 0, 1, 1, 1, 1, 1]], np.exp(x), 0), rtol=1e-6)
    np.testing.assert_array_equal(dv[0], np.zeros((1, 8)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((P, 21))}, r"data: must have the 21 free elements of dst, got \(4, 20\)"),
        ({"dst": tile((P, F), memory=Memory.private_hbm)}, "dst: dst must be in"),
        ({"vals": tile((P, 9))}, r"vals: must have 8 elements a partition, got \(4, 9\)"),
        ({"vals": tile((8, 8))}, r"vals: must have the 4 partitions of dst, got \(8, 8\)"),
        ({"dst_idx": tile((P, 9), "uint32")}, r"dst_idx: must have 8 elements a partition, got \(4, 9\)"),
        ({"dst_idx": tile((P, 8), "int32")}, "dst_idx: must have one of the dtypes .* got int32"),
        ({"dst_idx": tile((2, 8), "uint32")}, r"dst_idx: must have the 4 partitions of dst, got \(2, 8\)"),
        ({"dst_idx": tile((P, 8), "uint32", Memory.shared_hbm)}, "dst_idx: dst_idx must be in"),
        ({"data": tile((P, 16385)), "dst": tile((P, 16385))}, "data: must have 1 to 16384 elements a partition"),
        ({"dst": tile((P, F), "float8_e5m2_x4")}, "dst: packed x4 types take no arithmetic"),
        ({"imm": tile((P, 1))}, "imm: must be a number, got sbuf"),
        ({"imm": None}, "imm: must be a number, got None"),
        ({"dst": tile((129, F))}, "dst partition dimension 129 exceeds maximum 128"),
    ],
)
def test_match_replace8_rules(changes, message):
    legal = NcMatchReplace8(tile((P, F)), tile((P, F)), tile((P, 8)), 0.0, tile((P, 8), "uint32"))
    assert rule(legal) == rule(replace(legal, dst_idx=None), TRN1) == rule(replace(legal, imm=1)) == ""
    with pytest.raises(AssertionError, match="^nki.isa.nc_match_replace8 " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize(
    "make",
    [
        lambda data: Max8(tile((128, 8)), data),
        lambda data: NcFindIndex8(tile((128, 8), "uint32"), data, tile((128, 8))),
        lambda data: NcMatchReplace8(data, data, tile((128, 8)), 0.0),
    ],
)
def test_search_cost(make):
    long, short = make(tile((128, 2, 1000))), make(tile((128, 40)))
    latency = TRN1.latency_cycles(Engine.vector)
    assert long.queue is Engine.vector
    assert long.cycles(TRN1) == Work(2000, latency) and short.cycles(TRN1) == Work(64, latency)
    assert long.cycles(TRN2) == long.cycles(TRN3) == Work(2000, 144)
    assert short.cycles(TRN2) == short.cycles(TRN3) == Work(64, 144)
    strided = make(tile((128, 1000, 5)).slice(2, 0, 1))
    assert strided.cycles(TRN1) == Work(2000, latency) and strided.cycles(TRN2) == Work(2000, 144)


# ---- topk


def snake(group, n):
    """Element s of a group of 16 partitions: partition s % 16, column s // 16."""
    return np.array([group[s % 16, s // 16] for s in range(n)])


def topk_tiles(values, k):
    src, memory = store(values, "bfloat16")
    shape = (len(values), k)
    val, idx = tile(shape, "bfloat16"), tile(shape, "uint32")
    return val, idx, src, memory | {v.buffer: fresh(v.buffer) for v in (val, idx)}


@pytest.mark.parametrize(("partitions", "n", "k"), [(16, 42, 8), (32, 48, 1), (128, 33, 33), (48, 8, 5), (16, 160, 40)])
def test_topk_reads_and_writes_a_snake_of_sixteen_partitions(partitions, n, k):
    columns = -(-n // 16) + 1
    order = np.random.default_rng(0).permuted(np.tile(np.arange(16 * columns), (partitions // 16, 1)), axis=1)
    values = order.reshape(-1, columns)  # distinct within a group, and exact in bfloat16
    val, idx, src, memory = topk_tiles(values, k)
    instruction = Topk(val, idx, src, n)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    for group in range(partitions // 16):
        rows = slice(16 * group, 16 * group + 16)
        elements = snake(values[rows], n)
        want = np.argsort(elements)[n - k :]  # ascending
        np.testing.assert_array_equal(snake(memory[val.buffer][rows], k).astype(np.float32), elements[want])
        np.testing.assert_array_equal(snake(memory[idx.buffer][rows], k), want)


def test_topk_leaves_other_slots_alone():
    """K results fill ceil(K / 16) columns of the (P, K) tiles."""
    val, idx, src, memory = topk_tiles(random((32, 3)), 18)
    memory[val.buffer][...], memory[idx.buffer][...] = 99, 7
    execute(Topk(val, idx, src, 48), memory, traced=True)
    slot = np.arange(18) * 16 + np.arange(32)[:, None] % 16
    assert (memory[val.buffer][slot >= 18] == 99).all() and (memory[idx.buffer][slot >= 18] == 7).all()
    assert (memory[val.buffer][slot < 18] != 99).all()


def test_topk_pairs_values_with_indices_among_duplicates():
    values = np.random.default_rng(0).integers(0, 3, (16, 4))
    val, idx, src, memory = topk_tiles(values, 50)
    execute(Topk(val, idx, src, 60), memory, traced=True)
    elements = snake(values, 60)
    got, at = snake(memory[val.buffer], 50).astype(int), snake(memory[idx.buffer], 50)
    np.testing.assert_array_equal(got, np.sort(elements)[10:])
    np.testing.assert_array_equal(elements[at], got)
    assert len(set(at.tolist())) == 50


def test_topk_of_views():
    values = random((32, 2, 6))
    src, memory = store(values, "bfloat16")
    out, idx = tile((32, 8), "bfloat16"), tile((32, 8), "uint32")
    memory |= {v.buffer: fresh(v.buffer) for v in (out, idx)}
    part = src.slice(0, 16, 32).slice(2, 0, 6, 2)
    instruction = Topk(out.slice(0, 0, 16).slice(1, 0, 8, 2), idx.slice(0, 16, 32).slice(1, 4, 8), part, 90)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    elements = snake(values[16:, :, ::2].reshape(16, 6), 90)
    np.testing.assert_array_equal(memory[out.buffer][:4, 0].astype(np.float32), np.sort(elements)[-4:])
    np.testing.assert_array_equal(elements[memory[idx.buffer][16:20, 4]], np.sort(elements)[-4:])
    assert np.isnan(memory[out.buffer][16:].astype(np.float32)).all()


def test_topk_gradient():
    val, idx, src, _ = topk_tiles(np.zeros((16, 2)), 20)
    x = jax.random.normal(jax.random.key(0), (16, 2))

    def loss(x):
        result = Topk(val, idx, src, 32).run(Reader({src: x}, {}))[0]
        return jnp.sum(jnp.where(result.mask, result.value, 0.0) ** 2)

    top = np.sort(np.asarray(x).reshape(-1))[12]
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), np.where(x >= top, 2 * x, 0), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src": tile((32, 4), "float32")}, "src: must have dtype bfloat16, got float32"),
        ({"val_dst": tile((32, 8), "float32")}, "val_dst: must have dtype bfloat16, got float32"),
        ({"idx_dst": tile((32, 8), "int32")}, "idx_dst: must have dtype uint32, got int32"),
        ({"idx_dst": tile((32, 9), "uint32")}, r"idx_dst: must have the 8 free elements of val_dst, got \(32, 9\)"),
        ({"src": tile((16, 4), "bfloat16")}, r"src: must have the 32 partitions of val_dst, got \(16, 4\)"),
        ({"src": tile((32, 4), "bfloat16", psum)}, r"src: src must be in \['sbuf'\], got psum"),
        ({"val_dst": tile((32, 8), "bfloat16", psum)}, r"val_dst: val_dst must be in \['sbuf'\], got psum"),
        ({"n": 7}, "n: must be an int, at least 8 and below 65536, got 7"),
        ({"n": 65536}, "n: must be an int, at least 8 and below 65536, got 65536"),
        ({"n": 42.0}, "n: must be an int, at least 8 and below 65536, got 42.0"),
        ({"n": 65}, r"src: must have 5 columns for n 65, got \(32, 4\)"),
        (
            {"val_dst": tile((32, 43), "bfloat16"), "idx_dst": tile((32, 43), "uint32")},
            r"val_dst: must have at most 42 columns, got \(32, 43\)",
        ),
        ({"val_dst": tile((64, 8), "bfloat16").slice(0, 8, 40)}, "val_dst: must start at a multiple of 16 partitions"),
        (
            {"src": tile((8, 9), "bfloat16"), "val_dst": tile((8, 8), "bfloat16"), "idx_dst": tile((8, 8), "uint32")},
            r"val_dst: must have a multiple of 16 partitions, got \(8, 8\)",
        ),
        ({"val_dst": tile((144, 8), "bfloat16")}, "val_dst partition dimension 144 exceeds maximum 128"),
    ],
)
def test_topk_rules(changes, message):
    legal = Topk(tile((32, 8), "bfloat16"), tile((32, 8), "uint32"), tile((32, 4), "bfloat16"), 42)
    assert rule(legal) == rule(legal, TRN1) == rule(replace(legal, n=64)) == ""
    with pytest.raises(AssertionError, match="^nki.isa.topk " + message):
        replace(legal, **changes).check(TRN2)


def test_topk_has_fewer_than_32768_results():
    wide = Topk(*(tile((16, 32768), d) for d in ("bfloat16", "uint32", "bfloat16")), 40000)
    assert rule(wide) == "nki.isa.topk val_dst: must have at most 32767 columns, got (16, 32768)"


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_topk_cost(target):
    legal = Topk(tile((32, 8), "bfloat16"), tile((32, 8), "uint32"), tile((32, 4), "bfloat16"), 42)
    assert legal.cycles(target) == Work(4 * 42 + 8, target.latency_cycles(Engine.gpsimd))
