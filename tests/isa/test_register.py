"""register_move, register_load and register_store: 32 raw bits, rule by rule, and their exact cost."""

from __future__ import annotations

import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.register import RegisterLoad, RegisterMove, RegisterStore
from nkijax.machine import TRN1, TRN2, Engine, Memory, Work
from tests.isa.harness import execute, fresh, rule, store, tile

HBM, REGISTER = Memory.shared_hbm, Memory.register


def register(value: int = 0):
    """A register and the memory with it."""
    view = tile((1,), "int32", REGISTER)
    return view, {view.buffer: np.array([value], np.int32)}


WORDS = [
    ("int8", -3, -3),
    ("uint8", 200, 200),
    ("int16", -30000, -30000),
    ("uint16", 65535, 65535),
    ("int32", -(2**31), -(2**31)),
    ("int32", 2**24 + 1, 2**24 + 1),
    ("uint32", 2**32 - 2, -2),
    ("float32", 1.5, 0x3FC00000),
    ("bool", True, 1),
]


@pytest.mark.parametrize("dtype, value, word", WORDS)
@pytest.mark.parametrize("shape, memory", [((1,), HBM), ((1, 1), Memory.sbuf)])
def test_load_and_store_are_inverse(dtype, value, word, shape, memory):
    reg, arrays = register()
    src, more = store(np.full(shape, value), dtype, memory)
    dst = tile(shape, dtype, memory)
    arrays |= more | {dst.buffer: np.zeros(shape, dtypes.storage(dtype))}
    load, back = RegisterLoad(reg, src), RegisterStore(dst, reg)
    assert rule(load) == rule(back) == ""
    execute(load, arrays)
    assert arrays[reg.buffer] == [word]
    execute(back, arrays, traced=True)
    np.testing.assert_array_equal(arrays[dst.buffer].view(np.uint8), more[src.buffer].view(np.uint8))


@pytest.mark.parametrize("value", [0, 7, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("traced", [False, True])
def test_move(value, traced):
    dst, arrays = register(5)
    execute(RegisterMove(dst, value), arrays, traced)
    assert arrays[dst.buffer] == [value]
    other, more = register()
    execute(RegisterMove(other, dst), arrays | more, traced)
    assert more[other.buffer] == [value]


def test_unsigned_immediates_are_the_same_bits():
    dst, arrays = register()
    execute(RegisterMove(dst, 2**32 - 1), arrays, traced=True)
    assert arrays[dst.buffer] == [-1]
    word = tile((1, 1), "uint32")
    arrays = {word.buffer: fresh(word.buffer)}
    execute(RegisterStore(word, 2**32 - 3), arrays)
    assert arrays[word.buffer] == [[2**32 - 3]]


def test_store_takes_the_low_bits():
    reg, arrays = register(0x12345678)
    for dtype, want in [("uint8", 0x78), ("int8", 0x78), ("uint16", 0x5678), ("bool", True)]:
        dst = tile((1, 1), dtype)
        arrays[dst.buffer] = fresh(dst.buffer)
        execute(RegisterStore(dst, reg), arrays)
        assert arrays[dst.buffer] == [[want]]


def test_part_of_a_tile():
    reg, arrays = register()
    src, more = store(np.arange(12).reshape(3, 4), "int16")
    execute(RegisterLoad(reg, src.slice(0, 2, 3).select(1, 1)), arrays | more)
    assert arrays[reg.buffer] == [9]


R, W = register()[0], tile((1, 1), "int32")


@pytest.mark.parametrize(
    "instruction, message",
    [
        (RegisterMove(W, 1), "register_move dst: must be a register, got sbuf"),
        (RegisterMove(R, W), "register_move src: must be a register, got sbuf"),
        (RegisterMove(R, 1.5), r"src: must be a register or an integer, got 1\.5"),
        (RegisterMove(R, 2**32), "src: must fit in 32 bits, got 4294967296"),
        (RegisterLoad(W, W), "register_load dst: must be a register, got sbuf"),
        (RegisterLoad(R, tile((1, 1), "int32", Memory.psum)), r"src must be in \['sbuf', .*\], got psum"),
        (RegisterLoad(R, tile((1, 2), "int32")), r"src: must have exactly one element, got \(1, 2\)"),
        (RegisterLoad(R, tile((1, 1), "bfloat16")), "src: must be an integer or a float32, got bfloat16"),
        (RegisterStore(tile((2, 1), "int32"), R), r"dst: must have exactly one element, got \(2, 1\)"),
        (RegisterStore(R, R), r"dst: dst must be in \['sbuf', .*\], got register"),
        (RegisterStore(W, W), "register_store src: must be a register, got sbuf"),
        (RegisterStore(W, -(2**31) - 1), "src: must fit in 32 bits"),
    ],
)
def test_rules(instruction, message):
    assert rule(instruction)
    with pytest.raises(AssertionError, match=message):
        instruction.check(TRN2)


@pytest.mark.parametrize("instruction", [RegisterMove(R, 1), RegisterLoad(R, W), RegisterStore(W, R)])
def test_cost(instruction):
    assert instruction.queue is Engine.sync
    for target in (TRN1, TRN2):
        work = instruction.cycles(target)
        assert work == Work(target.register_move_cycles, target.latency_cycles(Engine.sync))
        assert work.issue_cycles == pytest.approx(68 * target.ghz(Engine.sync))
