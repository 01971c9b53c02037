"""Grids: programs one after another, sharing what they declare."""

import numpy as np
import pytest

from nkijax import KernelError
from nkijax.dialects.neuronxcc import jit, simulate_kernel
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.grid import grid_of

X = np.arange(8, dtype=np.float32).reshape(8, 1)


def test_grids():
    assert grid_of(3) == (3,) and grid_of((2, 3)) == (2, 3) and grid_of(0) == (1,) and grid_of([np.int64(2)]) == (2,)
    assert grid_of(nl.nc(2)) == (2,) and grid_of(3 * nl.nc(2)) == (6,) and grid_of(nl.nc(2) * 3) == (6,)
    assert grid_of((nl.spmd_dim(4, nl.nc(2)), 3)) == (8, 3)
    for bad in ("a", (1, None), -1):
        with pytest.raises(KernelError, match=r"kernel\[grid\]"):
            grid_of(bad)


@jit
def numbered(x):
    """Each program writes its row: its number on both axes, and what the first program left."""
    out = nl.zeros((2, 3, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    scratch = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.hbm)
    i, j = nl.program_id(0), nl.program_id(axis=1)
    if i == j == 0:
        nl.store(scratch, 5)
    row = nl.zeros((1, 8), dtype=x.dtype)
    row[0, 0], row[0, 1] = i, j
    row[0, 2], row[0, 3] = nl.num_programs([0]), nl.num_programs(1)
    row[0, 4], row[0, 5] = nl.num_programs((0, 1)), nl.program_ndim()
    row[0, 6] = nl.load(scratch)
    nl.store(out[i, j], row)
    return out


def test_every_program_writes_its_part():
    got = numbered[2, 3](X)
    want = [[[i, j, 2, 3, 6, 2, 5, 0] for j in range(3)] for i in range(2)]
    assert (got == want).all()


def test_without_a_grid():
    def kernel(x):
        assert nl.program_ndim() == 0 and nl.num_programs() == nl.num_programs(axes=0) == 1 and nl.program_id(0) == 0
        with pytest.raises(KernelError, match="has 0 axes"):
            nl.program_id(1)
        return x

    simulate_kernel(kernel, X)


@jit
def reduced(x, axes, op):
    """Each program's row of x, reduced over the programs of some axes."""
    out = nl.ndarray((2, 3, 4), dtype=x.dtype, buffer=nl.shared_hbm)
    i, j = (nl.program_id(0), nl.program_id(1)) if nl.program_ndim() else (0, 0)
    row = nl.load(x[i, j].reshape((1, 4)))
    nl.store(out[i, j], nl.all_reduce(row, op=op, program_axes=axes))
    return out


Y = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("axes", [[0], [1], (0, 1), None, 1], ids=str)
def test_reductions_over_programs(axes):
    over = (0, 1) if axes is None else axes if isinstance(axes, int) else tuple(axes)
    want = np.broadcast_to(Y.max(over, keepdims=True), Y.shape)
    np.testing.assert_array_equal(reduced[2, 3](Y, axes, np.max), want)
    np.testing.assert_allclose(
        reduced[2, 3](Y, axes, nl.add), np.broadcast_to(Y.sum(over, keepdims=True), Y.shape), 1e-5
    )


def test_a_reduction_over_one_program_is_a_copy():
    assert (reduced(Y, None, np.add)[0, 0] == Y[0, 0]).all() and (reduced[1, 1](Y, [0], np.add)[0, 0] == Y[0, 0]).all()


def test_a_programs_number_stands_for_its_axis():
    @jit
    def over_columns(x):
        return reduced(x, [nl.program_id(1)], nl.add)

    np.testing.assert_allclose(over_columns[2, 3](Y), np.broadcast_to(Y.sum(1, keepdims=True), Y.shape), 1e-5)
