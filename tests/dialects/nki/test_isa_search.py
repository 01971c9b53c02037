"""Searching, gathering and finding positions as kernels spell them; numbers of the entries are tested beside them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.program import instructions

ROWS = np.random.default_rng(0).permuted(np.tile(np.arange(24, dtype=np.float32), (6, 1)), axis=1) / 4


def both(kernel, *args, **options):
    """What a kernel gives, compiled; eager execution gives the same."""
    compiled, eager = (nkijax.run(kernel, *args, eager=e, **options) for e in (False, True))
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64)), compiled, eager
    )
    return compiled


def refused(kernel, *args, **options):
    with pytest.raises(KernelError) as error:
        nkijax.trace(kernel, *(args or (ROWS,)), **options)
    assert error.value.site.startswith(__file__), error.value
    return error.value.message


def sort(x, positions, find):
    """Descending, eight elements a round, with `positions` (uint32) carried along: nki-library's rotational topk."""
    p, n = x.shape
    values, indices = (nl.ndarray((p, n), t, buffer=nl.shared_hbm) for t in (nl.float32, nl.uint32))
    data, carried = nl.load(x), nl.load(positions)
    top, where, found = nl.ndarray((p, n), nl.float32), nl.ndarray((p, n), nl.uint32), nl.ndarray((p, n), nl.uint32)
    for turn in range(n // 8):
        cut = nl.ds(turn * 8, 8)
        nisa.max8(dst=top[:, cut], src=data)
        if find:
            nisa.nc_find_index8(dst=where[:, cut], data=data[...], vals=top[:, cut])
            nisa.nc_match_replace8(dst=data[...], data=data[...], vals=top[:, cut], imm=float("-inf"))
        else:
            imm = np.float32("-inf")
            nisa.nc_match_replace8(dst=data, data=data, vals=top[:, cut], imm=imm, dst_idx=where[:, cut])
        nisa.nc_n_gather(dst=found[:, cut], data=carried, indices=where[:, cut])
    nl.store(values, top)
    nl.store(indices, found)
    return values, indices


@pytest.mark.parametrize("find", [True, False])
def test_sorting_by_rounds_of_eight(find):
    positions = (np.arange(24, dtype=np.uint32) + 100 * np.arange(6, dtype=np.uint32)[:, None]).astype(np.uint32)
    values, indices = both(sort, ROWS, positions, find)
    order = np.argsort(-ROWS, axis=1)
    np.testing.assert_array_equal(values, np.take_along_axis(ROWS, order, 1))
    np.testing.assert_array_equal(indices, np.take_along_axis(positions, order, 1))


def test_gradient_of_sorting():
    positions = np.zeros((6, 24), np.uint32)
    weights = np.random.default_rng(1).standard_normal((6, 24)).astype(np.float32)
    f = nkijax.function(sort)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(weights * f(x, positions, False)[0])))(ROWS)
    rank = np.argsort(np.argsort(-ROWS, axis=1), axis=1)
    np.testing.assert_allclose(gradient, np.take_along_axis(weights, rank, 1), rtol=1e-6)


def test_trap_8_duplicates_ascend_and_descend():
    def kernel(x, vals):
        up, down = (nl.ndarray((1, 8), nl.uint32, buffer=nl.shared_hbm) for _ in range(2))
        data, wanted, out = nl.load(x), nl.load(vals), nl.ndarray((1, 11), nl.float32)
        found, slots = nl.ndarray((1, 8), nl.uint32), nl.ndarray((1, 8), nl.uint32)
        nisa.nc_find_index8(found, data, wanted)
        nisa.nc_match_replace8(out, data, wanted, 0, slots)
        nl.store(up, found)
        nl.store(down, slots)
        return up, down

    x, vals = (np.array([a], np.float32) for a in ([1, 2, 3, 4, *[8] * 7], [3, *[8] * 7]))
    up, down = both(kernel, x, vals)
    np.testing.assert_array_equal(up, [[2, 4, 5, 6, 7, 8, 9, 10]])
    np.testing.assert_array_equal(down, [[2, 10, 9, 8, 7, 6, 5, 4]])


