"""nc_stream_shuffle, local_gather and nc_n_gather."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.gather import LocalGather, NcNGather, NcStreamShuffle
from nkijax.machine import TRN1, TRN2, TRN3, Engine, Memory, Work
from tests.isa.harness import Reader, execute, fresh, random, rule, store, tile

EVERY = [d for d in dtypes.KINDS if d != "tfloat32"]  # whose every write rounds
SOME = ["float32", "bfloat16", "float8_e5m2", "int8", "uint16", "int32", "float8_e4m3fn_x4"]
psum, hbm = Memory.psum, Memory.private_hbm


def random_bits(shape, dtype, seed=1):
    """Every bit pattern, NaNs among them."""
    kind = dtypes.storage(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, int(np.prod(shape)) * kind.itemsize, np.uint8)
    return (raw & 1 if dtype == "bool" else raw).view(kind).reshape(shape)


def same(got, want):
    np.testing.assert_array_equal(*(np.ascontiguousarray(x).view(np.uint8) for x in (got, want)))


def placed(*arrays, dtype="float32", index=""):
    """A tile for each array, the last one of dtype `index` if there is one, and the memory of all."""
    names = [dtype] * (len(arrays) - bool(index)) + [index] * bool(index)
    views = [tile(a.shape, name) for a, name in zip(arrays, names, strict=True)]
    return *views, {v.buffer: a.copy() for v, a in zip(views, arrays, strict=True)}


# ---- nc_stream_shuffle

REVERSED = list(range(31, -1, -1))
KEEPING = [255 if i % 3 == 0 else (5 * i) % 32 for i in range(32)]
KEEPING_ALL_BUT_ONE = [16, *[255] * 31]


def shuffled(dst, src, mask):
    """The definition: quadrant by quadrant, partition by partition."""
    out = dst.copy()
    for q in range(4):
        for i, m in enumerate(mask):
            if m != 255 and 32 * q + i < len(dst) and 32 * q + m < len(src):
                out[32 * q + i] = src[32 * q + m]
    return out


@pytest.mark.parametrize("dtype", EVERY)
def test_shuffle_moves_bits(dtype):
    old, new = random_bits((64, 3), dtype), random_bits((64, 3), dtype, 2)
    dst, src, memory = placed(old, new, dtype=dtype)
    instruction = NcStreamShuffle(dst, src, KEEPING)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    same(memory[dst.buffer], shuffled(old, new, KEEPING))


@pytest.mark.parametrize("mask", [REVERSED, KEEPING, KEEPING_ALL_BUT_ONE, [255] * 32, [7] * 32])
@pytest.mark.parametrize("in_place", [False, True])
def test_shuffle_of_four_quadrants(mask, in_place):
    old, new = random((128, 4)), random((128, 4), seed=1)
    dst, src, memory = placed(old, new)
    execute(NcStreamShuffle(src if in_place else dst, src, mask), memory)
    if in_place:
        np.testing.assert_array_equal(memory[src.buffer], shuffled(new, new, mask))
    else:
        np.testing.assert_array_equal(memory[dst.buffer], shuffled(old, new, mask))
        np.testing.assert_array_equal(memory[src.buffer], new)


def test_shuffle_keeps_dst_where_the_mask_is_255():
    dst, src, memory = placed(np.full((32, 2), 7, np.float32), random((32, 2)))
    execute(NcStreamShuffle(dst, src, [255] * 32), memory, traced=True)
    assert (memory[dst.buffer] == 7).all()


@pytest.mark.parametrize(("to", "of"), [(17, 1), (128, 1), (50, 40), (40, 50), (1, 32)])
def test_shuffle_of_any_partition_counts(to, of):
    """Partitions without a source stay; a source of one partition is broadcast to the first quadrant."""
    for mask in ([0] * 32, KEEPING):
        old, new = random((to, 2)), random((of, 2), seed=1)
        dst, src, memory = placed(old, new)
        instruction = NcStreamShuffle(dst, src, mask)
        assert rule(instruction) == ""
        execute(instruction, memory, traced=True)
        np.testing.assert_array_equal(memory[dst.buffer], shuffled(old, new, mask))


def test_trap_23_shuffle_broadcasts_one_partition():
    """nki-library's broadcast: one source partition, quadrant after quadrant of the same tensor."""
    values = random((128, 6))
    whole, memory = store(values)
    first = whole.slice(0, 0, 1)
    for q in range(4):
        instruction = NcStreamShuffle(whole.slice(0, 32 * q, 32 * q + 32), first, [0] * 32)
        assert rule(instruction) == "" and instruction.before is None
        execute(instruction, memory, traced=True)
    np.testing.assert_array_equal(memory[whole.buffer], np.broadcast_to(values[0], (128, 6)))


