"""nc_transpose and dma_transpose against NumPy, rule by rule, and their exact cost."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.move import DgeMode, OobMode
from nkijax.isa.transpose import DmaTranspose, NcTranspose
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Transfer, Work
from nkijax.program import Masked
from nkijax.view import Dynamic, View
from tests.isa.harness import Reader, execute, fresh, rule, store, tile

HBM, PSUM = Memory.private_hbm, Memory.psum


def random_bits(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Every bit pattern, NaNs and infinities among them."""
    kind = dtypes.storage(dtype)
    raw = np.random.default_rng(1).integers(0, 256, int(np.prod(shape)) * kind.itemsize, np.uint8)
    return (raw & 1 if dtype == "bool" else raw).view(kind).reshape(shape)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


# ---- values


@pytest.mark.parametrize("dtype", [d for d in dtypes.KINDS if d != "tfloat32"])  # whose every write rounds
@pytest.mark.parametrize(
    "engine, memory", [(Engine.vector, Memory.sbuf), (Engine.tensor, PSUM), (Engine.unknown, PSUM)]
)
def test_nc_transpose_moves_bits(dtype, engine, memory):
    source = random_bits((6, 10), dtype)
    data, dst = tile((6, 10), dtype), tile((10, 6), dtype, memory)
    arrays = {data.buffer: source, dst.buffer: fresh(dst.buffer)}
    instruction = NcTranspose(dst, data, engine)
    assert rule(instruction) == ""
    execute(instruction, arrays)
    np.testing.assert_array_equal(bits(arrays[dst.buffer]), bits(source.T))


def test_nc_transpose_of_parts_and_of_three_dimensions():
    source = random_bits((8, 6, 10), "float32")
    data, dst = tile((8, 6, 10)), tile((20, 12), memory=PSUM)
    arrays = {data.buffer: source, dst.buffer: np.zeros((20, 12), np.float32)}
    part = data.slice(0, 2, 6).slice(1, 1, 6, 2).slice(2, 0, 10, 4)
    execute(NcTranspose(dst.slice(0, 5, 14).slice(1, 1, 9, 2), part), arrays, traced=True)
    want = np.zeros((20, 12), np.float32)
    want[5:14, 1:9:2] = source[2:6, 1:6:2, 0:10:4].reshape(4, 9).T
    np.testing.assert_array_equal(bits(arrays[dst.buffer]), bits(want))


@pytest.mark.parametrize("shape, axes", [((16, 12), (1, 0)), ((4, 3, 8), (2, 1, 0)), ((4, 3, 5, 8), (3, 1, 2, 0))])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "float8_e4m3fn_x4"])
def test_dma_transpose(shape, axes, given, dtype):
    source = random_bits(shape, dtype)
    want = source.transpose(axes)
    src, dst = tile(shape, dtype, HBM), tile(want.shape, dtype)
    arrays = {src.buffer: source, dst.buffer: fresh(dst.buffer)}
    instruction = DmaTranspose(dst, src, axes if given else None)
    assert rule(instruction, TRN1) == ""
    execute(instruction, arrays)
    np.testing.assert_array_equal(bits(arrays[dst.buffer]), bits(want))


def test_dma_transpose_of_parts():
    source = random_bits((8, 10), "float32")
    src, dst = tile((8, 10), memory=HBM), tile((6, 9))
    arrays = {src.buffer: source, dst.buffer: np.zeros((6, 9), np.float32)}
    execute(DmaTranspose(dst.slice(0, 1, 6).slice(1, 1, 9, 2), src.slice(0, 0, 4).slice(1, 0, 10, 2)), arrays)
    want = np.zeros((6, 9), np.float32)
    want[1:6, 1:9:2] = source[:4, ::2].T
    np.testing.assert_array_equal(bits(arrays[dst.buffer]), bits(want))


