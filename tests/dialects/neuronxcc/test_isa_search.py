"""Searches, shuffles and gathers, as kernels spell them."""

import numpy as np
import pytest

from nkijax import Unsupported
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from tests.dialects.neuronxcc.running import close, computed, ran

RNG = np.random.default_rng(0)
X = RNG.permutation(16 * 20).reshape(16, 20).astype(np.float32)


def test_max8():
    close(computed(lambda x: nisa.max8(src=x), X), -np.sort(-X, axis=1)[:, :8])

    def masked(x):
        i, j = nl.mgrid[0:16, 0:20]
        return nisa.max8(src=x, mask=(i < 5) & (j < 10))

    close(computed(masked, X), np.where(np.arange(16)[:, None] < 5, -np.sort(-X[:, :10], axis=1)[:, :8], 0))


def test_searches_leave_hidden_lanes_out():
    """A mask that is no box: what it hides is neither found nor replaced, and a shuffle leaves it as it is."""
    i, j = nl.mgrid[0:16, 0:20]
    left = np.where(np.add(*np.indices(X.shape)) >= 12, X, -np.inf)

    def found(x):
        top = nisa.max8(src=x, mask=i + j >= 12)
        out = nl.full((16, 28), -1, dtype=np.float32)
        out[:, 0:8] = nisa.nc_find_index8(data=x, vals=top, mask=i + j >= 12)
        out[:, 8:28] = nisa.nc_match_replace8(data=x, vals=top, imm=-2.0, mask=i + j >= 12)
        return out

    order = np.argsort(-left, axis=1)[:, :8]
    replaced = np.where(np.isinf(left), -1, X)
    np.put_along_axis(replaced, order, -2, 1)
    close(computed(found, X), np.concatenate([order, replaced], 1))

    def shuffled(x):
        tile = nl.copy(x)
        nisa.nc_stream_shuffle(src=x, dst=tile, shuffle_mask=[*reversed(range(16)), *range(16, 32)], mask=i < j)
        return tile

    rows, columns = np.indices((16, 20))
    close(computed(shuffled, X), np.where(rows < columns, X[::-1], X))


def test_find_index8():
    got = computed(lambda x: nisa.nc_find_index8(data=x, vals=nisa.max8(src=x)), X)
    assert got.dtype == np.uint32
    np.testing.assert_array_equal(got, np.argsort(-X, axis=1)[:, :8])


def test_match_replace8():
    def kernel(x):
        out = nl.ndarray((16, 20), dtype=np.float32, buffer=nl.shared_hbm)
        found = nl.ndarray((16, 8), dtype=np.uint32, buffer=nl.shared_hbm)
        tile, at = nl.load(x), nl.zeros((16, 8), dtype=np.uint32)
        nl.store(out, nisa.nc_match_replace8(data=tile, vals=nisa.max8(src=tile), imm=-1.0, dst_idx=at))
        nl.store(found, at)
        return out, found

    out, found = ran(kernel, X)
    order = np.argsort(-X, axis=1)[:, :8]
    want = X.copy()
    np.put_along_axis(want, order, -1, axis=1)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(found, order)


def test_match_replace8_in_place_under_a_mask():
    def emit(x):
        i, j = nl.mgrid[0:16, 0:20]
        top = nisa.max8(src=x)
        x[i, j] = nisa.nc_match_replace8(data=x[i, j], vals=top, imm=0.0, mask=i < 5 and j < 20)
        return x

    want = X.copy()
    np.put_along_axis(want, np.argsort(-X, axis=1)[:, :8], 0, axis=1)
    np.testing.assert_array_equal(computed(emit, X), np.where(np.arange(16)[:, None] < 5, want, X))


def test_stream_shuffle():
    data = RNG.standard_normal((64, 4)).astype(np.float32)
    mask = [1, 0, *range(2, 31), 255]

    def emit(x):
        to = nl.full((64, 4), 7.0, dtype=np.float32)
        nisa.nc_stream_shuffle(src=x, dst=to, shuffle_mask=mask)
        return to

    want = data.reshape(2, 32, 4)[:, [m if m < 32 else 0 for m in mask]].copy()
    want[:, 31] = 7
    close(computed(emit, data), want.reshape(64, 4))


def test_local_gather():
    data = RNG.standard_normal((32, 40)).astype(np.float32)
    index = RNG.integers(0, 40, (32, 3)).astype(np.uint16)
    got = computed(lambda x, i: nisa.local_gather(x, i, num_valid_indices=40), data, index)
    ids = [index[16 * c : 16 * c + 16].flatten(order="F")[:40] for c in range(2)]
    np.testing.assert_array_equal(got, np.concatenate([data[16 * c : 16 * c + 16][:, ids[c]] for c in range(2)]))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_sequence_bounds(dtype):
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3]], dtype)
    want = [[[8, 1, 1, 3, 3, 3, 8, 7], [-1, 3, 3, 6, 6, 6, -1, 8]]]
    np.testing.assert_array_equal(computed(lambda x: nisa.sequence_bounds(segment_ids=x), ids), want)


def test_custom_operators():
    with pytest.raises(Unsupported, match="f is code"):
        nisa.builtin_custom_op("f", "lib", {}, {}, [], [])
