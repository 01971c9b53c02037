"""Reads and writes by patterns, against NumPy index arithmetic."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax import access, box
from nkijax.address import Address, covers, valid


def index_array(strides, shape, offset):
    grids = np.indices(shape)
    return offset + sum(s * g for s, g in zip(strides, grids, strict=True))


def address(natural, strides, shape, offset, dtype="float32", **kw):
    return Address(int(np.prod(natural)), tuple(natural), dtype, tuple(strides), tuple(shape), np.asarray(offset), **kw)


@st.composite
def patterns(draw):
    """A storage shape, and a pattern inside it: slices with steps, permutations, broadcasts, or arbitrary strides.

    Dimensions run upward or downward.
    """
    natural = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    size = int(np.prod(natural))
    if draw(st.booleans()):
        units = [int(np.prod(natural[k + 1 :])) for k in range(len(natural))]
        strides, shape, offset = [], [], 0
        for n, unit in zip(natural, units, strict=True):
            start = draw(st.integers(0, n - 1))
            step = draw(st.integers(1, 3))
            count = draw(st.integers(1, (n - 1 - start) // step + 1))
            offset += start * unit
            strides.append(step * unit)
            shape.append(count)
        order = draw(st.permutations(range(len(shape))))
        strides, shape = [strides[k] for k in order], [shape[k] for k in order]
        if draw(st.booleans()):
            strides, shape = [0, *strides], [draw(st.integers(1, 3)), *shape]
    else:
        strides = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3))
        shape = [draw(st.integers(1, 4)) for _ in strides]
        while sum(s * (n - 1) for s, n in zip(strides, shape, strict=True)) >= size:
            shape = [max(1, n - 1) for n in shape]
            if max(shape) == 1:
                break
        offset = draw(st.integers(0, size - 1 - sum(s * (n - 1) for s, n in zip(strides, shape, strict=True))))
    for k in range(len(shape)):
        if draw(st.integers(0, 3)) == 3:
            offset += strides[k] * (shape[k] - 1)
            strides[k] = -strides[k]
    return natural, strides, shape, offset


@settings(max_examples=25, deadline=None)
@given(patterns())
def test_read_is_indexing(case):
    natural, strides, shape, offset = case
    data = np.arange(np.prod(natural), dtype=np.float32).reshape(natural)
    got = access.read(jnp.asarray(data), address(natural, strides, shape, offset))
    np.testing.assert_array_equal(got, data.ravel()[index_array(strides, shape, offset)])


@settings(max_examples=25, deadline=None)
@given(patterns())
def test_write_is_indexed_assignment(case):
    natural, strides, shape, offset = case
    index = index_array(strides, shape, offset)
    if len(np.unique(index)) < index.size:  # which of overlapping writes stays is the machine's choice
        return
    data = np.zeros(natural, np.float32)
    value = np.arange(1, index.size + 1, dtype=np.float32).reshape(shape)
    a = address(natural, strides, shape, offset)
    got = access.write(jnp.asarray(data), a, jnp.asarray(value))
    want = data.ravel().copy()
    want[index] = value
    np.testing.assert_array_equal(np.asarray(got).ravel(), want)
    assert not covers(a) or index.size == data.size


def test_slices_of_tiles_are_boxes_not_gathers():
    natural = (128, 4, 512)
    cases = [
        ((2048, 512, 1), (128, 4, 512), 0),
        ((2048, 1), (128, 512), 1024),
        ((2048, 512, 1), (64, 2, 100), 64 * 2048 + 612),
    ]
    for strides, shape, offset in cases:
        assert box.find(128 * 2048, natural, strides, shape, np.asarray(offset)) is not None
    text = str(jax.make_jaxpr(lambda x: access.read(x, address(natural, *cases[2])))(jnp.zeros(natural)))
    assert "gather" not in text


def test_a_large_pattern_is_never_enumerated():
    shape = jax.ShapeDtypeStruct((4096, 4096), np.float32)
    a = address((4096, 4096), (4097, 1), (1000, 1000), 3)  # not a box
    jaxpr = jax.make_jaxpr(lambda x: access.read(x, a))(shape)
    assert all(np.size(c) < 10 for c in jaxpr.consts)


@pytest.mark.parametrize("offset", [np.arange(4) * 6, np.array([0, 12, 6, 18])])
def test_offset_tables_follow_the_loop_index(offset):
    data = jnp.arange(24, dtype=jnp.float32).reshape(4, 6)
    read = jax.jit(lambda i: access.read(data, address((4, 6), (1,), (6,), offset, indices=(i,))))
    for i in range(4):
        np.testing.assert_array_equal(read(jnp.int32(i)), data.ravel()[offset[i] : offset[i] + 6])


def test_scalar_index_moves_the_pattern_and_is_clamped_not_wrapped():
    data = jnp.arange(24, dtype=jnp.float32).reshape(4, 6)
    a = lambda i: address((4, 6), (1,), (3,), 1, scalar=i, stride=6, limit=4)  # noqa: E731
    for i in range(4):
        np.testing.assert_array_equal(access.read(data, a(jnp.int32(i))), data[i, 1:4])
        assert bool(valid(a(jnp.int32(i))))
    assert not bool(valid(a(jnp.int32(4)))) and not bool(valid(a(jnp.int32(-1))))


@pytest.mark.parametrize("columns", [(0, 6), (2, 3)])
def test_row_indices_gather_and_scatter(columns):
    start, n = columns
    data = jnp.arange(30, dtype=jnp.float32).reshape(5, 6)
    rows = jnp.array([3, 0, 4], jnp.int32)
    a = address((5, 6), (0, 1), (3, n), start, rows=rows, stride=6, limit=5)
    np.testing.assert_array_equal(access.read(data, a), data[rows, start : start + n])
    value = -jnp.ones((3, n))
    np.testing.assert_array_equal(access.write(data, a, value), data.at[rows, start : start + n].set(-1))


def test_scatter_drops_rows_outside():
    data = jnp.zeros((4, 2))
    for strides in ((0, 1), (0, 2)):  # rows of a box, and an irregular pattern
        a = address((4, 2), strides, (3, 1), 0, rows=jnp.array([1, -1, 4], jnp.int32), stride=2, limit=4)
        out = access.write(data, a, jnp.ones((3, 1)))
        np.testing.assert_array_equal(out, data.at[1, 0].set(1))


@pytest.mark.parametrize("pattern", [((2, 6), (6, 1), (2, 6)), ((2, 2), (6, 2), (2, 2)), ((3, 2), (5, 1), (3, 2))])
@pytest.mark.parametrize("start", [-1, -1_000_000, 2, 9])
def test_a_write_whose_scalar_index_is_outside_is_dropped(pattern, start):
    _, strides, shape = pattern
    where = address((4, 6), strides, shape, 0, scalar=jnp.int32(start), stride=6, limit=2)
    data = jnp.arange(24.0).reshape(4, 6)
    np.testing.assert_array_equal(access.write(data, where, jnp.zeros(shape)), data)
    inside = address((4, 6), strides, shape, 0, scalar=jnp.int32(1), stride=6, limit=2)
    assert (np.asarray(access.write(data, inside, jnp.zeros(shape))) == 0).sum() == np.prod(shape) + 1


@pytest.mark.parametrize("width", [127, 64, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_computed_from_permuted_elements_of_the_same_storage(dtype, width):
    """XLA on a CPU would read what it has just written (openxla/xla#49176)."""
    kind = access.dtypes.storage(dtype)
    out = address((128, 512), (128, 512, 1), (4, 128, width), 0, dtype)
    transposed = address((128, 512), (128, 1, 512), (4, 128, width), 0, dtype)

    def step(x):
        x = (x * 2).astype(kind)
        return access.write(x, out, (access.read(x, transposed) * 3).astype(kind), apart=True)

    x = jnp.asarray(np.random.default_rng(0).normal(size=(128, 512)), kind)
    np.testing.assert_array_equal(jax.jit(step)(x).astype(np.float32), step(x).astype(np.float32))


def test_an_update_computed_by_a_gather_from_the_same_storage():
    natural, size = (4, 128, 600), 128 * 600
    blocks = address(natural, (size, 256, 128, 600, 1), (4, 2, 2, 128, 127), 0)
    turned = address(natural, (size, 256, 128, 1, 600), (4, 2, 2, 128, 127), 0)
    rows, diagonals = (address(natural, (size, *s), (4, 128, 100), 7) for s in ((600, 1), (1, 856)))

    def step(x):
        x = access.write(x * 2, blocks, access.read(x * 2, turned) * 3, apart=True)
        return access.write(x, rows, access.read(x, diagonals) * 3, apart=True)

    x = jnp.asarray(np.random.default_rng(0).normal(size=natural), np.float32)
    np.testing.assert_array_equal(jax.jit(step)(x), step(x))


def test_views_of_another_dtype_share_bits():
    data = jnp.array([[1.0, -2.0]], jnp.float32)
    words = access.read(data, address((1, 4), (1,), (4,), 0, "uint16"))
    np.testing.assert_array_equal(words, np.asarray(data).view(np.uint16).ravel())
    back = access.write(data, address((1, 4), (1,), (2,), 2, "bfloat16"), jnp.array([0, 1], jnp.bfloat16))
    np.testing.assert_array_equal(back, [[1.0, 1.0]])


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "bfloat16", "float16"])
@pytest.mark.parametrize("pattern", [((1,), (256,), 256), ((2,), (256,), 1), ((3,), (256,), 0)])
def test_writes_move_bits_and_have_a_gradient(dtype, pattern):
    strides, shape, offset = pattern
    size = np.dtype(access.dtypes.storage(dtype)).itemsize
    bits = np.arange(256).astype(np.uint8) if size == 1 else np.arange(0, 2**16, 256).astype(np.uint16)
    where = address((1024,), strides, shape, np.asarray(offset), dtype)
    write = jax.jit(lambda old, x: access.write(old, where, x))
    kind = access.dtypes.storage(dtype)
    out = np.asarray(write(jnp.zeros(1024, kind), jnp.asarray(bits.view(kind))))
    np.testing.assert_array_equal(out.view(bits.dtype)[index_array(strides, shape, offset)], bits)
    if size > 1:
        total = lambda x: jnp.sum(write(jnp.ones(1024, kind), x).astype(jnp.float32))  # noqa: E731
        np.testing.assert_array_equal(jax.grad(total)(jnp.ones(256, kind)), np.ones(256))


