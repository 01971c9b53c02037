"""tensor[key]: addresses against NumPy's indexing, ranks by NKI's rules, every key that is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from tests.dialects.nki.faces import addresses, register, tensor, whole_addresses

SHAPE = (64, 64, 64)
RANKS = [
    (np.s_[0, 0, 10], (1, 1), (1,)),
    (np.s_[:, 0], (64, 64), (64, 64)),
    (np.s_[:, 0, 10], (64, 1), (64,)),
    (np.s_[0, ..., :], (1, 64, 64), (64, 64)),
    (np.s_[...], (64, 64, 64), (64, 64, 64)),
    (np.s_[3], (1, 64, 64), (64, 64)),
    (np.s_[-1, :, -1], (1, 64), (64,)),
    (np.s_[2:5, ..., 1:64:7], (3, 64, 9), (3, 64, 9)),
    (np.s_[-4:-1, 5, ...], (3, 64), (3, 64)),
    (np.s_[:, :, 63:64], (64, 64, 1), (64, 64, 1)),
    ((), (64, 64, 64), (64, 64, 64)),
]


@pytest.mark.parametrize(("key", "on_chip", "in_hbm"), RANKS)
def test_trap_5_an_int_on_chip_leaves_two_dimensions(key, on_chip, in_hbm):
    for memory, shape in ((nl.sbuf, on_chip), (nl.psum, on_chip), (nl.hbm, in_hbm)):
        t = tensor(SHAPE, memory=memory)
        assert t[key].shape == shape
        np.testing.assert_array_equal(addresses(t[key]).ravel(), whole_addresses(t)[key].ravel())


@st.composite
def shapes_and_keys(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    key: list = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            index = draw(st.integers(-n, n - 1))
            key.append(draw(st.sampled_from([index, np.int64(index), np.int32(index)])))
        else:
            first = draw(st.integers(0, n - 1))
            last = draw(st.integers(first + 1, n))
            step = draw(st.integers(1, 3))
            forms = [
                slice(first, last, step),
                slice(np.int64(first), last, np.int32(step)),
                slice(first - n, last, step),
            ]
            key.append(draw(st.sampled_from([*forms, nl.ds(first, last - first)])))
    if draw(st.booleans()):
        key.append(Ellipsis)
    return shape, tuple(key)


def _for_numpy(k):
    return slice(k.start, k.start + k.size) if isinstance(k, type(nl.ds(0, 1))) else k


@given(shapes_and_keys())
def test_any_key_addresses_what_numpy_does(case):
    shape, key = case
    want = tuple(map(_for_numpy, key))
    t = tensor(shape)
    np.testing.assert_array_equal(addresses(t[key]).ravel(), whole_addresses(t)[want].ravel())
    if len(shape) > 1:
        tile = tensor(shape, memory=nl.sbuf)
        assert tile[key].ndim >= 2
        assert tile[key].shape[0] == whole_addresses(tile)[(_rows(want))].shape[0]
        np.testing.assert_array_equal(addresses(tile[key]).ravel(), whole_addresses(tile)[want].ravel())


def _rows(key):
    """The key with an int on dimension 0 as a slice of one row."""
    if key and isinstance(key[0], int | np.integer):
        first = int(key[0])
        return (slice(first, first + 1 or None), Ellipsis)
    return (key[0] if key else slice(None), *([] if key[:1] == (Ellipsis,) else [Ellipsis]))


def test_views_of_views():
    t = tensor((8, 12, 10))
    x = t[2:8:2, 1:, ::3][1, 2:9, -1]
    np.testing.assert_array_equal(addresses(x), whole_addresses(t)[2:8:2, 1:, ::3][1, 2:9, -1])


REFUSED = [
    (np.s_[:, 0:128], "dimension 1: index range [0, 127] exceed dimension size of 12"),
    (np.s_[:, 3:-30], "exceed dimension size of 12"),
    (np.s_[8], "dimension 0: index 8 exceed dimension size of 8"),
    (np.s_[0, -13], "dimension 1: index -13 exceed"),
    (np.s_[nl.ds(4, 5)], "dimension 0: index range [4, 8] exceed dimension size of 8"),
    (np.s_[3:3], "a slice must not be empty, got 3:3"),
    (np.s_[5:2], "a slice must not be empty, got 5:2"),
    (np.s_[::0], "a slice's step must be at least 1, got 0"),
    (np.s_[::-1], "a slice's step must be at least 1, got -1"),
    (np.s_[0, 0, 0], "a tensor of 2 dimensions (8, 12) takes as many indices, got 3"),
    (np.s_[0, 0, ..., 0], "takes as many indices, got 3"),
    (np.s_[..., ...], "at most one Ellipsis, got 2"),
    (np.s_[None, 0], "an index must be an int"),
    (np.s_[True], "an index must be an int"),
    (np.s_[1.0], "an index must be an int"),
    (np.s_[[0, 1]], "an index must be an int"),
    ((np.array([0, 1]),), "an index must be an int"),
    (np.s_[0:2.5], "an index must be an int"),
    (np.s_["a"], "an index must be an int"),
]


@pytest.mark.parametrize(("key", "words"), REFUSED, ids=[w for _, w in REFUSED])
def test_refused(key, words):
    with pytest.raises(KernelError) as error:
        tensor((8, 12), name="x")[key].shape  # noqa: B018 (an empty slice raises when it is used)
    assert words in error.value.message
    assert "test_subscript.py" in error.value.site


def test_an_error_names_the_tensor():
    with pytest.raises(KernelError, match="tensor `x` on dimension 0"):
        tensor((8, 12), name="x")[9]
    with pytest.raises(KernelError, match="tensor `unnamed`"):
        tensor((8, 12))[9]


# ---- run-time indices


def test_a_register_selects():
    t, r = tensor((8, 4, 5)), register()
    x = t[r]
    assert (x.shape, x.strides, x.is_indirect()) == ((4, 5), (5, 1), True)
    assert (x._view.dynamic.stride, x._view.dynamic.limit) == (20, 8)
    y = t[1, r, 2:4]
    assert (y.shape, y.offset, y._view.dynamic.stride, y._view.dynamic.limit) == ((2,), 22, 5, 4)


def test_a_register_slices():
    t, r = tensor((8, 10)), register()
    x = t[2:6, nl.ds(r, 4)]
    assert (x.shape, x.offset) == ((4, 4), 20)
    assert (x._view.dynamic.stride, x._view.dynamic.limit) == (1, 7)
    assert t[..., nl.ds(r, 10)]._view.dynamic.limit == 1
    assert x[1, 2:].offset == 32 and x[1, 2:].is_indirect()


def test_a_tile_indexes_as_a_register_does():
    index = tensor((1, 1), "int32", nl.sbuf)
    assert tensor((8, 10))[index].shape == (10,)
    assert tensor((128, 10), memory=nl.sbuf)[:, nl.ds(index, 2)].shape == (128, 2)
    assert tensor((128, 10), memory=nl.sbuf)[:, index].shape == (128, 1)


def test_run_time_indices_that_are_refused():
    r = register()
    cases = [
        (lambda: tensor((8, 8))[r, r], "at most one run-time index"),
        (lambda: tensor((8, 8), memory=nl.sbuf)[r], "partition dimension"),
        (lambda: tensor((8, 8), memory=nl.sbuf)[nl.ds(r, 2)], "partition dimension"),
        (lambda: tensor((8, 8))[nl.ds(r, 9)], "index range [0, 8] exceed dimension size of 8"),
        (lambda: tensor((8, 8))[tensor((4, 1), "int32", nl.sbuf)], "1-element integer tile"),
        (lambda: tensor((8, 8))[tensor((1, 1), "float32", nl.sbuf)], "1-element integer tile"),
        (lambda: tensor((8, 8))[r:3], "an index must be an int"),
    ]
    for make, words in cases:
        with pytest.raises(KernelError) as error:
            make()
        assert words in error.value.message, words


def test_rows_of_a_vector_indirect_view_stay():
    index = tensor((4, 1), "int32", nl.sbuf)
    rows = tensor((8, 6)).vector_select(0, index)
    assert rows[:, 2:4].shape == (4, 2) and rows[:, 2].shape == (4,)
    assert rows[:, 2:4].is_indirect()
    square = tensor((8, 4)).vector_select(0, index)
    for t in (rows, square):
        for key in (np.s_[1], np.s_[1:3], np.s_[::2]):
            with pytest.raises(KernelError, match="take part in the indirection"):
                t[key]