def test_shuffle_of_views():
    values, old = random((128, 3, 8)), random((64, 12), seed=1)
    src, dst, memory = placed(values, old)
    part = src.slice(0, 64, 128).slice(2, 0, 8, 4).permute((0, 2, 1))
    instruction = NcStreamShuffle(dst.slice(1, 0, 12, 2), part, KEEPING)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    want = old.copy()
    want[:, ::2] = shuffled(old[:, ::2], values[64:, :, ::4].transpose(0, 2, 1).reshape(64, 6), KEEPING)
    np.testing.assert_array_equal(memory[dst.buffer], want)


def test_shuffle_reads_dst_only_where_it_keeps_some():
    dst, src = tile((32, 2)), tile((32, 2))
    assert NcStreamShuffle(dst, src, REVERSED).reads() == (src,)
    assert NcStreamShuffle(dst, src, KEEPING).reads() == (src, dst)
    assert NcStreamShuffle(dst, src.slice(0, 0, 9), REVERSED).reads()[1:] == (dst,)
    assert NcStreamShuffle(dst, src, KEEPING).writes() == (dst,)


def test_shuffle_mask_is_kept_as_ints():
    dst, src = tile((32, 2)), tile((32, 2))
    mask = NcStreamShuffle(dst, src, np.array(REVERSED, np.uint8)).shuffle_mask
    assert mask == tuple(REVERSED) and all(type(m) is int for m in mask)


