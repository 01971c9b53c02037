"""iota."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from nkijax.isa.index import Iota
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from nkijax.view import Buffer
from tests.isa.harness import execute, load, reference_cast, rule, store, tile, whole

P = 4
PATTERNS = [
    [[1, 6]],
    [[10, 2], [1, 3]],
    [[0, 3], [-7, 2]],
    [[100, 1], [10, 2], [3, 3], [1, 1]],
]


def values(partitions, pattern, offset, multiplier):
    """The definition: one loop for each dimension of the pattern, outermost first."""
    rows = []
    for p in range(partitions):
        counts = itertools.product(*(range(n) for _, n in pattern))
        row = [offset + p * multiplier + sum(s * i for (s, _), i in zip(pattern, c, strict=True)) for c in counts]
        rows.append(row)
    return np.array(rows, np.int64)


def register(value):
    view = whole(Buffer(-1, (1, 1), "int32", Memory.register, "r"))
    return view, {view.buffer: np.array([[value]], np.int32)}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("offset", "multiplier"), [(0, 0), (-5, 12)])
def test_patterns(pattern, offset, multiplier):
    dst, memory = store(np.zeros((P, 6)), "int32")
    execute(Iota(dst, pattern, offset, multiplier), memory)
    np.testing.assert_array_equal(load(dst, memory), values(P, pattern, offset, multiplier))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integers_wrap_into_the_range_of_dst(dtype):
    dst, memory = store(np.zeros((P, 6)), dtype)
    execute(Iota(dst, [[1000, 6]], -70000, 33333), memory)
    np.testing.assert_array_equal(load(dst, memory), values(P, [[1000, 6]], -70000, 33333).astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "bool"])
def test_other_dtypes_are_rounded(dtype):
    dst, memory = store(np.zeros((P, 6)), dtype)
    execute(Iota(dst, [[3, 6]], -17, 9), memory)
    np.testing.assert_array_equal(load(dst, memory), reference_cast(values(P, [[3, 6]], -17, 9), dtype))


def test_32_bit_arithmetic_is_exact_and_wraps():
    dst, memory = store(np.zeros((P, 6)), "int32")
    execute(Iota(dst, [[2**30, 6]], 2**24 + 1), memory)
    np.testing.assert_array_equal(load(dst, memory), values(P, [[2**30, 6]], 2**24 + 1, 0).astype(np.int32))


def test_8_8_a_register_as_offset():
    dst, memory = store(np.zeros((P, 6)), "int32")
    offset, more = register(-3)
    memory |= more
    instruction = Iota(dst, [[1, 6]], offset, 6)
    assert rule(instruction) == "" and instruction.reads() == (offset,)
    execute(instruction, memory)
    np.testing.assert_array_equal(load(dst, memory), np.arange(24).reshape(P, 6) - 3)


def test_views_and_partitions_count_from_the_view():
    out, memory = store(np.full((8, 3, 8), -1), "int32")
    dst = out.slice(0, 4, 8).slice(2, 0, 8, 4).permute((0, 2, 1))  # (4, 2, 3)
    execute(Iota(dst, [[1, 6]], 0, 100), memory)
    np.testing.assert_array_equal(load(dst, memory), values(P, [[1, 6]], 0, 100))
    assert (memory[out.buffer][:4] == -1).all() and (memory[out.buffer][:, :, 1:4] == -1).all()


def test_traced_offset_gives_the_same():
    dst, memory = store(np.zeros((P, 6)), "float32")
    execute(Iota(dst, [[1, 6]], 7, 2), memory, traced=True)
    np.testing.assert_array_equal(load(dst, memory), values(P, [[1, 6]], 7, 2))


def test_pattern_is_kept_as_tuples_of_ints():
    pattern = Iota(tile((P, 6)), [[np.int64(2), np.int32(6)]]).pattern
    assert pattern == ((2, 6),) and all(type(x) is int for x in pattern[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((P, 6), memory=Memory.psum)}, r"dst: dst must be in \['sbuf'\], got psum"),
        ({"dst": tile((P, 6), memory=Memory.shared_hbm)}, r"dst: dst must be in \['sbuf'\], got shared_hbm"),
        ({"dst": tile((129, 6))}, "dst partition dimension 129 exceeds maximum 128"),
        ({"dst": tile((P, 6), "float8_e5m2_x4")}, "dst: packed x4 types take no arithmetic"),
        ({"pattern": [[1, 5]]}, r"pattern: must count the 6 free elements of dst, got \(\(1, 5\),\)"),
        ({"pattern": [[1, 6], [1, 1], [1, 1], [1, 1], [1, 1]]}, r"pattern: must be 1 to 4 pairs \[step, count\]"),
        ({"pattern": []}, r"pattern: must be 1 to 4 pairs \[step, count\] of 32-bit integers, got \(\)"),
        ({"pattern": [[1.5, 6]]}, "pattern: must be 1 to 4 pairs"),
        ({"pattern": [[1, 6, 1]]}, "pattern: must be 1 to 4 pairs"),
        ({"pattern": [[1, 0]]}, "pattern: must be 1 to 4 pairs"),
        ({"pattern": [[2**31, 6]]}, "pattern: must be 1 to 4 pairs"),
        ({"offset": -(2**31) - 1}, "offset: must be a 32-bit integer or a register, got -2147483649"),
        ({"offset": 0.5}, "offset: must be a 32-bit integer or a register, got 0.5"),
        ({"offset": tile((1, 1), "int32")}, "offset: must be a 32-bit integer or a register, got a tile in sbuf"),
        ({"channel_multiplier": 1.0}, "channel_multiplier: must be a 32-bit integer, got 1.0"),
    ],
)
def test_rules(changes, message):
    legal = Iota(tile((P, 6)), [[1, 6]])
    assert rule(legal) == ""
    with pytest.raises(AssertionError, match="^nki.isa.iota " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_cost(target):
    for n, cycles in ((2048, 2198), (1, 151)):
        work = Iota(tile((128, n)), [[1, n]]).cycles(target)
        assert work == Work(cycles, target.latency_cycles(Engine.gpsimd))
