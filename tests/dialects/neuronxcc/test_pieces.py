"""Subscripts by irregular grids and by index tiles of several columns, against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax import KernelError, Unsupported
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.tensor import operand

from .test_emit import X, ran
from .test_subscript import addresses, inside

Y = np.arange(12 * 10, dtype=np.float32).reshape(12, 10)
NUMBERS = np.arange(Y.size).reshape(Y.shape)


@settings(max_examples=60, deadline=None)
@given(*(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5), st.integers(1, 5)) for _ in range(2)))
def test_what_is_addressed(row, column):
    """Quotients and remainders of affine grids, in both dimensions."""

    def keys(i, j):
        u, v, w, k = row
        a, b, c, m = column
        return (u * i + v * j + w) // k % 12, (a * i + b * j + c) % m

    i, j = np.arange(4)[:, None], np.arange(6)[None, :]
    want = np.broadcast_to(NUMBERS[keys(i, j)], (4, 6))

    def body(y):
        found = y[keys(nl.arange(4)[:, None], nl.arange(6)[None, :])]
        parts = found.parts if hasattr(found, "parts") else [(((0, 4), (0, 6)), found)]
        out = np.full((4, 6), -1)
        for box, part in parts:
            place = tuple(slice(*b) for b in box)
            assert (out[place] == -1).all()  # no position twice
            out[place] = addresses(operand(part))
        return out

    assert (inside(body, Y) == want).all()


def test_quotients_and_remainders_move():
    def body(x):
        i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
        t, u = nl.load(x[i, j // 2]), nl.ndarray((6, 8), dtype=nl.float32)
        u[i, j % 2 * 4 + j // 2] = t  # a permutation of the columns
        nisa.dma_copy(dst=u[(i + 3) % 6, 7], src=x[i, 0])
        t[...] = nl.add(u, t[i, (j + 1) % 8])
        t[0, (j + 4) % 8] = 9.0
        return t

    t = X[:, np.arange(8) // 2]
    u = np.empty_like(X)
    u[:, np.arange(8) % 2 * 4 + np.arange(8) // 2] = t
    u[(np.arange(6) + 3) % 6, 7] = X[:, 0]
    want = u + t[:, (np.arange(8) + 1) % 8]
    want[0] = 9
    assert (ran(body) == want).all()


def test_irregular_masks_and_values():
    def body(x):
        i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
        t = nl.full((6, 8), -1, dtype=nl.float32)
        t[...] = nl.load(x[i, j * j % 8], mask=(i + j) % 3 == 0)
        return nl.add(nl.add(t, nisa.iota(j // 3, nl.float32)), i % 4)

    i, j = np.indices(X.shape)
    assert (ran(body) == np.where((i + j) % 3 == 0, X[i, j * j % 8], -1) + j // 3 + i % 4).all()


def test_arrays_of_indices():
    def body(x):
        rows, columns = np.array([5, 0, 3]), np.array([1, 1, 7, 2])
        got = nl.load(x[rows[:, None], columns[None, :]])
        hidden = nl.load(x[rows[:, None] + 3, nl.arange(4)[None, :]], mask=nl.arange(3)[:, None] == 1)
        return got + hidden

    want = X[[[5], [0], [3]], [1, 1, 7, 2]]
    want[1] += X[3, :4]
    assert (ran(body) == want).all()


AT = np.array([[3, 0, 2], [1, 5, 0], [4, 4, 4], [2, 3, 1]], np.int32)


def test_an_index_tile_of_several_columns():
    def kernel(x, at):
        out, back = (nl.zeros((6, 8), dtype=x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        rows, k, f = nl.load(at), nl.arange(3)[None, :, None], nl.arange(2)[None, None, :]
        whole = nl.load(x[rows])  # (4, 3, 8)
        some = nl.load(x[rows, 2 * k + f], mask=k > 0)  # another column for each
        nl.store(out[0:4, 0:6], some)
        nisa.dma_copy(dst=out[rows[:, 0:2], 6], src=whole[:, 0:2, 7:8])
        nl.store(back[rows[:, 0:2], 0:8], whole[:, 0:2])
        return out, back

    out, back = jit(kernel)(X, AT)
    k, f = np.arange(3)[:, None], np.arange(2)
    some = np.where(k > 0, X[AT[:, :, None], 2 * k + f], 0)
    want, whole = np.zeros_like(X), np.zeros_like(X)
    want[:4, :6] = some.reshape(4, 6)
    want[:, 6], whole[:] = X[:, 7], X  # every row is named
    assert (out == want).all() and (back == whole).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from(["int", "slice", "grid", "irregular", "rows"]))
def test_a_second_subscript(k, m, second):
    """Of one by quotients and remainders, or by a slice and a quotient: it picks among the positions of the first."""

    def keys(i, j):
        return {
            "int": (2, slice(1, 5)),
            "slice": (slice(1, 4), slice(0, 6, 2)),
            "grid": (i[:3] + 1, 2 * j[:, :3]),
            "irregular": (i[:3] // 2, j[:, 3:] % m),
            "rows": (i[:3] * 2 // 3,),
        }[second]

    i, j = np.arange(4)[:, None], np.arange(6)[None, :]
    for spanned in (False, True):
        want = NUMBERS[2:6, np.arange(6) // m] if spanned else NUMBERS[i * m // k % 12, (i + j) // m]
        want = want[keys(i, j)]
        first = lambda i, j, s=spanned: (slice(2, 6), nl.arange(6) // m) if s else (i * m // k % 12, (i + j) // m)  # noqa: E731

        def body(y, first=first):
            i, j = nl.arange(4)[:, None], nl.arange(6)[None, :]
            found = y[first(i, j)][keys(i, j)]
            parts = found.parts if hasattr(found, "parts") else [(tuple((0, n) for n in found.shape), found)]
            out = np.full(found.shape, -1)
            for box, part in parts:
                out[tuple(slice(*b) for b in box)] = addresses(operand(part))
            return out

        got = inside(body, Y)
        assert (got.reshape(np.shape(want)) == want).all()


def test_refused():
    at = nl.arange(6)[:, None]
    with pytest.raises(KernelError, match=r"dimension 0: index range \[6, 6\] exceeds 6"):
        inside(lambda x: x[at // 2, 0][6], X)
    with pytest.raises(Unsupported, match="takes ints, slices and index grids"):
        inside(lambda x: x[at // 2, 0][None], X)
    with pytest.raises(Unsupported, match="takes no run-time index"):
        inside(lambda x, rows: x[at // 2, 0][nl.load(rows)[0, 0]], X, AT)
    with pytest.raises(Unsupported, match="several columns of run-time indices is not subscripted again"):
        inside(lambda x, rows: x[nl.load(rows)][0], X, AT)
    with pytest.raises(Unsupported, match="more than 1024 affine pieces"):
        inside(lambda x: x[0, nl.arange(3000)[None, :] * 3 // 2 % 7], X)
