"""Loads and stores: index spaces, masks, run-time indices."""

import numpy as np
import pytest

from nkijax import KernelError
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc import simulate_kernel

from .test_emit import X, ran


def test_shapes_of_loads():
    v = np.arange(6, dtype=np.float32)
    for x, part, want in [
        (v, lambda t: t, v[:, None]),
        (v, lambda t: t[2], v[None, 2:3]),
        (X, lambda t: t[3], X[3][:, None]),
        (X, lambda t: t, X),
        (X.reshape(6, 2, 4), lambda t: t, X.reshape(6, 2, 4)),
        (X, lambda t: t.reshape((12, 4))[1:3], X.reshape(12, 4)[1:3]),
    ]:
        got = ran(lambda t, part=part: nl.load(part(t)), x)
        assert got.shape == want.shape and (got == want).all()
    assert ran(lambda t: nl.load(t, dtype=nl.bfloat16)).dtype == nl.bfloat16


def test_masked_lanes_are_not_addressed():
    """Rows past the end, a slice past the end, indices far outside, and a mask that is no box."""
    i, j = nl.arange(128)[:, None], nl.arange(8)[None, :]

    def rows(x):
        return nl.load(x[i, j], mask=i < 6)

    def sliced(x):
        t = nl.load(x[0:128], mask=i < 6)
        return t

    def far(x):
        return nl.load(x[1000 * i, j], mask=i < 1)

    def triangle(x):
        return nl.load(x[i + 2 * j, j], mask=i + 2 * j < 6)

    want = np.zeros((128, 8), np.float32)
    want[:6] = X
    assert (ran(rows) == want).all() and (ran(sliced) == want).all()
    assert (ran(far)[0] == X[0]).all() and not ran(far)[1:].any()
    a, b = np.indices((128, 8))
    ok = a + 2 * b < 6
    assert (ran(triangle) == np.where(ok, X[np.where(ok, a + 2 * b, 0), b], 0)).all()
    with pytest.raises(IndexError, match="exceed dimension size of 6"):
        ran(lambda x: nl.load(x[i, j]))
    with pytest.raises(IndexError, match="exceed dimension size of 6"):
        ran(lambda x: nl.load(x[i, j], mask=i < 7))


@pytest.mark.parametrize("diagonal", [False, True])
def test_masked_stores(diagonal):
    def kernel(x):
        out = nl.full((6, 8), -1, dtype=x.dtype, buffer=nl.shared_hbm)
        i, j = nl.arange(128)[:, None], nl.arange(8)[None, :]
        t = nl.load(x[i, j], mask=i < 6)
        nl.store(out[i, j], t, mask=(i < 4) & (i >= j) if diagonal else i < 4)
        return out

    a, b = np.indices((6, 8))
    assert (simulate_kernel(kernel, X) == np.where((a < 4) & ((a >= b) | (not diagonal)), X, -1)).all()


def test_a_store_honours_the_mask_of_its_value():
    def kernel(x):
        out = nl.full((6, 8), -1, dtype=x.dtype, buffer=nl.shared_hbm)
        i, _ = nl.mgrid[0:6, 0:8]
        nl.store(out, nl.square(nl.load(x), mask=i < 2))
        nl.store(out[5, 0:4], 3)
        nl.store(out[4], nl.load(x[4]))
        return out

    want = np.full((6, 8), -1, np.float32)
    want[:2], want[5, :4], want[4] = X[:2] ** 2, 3, X[4]
    assert (simulate_kernel(kernel, X) == want).all()


def test_transposing_loads():
    assert (ran(lambda x: nl.load_transpose2d(x)) == X.T).all()
    i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
    got = ran(lambda x: nl.load_transpose2d(x[i, j], mask=i < 4))
    assert (got[:, :4] == X.T[:, :4]).all() and not got[:, 4:].any()
    assert ran(lambda x: nl.load_transpose2d(x, dtype=nl.bfloat16)).dtype == nl.bfloat16
    with pytest.raises(KernelError, match="2 dimensions"):
        ran(lambda x: nl.load_transpose2d(x.reshape((6, 2, 4))))
    got = ran(lambda x: nl.load_transpose2d(x[i, j], mask=i < j))
    assert (got == np.where(np.arange(6) < np.arange(8)[:, None], X.T, 0)).all()


