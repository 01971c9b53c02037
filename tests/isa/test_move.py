"""dma_copy, tensor_copy and memset against NumPy, rule by rule, and their exact cost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.move import DgeMode, DmaCopy, Memset, OobMode, TensorCopy
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Transfer, Work
from nkijax.program import Masked
from tests.isa.harness import buffer, execute, fresh, results, rule, store, tile, whole

HBM, PSUM, STATE = Memory.private_hbm, Memory.psum, Memory.state
VALUES = [0.0, 0.5, 1.5, 2.5, -0.5, -2.5, 127.5, 300.0, -300.0, 70000.0, 3e9, -3e9, 0.1, 1e-3, 5.0, 100.0]
PLAIN = ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "int8", "uint8", "int16", "int32", "uint32"]


def converted(values: np.ndarray, dtype: str) -> np.ndarray:
    """The store cast, from the specification: through float32; integers round to even, then saturate."""
    if values.dtype == dtypes.storage(dtype):
        return values
    x, kind = values.astype(np.float32), dtypes.storage(dtype)
    if kind.kind not in "iu":
        with np.errstate(over="ignore"):
            return x.astype(kind)
    info = np.iinfo(kind)
    return np.clip(np.rint(x.astype(np.float64)), info.min, info.max).astype(kind)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


# ---- values


@pytest.mark.parametrize("make", [DmaCopy, TensorCopy])
@pytest.mark.parametrize("from_, to", list(itertools.product(PLAIN, PLAIN)))
def test_copy_casts_through_float32(make, from_, to):
    source = converted(np.array(VALUES, np.float32), from_).reshape(2, 8)
    src, memory = store(source, from_)
    dst = tile((2, 8), to)
    memory[dst.buffer] = fresh(dst.buffer)
    execute(make(dst, src), memory)
    np.testing.assert_array_equal(bits(memory[dst.buffer]), bits(converted(source, to)))


@pytest.mark.parametrize("make", [DmaCopy, TensorCopy])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32", "float8_e4m3fn_x4", "float4_e2m1fn_x4", "bool"])
def test_equal_dtypes_copy_bits(make, dtype):
    kind = dtypes.storage(dtype)
    raw = np.random.default_rng(0).integers(0, 256, 32 * kind.itemsize, np.uint8)
    raw[:4] = 1, 0, 0xA0, 0x7F  # a float32 NaN with a payload, an odd integer above 2**24
    source = (raw & 1 if dtype == "bool" else raw).view(kind).reshape(4, 8)
    src, dst = tile((4, 8), dtype), tile((4, 8), dtype)
    memory = {src.buffer: source, dst.buffer: np.zeros_like(source)}
    execute(make(dst, src), memory, traced=True)
    np.testing.assert_array_equal(bits(memory[dst.buffer]), bits(source))


@pytest.mark.parametrize("make", [DmaCopy, TensorCopy])
def test_copy_between_parts_of_tiles(make):
    source = np.arange(128, dtype=np.float32).reshape(4, 32)
    src, memory = store(source)
    dst = tile((4, 5, 8), "bfloat16")
    memory[dst.buffer] = np.zeros((4, 5, 8), dtypes.storage("bfloat16"))
    strided = src.slice(0, 1, 3).slice(1, 2, 32, 5).reshape((2, 6))
    execute(make(dst.slice(0, 2, 4).slice(1, 1, 4).slice(2, 3, 8, 4), strided), memory)
    want = np.zeros((4, 5, 8), np.float32)
    want[2:4, 1:4, 3:8:4] = source[1:3, 2:32:5].reshape(2, 3, 2)
    np.testing.assert_array_equal(memory[dst.buffer].astype(np.float32), want)


def test_dma_copies_in_row_major_order_of_each_shape():
    source = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    src, memory = store(source, "int32", HBM)
    dst = tile((4, 6), "int32")
    memory[dst.buffer] = fresh(dst.buffer)
    execute(DmaCopy(dst, src.permute((2, 0, 1))), memory)
    np.testing.assert_array_equal(memory[dst.buffer], source.transpose(2, 0, 1).reshape(4, 6))


# ---- run-time addresses


def gather(rows: list[int], dst_shape: tuple[int, ...], mode: OobMode = OobMode.error):
    """dst <- table[rows], of int32 above 2**24; and the same in NumPy, with rows outside keeping dst."""
    table = (np.arange(5 * 4, dtype=np.int32) + 2**24).reshape(5, 4) | 1
    src, memory = store(table, "int32", HBM)
    index, more = store(np.array(rows).reshape(-1, 1), "int32")
    dst = tile(dst_shape, "int32")
    old = (np.arange(dst.size, dtype=np.int32) + 2**25).reshape(dst_shape) | 1
    memory |= more | {dst.buffer: old.copy()}
    want = old.reshape(len(rows), 4).copy()
    for row, value in enumerate(rows):
        if 0 <= value < len(table):
            want[row] = table[value]
    instruction = DmaCopy(dst, src.vector_select(0, index), oob_mode=mode)
    return instruction, memory, want.reshape(dst_shape)


@pytest.mark.parametrize("dst_shape", [(3, 4), (6, 2), (2, 6), (1, 12)])
@pytest.mark.parametrize("rows", [[4, 0, 4], [5, 1, -1], [2**31 - 1, 7, 2]])
@pytest.mark.parametrize("traced", [False, True])
def test_8_8_gather_skips_rows_outside_and_keeps_their_bits(rows, dst_shape, traced):
    instruction, memory, want = gather(rows, dst_shape, OobMode.skip)
    execute(instruction, memory, traced)
    np.testing.assert_array_equal(memory[instruction.dst.buffer], want)


def test_gather_in_error_mode_leaves_the_fault_to_the_address():
    instruction, memory, want = gather([1, 0, 4], (3, 4))
    (result,) = results(instruction, memory)
    assert not isinstance(result, Masked)
    np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("start, moved", [(0, True), (3, True), (4, False), (-1, False)])
def test_scalar_offset_skips_the_whole_transfer(start, moved):
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    src, memory = store(table, memory=HBM)
    index, more = store([[start]], "int32")
    dst = tile((3, 2), "float16")
    memory |= more | {dst.buffer: np.full((3, 2), -1, np.float16)}
    execute(DmaCopy(dst, src.shifted(0, index, 3), oob_mode=OobMode.skip), memory)
    want = table[start : start + 3] if moved else np.full((3, 2), -1)
    np.testing.assert_array_equal(memory[dst.buffer], want)


def test_scatter_drops_rows_outside():
    src, memory = store(np.arange(8).reshape(4, 2), "int32")
    index, more = store([[3], [6], [0], [-1]], "int32")
    dst = tile((5, 2), "int32", HBM)
    memory |= more | {dst.buffer: np.full((5, 2), 9, np.int32)}
    execute(DmaCopy(dst.vector_select(0, index), src, oob_mode=OobMode.skip), memory)
    np.testing.assert_array_equal(memory[dst.buffer], [[4, 5], [9, 9], [9, 9], [0, 1], [9, 9]])


# ---- memset


@pytest.mark.parametrize(
    "dtype, value",
    [
        ("float32", 0.1),
        ("float32", -np.inf),
        ("bfloat16", 0.1),
        ("float8_e4m3", 3),
        ("int8", -128),
        ("uint8", 255),
        ("int32", 2**24 + 1),
        ("int32", -(2**31)),
        ("uint32", 2**32 - 1),
        ("bool", True),
        ("bool", 0),
        ("float8_e5m2_x4", 0),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_memset_is_exact(dtype, value, traced):
    dst = tile((4, 6), dtype)
    memory = {dst.buffer: fresh(dst.buffer)}
    execute(Memset(dst.slice(0, 1, 3).slice(1, 0, 6, 2), value), memory, traced)
    want = fresh(dst.buffer)
    want[1:3, ::2] = np.array(value).astype(dtypes.storage(dtype))
    np.testing.assert_array_equal(bits(memory[dst.buffer]), bits(want))


def test_memset_fills_hbm_by_dma_and_state_for_free():
    for memory in (HBM, STATE):
        dst = tile((300, 2), "bool", memory)
        data = {dst.buffer: np.zeros((300, 2), np.bool_)}
        fill = Memset(dst, True, Engine.dma if memory is HBM else Engine.unknown)
        assert rule(fill) == ""
        execute(fill, data)
        assert data[dst.buffer].all()
    assert fill.cycles(TRN2) == Work(0, 0)


# ---- rules


def rows_of(n: int, dtype: str = "int32", memory: Memory = Memory.sbuf):
    return tile((n, 1), dtype, memory)


A, B, N = tile((4, 8)), tile((4, 8)), tile((4, 8), memory=HBM)
P, H = tile((4, 8), memory=PSUM), tile((4, 8), "bfloat16")
WIDE = tile((256, 8))
SCALED = tile((4, 8), "float8_e8m0fnu")
GATHERED = tile((9, 8), memory=HBM).vector_select(0, rows_of(4))
HARD = DgeMode.hwdge

DMA_RULES = [
    (DmaCopy(A, P), TRN2, r"dma_copy src: dma_copy requires HBM or SBUF tensors, got src=MemoryRegion\.psum"),
    (DmaCopy(P, A), TRN2, r"dma_copy requires HBM or SBUF tensors, got dst=MemoryRegion\.psum"),
    (DmaCopy(A, tile((2, 2))), TRN2, "requires src and dst to have the same number of elements, got src=4, dst=32"),
    (DmaCopy(WIDE, tile((8, 256))), TRN2, "dma_copy dst partition dimension 256 exceeds maximum 128"),
    (DmaCopy(A, SCALED), TRN2, "x4 and e8m0 types are only copied to themselves, got float8_e8m0fnu to float32"),
    (DmaCopy(tile((4, 8), "float8_e5m2_x4"), A), TRN2, "only copied to themselves, got float32 to float8_e5m2_x4"),
    (DmaCopy(A, B, priority=1), TRN2, "priority: needs gen4 or later, got trn2"),
    (DmaCopy(A, B, priority=4), TRN3, "priority: must be an integer from 0 to 3, got 4"),
    (DmaCopy(A, B, oob_mode=1), TRN2, r"oob_mode: must be a member of nki\.isa\.oob_mode, got 1"),
    (DmaCopy(A, B, dge_mode=2), TRN2, r"dge_mode: must be a member of nki\.isa\.dge_mode, got 2"),
    (DmaCopy(A, B, engine=6), TRN2, r"engine: must be a member of nki\.isa\.engine, got 6"),
    (DmaCopy(A, B, engine=Engine.vector), TRN2, r"engine: must be one of \['sync', 'scalar'\], got vector"),
    (DmaCopy(A, B, engine=Engine.sync), TRN2, r"engine: is chosen only with dge_mode\.hwdge, got dge_mode\.unknown"),
    (DmaCopy(A, B, dge_mode=HARD), TRN1, r"dge_mode\.hwdge: needs gen3 or later, got trn1"),
    (DmaCopy(A, H, dge_mode=HARD), TRN2, r"dge_mode\.hwdge needs the dtype float32 of dst; use view, got bfloat16"),
    (DmaCopy(A, GATHERED, dge_mode=HARD), TRN2, r"src: dge_mode\.hwdge takes no vector_offset, got a vector-indirect"),
    (DmaCopy(GATHERED, A, dge_mode=DgeMode.none), TRN2, r"dst: dge_mode\.none takes no vector_offset"),
    (
        DmaCopy(A, N.vector_select(0, rows_of(4, memory=PSUM))),
        TRN2,
        "src: its run-time index must be a register or in sbuf, got psum",
    ),
    (
        DmaCopy(A, replace(GATHERED, dynamic=replace(GATHERED.dynamic, index=tile((4, 2), "int32")))),
        TRN2,
        r"src: its vector_offset must be an \(n, 1\) tile, got \(4, 2\)",
    ),
]
CHIP_RULES = [
    (TensorCopy(A, N), TRN2, r"tensor_copy src: src must be in \['sbuf', 'psum'\], got private_hbm"),
    (TensorCopy(WIDE, WIDE), TRN2, "tensor_copy dst partition dimension 256 exceeds maximum 128"),
    (TensorCopy(A, tile((2, 16))), TRN2, r"src: must have the 4 partitions of dst, got \(2, 16\)"),
    (TensorCopy(A, tile((4, 9))), TRN2, r"src: must have the 8 free elements of dst, got \(4, 9\)"),
    (TensorCopy(A, B, Engine.tensor), TRN2, r"engine: must be one of \['vector', 'scalar', 'gpsimd'\], got tensor"),
    (TensorCopy(A, B, Engine.scalar), TRN1, r"engine\.scalar: needs gen3 or later, got trn1"),
    (TensorCopy(A, P, Engine.gpsimd), TRN2, "src: the gpsimd engine cannot access psum, got a psum tile"),
    (
        TensorCopy(A, tile((4, 8), "float8_e5m2_x4")),
        TRN2,
        "dst: must have the dtype float8_e5m2_x4 of src, got float32",
    ),
    (Memset(N, 0), TRN2, r"memset dst: dst must be in \['sbuf', 'psum'\], got private_hbm"),
    (Memset(A, 0, Engine.dma), TRN2, r"engine: must be one of \['vector', 'gpsimd'\], got dma"),
    (Memset(WIDE, 0), TRN2, "memset dst partition dimension 256 exceeds maximum 128"),
    (Memset(P, 0, Engine.gpsimd), TRN2, "dst: the gpsimd engine cannot access psum"),
    (Memset(A, "0"), TRN2, "memset value: must be a number, got '0'"),
    (Memset(rows_of(4), 0.0), TRN2, r"memset value: must be an integer for a dst of int32, got 0\.0"),
    (Memset(rows_of(4, "uint8"), -1), TRN2, r"value: must be in \[0, 255\] for a dst of uint8, got -1"),
    (Memset(rows_of(4, "bool"), 2), TRN2, r"value: must be in \[0, 1\] for a dst of bool, got 2"),
    (Memset(rows_of(4, "float8_e5m2_x4"), 1), TRN2, "value: must be 0 for a dst of float8_e5m2_x4, got 1"),
]


@pytest.mark.parametrize("instruction, target, message", DMA_RULES + CHIP_RULES)
def test_rules(instruction, target, message):
    assert rule(instruction, target)
    with pytest.raises(AssertionError, match=message):
        instruction.check(target)


@pytest.mark.parametrize(
    "instruction, target",
    [
        (DmaCopy(A, H), TRN1),
        (DmaCopy(tile((500, 4), memory=HBM), tile((1000, 2), memory=HBM)), TRN2),
        (DmaCopy(A, GATHERED, oob_mode=OobMode.skip, dge_mode=DgeMode.swdge), TRN1),
        (DmaCopy(A, B, dge_mode=HARD, engine=Engine.scalar), TRN2),
        (DmaCopy(A, B, priority=3), TRN3),
        (TensorCopy(P, tile((4, 2, 4), "int8")), TRN1),
        (TensorCopy(A, B, Engine.scalar), TRN2),
        (Memset(H, 1), TRN1),
        (Memset(P, 0.5), TRN1),
        (Memset(rows_of(4, "uint32"), np.int64(2**32 - 1)), TRN1),
    ],
)
def test_legal(instruction, target):
    assert rule(instruction, target) == ""


# ---- cost


def test_dma_cost_is_the_larger_side_and_the_shortest_hbm_run():
    hbm, half = tile((128, 512), memory=HBM), tile((128, 512), "bfloat16")
    assert DmaCopy(half, hbm).cycles(TRN1) == Transfer(128 * 512 * 4, 128 * 512 * 4)
    part = hbm.slice(1, 0, 256)
    assert DmaCopy(tile((128, 256)), part).cycles(TRN2) == Transfer(128 * 256 * 4, 256 * 4)
    assert DmaCopy(tile((128, 256), memory=HBM), part).cycles(TRN2) == Transfer(128 * 256 * 4, 256 * 4)
    assert DmaCopy(tile((512, 128), memory=HBM), hbm.permute((1, 0))).cycles(TRN2).row_bytes == 4
    assert DmaCopy(A, B).cycles(TRN2) == Transfer(4 * 8 * 4, 0)
    assert DmaCopy(A, GATHERED).cycles(TRN2) == Transfer(4 * 8 * 4, 8 * 4)
    assert DmaCopy(A, B).queue is Memset(N, 0, Engine.dma).queue is Engine.dma
    assert Memset(hbm, 0, Engine.dma).cycles(TRN1) == Transfer(128 * 512 * 4, 128 * 512 * 4)


def cost(issue: float, engine: Engine, target) -> Work:
    return Work(issue, target.latency_cycles(engine, copy=True))


@pytest.mark.parametrize("n", [8, 1024])
def test_tensor_copy_cost(n):
    v, s, g = Engine.vector, Engine.scalar, Engine.gpsimd
    wide, narrow, psum = tile((4, n)), tile((4, n), "bfloat16"), tile((4, n), memory=PSUM)
    strided = tile((4, 2 * n), "float16").slice(1, 0, 2 * n, 2)
    assert TensorCopy(wide, wide).cycles(TRN1) == cost(max(64, n), v, TRN1)
    assert TensorCopy(narrow, narrow, g).cycles(TRN1) == cost(max(64, n), g, TRN1)
    rates = {(wide, wide): 2, (narrow, narrow): 4, (narrow, strided): 2, (wide, psum): 1, (wide, narrow): 1.3}
    rates[tile((4, n), "float16", PSUM), narrow] = 2
    for (dst, src), rate in rates.items():
        assert TensorCopy(dst, src).cycles(TRN2) == cost(max(64, n / rate), v, TRN2), (dst, src)
    assert TensorCopy(narrow, narrow, s).cycles(TRN2) == cost(max(64, n), s, TRN2)
    assert TensorCopy(wide, wide, g).cycles(TRN2) == cost(max(64, n), g, TRN2)
    fp8 = tile((4, n), "float8_e5m2")
    assert TensorCopy(fp8, narrow).cycles(TRN3) == cost(max(64, n / 4), v, TRN3)
    moving = tile((4, 2 * n)).shifted(1, tile((1, 1), "int32"), n)
    assert TensorCopy(wide, moving).cycles(TRN1).issue_cycles == max(600, n)


@pytest.mark.parametrize("n", [8, 1024])
def test_memset_cost(n):
    half, full = tile((4, n), "bfloat16"), tile((4, n))
    latency = TRN1.latency_cycles(Engine.vector)
    assert Memset(half, 0).cycles(TRN1) == Work(max(64, n / 2), latency)
    assert Memset(half, 1).cycles(TRN1) == Memset(full, 0).cycles(TRN1) == Work(max(64, n), latency)
    pool = Work(max(64, n), TRN2.latency_cycles(Engine.gpsimd))
    assert Memset(half, 0, Engine.gpsimd).cycles(TRN2) == pool
    assert (Memset(full, 0).queue, Memset(full, 0, Engine.gpsimd).queue) == (Engine.vector, Engine.gpsimd)


def test_skip_masks_have_the_shape_of_the_source():
    instruction, memory, _ = gather([9, 1, 2], (6, 2), OobMode.skip)
    (result,) = results(instruction, memory)
    assert isinstance(result, Masked)
    np.testing.assert_array_equal(result.mask, jnp.array([[False], [True], [True]]) & jnp.ones((1, 4), bool))


def test_whole_buffers_are_views_too():
    b = buffer((2, 2))
    memory = {b: fresh(b)}
    execute(Memset(whole(b), 1.5), memory)
    assert (memory[b] == 1.5).all()