def test_trap_12_topk_of_a_snake():
    """Two rows of 42, each across 16 partitions, and so are their 20 results."""

    def kernel(x, k):
        rows, n = x.shape
        values = nl.ndarray((16 * rows, k), nl.bfloat16, buffer=nl.shared_hbm)
        indices = nl.ndarray((16 * rows, k), nl.uint32, buffer=nl.shared_hbm)
        columns = -(-n // 16)
        src = nl.zeros((16 * rows, columns), nl.bfloat16)
        for row in range(rows):
            for column in range(columns):
                lanes = min(16, n - 16 * column)
                at = src[16 * row : 16 * row + lanes, column : column + 1]
                nisa.dma_copy(at, x[row, 16 * column : 16 * column + lanes])
        val, idx = nl.ndarray((16 * rows, k), nl.bfloat16), nl.ndarray((16 * rows, k), nl.uint32)
        nisa.topk(val_dst=val, idx_dst=idx, src=src, n=np.int64(n))
        nl.store(values, val)
        nl.store(indices, idx)
        return values, indices

    x = np.random.default_rng(0).permuted(np.tile(np.arange(42, dtype=np.float32), (2, 1)), axis=1).astype(jnp.bfloat16)
    values, indices = both(kernel, x, 20)
    for row in range(2):
        at = 16 * row + np.arange(20) % 16, np.arange(20) // 16
        want = np.argsort(x[row].astype(np.float32))[-20:]
        np.testing.assert_array_equal(indices[at], want)
        np.testing.assert_array_equal(values[at], x[row][want])
    assert np.isnan(values[:, 2:].astype(np.float32)).all() and (indices[:, 2:] == 4).all()  # nothing wrote them


def test_broadcast_of_one_partition():
    def kernel(x):
        out = nl.ndarray((128, 24), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 24), nl.float32)
        nisa.dma_copy(tile[0:1], x[3:4])
        for q in range(4):
            nisa.nc_stream_shuffle(src=tile[0:1, 0:24], dst=tile[nl.ds(32 * q, 32), 0:24], shuffle_mask=[0] * 32)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(both(kernel, ROWS), np.tile(ROWS[3], (128, 1)))
    gradient = jax.grad(lambda x: jnp.sum(nkijax.function(kernel)(x)))(ROWS)
    np.testing.assert_array_equal(gradient, np.where(np.arange(6)[:, None] == 3, 128, np.zeros_like(ROWS)))


def test_8_8_shuffle_mask_of_255_keeps_dst():
    def kernel(x, mask):
        out = nl.ndarray((6, 24), nl.float32, buffer=nl.shared_hbm)
        tile, kept = nl.load(x), nl.full((6, 24), 7.0, nl.float32)
        nisa.nc_stream_shuffle(kept, tile, mask, name="shuffle")
        nl.store(out, kept)
        return out

    want = np.full_like(ROWS, 7)
    want[1], want[4] = ROWS[5], ROWS[0]
    mask = [255, 5, 255, 31, 0, *[255] * 27]  # 31 is no partition of the source
    np.testing.assert_array_equal(both(kernel, ROWS, mask), want)


def test_local_gather():
    """AWS's example: rows of 4 elements, the same indices for every core."""

    def kernel(src, index):
        out = nl.ndarray((128, 4, 16, 4), src.dtype, buffer=nl.shared_hbm)
        tile, wide = nl.load(src), nl.ndarray((128, 8, 16, 4), src.dtype)
        nisa.local_gather(wide[:, 4:8], tile, nl.load(index), num_elem_per_idx=4, num_valid_indices=np.int32(64))
        nl.store(out, wide[:, 4:8])
        return out

    rng = np.random.default_rng(0)
    src = rng.standard_normal((128, 50, 4)).astype(jnp.bfloat16)
    rows = rng.integers(0, 50, (16, 4)).astype(np.uint16)
    result = both(kernel, src, np.tile(4 * rows, (8, 1)))
    np.testing.assert_array_equal(result.reshape(128, 64, 4), src[:, rows.flatten(order="F")])


def test_sequence_bounds():
    def kernel(ids):
        out = nl.ndarray((1, 2, 9), nl.int32, buffer=nl.shared_hbm)
        bounds = nl.ndarray((1, 2, 9), nl.int32)
        nisa.sequence_bounds(bounds, segment_ids=nl.load(ids))
        nl.store(out, bounds)
        return out

    result = both(kernel, np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], np.float32))
    np.testing.assert_array_equal(result, [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]])


@pytest.mark.parametrize("dynamic", [False, True])
def test_nonzero_with_count_by_chunks(dynamic):
    """As nki-library does it: rows in partitions 0 and 16, the offset of each chunk added, the count at the end."""

    def kernel(x):
        out = nl.ndarray((2, 3, 9), nl.int32, buffer=nl.shared_hbm)

        def chunk(i, offset):
            tile, listed = nl.ndarray((32, 8), nl.float32), nl.ndarray((32, 1, 9), nl.int32)
            for row in range(2):
                nisa.dma_copy(tile[16 * row : 16 * row + 1], x[row, i])
            nisa.nonzero_with_count(dst=listed, src=tile, index_offset=offset, padding_val=np.int32(-1))
            for row in range(2):
                nisa.dma_copy(out[row, i], listed[16 * row : 16 * row + 1])

        if dynamic:
            nl.fori_loop(0, 3, lambda i: chunk(i, 0))
        else:
            for i in range(3):
                chunk(i, 8 * i)
        return out

    x = np.random.default_rng(0).integers(-1, 2, (2, 3, 8)).astype(np.float32)
    result = both(kernel, x)
    for row in range(2):
        for i in range(3):
            found = np.flatnonzero(x[row, i])
            np.testing.assert_array_equal(result[row, i, : len(found)], found + (0 if dynamic else 8 * i))
            assert (result[row, i, len(found) : 8] == -1).all() and result[row, i, 8] == len(found)


