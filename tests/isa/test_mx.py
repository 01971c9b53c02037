"""quantize_mx and nc_matmul_mx against NumPy and ml_dtypes, rule by rule, and their exact cost."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from nkijax.isa.mx import NcMatmulMx, QuantizeMx, matmul_mx_instructions
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from nkijax.trace import Recorder
from nkijax.view import Buffer, View
from tests.isa.harness import Reader, execute, fresh, load, random, rule, store, tile

PSUM, HBM = Memory.psum, Memory.private_hbm
E5, E4, FP4 = "float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4"
ELEMENT = {E5: ml_dtypes.float8_e5m2, E4: ml_dtypes.float8_e4m3fn, FP4: ml_dtypes.float4_e2m1fn}
GREATEST = {E5: 15, E4: 8}


def psum(*shape: int, dtype: str = "float32") -> View:
    return tile(shape, dtype, PSUM)


def pack(values: np.ndarray, dtype: str) -> np.ndarray:
    """(P, F, 4) of the element type as (P, F) of x4 storage: the first value in the lowest bits."""
    width = 4 if dtype == FP4 else 8
    codes = values.view(np.uint8).astype(np.uint32) & (2**width - 1)
    return (
        (codes << (width * np.arange(4, dtype=np.uint32)))
        .sum(axis=-1, dtype=np.uint32)
        .astype(np.uint16 if dtype == FP4 else np.uint32)
    )


def every_code(p: int, f: int, dtype: str, seed: int = 0) -> np.ndarray:
    """(P, F, 4) of random codes of the element type, the infinite and NaN ones left out."""
    codes = np.random.default_rng(seed).integers(0, 16 if dtype == FP4 else 256, (p, f, 4)).astype(np.uint8)
    values = codes.view(ELEMENT[dtype])
    return np.where(np.isfinite(values.astype(np.float32)), values, np.ones((), ELEMENT[dtype]))


def row(p: int) -> int:
    """The row of a scale tile that belongs to data partition p."""
    return 32 * (p // 32) + (p % 32) // 8


def quantized(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The specification group by group: elements (P, F, 4), and the byte of each partition's and column's scale."""
    p, f = x.shape[0], x.shape[1] // 4
    elements, bytes_ = np.zeros((p, f, 4), ELEMENT[dtype]), np.zeros((p, f), np.uint8)
    for i in range(0, p, 8):
        for j in range(f):
            group = x[i : i + 8, 4 * j : 4 * j + 4].astype(np.float64)
            a = np.abs(group).max()
            exponent = -127 if a == 0 else max(-127, int(np.floor(np.log2(a))) - (GREATEST[dtype] - 1))
            elements[i : i + 8, j] = (group / 2.0**exponent).astype(np.float32).astype(ELEMENT[dtype])
            bytes_[i : i + 8, j] = exponent + 127
    return elements, bytes_


