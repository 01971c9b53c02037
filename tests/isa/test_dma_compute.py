"""dma_compute against NumPy, rule by rule, and its exact cost."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.dma_compute import DmaCompute
from nkijax.isa.move import OobMode
from nkijax.isa.operators import ALU
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Transfer
from nkijax.program import Masked
from nkijax.view import View
from tests.isa.harness import Reader, execute, fresh, load, random, reference_cast, results, rule, store, tile

HBM, PSUM = Memory.private_hbm, Memory.psum
ADD, SKIP = ALU["add"], OobMode.skip
DTYPES = [
    *("float32", "bfloat16", "float16", "tfloat32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
]


# ---- sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3])
def test_sum_of_any_dtypes(n, dtype):
    kinds = [dtype, "float32", "int16"][:n]
    pairs = [store(random((4, 6), kind, seed), kind, HBM) for seed, kind in enumerate(kinds)]
    dst = tile((4, 6), dtype)
    memory = {dst.buffer: fresh(dst.buffer)}
    for _, more in pairs:
        memory |= more
    execute(DmaCompute(dst, [src for src, _ in pairs], ADD), memory, traced=dtype == "float16")
    total = sum((load(src, memory).astype(np.float32) for src, _ in pairs), np.zeros((4, 6), np.float32))
    np.testing.assert_array_equal(load(dst, memory), reference_cast(total, dtype))


def test_sixteen_sources():
    memory, srcs = {}, []
    for seed in range(16):
        src, more = store(random((4, 6), seed=seed), memory=HBM)
        memory |= more
        srcs.append(src)
    dst = tile((4, 6))
    memory[dst.buffer] = fresh(dst.buffer)
    instruction = DmaCompute(dst, tuple(srcs), ADD, [1.0] * 16)
    assert rule(instruction) == "" and instruction.queue is Engine.dma
    execute(instruction, memory)
    np.testing.assert_array_equal(memory[dst.buffer], sum(random((4, 6), seed=seed) for seed in range(16)))


def test_parts_of_other_shapes_are_added_in_row_major_order():
    a, memory = store(random((4, 3, 8)), "float16", HBM)
    b, more = store(random((6, 8), seed=1), "bfloat16")
    dst = tile((2, 40))
    memory |= more | {dst.buffer: np.zeros((2, 40), np.float32)}
    first = a.slice(0, 1, 3).slice(2, 0, 8, 2).permute((0, 2, 1))  # (2, 4, 3)
    second = b.slice(0, 0, 6).slice(1, 1, 8, 2)  # (6, 4)
    execute(DmaCompute(dst.slice(1, 2, 38, 3), [first, second], ADD), memory)
    want = np.zeros((2, 40), np.float32)
    x = random((4, 3, 8))[1:3, :, ::2].transpose(0, 2, 1).reshape(2, 12)
    want[:, 2:38:3] = x + random((6, 8), seed=1)[:, 1::2].reshape(2, 12)
    np.testing.assert_array_equal(memory[dst.buffer], want)


def test_integers_lose_bits_in_float32():
    a, memory = store([[2**24 + 1]], "int32", HBM)
    dst = tile((1, 1), "int32")
    memory[dst.buffer] = fresh(dst.buffer)
    execute(DmaCompute(dst, [a], ADD), memory)
    assert memory[dst.buffer][0, 0] == 2**24


def test_dst_may_be_a_source():
    """nki-library adds two halves of a tensor into the first."""
    both, memory = store(random((2, 4, 6)), memory=HBM)
    first, second = both.select(0, 0), both.select(0, 1)
    execute(DmaCompute(first, [first, second], ADD), memory)
    x = random((2, 4, 6))
    np.testing.assert_array_equal(memory[both.buffer], [x[0] + x[1], x[1]])


# ---- read-modify-write


def table(dtype="float32"):
    src, memory = store(random((5, 6), dtype), dtype, HBM)
    return src, memory


def gather(rows, mode, swap=False, dtype="float32"):
    """dst += table[rows], and the same in NumPy with rows outside left alone."""
    src, memory = table(dtype)
    index, more = store(np.reshape(rows, (-1, 1)), "int32")
    dst, old = store(random((len(rows), 6), "float16", 1), "float16")
    memory |= more | old
    srcs = [dst, src.vector_select(0, index)]
    want = load(dst, memory).copy()
    for p, row in enumerate(rows):
        if 0 <= row < 5:
            want[p] = reference_cast(want[p].astype(np.float32) + memory[src.buffer][row].astype(np.float32), "float16")
    return DmaCompute(dst, srcs[::-1] if swap else srcs, ADD, oob_mode=mode), memory, want


@pytest.mark.parametrize("rows, mode", [([4, 0, 4], OobMode.error), ([4, 5, 0], SKIP), ([-1, 2**31 - 1, 2], SKIP)])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_gather_adds_and_skips_rows_outside(rows, mode, swap, traced):
    instruction, memory, want = gather(rows, mode, swap)
    assert rule(instruction) == ""
    execute(instruction, memory, traced)
    np.testing.assert_array_equal(memory[instruction.dst.buffer], want)


def test_skipped_rows_keep_their_bits():
    """No round trip through float32: an integer above 2**24 and a NaN's payload stay."""
    src, memory = table("int32")
    index, more = store([[7]], "int32")
    dst, old = store([[2**24 + 1] * 6], "int32")
    memory |= more | old
    execute(DmaCompute(dst, [src.vector_select(0, index), dst], ADD, oob_mode=SKIP), memory)
    assert (memory[dst.buffer] == 2**24 + 1).all()