def test_the_moving_offset_of_nonzero_with_count_folds():
    def kernel(x):
        out = nl.ndarray((6, 25), nl.int32, buffer=nl.shared_hbm)
        for i in range(6):
            listed = nl.ndarray((1, 25), nl.int32)
            nisa.nonzero_with_count(listed, nl.load(x[i : i + 1]), 24 * i)
            nl.store(out[i : i + 1], listed)
        return out

    result = both(kernel, ROWS)
    for i in range(6):
        found = np.flatnonzero(ROWS[i])
        np.testing.assert_array_equal(result[i], [*(found + 24 * i), -1, 23])
    program = nkijax.trace(kernel, ROWS)
    assert len(list(instructions(program.body))) == 3


def test_low_precision_stored_as_float32():
    """NKI_PRECISE_FP=0: thirds stay thirds, in values, in what is moved, and in what is found."""

    def kernel(x):
        out = nl.ndarray((16, 8), nl.bfloat16, buffer=nl.shared_hbm)
        tile, top = nl.load(x), nl.ndarray((16, 8), nl.bfloat16)
        where, again = nl.ndarray((16, 8), nl.uint32), nl.ndarray((16, 8), nl.bfloat16)
        nisa.max8(top, tile)
        nisa.nc_find_index8(where, tile, top)
        nisa.nc_n_gather(again, tile, where)
        nisa.nc_stream_shuffle(again, again, [*range(1, 16), 0, *[255] * 16])
        nl.store(out, again)
        return out

    x = (np.random.default_rng(0).permutation(320).reshape(16, 20) / 3).astype(np.float32)
    want = np.roll(-np.sort(-x, axis=1)[:, :8], -1, axis=0)
    result = both(kernel, x.astype(jnp.bfloat16), precise=False)
    np.testing.assert_allclose(np.asarray(result, np.float32), want, rtol=2**-8)


def test_what_is_refused():
    def tiles(call, **options):
        def kernel(x):
            tile = nl.load(x)
            call(tile, nl.ndarray((6, 8), nl.float32), nl.ndarray((6, 8), nl.uint32))

        return refused(kernel, **options)

    assert "max8 dst: must have 8 elements a partition, got (6, 24)" in tiles(lambda x, v, i: nisa.max8(x, x))
    assert "max8 src: must be a tensor, got 1.0" in tiles(lambda x, v, i: nisa.max8(v, 1.0))
    assert "dst: must have one of the dtypes" in tiles(lambda x, v, i: nisa.nc_find_index8(v, x, v))
    assert "imm: must be a number, got" in tiles(lambda x, v, i: nisa.nc_match_replace8(x, x, v, v))
    assert "val_dst: must have dtype bfloat16" in tiles(lambda x, v, i: nisa.topk(v, i, x, 8))
    assert "shuffle_mask: must be 32 ints" in tiles(lambda x, v, i: nisa.nc_stream_shuffle(x, x, [0] * 16))
    assert "shuffle_mask: must be 32 ints" in tiles(lambda x, v, i: nisa.nc_stream_shuffle(x, x, None))
    assert "src: 32 active partitions must start at [0, 32, 64, 96], got 2" in tiles(
        lambda x, v, i: nisa.nc_stream_shuffle(x, x[2:3], [0] * 32)
    )
    assert "src_buffer: must have a multiple of 16 partitions" in tiles(lambda x, v, i: nisa.local_gather(x, x, i))
    assert "indices: must have dtype uint32" in tiles(lambda x, v, i: nisa.nc_n_gather(v, x, v))
    assert "segment_ids: must have 1 partition" in tiles(lambda x, v, i: nisa.sequence_bounds(v, x))
    assert "needs gen3 or later, got trn1" in tiles(lambda x, v, i: nisa.nonzero_with_count(v, x), target="trn1")
    assert "dst partition dimension 129 exceeds maximum 128" in refused(
        lambda x: nisa.max8(nl.ndarray((129, 8), nl.float32), nl.ndarray((129, 9), nl.float32))
    )