@pytest.mark.parametrize(("mask", "dtype"), [(KEEPING, "float32"), ([3] * 32, "float32"), (KEEPING, "bfloat16")])
def test_shuffle_gradient(mask, dtype):
    dst, src = tile((40, 2), dtype), tile((40, 2), dtype)
    old, x, w = (jnp.asarray(random((40, 2), dtype, seed=s)) for s in range(3))
    instruction = NcStreamShuffle(dst, src, mask)
    f = lambda x: jnp.sum(w * instruction.run(Reader({src: x, dst: old}, {}))[0])  # noqa: E731
    got, twice = jax.jit(jax.vmap(jax.grad(f)))(jnp.stack([x, 2 * x]))
    assert got.dtype == x.dtype
    want = np.zeros((40, 2), np.float32)
    for p in range(40):
        m = mask[p % 32]
        if m != 255 and p // 32 * 32 + m < 40:
            want[p // 32 * 32 + m] += np.asarray(w, np.float32)[p]
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=1e-6 if dtype == "float32" else 0.05)
    np.testing.assert_array_equal(twice, got)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((64, 4), "bfloat16")}, "dst: must have the dtype float32 of src, got bfloat16"),
        ({"dst": tile((64, 5))}, r"src: must have the 5 free elements of dst, got \(64, 2, 2\)"),
        ({"dst": tile((64, 4), memory=hbm)}, "dst: dst must be in .* got private_hbm"),
        ({"src": tile((64, 4), memory=hbm)}, "src: src must be in .* got private_hbm"),
        ({"src": tile((129, 4))}, "src partition dimension 129 exceeds maximum 128"),
        ({"shuffle_mask": [0] * 31}, r"shuffle_mask: must be 32 ints, each 0 to 31 or 255, got \(0, 0"),
        ({"shuffle_mask": [32] * 32}, "shuffle_mask: must be 32 ints"),
        ({"shuffle_mask": [-1] * 32}, "shuffle_mask: must be 32 ints"),
        ({"shuffle_mask": [0.0] * 32}, "shuffle_mask: must be 32 ints"),
        ({"shuffle_mask": 7}, r"shuffle_mask: must be 32 ints, .* got \(7,\)"),
        (
            {"dst": tile((128, 4)).slice(0, 32, 96)},
            r"dst: 64 active partitions must start at \[0, 64\], got 32",
        ),
        ({"src": tile((128, 4)).slice(0, 5, 69)}, r"src: 64 active partitions must start at \[0, 64\], got 5"),
        (
            {"dst": tile((96, 4)), "src": tile((128, 4)).slice(0, 32, 33)},
            r"src: 96 active partitions must start at \[0\], got 32",
        ),
        (
            {"dst": tile((20, 4)), "src": tile((128, 4)).slice(0, 1, 2)},
            r"src: 32 active partitions must start at \[0, 32, 64, 96\], got 1",
        ),
    ],
)
def test_shuffle_rules(changes, message):
    legal = NcStreamShuffle(tile((64, 4)), tile((64, 2, 2)), KEEPING)
    assert rule(legal) == rule(legal, TRN1) == rule(replace(legal, dst=tile((64, 4), memory=psum))) == ""
    with pytest.raises(AssertionError, match="^nki.isa.nc_stream_shuffle " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_shuffle_cost(target):
    latency = target.latency_cycles(Engine.vector)
    for n, cycles in ((2000, 2000), (10, 64)):
        instruction = NcStreamShuffle(tile((128, n)), tile((128, n)), REVERSED)
        assert instruction.queue is Engine.vector and instruction.cycles(target) == Work(cycles, latency)
    strided = NcStreamShuffle(tile((128, 100)), tile((128, 100, 5)).slice(2, 0, 1), REVERSED)
    assert strided.cycles(target) == Work(200, latency)


# ---- local_gather


def gathered(src, index, run=1, count=None):
    """The definition, from the documented NumPy code: core by core."""
    rows = []
    for core in range(len(src) // 16):
        ids = index[16 * core : 16 * core + 16].reshape(16, -1).flatten(order="F")[:count]
        for p in range(16 * core, 16 * core + 16):
            rows.append([src[p, i + e] for i in ids.tolist() for e in range(run)])
    return np.array(rows)


def indices(shape, below, dtype="uint16", seed=0):
    return np.random.default_rng(seed).integers(0, below, shape).astype(dtype)


@pytest.mark.parametrize("dtype", SOME)
def test_local_gather_moves_bits(dtype):
    values, index = random_bits((32, 20), dtype), indices((32, 2), 20)
    src, ids, memory = placed(values, index, dtype=dtype, index="uint16")
    dst = tile((32, 32), dtype)
    memory[dst.buffer] = fresh(dst.buffer)
    instruction = LocalGather(dst, src, ids)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    same(memory[dst.buffer], gathered(values, index))


def test_local_gather_takes_indices_partition_first():
    """Index i of a core is at partition i % 16, column i / 16."""
    values = np.tile(np.arange(100, dtype=np.float32), (16, 1))
    index = (np.arange(16)[:, None] + 16 * np.arange(3)).astype(np.uint16)
    src, ids, memory = placed(values, index, index="uint16")
    dst = tile((16, 48))
    memory[dst.buffer] = fresh(dst.buffer)
    execute(LocalGather(dst, src, ids), memory, traced=True)
    np.testing.assert_array_equal(memory[dst.buffer], np.tile(np.arange(48), (16, 1)))


@pytest.mark.parametrize(
    ("run", "count", "columns"), [(1, 20, 2), (2, None, 1), (4, 20, 2), (8, None, 1), (16, 17, 2), (32, 3, 1)]
)
def test_local_gather_of_runs(run, count, columns):
    n = 16 * columns if count is None else count
    values, index = random((128, 100)), indices((128, columns), 100 - run)
    src, ids, memory = placed(values, index, index="uint16")
    dst = tile((128, n * run))
    memory[dst.buffer] = fresh(dst.buffer)
    instruction = LocalGather(dst, src, ids, run, count)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    np.testing.assert_array_equal(memory[dst.buffer], gathered(values, index, run, n))


def test_local_gather_of_rows_of_four():
    """The documented example: rows of 4 elements, their offset as index."""
    values, rows = random((128, 50, 4)), np.tile(indices((16, 4), 50), (8, 1))
    src, ids, memory = placed(values, rows * np.uint16(4), index="uint16")
    dst = tile((128, 4, 16, 4))
    memory[dst.buffer] = fresh(dst.buffer)
    execute(LocalGather(dst, src, ids, 4, 64), memory, traced=True)
    flat = rows[:16].flatten(order="F")
    np.testing.assert_array_equal(memory[dst.buffer].reshape(128, 64, 4), values[:, flat])


def test_8_8_local_gather_through_sub_views():
    values, index, old = random((128, 3, 10)), indices((128, 8), 15), random((128, 70), seed=1)
    src, out, ids, memory = placed(values, old, index, index="uint16")
    part = src.slice(0, 32, 80).slice(2, 0, 10, 2)  # 15 elements a partition
    picked = ids.ap([[8, 48], [2, 3]], offset=48 * 8 + 1)
    dst = out.ap([[70, 48], [14, 3], [1, 10]], offset=16 * 70 + 2)
    instruction = LocalGather(dst, part, picked, num_valid_indices=30)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    want = old.copy().reshape(128, 5, 14)
    rows = gathered(values[32:80, :, ::2].reshape(48, 15), index[48:96, 1:7:2], count=30)
    want[16:64, :3, 2:12] = rows.reshape(48, 3, 10)
    np.testing.assert_array_equal(memory[out.buffer], want.reshape(128, 70))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dst": tile((32, 64))},
            r"dst: must have 32 \* 1 elements a partition: num_valid_indices \* num_elem_per_idx",
        ),
        ({"num_elem_per_idx": 2}, r"dst: must have 32 \* 2 elements a partition"),
        ({"num_elem_per_idx": 3}, r"num_elem_per_idx: must be one of \[1, 2, 4, 8, 16, 32\], got 3"),
        ({"num_elem_per_idx": 1.0}, "num_elem_per_idx: must be one of .* got 1.0"),
        ({"num_valid_indices": 33}, "num_valid_indices: must be an int of 1 to 32, and by default the 32 of a core"),
        ({"num_valid_indices": 0}, "num_valid_indices: must be an int of 1 to 32, .* got 0"),
        ({"num_valid_indices": 8.0}, "num_valid_indices: must be an int of 1 to 32, .* got 8.0"),
        (
            {"index": tile((32, 257), "uint16"), "dst": tile((32, 16 * 257))},
            "num_valid_indices: must be an int of 1 to 4096, and by default the 4112 of a core, got 4112",
        ),
        ({"index": tile((32, 2), "uint32")}, "index: must have dtype uint16, got uint32"),
        ({"index": tile((16, 2), "uint16")}, r"index: must have the 32 partitions of src_buffer, got \(16, 2\)"),
        ({"dst": tile((16, 32))}, r"dst: must have the 32 partitions of src_buffer, got \(16, 32\)"),
        ({"dst": tile((32, 32), "bfloat16")}, "dst: must have the dtype float32 of src_buffer, got bfloat16"),
        ({"src_buffer": tile((32, 9), memory=psum)}, r"src_buffer: src_buffer must be in \['sbuf'\], got psum"),
        ({"index": tile((32, 2), "uint16", psum)}, r"index: index must be in \['sbuf'\], got psum"),
        ({"dst": tile((32, 32), memory=psum)}, r"dst: dst must be in \['sbuf'\], got psum"),
        ({"src_buffer": tile((144, 9))}, "src_buffer partition dimension 144 exceeds maximum 128"),
        ({"src_buffer": tile((64, 9)).slice(0, 8, 40)}, "src_buffer: must start at a multiple of 16 partitions, got 8"),
    ],
)
def test_local_gather_rules(changes, message):
    legal = LocalGather(tile((32, 32)), tile((32, 9)), tile((32, 2), "uint16"))
    assert rule(legal) == rule(legal, TRN1) == ""
    with pytest.raises(AssertionError, match="^nki.isa.local_gather " + message):
        replace(legal, **changes).check(TRN2)


