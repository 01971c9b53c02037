"""Which patterns are boxes, and where run-time indices may move in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax import box


def find(natural, strides, shape, offset=0):
    return box.find(int(np.prod(natural)), natural, strides, shape, np.asarray(offset))


@pytest.mark.parametrize(
    "natural, strides, shape, offset, radixes",
    [
        ((128, 512), (512, 1), (128, 512), 0, (128, 512)),
        ((1024, 1024), (1024, 1), (128, 512), 128 * 1024 + 512, (1024, 1024)),
        ((128, 4, 512), (2048, 1), (128, 512), 1024, (128, 4, 512)),
        ((128, 4, 512), (2048, 1), (128, 1024), 1024, (128, 2048)),
        ((8, 6), (12, 1), (4, 6), 6, (4, 12)),  # every other row
        ((6, 3, 5), (15, 10, 1), (6, 2, 5), 0, (6, 3, 5)),  # steps of a dimension that they do not divide
        ((4, 6), (1, 6), (6, 4), 0, (4, 6)),  # transposed
        ((4, 6), (0, 1), (128, 6), 6, (4, 6)),  # broadcast
        ((8, 4, 6), (6, 1), (20, 6), 12, (32, 6)),  # rows of two dimensions
    ],
)
def test_boxes(natural, strides, shape, offset, radixes):
    found = find(natural, strides, shape, offset)
    assert found is not None and found.radixes == radixes


@pytest.mark.parametrize(
    "natural, strides, shape, offset",
    [
        ((4, 6), (1, 1), (3, 3), 0),  # overlapping windows
        ((4, 6), (7, 1), (3, 3), 0),  # a diagonal
        ((4, 6), (6, 1), (2, 4), 4),  # rows that wrap
    ],
)
def test_what_is_no_box(natural, strides, shape, offset):
    assert find(natural, strides, shape, offset) is None


def test_a_table_of_offsets_must_fit_as_a_whole():
    assert find((4, 6), (6, 1), (2, 4), [0, 2]) is not None
    assert find((4, 6), (6, 1), (2, 4), [0, 4]) is None


def test_the_axis_of_a_run_time_index():
    found = find((4, 128, 16), (16, 1), (128, 16))
    assert found is not None
    assert found.axis_of(2048, [0, 0, 0], 4) == 0
    assert found.axis_of(1, [0, 0, 0], 1) == 2 and found.axis_of(1, [0, 0, 0], 2) is None  # would leave the row


def test_a_box_that_serves():
    """Rows at a run-time index move in the storage as a matrix, not in its own dimensions."""
    pattern = 512 * 16, (4, 128, 16), (16, 1), (128, 16), np.asarray(0)
    natural, matrix = (
        box.find(*pattern),
        box.find(*pattern, lambda b: b.axis_of(16, [0] * len(b.units), 300) is not None),
    )
    assert natural is not None and natural.radixes == (4, 128, 16)
    assert matrix is not None and matrix.radixes == (512, 16)
    assert box.find(*pattern, lambda b: False) is None


@st.composite
def boxes_in_two_shapes(draw):
    """A box in one shape, and another shape of the same storage."""
    primes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5))

    def shape():
        cuts = sorted(draw(st.sets(st.integers(1, len(primes) - 1), max_size=3))) if len(primes) > 1 else []
        parts = zip([0, *cuts], [*cuts, len(primes)], strict=True)
        return tuple(int(np.prod(primes[a:b])) for a, b in parts)

    own, other = shape(), shape()
    sizes = tuple(draw(st.integers(1, n)) for n in own)
    turns = draw(st.integers(1, 3))
    starts = [
        np.array([draw(st.integers(0, n - size)) for _ in range(turns)]) for n, size in zip(own, sizes, strict=True)
    ]
    units = tuple(int(np.prod(own[k + 1 :])) for k in range(len(own)))
    return box.Box(own, units, sizes, (1,) * len(own), (-1,) * len(own)), starts, other


@settings(max_examples=300)
@given(boxes_in_two_shapes())
def test_a_box_in_another_shape_has_the_same_elements_in_the_same_order(case):
    one, starts, shape = case
    found = box.in_shape(one, starts, shape)
    storage = np.arange(int(np.prod(shape)))

    def cut(sizes, at, spans):
        return storage.reshape(sizes)[tuple(slice(a, a + n) for a, n in zip(at, spans, strict=True))]

    for turn in range(len(starts[0])):
        want = cut(one.radixes, [s[turn] for s in starts], one.spans).ravel()
        if found is None:
            continue
        tables, spans = found
        at = [int(np.broadcast_to(t, starts[0].shape)[turn]) for t in tables]
        assert cut(shape, at, spans).ravel().tolist() == want.tolist()
    if one.radixes == shape or one.sizes == one.radixes:
        assert found is not None


@pytest.mark.parametrize(
    "radixes, starts, sizes, shape, spans",
    [
        ((385, 4, 128, 4, 128), (5, 0, 0, 0, 0), (5, 4, 128, 4, 128), (1540, 128, 512), (20, 128, 512)),
        ((49280, 4, 512), (256, 0, 0), (128, 4, 512), (385, 128, 2048), (1, 128, 2048)),
        ((49280, 4, 512), (256, 2, 0), (128, 1, 512), (385, 128, 2048), (1, 128, 512)),
        ((49280, 4, 512), (250, 0, 0), (128, 4, 512), (385, 128, 2048), None),  # parts of two slots
        ((8, 4), (2, 1), (3, 2), (32,), None),  # no stretch
    ],
)
def test_slots_of_a_storage_are_boxes_in_its_own_shape(radixes, starts, sizes, shape, spans):
    units = tuple(int(np.prod(radixes[k + 1 :])) for k in range(len(radixes)))
    one = box.Box(radixes, units, sizes, (1,) * len(radixes), (-1,) * len(radixes))
    found = box.in_shape(one, [np.array(s) for s in starts], shape)
    assert (found and found[1]) == spans