def test_a_store_transposes_by_its_indices():
    def kernel(x):
        out = nl.ndarray((8, 6), dtype=x.dtype, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0:6, 0:8]
        nl.store(out[j, i], nl.load(x))
        return out

    assert (simulate_kernel(kernel, X) == X.T).all()


@pytest.mark.parametrize("skip", [False, True])
def test_rows_by_a_tile(skip):
    rows = np.array([4, -1, 2, 9], np.int32) if skip else np.array([4, 0, 2, 5], np.int32)
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error

    def kernel(x, rows):
        out = nl.full((2, 6, 8), -1, dtype=x.dtype, buffer=nl.shared_hbm)
        t, at = nl.full((4, 8), -1, dtype=x.dtype), nl.load(rows)
        i, j = nl.mgrid[0:4, 0:8]
        t[...] = nl.load(x[at[i, 0], j], mode=mode)
        nl.store(out[0, i, j], t)
        nl.store(out[1][at, j], nl.load(x[i, j]), mode=mode)
        return out

    got = simulate_kernel(kernel, X, rows)
    want = np.full((2, 6, 8), -1, np.float32)
    for k, r in enumerate(rows):
        if 0 <= r < 6:
            want[0, k], want[1, r] = X[r], X[k]
    assert (got == want).all()


def test_a_bad_row_is_an_index_error():
    with pytest.raises(IndexError, match="index 72 is out of bounds for axis 0 with size 48"):
        ran(lambda x, rows: nl.load(x[nl.load(rows)]), X, np.array([1, 9], np.int32))


def test_atomics_gathers_and_views():
    def kernel(x):
        out = nl.ndarray((6, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        nl.store(out, t)
        nl.atomic_rmw(out[0:3], t[0:3], op=np.add)
        return out

    want = X.copy()
    want[:3] *= 2
    assert (simulate_kernel(kernel, X) == want).all()

    def repeated(x, rows):
        out = nl.ndarray((6, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        at, f = nl.load(rows), nl.arange(8)[None, :]
        nl.atomic_rmw(out[at, f], nl.load(x[0:3]), op=np.maximum, mask=nl.arange(3)[:, None] < 2)
        nl.atomic_rmw(out[at, f], 1.0, op=nl.add)
        return out

    rows = np.array([[4], [4], [0]], np.int32)
    want = X.copy()
    np.maximum.at(want, rows[:2, 0], X[:2])
    np.add.at(want, rows[:, 0], 1.0)
    assert (simulate_kernel(repeated, X, rows) == want).all()
    at = np.array([[3, 1], [0, 7]] * 3, np.uint32)
    got = ran(lambda x, at: nl.gather_flattened(nl.load(x), nl.load(at)), X, at)
    assert (got == np.take_along_axis(X, at.astype(int), 1)).all()
    assert ran(lambda x: nl.expand_dims(nl.load(x), 1)).shape == (6, 1, 8)
    assert ran(lambda x: nl.expand_dims(nl.load(x), (1, -1))).shape == (6, 1, 8, 1)


def test_printing(capsys):
    ran(lambda x: (nl.device_print("x", nl.load(x)), nl.load(x))[1])
    assert "Tile(unnamed: float32[6, 8] in sbuf)" in capsys.readouterr().out


def test_refused():
    for body, message in [
        (lambda x: nl.load(np.zeros(3)), "src: must be a tensor in HBM"),
        (lambda x: nl.store(x, "one"), "value: must be a tile or a number"),
    ]:
        with pytest.raises(KernelError, match=message):
            ran(body)
