"""Loops over ints run; loops over tiles are dynamic."""

import numpy as np
import pytest

import nkijax
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


def test_a_bound_computed_in_python():
    def kernel(n, x):
        t = nl.load(x)
        count = nl.load(n).as_index()
        assert count is not None
        for _ in range(count * 2 - 1):
            t[...] = t + 1.0
        return t

    assert (nkijax.run(kernel, N, np.zeros((4, 1), np.float32)) == 5).all()
