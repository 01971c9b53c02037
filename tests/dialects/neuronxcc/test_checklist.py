"""What kernels of the old dialect rely on, each in the smallest kernel that shows it, where no module's test does."""

import time

import jax
import numpy as np
import pytest

import nkijax
from nkijax.dialects.neuronxcc import baremetal, jit, simulate_kernel
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl

from .test_emit import X, ran


def test_an_access_pattern_is_a_value():
    """A subscript of an HBM tensor moves nothing; its load does, under the load's mask."""

    def body(x):
        i, j = nl.arange(8)[:, None], nl.arange(8)[None, :]
        pattern = x[100000 * i, j]
        static = x[4:12, 0:8]
        t = nl.load(pattern, mask=i < 1)
        t[nl.arange(1, 3)[:, None], j] = nl.load(static, mask=i < 2)[0:2]
        return t

    got = ran(body)
    assert (got[0] == X[0]).all() and (got[1:3] == X[4:6]).all() and not got[3:].any()


def test_a_whole_false_mask_hides_a_static_index():
    def body(x):
        t = nl.ndarray((2, nl.par_dim(6), 8), dtype=nl.float32)
        for k in range(3):
            if k < 2:
                t[k] = nl.load(x)
            nl.load(x[6 + k], mask=k > 5)
        return t[1]

    assert (ran(body) == X).all()


def test_reshapes_and_bit_views():
    x = np.arange(64, dtype=np.float32).reshape(8, 2, 4)
    got = ran(lambda x: nl.load(x).reshape(shape=(8, 8)).view(nl.uint8), x)
    assert (got == x.reshape(8, 8).view(np.uint8)).all()


def test_a_vector_is_a_column():
    def body(x):
        t = nl.load(x)
        v = t[:, 0]
        bias = nisa.activation(op=nl.square, data=t, bias=v)  # (P, 8) + (P,), not (P, P)
        v[...] = nl.add(v, v[:, 0])
        return nl.add(bias, t[:, 0])

    assert (ran(body) == (X + X[:, :1]) ** 2 + 2 * X[:, :1]).all()


def test_keyword_only_kernels_and_an_array_given_twice():
    @jit
    def kernel(*, one, two, scale=1.0):
        out = nl.ndarray(one.shape, dtype=one.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(one) + nl.load(two) * scale)
        return out

    assert (baremetal(kernel)(one=X, two=X, scale=2.0) == 3 * X).all()


def test_operands_of_lower_rank_align_from_the_left():
    x = np.arange(6 * 4 * 3, dtype=np.float32).reshape(6, 4, 3)

    def body(x):
        i, j = nl.arange(6)[:, None], nl.arange(4)[None, :]
        t = nl.load(x)
        return nl.add(t, t[:, 0:1, 0], mask=i >= j)

    a, b, _ = np.indices(x.shape)
    assert (ran(body, x).reshape(x.shape) == np.where(a >= b, x + x[:, :1, :1], 0)).all()


def test_an_index_tile_gives_a_view():
    def body(x):
        t, at = nl.load(x), nl.full((1, 1), 2, dtype=nl.int32)
        view = t[:, at[0, 0]]
        view[...] = 0
        t[:, at + nl.arange(2)[None, :]] = 5
        return t

    want = X.copy()
    want[:, 2:4] = 5
    assert (ran(body) == want).all()


def test_copies_are_snapshots_and_updates_keep_the_object():
    def body(x):
        t = nl.load(x)
        same, old = t, nl.copy(t)
        t += 1
        assert t is same
        t[0, :] += old[0, :]
        return t - old

    want = np.ones_like(X)
    want[0] += X[0]
    assert (ran(body) == want).all()


def test_names_rebound_in_a_loop_start_each_turn_as_before_it():
    def body(x):
        t, width, mask = nl.zeros((6, 8), dtype=nl.float32), 4, None
        i = nl.arange(6)[:, None]
        for k in nl.affine_range(2):
            mask = i > k if mask is None else mask & (i > 90)
            part = slice(k * width, k * width + width)
            t[:, part] = nl.load(x[:, part], mask=mask)
            width = 2
        return t

    want = X.copy()
    want[0, :4], want[:2, 4:] = 0, 0
    assert (ran(body) == want).all()


def test_predicates_joined_by_and():
    def body(x):
        i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
        return nl.square(nl.load(x), mask=i < 3 and j < 2)

    want = np.zeros_like(X)
    want[:3, :2] = X[:3, :2] ** 2
    assert (ran(body) == want).all()


def test_large_patterns_are_traced_at_once():
    """Masked tiles of a tensor of 10^8 elements: no index grid is made."""

    def kernel(x):
        i, j = nl.arange(128)[:, None], nl.arange(1280)[None, :]
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for b in nl.affine_range(10):
            for k in nl.affine_range(20):
                rows = k * 128 + i
                nl.store(out[b, rows, j], nl.load(x[b, rows, j], mask=rows < 2242), mask=rows < 2242)
        return out

    start = time.perf_counter()
    nkijax.trace(jit(kernel), jax.ShapeDtypeStruct((10, 22420, 1280), np.float32))
    assert time.perf_counter() - start < 5


def test_numpy_integers_and_scalars_index():
    got = ran(lambda x: nl.load(x[np.int64(2) : np.int64(4), 0 : np.int32(3)]))
    assert (got == X[2:4, :3]).all()
    with pytest.raises(TypeError, match="not iterable"):
        ran(lambda x: list(nl.load(x)))


def test_dynamic_trip_counts():
    def kernel(x, n):
        out = nl.ndarray((6, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        t, count = nl.load(x), nl.load(n)
        for _ in nl.sequential_range(count):
            t[...] = nl.add(t, 1.0)
        nl.store(out, t)
        return out

    for n in (0, 3):
        assert (simulate_kernel(kernel, X, np.array([[n]], np.int32)) == X + n).all()
