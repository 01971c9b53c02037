"""Where patterns are: indices from tables, what covers a storage, stretches that are boxes when joined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax.address import Address, box_of, covers, index_of, joined, reshapes, upward, valid


def address(natural, strides, shape, offsets=0, **more):
    return Address(int(np.prod(natural)), natural, "float32", strides, shape, np.asarray(offsets), **more)


@pytest.mark.parametrize(
    "table, operations",
    [
        (np.full((3, 2), 7), 0),  # a constant
        (np.arange(6).reshape(3, 2) * 4, 8),  # arithmetic
        (np.array([[0, 5], [1, 3], [9, 9]]), None),  # a lookup
    ],
)
def test_an_index_is_as_simple_as_its_table(table, operations):
    found = jax.make_jaxpr(lambda i, j: jnp.int32(index_of(table, (i, j))))(0, 0)
    assert operations is None or len(found.eqns) <= operations
    assert not (operations == 0 and found.eqns)
    for i in range(3):
        for j in range(2):
            assert int(index_of(table, (jnp.int32(i), jnp.int32(j)))) == table[i, j]


def test_what_covers_a_storage():
    assert covers(address((4, 6), (6, 1), (4, 6))) and covers(address((4, 6), (-6, 1), (4, 6), 18))
    assert not covers(address((4, 6), (6, 1), (4, 5))) and not covers(address((4, 6), (0, 1), (4, 6)))
    assert not covers(address((4, 6), (6, 1), (4, 6), scalar=jnp.int32(0), stride=6, limit=1))


def test_legal_indices():
    one = lambda i: address((4, 6), (1,), (6,), scalar=jnp.int32(i), stride=6, limit=3)  # noqa: E731
    assert [bool(valid(one(i))) for i in (-1, 0, 2, 3)] == [False, True, True, False]
    rows = address((4, 6), (0, 1), (3, 6), rows=jnp.array([[0], [4], [-1]]), stride=6, limit=4)
    assert valid(rows).tolist() == [[True], [False], [False]]


def test_negative_strides_count_from_the_other_end():
    found, downward = upward(address((4, 6), (6, -1), (4, 6), 5))
    assert (found.strides, int(found.offsets), downward) == ((6, 1), 0, [1])


def test_stretches_that_are_boxes_when_joined():
    apart = address((6, 84), (32, 84, 1), (2, 6, 32), 4)
    assert box_of(apart)[0] is None
    one = joined(apart)
    assert one is not None and (one.address.strides, one.address.shape) == ((84, 1), (6, 64))
    x = np.arange(2 * 6 * 32).reshape(2, 6, 32)
    np.testing.assert_array_equal(one.apart(one.together(jnp.asarray(x))), x)
    assert joined(address((6, 84), (30, 84, 1), (2, 6, 32))) is None, "they overlap"
    assert joined(address((6, 84), (40, 84, 1), (2, 6, 32))) is None, "with gaps"


@pytest.mark.parametrize(
    "strides, shape, reshaped",
    [
        ((84, 1), (6, 40), False),
        ((504, 84, 1), (2, 6, 84), False),  # slots
        ((84, 21, 1), (6, 2, 21), False),  # a stretch of each row
        ((32, 84, 1), (2, 6, 32), False),  # when joined
        ((84, 42, 1), (6, 2, 21), True),
        ((84, 1, 1), (6, 5, 5), True),  # a gather
    ],
)
def test_what_takes_a_storage_in_another_shape(strides, shape, reshaped):
    assert reshapes(address((4, 6, 84), strides, shape)) == reshaped