def test_slots_that_are_read_and_written_in_shapes_of_their_own_are_updated_in_place():
    """A software pipeline: each turn writes the tile that the next one reads.  XLA copied all tiles, five times."""
    n, p, f = 16, 128, 64
    offsets, weights = np.arange(n) * p * f, jnp.ones((4, 4))

    def turn(i, tiles):
        whole = access.read(tiles, address((n, p, f), (f, 1), (p, f), offsets, indices=(i,)))
        parts = jnp.sin(whole).reshape(p, 4, f // 4)
        tiles = access.write(tiles, address((n, p, f), (f, f // 4, 1), parts.shape, offsets, indices=(i + 1,)), parts)
        turned = access.read(tiles, address((n, p, f), (f, 1, f // 4), (p, f // 4, 4), offsets, indices=(i + 1,)))
        corner = address((n, p, f), (f, 1), (1, 1), offsets, indices=(i + 1,))
        return access.write(tiles, corner, (turned @ weights).sum().reshape(1, 1))

    loop = jax.jit(lambda tiles: jax.lax.fori_loop(0, n - 1, turn, tiles), donate_argnums=0)
    text = loop.lower(jnp.ones((n, p, f))).compile().as_text()
    copied = [np.prod([int(k) for k in shape.split(",")]) for shape in re.findall(r"= f32\[([\d,]+)\]\S* copy\(", text)]
    assert n * p * f not in copied


@pytest.mark.parametrize("dynamic", [False, True])
def test_tiles_side_by_side_that_do_not_fill_a_row_are_a_box(dynamic):
    """A batched repeat over the whole tiles of a row with a rest, of a weight of one of several experts: no gather."""
    natural, strides, shape = (4, 6, 2, 84), (32, 84, 168, 1), (2, 2, 6, 32)
    a = address(natural, strides, shape, 4)
    data, value = np.arange(np.prod(natural), dtype=np.float32).reshape(natural), -np.ones(shape, np.float32)
    for expert in (3, 1) if dynamic else (0,):
        scalar = dict(scalar=jnp.int32(expert), stride=6 * 2 * 84, limit=4) if dynamic else {}
        index = index_array(strides, shape, 4 + expert * 6 * 2 * 84)
        np.testing.assert_array_equal(access.read(jnp.asarray(data), replace(a, **scalar)), data.ravel()[index])
        want = data.ravel().copy()
        want[index] = value
        got = access.write(jnp.asarray(data), replace(a, **scalar), jnp.asarray(value))
        np.testing.assert_array_equal(np.asarray(got).ravel(), want)
        text = str(jax.make_jaxpr(lambda x, s=scalar: access.read(x, replace(a, **s)))(data))
        assert "gather" not in text
