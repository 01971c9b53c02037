"""Which patterns are boxes, and where run-time indices may move in them."""

from __future__ import annotations

import numpy as np
import pytest

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