def test_local_gather_takes_whole_cores():
    odd = LocalGather(tile((24, 32)), tile((24, 9)), tile((24, 2), "uint16"))
    assert rule(odd) == "nki.isa.local_gather src_buffer: must have a multiple of 16 partitions, got (24, 9)"


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_local_gather_cost(target):
    def cycles(dtype, run, count):
        dst, index = tile((128, count * run), dtype), tile((128, 64), "uint16")
        work = LocalGather(dst, tile((128, 512), dtype), index, run, count).cycles(target)
        assert work.latency_cycles == target.latency_cycles(Engine.gpsimd)
        return work.issue_cycles

    assert cycles("float32", 1, 1000) == pytest.approx(150 + 1000 * 4 / 32)
    assert cycles("bfloat16", 4, 100) == pytest.approx(150 + 100 * 4 / (44 / 16 / 2))
    assert cycles("int8", 2, 100) == pytest.approx(150 + 100 * 2 / (36 / 8 / 2))


# ---- nc_n_gather


@pytest.mark.parametrize("dtype", SOME)
def test_n_gather_moves_bits(dtype):
    values, index = random_bits((5, 9), dtype), indices((5, 14), 9, "uint32")
    data, ids, memory = placed(values, index, dtype=dtype, index="uint32")
    dst = tile((5, 14), dtype)
    memory[dst.buffer] = fresh(dst.buffer)
    instruction = NcNGather(dst, data, ids)
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    same(memory[dst.buffer], np.take_along_axis(values, index.astype(np.int64), 1))


