"""Names that public kernels import, and `do_while`."""

import numpy as np
import pytest

import nkijax
from nkijax import KernelError, Unsupported
from nkijax.dialects.neuronxcc import jit, private_api
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.private_api import core_barrier, do_while, sendrecv


def halving(x):
    """Counts how often the value can be decremented before it is zero."""
    out = nl.zeros((1, 1), dtype=np.int32, buffer=nl.shared_hbm)
    left = nl.ndarray((1, 1), dtype=np.int32, buffer=nl.hbm)
    nl.store(left, nl.load(x))
    with do_while(left):
        nl.store(out, nl.add(nl.load(out), 1))
        nl.store(left[0, 0], nl.add(nl.load(left), -1))
    return out


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_do_while(n, eager):
    assert nkijax.run(halving, np.array([[n]], np.int32), eager=eager).item() == n


def test_do_while_without_source():
    with pytest.raises(Unsupported, match="source"):
        do_while(None).__enter__()


@jit
def swapped(x):
    """Two programs: each adds its partner's rows to its own in SBUF, then both read what both stored."""
    out = nl.ndarray((2, 4, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray((2, 4, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    mine, other = nl.load(x[me]), nl.zeros((4, 8), dtype=x.dtype)
    sendrecv(send_to_rank=1 - me, recv_from_rank=1 - me, src=mine, dst=other, pipe_id=1)
    nl.store(sums[me], mine + 10 * other)
    core_barrier(sums, (0, 1))
    nl.store(out[me], nl.load(sums[0]) - nl.load(sums[1]))
    return out


def test_programs_exchange_tiles_and_wait():
    x = np.arange(64, dtype=np.float32).reshape(2, 4, 8)
    assert (swapped[2](x) == (x[0] + 10 * x[1]) - (x[1] + 10 * x[0])).all()


def test_an_exchange_with_no_program():
    with pytest.raises(KernelError, match="sendrecv send_to_rank: must be one of the grid's 1 programs, got 1"):
        swapped[1](np.zeros((2, 4, 8), np.float32))
    lone = lambda x: (core_barrier(x, (0, 1)), nl.load(x))[1]  # noqa: E731
    with pytest.raises(KernelError, match="core_barrier cores"):
        nkijax.trace(lone, np.zeros((4, 8), np.float32))


def test_closed_kernels():
    with pytest.raises(Unsupported, match="private_api.mlp_kernel"):
        private_api.mlp_kernel(1, x=2)