def gathering(rows: np.ndarray, shape: tuple[int, ...], mode: OobMode) -> tuple[DmaTranspose, dict, np.ndarray]:
    """dst <- transpose(table[rows]), and the same in NumPy; rows outside keep dst."""
    table = random_bits((40, *shape[1:]), "bfloat16")
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[len(shape)]
    src, arrays = store(table, "bfloat16", HBM)
    index, more = store(rows.reshape(-1, 1), "uint32")
    want = random_bits(tuple(shape[k] for k in axes), "bfloat16").copy()
    dst = tile(want.shape, "bfloat16")
    arrays |= more | {dst.buffer: want.copy()}
    for r, row in enumerate(rows):
        if row < len(table):
            want[..., r] = table[row].transpose([k - 1 for k in axes[:-1]])
    return DmaTranspose(dst, src.vector_select(0, index), oob_mode=mode), arrays, want


@pytest.mark.parametrize("shape", [(16, 24), (32, 2, 8), (16, 1, 3, 8), (48, 3, 1, 8)])
@pytest.mark.parametrize("outside", [0, 3])
@pytest.mark.parametrize("traced", [False, True])
def test_8_8_gather_transpose_keeps_what_it_skips(shape, outside, traced):
    rows = np.random.default_rng(2).integers(0, 40, shape[0]).astype(np.uint32)
    rows[:outside] = [40, 2**32 - 1, 2**31][:outside]
    mode = OobMode.skip if outside else OobMode.error
    instruction, arrays, want = gathering(rows, shape, mode)
    assert rule(instruction) == ""
    execute(instruction, arrays, traced)
    np.testing.assert_array_equal(bits(arrays[instruction.dst.buffer]), bits(want))


def test_gather_transpose_takes_rows_as_the_address_unit_gives_them():
    """An index tile of several columns: the rows arrive in the index's column-major order."""
    table = random_bits((40, 8), "bfloat16")
    index = tile((128, 2), "uint32")
    values = np.random.default_rng(3).integers(0, 60, (128, 2))
    rows = values.T.reshape(-1)[:144]
    hbm = tile((40, 8), "bfloat16", HBM)
    src = View(hbm.buffer, 0, (0, 1), (144, 8), "bfloat16", Dynamic(index, 8, 40, vector=True))
    instruction = DmaTranspose(tile((8, 144), "bfloat16"), src, oob_mode=OobMode.skip)
    assert rule(instruction) == ""
    read = Reader({src: table[np.minimum(rows, 39)]}, {src: rows < 40})
    (result,) = instruction.run(read)
    assert isinstance(result, Masked)
    np.testing.assert_array_equal(bits(np.asarray(result.value)), bits(table[np.minimum(rows, 39)].T))
    np.testing.assert_array_equal(result.mask, np.broadcast_to(rows < 40, (8, 144)))


@pytest.mark.parametrize("start, moved", [(1, True), (3, False)])
def test_scalar_offset_skips_the_whole_transfer(start, moved):
    table = random_bits((6, 5), "float32")
    src, arrays = store(table, memory=HBM)
    index, more = store([[start]], "int32")
    dst = tile((5, 4))
    arrays |= more | {dst.buffer: np.zeros((5, 4), np.float32)}
    execute(DmaTranspose(dst, src.shifted(0, index, 4), oob_mode=OobMode.skip), arrays)
    want = table[start : start + 4].T if moved else np.zeros((5, 4), np.float32)
    np.testing.assert_array_equal(bits(arrays[dst.buffer]), bits(want))


# ---- rules


def bf16(*shape: int, memory: Memory = HBM) -> View:
    return tile(shape, "bfloat16", memory)


def to(src: View, **options) -> DmaTranspose:
    """A transpose of `src` that is legal but for the rule at hand."""
    shape = (src.shape[-1], *src.shape[1:-1], src.shape[0])
    return DmaTranspose(tile(shape, src.dtype), src, **options)


