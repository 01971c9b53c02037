"""Shapes and strides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkijax.buffer import Buffer, resolve, restride, suffix_products
from nkijax.errors import KernelError
from nkijax.machine import Memory


def test_buffers_are_equal_only_to_themselves():
    a, b = (Buffer(0, (2, 3), "float32", Memory.sbuf) for _ in range(2))
    assert a == a and a != b and len({a, b}) == 2 and a.size == 6


def test_suffix_products():
    assert suffix_products((4, 3, 2)) == (6, 2, 1) and suffix_products(()) == ()


@pytest.mark.parametrize("sizes, want", [((2, -1), (2, 6)), ((12,), (12,)), ((3, 2, 2), (3, 2, 2))])
def test_resolve(sizes, want):
    assert resolve(sizes, 12, "api") == want


@pytest.mark.parametrize("sizes", [(5, -1), (-1, -1), (4, 4), (0, -1)])
def test_resolve_refuses(sizes):
    with pytest.raises(KernelError, match="api: must keep 12 elements, got"):
        resolve(sizes, 12, "api")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_restride_is_numpys_reshape_without_a_copy(shape, data):
    array = np.arange(np.prod(shape)).reshape(shape)
    array = array[tuple(slice(0, data.draw(st.integers(1, n))) for n in shape)]
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    target = data.draw(st.sampled_from([(array.size,), (1, array.size), (*array.shape, 1), array.shape]))
    got = restride([s // array.itemsize for s in array.strides], array.shape, target)
    reshaped = array.reshape(target)
    if got is None:
        assert not np.shares_memory(reshaped, array) or array.size == 0
    else:
        base = array.__array_interface__["data"][0]
        view = np.lib.stride_tricks.as_strided(array, target, [s * array.itemsize for s in got])
        assert view.__array_interface__["data"][0] == base
        np.testing.assert_array_equal(view, reshaped)