def test_n_gather_of_views():
    values, index, old = random((128, 3, 8)), indices((128, 2, 5), 12, "uint32"), random((128, 20), seed=1)
    data, out, ids, memory = placed(values, old, index, index="uint32")
    part = data.slice(2, 0, 8, 2).permute((0, 2, 1))
    instruction = NcNGather(out.slice(1, 0, 20, 2), part, ids.permute((0, 2, 1)))
    assert rule(instruction) == ""
    execute(instruction, memory, traced=True)
    flat, at = values[:, :, ::2].transpose(0, 2, 1).reshape(128, 12), index.transpose(0, 2, 1).reshape(128, 10)
    want = old.copy()
    want[:, ::2] = [[row[i] for i in ids] for row, ids in zip(flat, at, strict=True)]
    np.testing.assert_array_equal(memory[out.buffer], want)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": tile((4, 6))}, r"indices: must have the 6 free elements of dst, got \(4, 5\)"),
        ({"dst": tile((4, 5), "bfloat16")}, "dst: must have the dtype float32 of data, got bfloat16"),
        ({"indices": tile((4, 5), "int32")}, "indices: must have dtype uint32, got int32"),
        ({"indices": tile((2, 5), "uint32")}, r"indices: must have the 4 partitions of dst, got \(2, 5\)"),
        ({"data": tile((8, 9))}, r"data: must have the 4 partitions of dst, got \(8, 9\)"),
        ({"data": tile((4, 9), memory=psum)}, r"data: data must be in \['sbuf'\], got psum"),
        ({"indices": tile((4, 5), "uint32", psum)}, r"indices: indices must be in \['sbuf'\], got psum"),
        ({"dst": tile((4, 5), memory=hbm)}, r"dst: dst must be in \['sbuf'\], got private_hbm"),
        ({"dst": tile((129, 5))}, "dst partition dimension 129 exceeds maximum 128"),
    ],
)
def test_n_gather_rules(changes, message):
    legal = NcNGather(tile((4, 5)), tile((4, 9)), tile((4, 5), "uint32"))
    assert rule(legal) == rule(legal, TRN1) == ""
    with pytest.raises(AssertionError, match="^nki.isa.nc_n_gather " + message):
        replace(legal, **changes).check(TRN2)


