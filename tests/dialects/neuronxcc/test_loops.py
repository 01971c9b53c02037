"""Loops over ints run; loops over tiles are dynamic."""

import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.typing import scalar
from nkijax.program import Loop


def test_ints():
    assert list(nl.affine_range(3)) == [0, 1, 2] and list(nl.sequential_range(1, 4)) == [1, 2, 3]
    assert list(nl.static_range(np.int64(3))) == [0, 1, 2] and len(nl.affine_range(2)) == 2
    turns = iter(nl.static_range(2))
    assert (next(turns), next(turns), next(turns, -1)) == (0, 1, -1)
    assert nl.affine_range(2, name="i", directives=None)[1] == 1


def running(n, x):
    out = nl.ndarray((4, 1), dtype=np.float32, buffer=nl.shared_hbm)
    count = nl.load(n)
    total = nl.zeros((4, 1), dtype=np.float32)
    for _ in range(scalar(count)):
        total += nl.load(x)
    nl.store(out, total)
    return out


def indexed(n, x):
    out = nl.zeros((8, 4), dtype=np.float32, buffer=nl.shared_hbm)
    for i in nl.sequential_range(scalar(nl.load(n))):
        nl.store(out[i], nl.load(x[i]) * 2.0)
    return out


N = np.array([[3]], np.int32)


@pytest.mark.parametrize("eager", [False, True])
def test_a_trip_count_from_a_tile(eager):
    x = np.ones((4, 1), np.float32)
    np.testing.assert_array_equal(nkijax.run(running, N, x, eager=eager), 3 * x)


def test_it_is_one_loop_node():
    program = nkijax.trace(running, N, np.ones((4, 1), np.float32))
    assert sum(isinstance(node, Loop) for node in program.body) == 1


def test_its_variable_indexes():
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    want = np.where(np.arange(8)[:, None] < 3, 2 * x, 0)
    np.testing.assert_array_equal(nkijax.run(indexed, N, x), want)


@pytest.mark.parametrize("assigned", [False, True])
def test_a_tile_of_a_body_lives_only_there(assigned):
    """NKI's err_local_variable_used_out_of_scope; also of a result that was assigned, whose destination lives on."""

    def kernel(n, x):
        kept = nl.zeros((8, 4), dtype=np.float32)
        for _ in range(scalar(nl.load(n))):
            tile = nl.load(x) + 1.0
            if assigned:
                kept[...] = tile
        return nl.copy(tile)  # type: ignore[possibly-unbound]

    with pytest.raises(KernelError, match="allocated in the body of a dynamic loop lives only there"):
        nkijax.trace(jit(kernel), N, np.ones((8, 4), np.float32))


def test_a_result_that_was_assigned_is_used_in_a_loop_and_after_it():
    def kernel(n, x):
        tile, total = nl.load(x) + 1.0, nl.zeros((8, 4), dtype=np.float32)
        kept = nl.ndarray((8, 4), dtype=np.float32)
        kept[...] = tile
        for _ in range(scalar(nl.load(n))):
            total += tile
        total += tile
        return total + kept

    assert (nkijax.run(jit(kernel), N, np.ones((8, 4), np.float32)) == 10).all()


@pytest.mark.parametrize("k", [2, 3])
def test_a_variable_is_divided(k):
    """Buffers that a dynamic loop takes in turn."""

    def kernel(n, x):
        out, ring = nl.zeros((8, 4), dtype=np.float32, buffer=nl.shared_hbm), nl.zeros((1, k, 4), dtype=np.float32)
        for i in range(scalar(nl.load(n))):
            ring[:, i % k] = nl.load(x[i].reshape((1, 4)))
            nl.store(out[i // k + 2].reshape((1, 4)), ring[:, (i + 1) % k] + ring[:, i % k])
        return out

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    want, ring = np.zeros_like(x), np.zeros((k, 4))
    for i in range(5):
        ring[i % k] = x[i]
        want[i // k + 2] = ring[(i + 1) % k] + ring[i % k]
    assert (nkijax.run(jit(kernel), np.array([[5]], np.int32), x) == want).all()


def test_a_bound_computed_in_python():
    def kernel(n, x):
        t = nl.load(x)
        count = nl.load(n).as_index()
        assert count is not None
        for _ in range(count * 2 - 1):
            t[...] = t + 1.0
        return t

    assert (nkijax.run(kernel, N, np.zeros((4, 1), np.float32)) == 5).all()