def values_of(elements: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
    """(P, F, 4) in float64, scaled."""
    return elements.astype(np.float64) * 2.0 ** (bytes_.astype(np.float64) - 127)[:, :, None]


def wild(p: int, f: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Values of very different size in every group, one group of zeros."""
    rng = np.random.default_rng(seed)
    limit = 12 if dtype == "float16" else 60
    x = rng.standard_normal((p, f)) * 2.0 ** rng.integers(-limit, limit, (p // 8, f // 4)).repeat(8, 0).repeat(4, 1)
    x[8:16, 4:8] = 0
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)


# ---- quantize_mx


def quantize(x, dtype, dst_dtype, scale_dtype="uint8", scale_rows=None, slot=0):
    """Runs it into a scale tile of 77s; the data and the scale tile as bytes."""
    p, f = x.shape[0], x.shape[1] // 4
    src, memory = store(x, dtype)
    dst = tile((p, f), dst_dtype)
    scale, more = store(np.full((scale_rows or p, f), 77, np.uint8), "uint8")
    memory |= more | {dst.buffer: fresh(dst.buffer)}
    part = scale.slice(0, slot, scale.shape[0]).reinterpret(scale_dtype)
    instruction = QuantizeMx(dst, src, part)
    assert rule(instruction, TRN3) == ""
    execute(instruction, memory, traced=True)
    return memory[dst.buffer], memory[scale.buffer]


@pytest.mark.parametrize("dst", [E5, E4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("p, scale_dtype", [(32, "uint8"), (96, "float8_e8m0fnu")])
def test_quantize(p, dtype, dst, scale_dtype):
    x = wild(p, 24, dtype)
    data, scale = quantize(x, dtype, dst, scale_dtype)
    elements, bytes_ = quantized(x, dst)
    np.testing.assert_array_equal(data, pack(elements, dst))
    np.testing.assert_array_equal(scale[[row(i) for i in range(p)]], bytes_)


@pytest.mark.parametrize("dst", [E5, E4])
def test_quantize_leaves_room_for_rounding_up(dst):
    """A scale twice that of the OCP sample: the largest value of a group never saturates."""
    x = np.full((32, 4), np.float32(1.9921875), ml_dtypes.bfloat16)
    data, scale = quantize(x, "bfloat16", dst)
    assert (values_of(data.view(ELEMENT[dst]).reshape(32, 1, 4), scale[[0] * 32]) == 2).all()


def test_trap_21_slots_share_a_scale_tile_and_other_rows_stay():
    """Rows are relative to the view's start; what is not a scale keeps its bits (fixed in 0.6)."""
    x = wild(128, 16, "bfloat16")
    _, bytes_ = quantized(x, E4)
    for slot in (0, 4, 8, 12):
        _, scale = quantize(x, "bfloat16", E4, slot=slot)
        rows = [row(p) + slot for p in range(128)]
        np.testing.assert_array_equal(scale[rows], bytes_)
        others = sorted(set(range(128)) - set(rows))
        assert len(others) == 112 and (scale[others] == 77).all()


def test_quantize_of_one_quadrant_needs_four_rows():
    x = wild(32, 8, "float16")
    _, scale = quantize(x, "float16", E5, scale_rows=4)
    np.testing.assert_array_equal(scale[np.arange(32) // 8], quantized(x, E5)[1])


def test_quantize_of_nan_and_infinity():
    x = np.ones((32, 8), ml_dtypes.bfloat16)
    x[3, 1], x[20, 7] = np.nan, -np.inf
    data, scale = quantize(x, "bfloat16", E4)
    assert scale[0].tolist() == [255, 120] and scale[2].tolist() == [120, 255]
    elements = data.view(ml_dtypes.float8_e4m3fn).reshape(32, 2, 4).astype(np.float32)
    assert np.isnan(elements[:8, 0]).all() and np.isnan(elements[16:24, 1]).all()
    assert (elements[8:16] == 128).all() and (elements[:8, 1] == 128).all()


def test_quantize_of_the_least_and_the_greatest():
    x = np.zeros((32, 8), ml_dtypes.bfloat16)
    x[:, :4], x[:, 4:] = np.float32(2.0**-126), ml_dtypes.finfo(ml_dtypes.bfloat16).max
    data, scale = quantize(x, "bfloat16", E5)
    elements, bytes_ = quantized(x, E5)
    np.testing.assert_array_equal(data, pack(elements, E5))
    assert scale[0].tolist() == bytes_[0].tolist() == [0, 240]


def test_quantize_parts_of_tiles():
    x = wild(64, 32, "float16")
    src, memory = store(np.concatenate([x, x]).reshape(128, 2, 16), "float16")
    dst, scale = tile((64, 3, 8), E4), tile((64, 3, 4), "uint8")
    memory |= {dst.buffer: fresh(dst.buffer), scale.buffer: np.full((64, 3, 4), 77, np.uint8)}
    execute(
        QuantizeMx(dst.select(1, 1).slice(1, 0, 8, 2), src.slice(0, 64, 128).select(1, 1), scale.select(1, 2)),
        memory,
        traced=True,
    )
    elements, bytes_ = quantized(x[:, 16:], E4)
    want, scales = fresh(dst.buffer), np.full((64, 3, 4), 77, np.uint8)
    want[:, 1, ::2] = pack(elements, E4)
    scales[[row(p) for p in range(64)], 2] = bytes_
    np.testing.assert_array_equal(memory[dst.buffer], want)
    np.testing.assert_array_equal(memory[scale.buffer], scales)


# ---- nc_matmul_mx


def operand(p, f, dtype, seed=0, scale_dtype="uint8", slot=0, rows=None, columns=0):
    """Data and scale tiles with random contents, their memory, and the values (P, F, 4) that they stand for."""
    elements = every_code(p, f, dtype, seed)
    data = tile((p, f), dtype)
    raw = np.random.default_rng(seed + 100).integers(120, 134, (rows or p, f + columns)).astype(np.uint8)
    scale, memory = store(raw, "uint8")
    memory[data.buffer] = pack(elements, dtype)
    bytes_ = raw[[row(i) + slot for i in range(p)], :f]
    part = scale.slice(0, slot, scale.shape[0]).reinterpret(scale_dtype)
    return data, part, memory, values_of(elements, bytes_)


def multiply(stationary, moving, dst, **options):
    """Runs it; the product, and what it should be."""
    memory = stationary[2] | moving[2] | {dst.buffer: fresh(dst.buffer)}
    instruction = NcMatmulMx(dst, stationary[0], moving[0], stationary[1], moving[1], **options)
    assert rule(instruction, TRN3) == ""
    execute(instruction, memory, traced=True)
    return load(dst, memory), np.einsum("kmq,knq->mn", stationary[3], moving[3])


@pytest.mark.parametrize("right", [E5, E4, FP4])
@pytest.mark.parametrize("left", [E5, E4, FP4])
def test_product(left, right):
    got, want = multiply(operand(64, 6, left), operand(64, 10, right, 1), psum(6, 10))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    "p, scale_dtype", [(32, "uint8"), (64, "float8_e8m0fnu"), (96, "uint8"), (128, "float8_e8m0fnu")]
)
def test_product_of_every_height(p, scale_dtype):
    options = {"scale_dtype": scale_dtype, "rows": p - 28, "columns": 3}
    got, want = multiply(operand(p, 4, FP4, **options), operand(p, 8, E4, 1, **options), psum(4, 8))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("slots", [(0, 4), (12, 8)])
def test_trap_21_scales_are_read_from_their_slot(slots):
    got, want = multiply(operand(128, 4, E4, slot=slots[0]), operand(128, 8, E4, 1, slot=slots[1]), psum(4, 8))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_every_nibble_in_its_place():
    """All sixteen codes of e2m1, the first value in the lowest bits, against a matrix that picks one value."""
    codes = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)
    elements = np.zeros((32, 4, 4), np.uint8)
    elements[0] = codes
    data, scale = tile((32, 4), FP4), tile((4, 4), "uint8")
    pick = np.zeros((32, 4, 4), np.uint8)
    pick[0, np.arange(4), np.arange(4)] = 0b0010  # 1.0 in value q of column q
    other = tile((32, 4), FP4)
    memory = {data.buffer: pack(elements, FP4), other.buffer: pack(pick, FP4)}
    dst = psum(4, 4)
    memory |= {scale.buffer: np.full((4, 4), 127, np.uint8), dst.buffer: fresh(dst.buffer)}
    execute(NcMatmulMx(dst, data, other, scale, scale), memory, traced=True)
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    want = np.array([*magnitudes, *(-m for m in magnitudes)], np.float32).reshape(4, 4)
    np.testing.assert_array_equal(memory[dst.buffer], want)


def test_a_scale_of_255_is_nan():
    left, right = operand(64, 6, E4), operand(64, 10, E4, 1)
    left[2][left[1].buffer][0, 0] = 255
    got, _ = multiply(left, right, psum(6, 10))
    assert np.isnan(got[0]).all() and np.isfinite(got[1:]).all()


def test_scales_reach_both_ends_of_float32():
    left, right = operand(64, 6, E4), operand(64, 10, E4, 1)
    left[2][left[1].buffer][...], right[2][right[1].buffer][...] = 20, 240
    got, want = multiply(left, right, psum(6, 10))
    factor = 2.0 ** (20 + 240 - 2 * 127)
    want = factor * np.einsum("kmq,knq->mn", *(unpacked(side).astype(np.float64) for side in (left, right)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def unpacked(side):
    data = side[0]
    return side[2][data.buffer].view(ELEMENT[data.dtype]).reshape(*data.shape, 4)


def test_quantized_operands_multiply_back():
    """quantize_mx makes what nc_matmul_mx takes: the product of the originals, to fp8's precision."""
    rng = np.random.default_rng(0)
    sides, memory = [], {}
    for f in (6, 10):
        x = rng.standard_normal((128, 4 * f)).astype(ml_dtypes.bfloat16)
        src, more = store(x, "bfloat16")
        data, scale = tile((128, f), E4), tile((128, f), "float8_e8m0fnu")
        memory |= more | {data.buffer: fresh(data.buffer), scale.buffer: fresh(scale.buffer)}
        execute(QuantizeMx(data, src, scale), memory, traced=True)
        sides.append((data, scale, x.astype(np.float64).reshape(128, f, 4)))
    dst = psum(6, 10)
    memory[dst.buffer] = fresh(dst.buffer)
    (a, sa, x), (b, sb, y) = sides
    execute(NcMatmulMx(dst, a, b, sa, sb), memory, traced=True)
    np.testing.assert_allclose(memory[dst.buffer], np.einsum("kmq,knq->mn", x, y), atol=3.0)


def test_parts_and_three_dimensions_are_flattened():
    left, right = operand(64, 12, E4), operand(64, 24, E5, 1)
    s, ss = left[0].slice(1, 0, 12, 2), left[1].slice(1, 0, 12, 2)
    x, xs = right[0].reshape((64, 3, 8)).select(1, 2), right[1].reshape((64, 3, 8)).select(1, 2)
    out = psum(8, 20)
    memory = left[2] | right[2] | {out.buffer: np.zeros((8, 20), np.float32)}
    execute(NcMatmulMx(out.slice(0, 2, 8).slice(1, 3, 19, 2), s, x, ss, xs), memory, traced=True)
    want = np.zeros((8, 20))
    want[2:8, 3:19:2] = np.einsum("kmq,knq->mn", left[3][:, ::2], right[3][:, 16:])
    np.testing.assert_allclose(memory[out.buffer], want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_bfloat16_destination_adds_in_float32():
    left, right = operand(32, 2, E4), operand(32, 4, E4, 1)
    one = np.zeros((32, 4, 4), ml_dtypes.float8_e4m3fn)
    one[0, :, 0] = 0.5
    left[2][left[0].buffer][...], right[2][right[0].buffer][...] = pack(one[:, :2], E4), pack(one[:, :4], E4)
    for side in (left, right):
        side[2][side[1].buffer][...] = 127
    dst = psum(2, 4, dtype="bfloat16")
    memory = left[2] | right[2] | {dst.buffer: np.full((2, 4), 127.5, ml_dtypes.bfloat16)}
    instruction = NcMatmulMx(dst, left[0], right[0], left[1], right[1], accumulate=True, addend=dst)
    assert rule(instruction, TRN3) == "" and not instruction.contracting()
    execute(instruction, memory, traced=True)
    assert (memory[dst.buffer] == np.float32(127.75).astype(ml_dtypes.bfloat16)).all()


# ---- accumulation


def run_all(r: Recorder, instructions, memory: dict[Buffer, np.ndarray]) -> None:
    for instruction in instructions:
        r.emit(instruction)
        for view in (*instruction.reads(), *instruction.writes()):
            if view.buffer not in memory:
                memory[view.buffer] = fresh(view.buffer)
                if view.buffer in r.zeros:
                    memory[view.buffer][...] = 0
        execute(instruction, memory, traced=True)


def test_accumulates_since_the_allocation_element_by_element():
    left, right = operand(32, 2, E4), operand(32, 4, E4, 1)
    product = np.einsum("kmq,knq->mn", left[3], right[3])
    memory, dst, r = left[2] | right[2], psum(2, 6), Recorder("test", TRN3)
    for start in (0, 2):
        part = dst.slice(1, start, start + 4)
        run_all(r, matmul_mx_instructions(r, part, left[0], right[0], left[1], right[1], name="mx"), memory)
    want = np.concatenate([product, np.zeros((2, 2))], axis=1)
    want[:, 2:4] += product[:, :2]
    want[:, 4:] = product[:, 2:]
    np.testing.assert_allclose(memory[dst.buffer], want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_steps_of_a_whole_tile_are_one_instruction_that_contracts():
    r, dst = Recorder("test", TRN3), psum(6, 10)
    s, x, ss, xs = tile((64, 6), E4), tile((64, 10), E4), tile((64, 6), "uint8"), tile((64, 10), "uint8")
    steps = [matmul_mx_instructions(r, dst, s, x, ss, xs)[-1] for _ in range(3)]
    assert len({step.token() for step in steps}) == 1 and steps[0].contracting() and r.zeros == {dst.buffer}
    assert steps[0].contracts == ("stationary", "moving", "stationary_scale", "moving_scale")


def test_contracts_over_any_number_of_partitions():
    """Three contractions at once: what a folded repeat presents."""
    terms = [operand(64, 6, E4, 10 * i) for i in range(3)], [operand(64, 10, FP4, 10 * i + 5) for i in range(3)]
    (s, ss), (x, xs) = ((side[0][0], side[0][1]) for side in terms)
    dst = psum(6, 10)
    arrays = {dst: np.ones((6, 10), np.float32)}
    for side, data, scale in zip(terms, (s, x), (ss, xs), strict=True):
        arrays[data] = np.concatenate([load(t[0], t[2]) for t in side])
        arrays[scale] = np.concatenate([load(t[1], t[2]) for t in side])
    matmul = NcMatmulMx(dst, s, x, ss, xs, accumulate=True, addend=dst)
    views = tuple(arrays)
    (result,) = jax.jit(lambda *a: matmul.run(Reader(dict(zip(views, a, strict=True)), {})))(*arrays.values())
    want = 1 + sum(np.einsum("kmq,knq->mn", a[3], b[3]) for a, b in zip(*terms, strict=True))
    np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


# ---- gradients


def test_gradients_end_at_packed_types_and_are_finite():
    src, dst, scale = tile((32, 8), "bfloat16"), tile((32, 2), E4), tile((32, 2), "uint8")
    left, out = operand(32, 2, E4), psum(2, 2)
    quantizing = QuantizeMx(dst, src, scale)
    matmul = NcMatmulMx(out, left[0], dst, left[1], scale, accumulate=True, addend=out)
    fixed = {view: load(view, left[2]) for view in left[:2]}

    def total(x, old):
        data, scales = quantizing.run(Reader({src: x}, {}))
        scales = jnp.pad(scales, ((0, 28), (0, 0)))
        return matmul.run(Reader({**fixed, dst: data, scale: scales, out: old}, {}))[0].sum()

    x = jnp.asarray(random((32, 8))).at[0, 0].set(0.0)
    grads = jax.jit(jax.grad(total, (0, 1)))(x, jnp.zeros((2, 2)))
    np.testing.assert_array_equal(grads[0], np.zeros((32, 8)))
    np.testing.assert_array_equal(grads[1], np.ones((2, 2)))


# ---- rules

SRC, DATA, SCALE = tile((64, 24), "bfloat16"), tile((64, 6), E4), tile((64, 6), "uint8")
QUANTIZE = QuantizeMx(DATA, SRC, SCALE)
S, X, OUT = tile((64, 6), E4), tile((64, 10), FP4), psum(6, 10)
SS, XS = tile((64, 6), "uint8"), tile((36, 10), "float8_e8m0fnu")
MATMUL = NcMatmulMx(OUT, S, X, SS, XS)
FROM_ROW_2 = tile((66, 6), "uint8").slice(0, 2, 66)


def using(dst=DATA, src=SRC, dst_scale=SCALE) -> QuantizeMx:
    return QuantizeMx(dst, src, dst_scale)


RULES = [
    (QUANTIZE, TRN2, "quantize_mx quantize_mx: needs gen4 or later, got trn2"),
    (using(dst=psum(64, 6, dtype=E4)), TRN3, r"dst: dst must be in \['sbuf'\], got psum"),
    (using(src=psum(64, 24, dtype="bfloat16")), TRN3, r"src: src must be in \['sbuf'\], got psum"),
    (using(dst_scale=psum(64, 6, dtype="uint8")), TRN3, r"dst_scale: dst_scale must be in \['sbuf'\], got psum"),
    (using(src=tile((40, 24), "bfloat16")), TRN3, r"src: must have a multiple of 32 partitions, got \(40, 24\)"),
    (using(src=tile((160, 24), "bfloat16")), TRN3, "src partition dimension 160 exceeds maximum 128"),
    (using(src=tile((64, 24))), TRN3, "src: must be float16 or bfloat16, got float32"),
    (using(src=tile((64, 26), "float16")), TRN3, r"src: must have a multiple of 4 free elements, got \(64, 26\)"),
    (using(dst=tile((64, 6), FP4)), TRN3, r"dst: must be one of \['float8_e5m2_x4', .*\], got float4_e2m1fn_x4"),
    (using(dst=tile((64, 7), E4)), TRN3, r"dst: must be \(64, 6\), a quarter of src, got \(64, 7\)"),
    (using(dst_scale=tile((64, 6), "int8")), TRN3, r"dst_scale: must be one of \['float8_e8m0fnu', .*, got int8"),
    (using(dst_scale=tile((35, 6), "uint8")), TRN3, r"dst_scale: must have at least 36 rows, .*, got \(35, 6\)"),
    (using(dst_scale=tile((64, 7), "uint8")), TRN3, r"dst_scale: must have 6 columns, one for each of dst, got"),
    (using(dst_scale=FROM_ROW_2), TRN3, r"dst_scale: must start at row \[0, 4, 8, 12\] of a quadrant, got 2"),
    (MATMUL, TRN1, "nc_matmul_mx nc_matmul_mx: needs gen4 or later, got trn1"),
    (replace(MATMUL, dst=tile((6, 10))), TRN3, r"dst: dst must be in \['psum'\], got sbuf"),
    (replace(MATMUL, stationary=psum(64, 6, dtype=E4)), TRN3, r"stationary must be in \['sbuf'\], got psum"),
    (replace(MATMUL, moving=tile((64, 10), "float8_e5m2")), TRN3, r"moving: must be one of \[.*\], got float8_e5m2"),
    (replace(MATMUL, stationary=tile((48, 6), E4)), TRN3, "stationary: must have a multiple of 32 partitions, got"),
    (replace(MATMUL, stationary=tile((160, 6), E4)), TRN3, "stationary partition dimension 160 exceeds maximum 128"),
    (replace(MATMUL, moving=tile((96, 10), E4), moving_scale=tile((68, 10), "uint8")), TRN3, "the 64 partitions of st"),
    (replace(MATMUL, stationary_scale=tile((64, 6), "int32")), TRN3, "stationary_scale: must be one of .*, got int32"),
    (replace(MATMUL, stationary_scale=FROM_ROW_2), TRN3, r"stationary_scale: must start at row \[0, 4, 8, 12\] of a"),
    (replace(MATMUL, moving_scale=tile((35, 10), "uint8")), TRN3, "moving_scale: must have at least 36 rows, for the"),
    (replace(MATMUL, moving_scale=tile((36, 9), "uint8")), TRN3, r"moving_scale: must have the 10 columns of moving"),
    (replace(MATMUL, moving_scale=psum(36, 10, dtype="uint8")), TRN3, r"moving_scale must be in \['sbuf'\], got psum"),
    (replace(MATMUL, dst=psum(6, 10, dtype="float16")), TRN3, "dst: must be float32 or bfloat16, got float16"),
    (replace(MATMUL, dst=psum(10, 6)), TRN3, r"dst: must be \(6, 10\), stationary's by moving's free size, got"),
    (
        replace(MATMUL, stationary=tile((64, 5), E4), dst=psum(5, 10)),
        TRN3,
        r"stationary: must have an even number of columns, at most 128, got \(64, 5\)",
    ),
    (
        replace(MATMUL, stationary=tile((64, 130), E4), stationary_scale=tile((64, 130), "uint8")),
        TRN3,
        r"stationary: must have an even number of columns, at most 128, got \(64, 130\)",
    ),
    (
        replace(MATMUL, moving=tile((64, 4097), E4), moving_scale=tile((64, 4097), "uint8"), dst=psum(6, 4097)),
        TRN3,
        r"moving: must have at most 4096 columns, got \(64, 4097\)",
    ),
    (replace(MATMUL, tile_position=(0, 0)), TRN3, r"tile_position, tile_size: must be \(start, 0\) and \(rows, 128\)"),
    (replace(MATMUL, tile_position=(0, 0), tile_size=(96, 128)), TRN3, r"rows one of \[32, 64, 128\] and start a mul"),
    (replace(MATMUL, tile_position=(32, 0), tile_size=(64, 128)), TRN3, r"got \(32, 0\) and \(64, 128\)"),
    (replace(MATMUL, tile_position=(0, 64), tile_size=(64, 128)), TRN3, r"got \(0, 64\) and \(64, 128\)"),
    (replace(MATMUL, tile_position=(0, 0), tile_size=(64, 64)), TRN3, r"got \(0, 0\) and \(64, 64\)"),
    (replace(MATMUL, tile_position=(32, 0), tile_size=(32, 128)), TRN3, r"tile_size: must hold 64 rows, got \(32, 128"),
]


@pytest.mark.parametrize("instruction, target, message", RULES)
def test_rules(instruction, target, message):
    assert rule(instruction, target)
    with pytest.raises(AssertionError, match=message):
        instruction.check(target)


@pytest.mark.parametrize(
    "instruction",
    [
        QUANTIZE,
        using(dst_scale=tile((36, 6), "float8_e8m0fnu")),
        using(dst_scale=tile((64, 2, 3), "uint8")),
        using(tile((32, 6), E5), tile((32, 3, 8), "float16"), tile((4, 6), "uint8")),
        MATMUL,
        replace(MATMUL, tile_position=None, tile_size=None),
        replace(MATMUL, tile_position=(64, 0), tile_size=(64, 128)),
        replace(
            MATMUL,
            dst=psum(6, 8192, dtype="bfloat16"),
            moving=tile((64, 8192), E5),
            moving_scale=tile((64, 8192), "uint8"),
        ),
    ],
)
def test_legal(instruction):
    assert rule(instruction, TRN3) == ""


# ---- cost


@pytest.mark.parametrize("n", [8, 4096])
def test_quantize_cost(n):
    latency = TRN3.latency_cycles(Engine.vector)
    src, dst, scale = tile((128, n), "bfloat16"), tile((128, n // 4), E4), tile((128, n // 4), "uint8")
    assert QuantizeMx(dst, src, scale).cycles(TRN3) == Work(max(64, n / 4), latency)
    strided = tile((128, 16 * n), "bfloat16").slice(1, 0, 16 * n, 16)
    assert QuantizeMx(dst, strided, scale).cycles(TRN3) == Work(max(64, n / 2), latency)
    assert QUANTIZE.queue is Engine.vector


@pytest.mark.parametrize("m, n", [(128, 512), (128, 2), (16, 8)])
def test_matmul_costs_what_bf16_costs_for_a_quarter_of_the_contraction(m, n):
    sides = tile((128, m), E4), tile((128, n), E4), tile((128, m), "uint8"), tile((128, n), "uint8")
    work = NcMatmulMx(psum(m, n), *sides).cycles(TRN3)
    assert work == Work(max(min(64, m), n), TRN3.latency_cycles(Engine.tensor))
    assert MATMUL.queue is Engine.tensor