def test_gather_in_error_mode_leaves_the_fault_to_the_address():
    instruction, memory, want = gather([1, 0], OobMode.error)
    (result,) = results(instruction, memory)
    assert not isinstance(result, Masked)
    np.testing.assert_array_equal(np.reshape(result, want.shape), want)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_scatter_adds_and_drops_rows_outside(swap, traced):
    hbm, memory = table("bfloat16")
    src, more = store(random((4, 6), seed=1))
    index, rows = store([[3], [5], [0], [-1]], "int32")
    memory |= more | rows
    want = memory[hbm.buffer].copy()
    for p, row in ((0, 3), (2, 0)):
        total = want[row].astype(np.float32) + random((4, 6), seed=1)[p]
        want[row] = reference_cast(total, "bfloat16")
    dst = hbm.vector_select(0, index)
    srcs = [src, dst] if swap else [dst, src]
    instruction = DmaCompute(dst, srcs, ADD, oob_mode=SKIP)
    assert rule(instruction) == "" and instruction.skips()
    execute(instruction, memory, traced)
    np.testing.assert_array_equal(memory[hbm.buffer], want)


def test_gradients_reach_every_source_and_no_skipped_row():
    instruction, memory, _ = gather([4, 9, 0], SKIP)
    dst, src = instruction.srcs
    tiles = {view: jnp.asarray(load(view, memory), jnp.float32) for view in (dst, src)}
    valid = {src: np.array([True, False, True])}

    def total(a, b):
        (result,) = instruction.run(Reader({dst: a, src: b}, valid))
        return jnp.where(result.mask, result.value, 0.0).sum()

    for grad in jax.grad(total, (0, 1))(tiles[dst], tiles[src]):
        np.testing.assert_array_equal(grad, [[1] * 6, [0] * 6, [1] * 6])


# ---- rules

A, B = tile((4, 8)), tile((4, 8), "bfloat16", HBM)
INDEX = tile((4, 1), "int32")
FROM = tile((9, 8), memory=HBM).vector_select(0, INDEX)
TO = tile((9, 8), memory=HBM).vector_select(0, INDEX)
MOVED = tile((9, 8), memory=HBM).shifted(0, tile((1, 1), "int32"), 4)
assert FROM.dynamic

