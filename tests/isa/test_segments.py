"""sequence_bounds and nonzero_with_count."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.isa.segments import NonzeroWithCount, SequenceBounds
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import Reader, execute, fresh, load, rule, store, tile

psum, hbm = Memory.psum, Memory.private_hbm
WORDS = ["float32", "int32"]


# ---- sequence_bounds


def bounds(ids):
    """The definition: two recurrences."""
    n = len(ids)
    start, end = [0] * n, [0] * n
    for i in range(n):
        start[i] = n if ids[i] == 0 else start[i - 1] if i and ids[i] == ids[i - 1] else i
    for i in reversed(range(n)):
        end[i] = -1 if ids[i] == 0 else end[i + 1] if i + 1 < n and ids[i] == ids[i + 1] else i + 1
    return np.array([start, end])


@pytest.mark.parametrize(("dtype", "into"), [("float32", "float32"), ("int32", "float32"), ("float32", "int32")])
@pytest.mark.parametrize("ids", [[0, 1, 1, 2, 2, 2, 0, 3, 3], [5, 5, 0, 0, 5, 5, 7, 0, 7], [4] * 9, [0] * 9])
def test_sequence_bounds(dtype, into, ids):
    segments, memory = store([ids], dtype)
    dst, more = store(np.zeros((1, 2, len(ids))), into)
    memory |= more
    instruction = SequenceBounds(dst, segments)
    assert rule(instruction) == ""
    execute(instruction, memory)
    np.testing.assert_array_equal(memory[dst.buffer][0], bounds(ids))


def test_sequence_bounds_of_the_documented_example():
    segments, memory = store([[0, 1, 1, 2, 2, 2, 0, 3, 3]], "int32")
    dst, more = store(np.zeros((1, 2, 9)), "int32")
    memory |= more
    execute(SequenceBounds(dst, segments), memory, traced=True)
    want = [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]
    np.testing.assert_array_equal(memory[dst.buffer], want)


def test_sequence_bounds_compares_whole_integers():
    segments, memory = store([[2**24, 2**24 + 1, 2**24 + 1]], "int32")
    dst, more = store(np.zeros((1, 2, 3)), "int32")
    memory |= more
    execute(SequenceBounds(dst, segments), memory, traced=True)
    np.testing.assert_array_equal(memory[dst.buffer], [[[0, 1, 1], [1, 3, 3]]])


def test_sequence_bounds_of_views():
    ids = np.random.default_rng(0).integers(0, 3, (4, 5, 6))
    segments, memory = store(ids, "int32")
    out, more = store(np.full((4, 60), 7), "int32")
    memory |= more
    part = segments.slice(0, 2, 3).slice(2, 0, 6, 2)  # (1, 5, 3)
    instruction = SequenceBounds(out.slice(0, 1, 2).slice(1, 0, 60, 2), part)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    np.testing.assert_array_equal(memory[out.buffer][1, ::2], bounds(ids[2, :, ::2].reshape(-1)).reshape(-1))
    assert (memory[out.buffer][1, 1::2] == 7).all() and (memory[out.buffer][[0, 2, 3]] == 7).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"segment_ids": tile((2, 9), "int32")}, r"segment_ids: must have 1 partition, got \(2, 9\)"),
        ({"dst": tile((2, 9), "int32")}, r"dst: must have 1 partition, got \(2, 9\)"),
        ({"dst": tile((1, 9, 3), "int32")}, r"dst: must be \(1, 2, 9\): two bounds an element, got \(1, 9, 3\)"),
        ({"dst": tile((1, 2, 9), "uint32")}, r"dst: must have one of the dtypes \('float32', 'int32'\), got uint32"),
        ({"segment_ids": tile((1, 9), "int16")}, "segment_ids: must have one of the dtypes .* got int16"),
        ({"segment_ids": tile((1, 9), "int32", psum)}, r"segment_ids: segment_ids must be in \['sbuf'\], got psum"),
        ({"dst": tile((1, 2, 9), "int32", hbm)}, r"dst: dst must be in \['sbuf'\], got private_hbm"),
    ],
)
def test_sequence_bounds_rules(changes, message):
    legal = SequenceBounds(tile((1, 2, 9), "int32"), tile((1, 9), "int32"))
    assert rule(legal) == rule(legal, TRN1) == rule(replace(legal, dst=tile((1, 18), "float32"))) == ""
    with pytest.raises(AssertionError, match="^nki.isa.sequence_bounds " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_sequence_bounds_cost(target):
    work = SequenceBounds(tile((1, 2, 512), "int32"), tile((1, 512), "int32")).cycles(target)
    assert work == Work(150 + 2 * 512, target.latency_cycles(Engine.gpsimd))
    strided = SequenceBounds(tile((1, 2, 512), "int32"), tile((1, 512, 5), "int32").slice(2, 0, 1))
    assert strided.cycles(target).issue_cycles == 150 + 4 * 512


# ---- nonzero_with_count


def listed(row, offset=0, padding=-1):
    """The definition."""
    found = [i + offset for i, x in enumerate(row) if x != 0]
    return np.array([*found, *[padding] * (len(row) - len(found)), len(found)])


def sparse(shape, dtype, seed=0):
    values = np.random.default_rng(seed).integers(-2, 3, shape)
    return values / 4 if dtype == "float32" else values


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("partitions", [1, 16, 40, 128])
def test_nonzero_of_every_sixteenth_partition(dtype, partitions):
    values = sparse((partitions, 13), dtype)
    src, memory = store(values, dtype)
    dst, more = store(np.full((partitions, 14), 77), "int32")
    memory |= more
    instruction = NonzeroWithCount(dst, src, 100, -5)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    want = np.full((partitions, 14), 77)
    for p in range(0, partitions, 16):
        want[p] = listed(values[p], 100, -5)
    np.testing.assert_array_equal(memory[dst.buffer], want)


def test_nonzero_of_the_documented_example():
    src, memory = store([[0, 1, 1, 0, 0, 1, 0, 0]])
    dst, more = store(np.zeros((1, 9)), "int32")
    memory |= more
    execute(NonzeroWithCount(dst, src, index_offset=16), memory, traced=True)
    np.testing.assert_array_equal(memory[dst.buffer], [[17, 18, 21, -1, -1, -1, -1, -1, 3]])


def test_nonzero_leaves_the_last_slot_of_other_partitions_alone():
    src, memory = store(np.ones((32, 3)), "int32")
    dst = tile((32, 4), "int32")
    memory[dst.buffer] = fresh(dst.buffer)
    execute(NonzeroWithCount(dst, src), memory, traced=True)
    other = np.arange(32) % 16 != 0
    assert (memory[dst.buffer][other] == 4).all()  # what unwritten memory holds
    np.testing.assert_array_equal(memory[dst.buffer][~other], [[0, 1, 2, 3]] * 2)


@pytest.mark.parametrize(("row", "count"), [([0.0, -0.0, 0, 0], 0), ([1e-30, np.nan, -np.inf, 2], 4)])
def test_nonzero_extremes(row, count):
    src, memory = store([row])
    dst, more = store(np.zeros((1, 5)), "int32")
    memory |= more
    execute(NonzeroWithCount(dst, src), memory, traced=True)
    np.testing.assert_array_equal(memory[dst.buffer], [[*range(count), *[-1] * (4 - count), count]])


def test_nonzero_of_views():
    values = sparse((128, 3, 8), "int32")
    src, memory = store(values, "int32")
    out, more = store(np.full((64, 1, 26), 77), "int32")
    memory |= more
    part = src.slice(0, 32, 80).slice(2, 1, 8, 2)  # (48, 3, 4)
    instruction = NonzeroWithCount(out.slice(0, 16, 64).slice(2, 0, 26, 2), part)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    got = memory[out.buffer][16:, 0]
    for p in range(0, 48, 16):
        np.testing.assert_array_equal(got[p, ::2], listed(values[32 + p, :, 1::2].reshape(-1)))
    assert (got[:, 1::2] == 77).all() and (memory[out.buffer][:16] == 77).all()
    np.testing.assert_array_equal(load(instruction.dst, memory), got[:, ::2])


def test_nonzero_reads_dst_only_where_it_keeps_some():
    one = NonzeroWithCount(tile((1, 9), "int32"), tile((1, 8)))
    assert one.reads() == (one.src,) and one.writes() == (one.dst,)
    many = NonzeroWithCount(tile((2, 9), "int32"), tile((2, 8)))
    assert many.reads() == (many.src, many.dst)


def test_positions_have_no_gradient():
    src, dst = tile((1, 8)), tile((1, 9), "int32")
    segments, both = tile((1, 8)), tile((1, 2, 8))
    x = jnp.asarray(sparse((1, 8), "float32"), jnp.float32)

    def loss(x):
        (listed,) = NonzeroWithCount(dst, src).run(Reader({src: x}, {}))
        (ends,) = SequenceBounds(both, segments).run(Reader({segments: x}, {}))
        return jnp.sum(listed.astype(jnp.float32)) + jnp.sum(ends.astype(jnp.float32)) + jnp.sum(x)

    gradients = jax.jit(jax.vmap(jax.grad(loss)))(jnp.stack([x, -x]))
    np.testing.assert_array_equal(gradients, np.ones((2, 1, 8)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((20, 8), "int32")}, r"dst: must have 9 elements a partition, one more than src, got \(20, 8\)"),
        ({"dst": tile((20, 9), "uint32")}, "dst: must have dtype int32, got uint32"),
        ({"src": tile((20, 8), "bfloat16")}, r"src: must have one of the dtypes \('float32', 'int32'\), got bfloat16"),
        ({"src": tile((16, 8))}, r"src: must have the 20 partitions of dst, got \(16, 8\)"),
        ({"src": tile((20, 8), memory=psum)}, r"src: src must be in \['sbuf'\], got psum"),
        ({"dst": tile((20, 9), "int32", psum)}, r"dst: dst must be in \['sbuf'\], got psum"),
        ({"dst": tile((129, 9), "int32")}, "dst partition dimension 129 exceeds maximum 128"),
        ({"dst": tile((40, 9), "int32").slice(0, 4, 24)}, "dst: must start at a multiple of 16 partitions, got 4"),
        ({"src": tile((40, 8)).slice(0, 8, 28)}, "src: must start at a multiple of 16 partitions, got 8"),
        ({"index_offset": 1.0}, "index_offset: must be a 32-bit integer, got 1.0"),
        ({"index_offset": 2**31}, "index_offset: must be a 32-bit integer, got 2147483648"),
        ({"padding_val": -0.5}, "padding_val: must be a 32-bit integer, got -0.5"),
        ({"padding_val": None}, "padding_val: must be a 32-bit integer, got None"),
    ],
)
def test_nonzero_rules(changes, message):
    legal = NonzeroWithCount(tile((20, 9), "int32"), tile((20, 8)))
    assert rule(legal) == rule(legal, TRN3) == ""
    with pytest.raises(AssertionError, match="^nki.isa.nonzero_with_count " + message):
        replace(legal, **changes).check(TRN2)


def test_nonzero_needs_gen3():
    message = rule(NonzeroWithCount(tile((20, 9), "int32"), tile((20, 8))), TRN1)
    assert message == "nki.isa.nonzero_with_count the instruction: needs gen3 or later, got trn1"


@pytest.mark.parametrize("target", [TRN2, TRN3])
def test_nonzero_cost(target):
    work = NonzeroWithCount(tile((128, 513), "int32"), tile((128, 512))).cycles(target)
    assert work == Work(150 + 512, target.latency_cycles(Engine.gpsimd))
    strided = NonzeroWithCount(tile((128, 513), "int32"), tile((128, 512, 5)).slice(2, 0, 1))
    assert strided.cycles(target).issue_cycles == 150 + 2 * 512