@pytest.mark.parametrize("target", [TRN1, TRN2, TRN3])
def test_n_gather_cost(target):
    latency = target.latency_cycles(Engine.gpsimd)
    for n, passes in ((8, 1), (512, 1), (513, 2), (4096, 8)):
        work = NcNGather(tile((128, n)), tile((128, 9)), tile((128, n), "uint32")).cycles(target)
        assert work == Work(600 * passes, latency)


# ---- both gathers


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3", "uint8"])
def test_an_index_outside_gives_poison(dtype):
    values = random((16, 4), dtype)
    src, memory = store(values, dtype)
    index = np.array([0, 3, 4, 2**32 - 1, 1], np.uint32)  # the last but one is nc_find_index8's "not there"
    ids, more = store(np.tile(index, (16, 1)), "uint32")
    dst, rest = store(np.zeros((16, 5)), dtype)
    memory |= more | rest
    execute(NcNGather(dst, src, ids), memory, traced=True)
    bad = [dtypes.poison(dtype)] * 16
    same(memory[dst.buffer], np.stack([values[:, 0], values[:, 3], bad, bad, values[:, 1]], axis=1))
    local, more = store(np.full((16, 1), 3), "uint16")
    wide, rest = store(np.zeros((16, 32)), dtype)
    memory |= more | rest
    execute(LocalGather(wide, src, local, 2), memory, traced=True)
    same(memory[wide.buffer], np.tile(np.stack([values[:, 3], bad], axis=1), (1, 16)))


def test_poison_of_low_precision_stored_as_float32():
    data, ids, dst = tile((1, 3), "bfloat16"), tile((1, 2), "uint32"), tile((1, 2), "bfloat16")
    x, at = jnp.full((1, 3), 1 / 3, jnp.float32), jnp.asarray([[1, 9]], jnp.uint32)
    (out,) = NcNGather(dst, data, ids).run(Reader({data: x, ids: at}, {}))
    assert out.dtype == jnp.float32 and out[0, 0] == x[0, 0] and np.isnan(out[0, 1])


@pytest.mark.parametrize(("dtype", "local"), [("float32", False), ("float32", True), ("bfloat16", False)])
def test_case_31_gradients_past_masked_out_lanes_whose_index_is_outside(dtype, local):
    """A user's case: value and gradient are finite when a select drops those lanes."""
    x, data = jnp.asarray(random((16, 6), dtype) / 4), tile((16, 6), dtype)
    if local:
        index = np.array([[2]] * 9 + [[70]] * 7, np.uint16)
        ids, at = tile((16, 1), "uint16"), np.tile(index.T, (16, 1))
        instruction = LocalGather(tile((16, 16), dtype), data, ids)
    else:
        index = at = np.array([[2, 70, 2, 5]] * 16, np.uint32)
        ids = tile((16, 4), "uint32")
        instruction = NcNGather(tile((16, 4), dtype), data, ids)

    def loss(x):
        out = instruction.run(Reader({data: x, ids: jnp.asarray(index)}, {}))[0]
        return jnp.sum(jnp.where(at < 6, out, 0).astype(jnp.float32) ** 2)

    times, exact = np.stack([(at == i).sum(axis=1) for i in range(6)], axis=1), np.asarray(x, np.float32)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss)))(jnp.stack([x, -x]))
    rough = 1e-6 if dtype == "float32" else 0.02
    np.testing.assert_allclose(values, [(times * exact**2).sum()] * 2, rtol=rough)
    np.testing.assert_allclose(gradients.astype(np.float32), [2 * times * exact, -2 * times * exact], rtol=rough)
