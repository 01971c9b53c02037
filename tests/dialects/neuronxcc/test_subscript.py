"""What subscripts address, against NumPy on the same storage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nkijax
from nkijax import KernelError, Unsupported
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc import simulate_kernel
from nkijax.dialects.neuronxcc.bounds import OutOfBounds
from nkijax.dialects.neuronxcc.subscript import _direct, _resolved
from nkijax.dialects.neuronxcc.tensor import operand

X = np.arange(5 * 6 * 8, dtype=np.float32).reshape(5, 6, 8)


def inside(body, *arrays):
    """What `body(*tensors)` gives inside a kernel."""
    seen = []

    def kernel(*tensors):
        nl.arange(1)
        seen.append(body(*tensors))

    nkijax.trace(nkijax.dialects.neuronxcc.jit(kernel), *(arrays or (X,)))
    return seen[0]


def addresses(view):
    """The flat element numbers of a view."""
    grids = np.indices(view.shape)
    return view.offset + sum(s * g for s, g in zip(view.strides, grids, strict=True))


NUMBERS = np.arange(X.size).reshape(X.shape)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[1],
        np.s_[1, 2:4],
        np.s_[..., 3],
        np.s_[-1, :, -3:],
        np.s_[0:4:2, 1],
        np.s_[:, None, 2],
    ],
    ids=str,
)
def test_slices_and_ints_are_numpys(key):
    assert (addresses(inside(lambda x: operand(x[key]))) == NUMBERS[key]).all()


def test_index_objects():
    p, f = nl.arange(4)[:, None], nl.arange(3)[None, :]
    a, b = np.arange(4)[:, None], np.arange(3)[None, :]
    for key, want in [
        (lambda x: x[2, p, 2 * f + 1], NUMBERS[2, a, 2 * b + 1]),
        (lambda x: x[p, 1, f], NUMBERS[a, 1, b]),
        (lambda x: x[f, 1, p], NUMBERS[b, 1, a]),  # transposed: axis 0 of the result is p's
        (lambda x: x[p, f, p + f], NUMBERS[a, b, a + b]),
        (lambda x: x[2][p, f], NUMBERS[2][a, b]),
        (lambda x: x[1:4][nl.arange(2)[:, None], 0, 0], NUMBERS[1:4][np.arange(2)[:, None], 0, 0]),
        (lambda x: x[p, 1:3, 0], NUMBERS[:4, 1:3, 0]),
        (lambda x: x[p, 0], NUMBERS[:4, 0]),
        (lambda x: x[1, nl.ds(2, 3)], NUMBERS[1, 2:5]),
        (lambda x: x[1, np.arange(1, 4)[:, None], f], NUMBERS[1, np.arange(1, 4)[:, None], b]),
    ]:
        assert (addresses(inside(lambda x, key=key: operand(key(x)))) == want).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 2)), min_size=3, max_size=3))
def test_affine_grids(forms):
    i, j = nl.arange(2)[:, None], nl.arange(2)[None, :]
    a, b = np.arange(2)[:, None], np.arange(2)[None, :]
    view = inside(lambda x: operand(x[tuple(u * i + v * j + w for u, v, w in forms)]))
    want = np.broadcast_to(NUMBERS[tuple(u * a + v * b + w for u, v, w in forms)], (2, 2))
    assert (addresses(view) == want).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4) | st.tuples(st.integers(0, 1), st.integers(2, 5)), min_size=1, max_size=3))
def test_plain_keys_take_a_shorter_way_to_the_same_view(given_keys):
    keys = tuple(k if isinstance(k, int) else slice(*k) for k in given_keys)
    slow = tuple(slice(k, k + 1) if isinstance(k, int) else k for k in keys)

    def body(x):
        t = nl.ndarray(X.shape, dtype=nl.float32)
        for y in (x, t):
            one, other = _direct(y, keys), _resolved(y, keys)
            assert one.shape == other.shape and one.partition == other.partition == 0
            assert (addresses(operand(one)) == addresses(operand(other))).all()
            assert (addresses(operand(one)).ravel() == addresses(operand(_resolved(y, slow))).ravel()).all()

    inside(body)


def test_slices_of_rows_by_run_time_indices():
    def kernel(x, rows):
        out = nl.ndarray((3, 6), dtype=x.dtype, buffer=nl.shared_hbm)
        chosen = x[nl.load(rows), 2]
        nl.store(out[0:2], nl.load(chosen[0:3:2, 1:7]))
        nl.store(out[2:3], nl.load(chosen[nl.arange(1)[:, None] + 1, nl.arange(6)[None, :]]))
        return out

    rows = np.array([[3], [1], [4]], np.int32)
    assert (simulate_kernel(kernel, X, rows) == np.stack([X[3, 2, 1:7], X[4, 2, 1:7], X[1, 2, :6]])).all()
    with pytest.raises(Unsupported, match="only slices are taken"):
        inside(lambda x: x[nl.ndarray((4, 1), dtype=nl.int32)][3 - nl.arange(2)[:, None], 0])


def test_bounds_are_checked_at_the_use():
    far = inside(lambda x: x[0:9])  # its size stays
    assert far.shape == (9, 6, 8)
    with pytest.raises(OutOfBounds, match=r"`unnamed` on dimension 0: index range \[0, 8\] exceed dimension size of 5"):
        operand(far)
    chained = inside(lambda x: x[0:9, 1][nl.arange(5)[:, None], 0])
    assert operand(chained).shape == (5, 1)


def test_tiles():
    def shapes(x):
        t = nl.ndarray((4, 6, 2), dtype=nl.float32)
        b = nl.ndarray((3, nl.par_dim(4), 2), dtype=nl.float32)
        i, j = nl.arange(4)[:, None], nl.arange(2)[None, :]
        views = [t[:, 1, 0], t[2, 1], t[0, 0, 0], b[1], b[1, :, 0], b[2, i, j], t[i, 1, j]]
        assert all(not v.partition for v in views) and b.partition == 1
        return [v.shape for v in views]

    assert inside(shapes) == [(4, 1), (1, 2), (1, 1), (4, 2), (4, 1), (4, 2), (4, 2)]


def test_predicates_and_bools():
    def body(x):
        t, i = nl.ndarray((4, 6), dtype=nl.float32), nl.arange(4)[:, None]
        return t[i < 2].mask, t[True].mask, t[i < 2][i > 0].mask, t[False].mask

    one, none, two, never = inside(body)
    assert one is not None and none is None and two.kind == "and" and never.decided(()) is False


def test_run_time_indices():
    def kernel(x, where, rows):
        out = nl.ndarray((2, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        t, w, r = nl.load(x), nl.load(where), nl.load(rows)
        nl.store(out[0:1], t[0:1, nl.ds(w[0, 0], 8)])
        nl.store(out[1:2, 0:2], nl.load(x[r, nl.arange(2)[None, :]])[0:1])
        return out

    x = np.arange(60, dtype=np.float32).reshape(3, 20)
    got = simulate_kernel(kernel, x, np.array([[5]], np.int32), np.array([2, 0], np.int32))
    assert (got[0] == x[0, 5:13]).all() and (got[1, :2] == x[2, :2]).all()


@pytest.mark.parametrize(
    "key, error",
    [
        (lambda: (0, 0, 0, 1), "takes 3 indices, got 4"),
        (lambda: (slice(3, 3),), "must not be empty"),
        (lambda: ("a",), "an index must be"),
        (lambda: (..., ...), "at most one Ellipsis"),
        (lambda: (slice(0, 4, -1),), "positive step"),
    ],
)
def test_refused(key, error):
    with pytest.raises(KernelError, match=error):
        inside(lambda x: x[key()])