RULES = [
    (DmaCompute(A, [], ADD), r"srcs: must be 1 to 16 tensors, got 0"),
    (DmaCompute(A, [B] * 17, ADD), r"srcs: must be 1 to 16 tensors, got 17"),
    (DmaCompute(A, B, ADD), r"srcs: must be a sequence of tensors, got"),
    (DmaCompute(A, [B, 1.0], ADD), r"srcs: must be a sequence of tensors, got"),
    (DmaCompute(tile((4, 8), memory=PSUM), [B], ADD), r"dma_compute requires HBM or SBUF tensors, got dst=MemoryReg"),
    (DmaCompute(A, [B, tile((4, 8), memory=PSUM)], ADD), r"srcs\[1\]: dma_compute requires HBM or SBUF tensors, got"),
    (DmaCompute(B, [tile((256, 8))], ADD), r"srcs\[0\] partition dimension 256 exceeds maximum 128"),
    (DmaCompute(A, [tile((4, 9), memory=HBM)], ADD), r"srcs\[0\]: must have the 32 elements of dst, got \(4, 9\)"),
    (DmaCompute(tile((4, 8), "float8_e5m2_x4"), [A], ADD), r"dst: packed x4 types take no arithmetic, got float8"),
    (DmaCompute(A, [B], ALU["multiply"]), r"reduce_op: must be nl\.add, got multiply"),
    (DmaCompute(A, [B], None), r"reduce_op: must be nl\.add, got None"),
    (DmaCompute(A, [B], ADD, [2.0]), r"scales: must be None or 1 times 1\.0, got \(2\.0,\)"),
    (DmaCompute(A, [B, B], ADD, [1.0]), r"scales: must be None or 2 times 1\.0, got \(1\.0,\)"),
    (DmaCompute(A, [B], ADD, 1.0), r"scales: must be None or 1 times 1\.0, got 1\.0"),
    (DmaCompute(A, [B], ADD, oob_mode=1), r"oob_mode: must be a member of nki\.isa\.oob_mode, got 1"),
    (DmaCompute(A, [B], ADD, oob_mode=SKIP), r"oob_mode: skip needs a vector_offset, got static views"),
    (DmaCompute(A, [A, MOVED], ADD), r"srcs: must have an address known at compile time, or a vector_offset, got a sc"),
    (DmaCompute(MOVED, [A], ADD), r"dst: must have an address known at compile time, or a vector_offset"),
    (DmaCompute(A, [A, FROM], ADD, unique_indices=False), r"unique_indices: must be True with a vector_offset, got F"),
    (DmaCompute(A, [A, B, FROM], ADD), r"takes exactly two sources, one of them indirect, got 3 sources, 1 of them"),
    (DmaCompute(A, [FROM, FROM], ADD), r"takes exactly two sources, one of them indirect, got 2 sources, 2 of them"),
    (DmaCompute(TO, [A, B], ADD), r"takes exactly two sources, one of them indirect, got 2 sources, 0 of them"),
    (DmaCompute(A, [tile((4, 8)), FROM], ADD), r"srcs: the other source must be dst itself, got sbuf"),
    (DmaCompute(TO, [A, FROM], ADD), r"srcs: the indirect source must be dst itself, got private_hbm"),
    (DmaCompute(TO, [tile((4, 8), memory=HBM), TO], ADD), r"srcs: what a vector_offset leaves.* got private_hbm"),
    (
        DmaCompute(A, [A, replace(FROM, dynamic=replace(FROM.dynamic, index=tile((4, 2), "int32")))], ADD),
        r"srcs: its vector_offset must be an \(n, 1\) tile, got \(4, 2\)",
    ),
    (
        DmaCompute(A, [A, replace(FROM, dynamic=replace(FROM.dynamic, index=tile((4, 1), "int32", PSUM)))], ADD),
        r"srcs\[1\]: its run-time index must be a register or in sbuf, got psum",
    ),
]


@pytest.mark.parametrize("instruction, message", RULES)
def test_rules(instruction, message):
    assert rule(instruction)
    with pytest.raises(AssertionError, match=message):
        instruction.check(TRN2)


@pytest.mark.parametrize(
    "instruction",
    [
        DmaCompute(A, [B], ADD),
        DmaCompute(B, (A, A), ADD, (1.0, 1)),
        DmaCompute(tile((500, 8), memory=HBM), [tile((4000,), "int8", HBM)] * 16, ADD),
        DmaCompute(A, [FROM, A], ADD, oob_mode=SKIP),
        DmaCompute(TO, [TO, A], ADD),
    ],
)
@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_legal(instruction, target):
    assert rule(instruction, target) == ""


# ---- cost


def hbm(*shape: int, dtype: str = "float32") -> View:
    return tile(shape, dtype, HBM)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_cost_is_the_bytes_of_all_sources(target):
    size = 128 * 512 * 4
    full = hbm(128, 512)
    assert DmaCompute(full, [hbm(128, 512), hbm(128, 512)], ADD).cycles(target) == Transfer(2 * size, size)
    narrow = DmaCompute(full, [hbm(128, 512, dtype="int8")], ADD)
    assert narrow.cycles(target) == Transfer(size, size // 4)
    part = DmaCompute(tile((128, 256)), [full.slice(1, 0, 256)] * 3, ADD)
    assert part.cycles(target) == Transfer(3 * size // 2, 1024)
    assert DmaCompute(A, [tile((4, 8))], ADD).cycles(target) == Transfer(4 * 8 * 4, 0)


def test_adding_to_sbuf_runs_at_the_full_rate_from_gen4_on():
    gathering, bytes_ = DmaCompute(A, [A, FROM], ADD), 4 * 8 * 4
    assert gathering.cycles(TRN2) == Transfer(2 * bytes_, 32) and gathering.cycles(TRN3) == Transfer(bytes_, 32)
    other = tile((4, 8), "float16")
    assert DmaCompute(other, [other, FROM], ADD).cycles(TRN3) == Transfer(bytes_ + bytes_ // 2, 32)
    assert DmaCompute(TO, [TO, A], ADD).cycles(TRN3) == Transfer(2 * bytes_, 32)


def test_the_state_of_a_repeat_varies_only_in_numbers():
    """Turns of an unrolled loop are one instruction to the roller."""
    x, y = hbm(512, 8), tile((128, 8))
    turns = [DmaCompute(y, [y, x.slice(0, 128 * i, 128 * i + 128)], ADD) for i in range(4)]
    assert len({turn.token() for turn in turns}) == 1 and len({tuple(turn.numbers()) for turn in turns}) == 4
    assert turns[0].reads() == (y, x.slice(0, 0, 128)) and turns[0].writes() == (y,)
    assert dtypes.size(y.dtype) == 4