def indexed(src_rows: int, index: View, *inner: int, dtype: str = "bfloat16") -> View:
    """A vector-indirect view with any index tile, as no method of a view would make it."""
    inner = inner or (8,)
    table = tile((300, *inner), dtype, HBM)
    dynamic = Dynamic(index, table.strides[0], 300, vector=True)
    return replace(table, strides=(0, *table.strides[1:]), shape=(src_rows, *inner), dynamic=dynamic)


def u32(*shape: int) -> View:
    return tile(shape, "uint32")


A, PS = tile((4, 8)), tile((8, 4), memory=PSUM)
NC_RULES = [
    (NcTranspose(tile((8, 4)), A, Engine.scalar), r"engine: must be one of \['tensor', 'vector'\], got scalar"),
    (NcTranspose(PS, tile((4, 8), memory=HBM)), r"data: data must be in \['sbuf', 'psum'\], got private_hbm"),
    (NcTranspose(tile((2, 256), memory=PSUM), tile((256, 2))), "data partition dimension 256 exceeds maximum 128"),
    (NcTranspose(tile((8, 4), "bfloat16"), A), "dst: must have the dtype float32 of data, got bfloat16"),
    (NcTranspose(tile((4, 8)), A), r"dst: must be \(8, 4\), the transpose of data \(4, 8\), got \(4, 8\)"),
    (NcTranspose(PS, tile((4, 8), memory=PSUM)), r"data: data must be in \['sbuf'\], got psum"),
    (NcTranspose(tile((8, 4)), A, Engine.tensor), r"dst: dst must be in \['psum'\], got sbuf"),
    (NcTranspose(tile((33, 4)), tile((4, 33))), "data: the vector engine transposes at most 32 by 32 elements, got"),
]
DMA_RULES = [
    (to(bf16(4, 8, memory=PSUM)), r"dma_transpose requires HBM or SBUF tensors, got src=MemoryRegion\.psum"),
    (DmaTranspose(bf16(8), bf16(8)), r"src: must have 2, 3 or 4 dimensions, got \(8,\)"),
    (to(bf16(4, 8), axes=(0, 1)), r"axes: must be \(1, 0\) for 2 dimensions, got \(0, 1\)"),
    (
        DmaTranspose(bf16(8, 1, 4, memory=Memory.sbuf), bf16(4, 8)),
        r"dst: must have the permuted shape \(8, 4\) of src \(4, 8\), got \(8, 1, 4\)",
    ),
    (DmaTranspose(tile((8, 4)), bf16(4, 8)), "dst: must have the dtype bfloat16 of src, got float32"),
    (to(bf16(4, 8), priority=1), "priority: needs gen4 or later, got trn2"),
    (to(bf16(4, 8), dge_mode=1), r"dge_mode: must be a member of nki\.isa\.dge_mode, got 1"),
    (to(bf16(4, 8), oob_mode=1), r"oob_mode: must be a member of nki\.isa\.oob_mode, got 1"),
    (to(bf16(4, 8), oob_mode=OobMode.skip), "oob_mode: skip needs a src with a run-time index, got a static src"),
    (to(tile((16, 8)), dge_mode=DgeMode.hwdge), r"src: dge_mode\.hwdge needs a 2-byte dtype, got float32"),
    (DmaTranspose(bf16(129, 16), bf16(16, 129), dge_mode=DgeMode.hwdge), "needs a last dimension of at most 128, got"),
    (to(bf16(32, 8), dge_mode=DgeMode.hwdge), r"dge_mode\.hwdge needs 16 rows in 2 dimensions, got \(32, 8\)"),
    (to(bf16(3, 16, 8), dge_mode=DgeMode.hwdge), r"needs a first dimension of \[1, 2, 4, 8, 16\], times dimension -2"),
    (to(bf16(4, 6, 8), dge_mode=DgeMode.hwdge), r"times dimension -2 a multiple of 16, got \(4, 6, 8\)"),
    (to(indexed(16, u32(16, 1)), dge_mode=DgeMode.hwdge), r"dge_mode\.hwdge takes no vector_offset"),
    (to(indexed(16, u32(16, 1), dtype="float32")), "a vector-indirect src needs a 2-byte dtype, got float32"),
    (
        DmaTranspose(bf16(129, 16), indexed(16, u32(16, 1), 129)),
        "a vector-indirect src needs a last dimension of at most 128",
    ),
    (
        to(indexed(16, tile((16, 1), "int32"))),
        r"its vector_offset must be a 2-D uint32 tile in sbuf, got int32 \(16, 1\) in sbuf",
    ),
    (to(indexed(16, u32(24, 1))), r"must have 16 to 128 rows by 16, and 128 for many columns, got \(24, 1\)"),
    (to(indexed(16, u32(16, 2))), r"and 128 for many columns, got \(16, 2\)"),
    (to(indexed(24, u32(32, 1))), "rows must be a multiple of 16, each with an index, got 24 rows and 32 indices"),
    (to(indexed(48, u32(32, 1))), "each with an index, got 48 rows and 32 indices"),
    (to(indexed(16, u32(16, 1), 2, 2, 8)), "in 4 dimensions needs size 1 in dimension 1 or 2"),
]


