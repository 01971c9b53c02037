"""Programs that wait for each other while they run eagerly."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import jit as legacy_jit
from nkijax.dialects.neuronxcc import language as legacy
from nkijax.dialects.neuronxcc.typing import scalar
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import jit
from nkijax.dialects.nki import language as nl

X = np.arange(2 * 4 * 3, dtype=np.float32).reshape(2, 4, 3)


def swapped(x):
    """Each core gets what the other one has, twice that, and what it has itself again."""
    out = nl.ndarray((2, 4, 3), dtype=x.dtype, buffer=nl.shared_hbm)
    me, mine, other = nl.program_id(0), nl.ndarray((4, 3), dtype=x.dtype), nl.ndarray((4, 3), dtype=x.dtype)
    nisa.dma_copy(dst=mine, src=x[me])
    for _ in range(2):
        nisa.sendrecv(dst=other, src=mine, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nisa.tensor_scalar(dst=mine, data=other, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out[me], src=mine)
    nisa.core_barrier(out, (0, 1))
    nisa.dma_copy(dst=mine, src=out[1 - me])
    nisa.dma_copy(dst=x[me], src=mine)
    return out


def test_cores_swap_and_wait():
    for eager in (False, True):
        x = X.copy()
        assert (nkijax.run(jit(swapped)[2], x, eager=eager, target="trn2") == 4 * X).all()
        assert (x == 4 * X[::-1]).all()


def summed(x, n):
    """Each program's running sum, over turns that are data, of a sum over the programs."""
    out, i = legacy.zeros((2, 3), dtype=x.dtype, buffer=legacy.shared_hbm), legacy.program_id(0)
    total = legacy.zeros((1, 3), dtype=x.dtype)
    for t in legacy.sequential_range(scalar(legacy.load(n))):
        row = legacy.load(x[i, t].reshape((1, 3)))
        total += legacy.all_reduce(row, op=np.add, program_axes=[0]) * (i + 1.0)
    legacy.store(out[legacy.ds(i, 1)], total)
    return out


def test_programs_meet_in_each_turn_of_a_dynamic_loop():
    want = X[:, :3].sum((0, 1)) * [[1], [2]]
    for eager in (False, True):
        assert (nkijax.run(legacy_jit(summed)[2], X, np.array([[3]], np.int32), eager=eager) == want).all()


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("meetings", [0, 1])
def test_a_program_that_stays_away(last, meetings):
    """Program `last` goes to one meeting more than the other one."""

    def kernel(x):
        row = legacy.load(x[0, 0:1])
        for _ in range(meetings + (legacy.program_id(0) == last)):
            legacy.all_reduce(row, op=np.add, program_axes=[0])

    with pytest.raises(KernelError, match=f"at the same point, core {1 - last} reaches nothing"):
        nkijax.run(legacy_jit(kernel)[2], X, eager=True)
    assert not any(t.name.startswith("nkijax") for t in threading.enumerate())


@pytest.mark.parametrize("which", [0, 2])
def test_a_program_that_fails_ends_the_others(which):
    ended = []

    def kernel(x):
        row = legacy.load(x[0, 0:1])
        try:
            legacy.all_reduce(row, op=np.add, program_axes=[0])
            if legacy.program_id(0) == which:
                raise ValueError("here")
            legacy.all_reduce(row, op=np.add, program_axes=[0])
        finally:
            ended.append(legacy.program_id(0))
            legacy.all_reduce(row, op=np.add, program_axes=[0])  # nobody will come

    with pytest.raises(ValueError, match="here"):
        nkijax.run(legacy_jit(kernel)[3], X, eager=True)
    assert len(ended) == 3
    assert not any(t.name.startswith("nkijax") for t in threading.enumerate())


def test_without_a_meeting_no_thread_is_made():
    here = []

    def kernel(x):
        here.append(threading.current_thread())
        return x

    nkijax.run(legacy_jit(kernel)[3], X, eager=True)
    assert here == [threading.current_thread()] * 3