@pytest.mark.parametrize("instruction, message", NC_RULES + DMA_RULES)
def test_rules(instruction, message):
    assert rule(instruction)
    with pytest.raises(AssertionError, match=message):
        instruction.check(TRN2)


def test_rules_of_generations():
    assert "needs gen3 or later, got trn1" in rule(to(bf16(16, 8), dge_mode=DgeMode.hwdge), TRN1)
    assert "a vector-indirect src: needs gen3 or later" in rule(to(indexed(16, u32(16, 1))), TRN1)
    assert rule(to(bf16(4, 4, 8), dge_mode=DgeMode.hwdge, priority=0), TRN3) == ""
    assert rule(to(bf16(16, 8), dge_mode=DgeMode.hwdge)) == rule(to(indexed(144, u32(128, 2)))) == ""


# ---- cost


@pytest.mark.parametrize("p, f", [(128, 128), (128, 32), (16, 128), (8, 4)])
def test_nc_transpose_cost(p, f):
    pe = NcTranspose(tile((f, p), memory=PSUM), tile((p, f)))
    assert (pe.queue, NcTranspose(tile((f, p)), tile((p, f))).queue) == (Engine.tensor, Engine.vector)
    assert pe.cycles(TRN1) == Work(max(p, min(64, f)), TRN1.latency_cycles(Engine.tensor))
    assert pe.cycles(TRN2) == Work(168 * 2.4, TRN2.latency_cycles(Engine.tensor))
    block = NcTranspose(tile((f, p)), tile((p, f)), Engine.vector)
    assert block.cycles(TRN1) == Work(max(64, f), TRN1.latency_cycles(Engine.vector))
    assert block.cycles(TRN2) == Work(93 * 0.96, TRN2.latency_cycles(Engine.vector))


def test_dma_transpose_cost():
    src = bf16(64, 128)
    assert to(src).cycles(TRN1) == Transfer(64 * 128 * 2, 2)
    assert to(src).cycles(TRN2) == Transfer(64 * 128 * 2, 64 * 128 * 2)
    assert to(src.slice(1, 0, 32)).cycles(TRN2) == Transfer(64 * 32 * 2, 32 * 2)
    assert to(bf16(64, 128, memory=Memory.sbuf)).cycles(TRN1) == Transfer(64 * 128 * 2, 0)
    assert to(src).queue is Engine.dma


def test_results_are_not_cast():
    data, arrays = store(np.ones((2, 3), np.float32), "bfloat16")
    (result,) = NcTranspose(tile((3, 2), "bfloat16"), data).run(Reader({data: arrays[data.buffer]}, {}))
    assert result.dtype == jnp.bfloat16 and result.shape == (3, 2)
