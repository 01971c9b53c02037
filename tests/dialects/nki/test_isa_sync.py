"""Two cores that exchange data: kernel[2]."""

from __future__ import annotations

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
from nkijax import KernelError
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl


@nki.jit
def row_sums(x):
    """Sums of the rows of x (P, F): each core sums half of the columns, then they add each other's."""
    half = x.shape[1] // 2
    me = nl.program_id(0)
    out = nl.ndarray((x.shape[0], 1), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((x.shape[0], half), dtype=x.dtype, buffer=nl.sbuf)
    mine, theirs = (nl.ndarray((x.shape[0], 1), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=t, src=x[:, me * half : (me + 1) * half])
    nisa.tensor_reduce(dst=mine, op=nl.add, data=t, axis=1)
    nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.tensor_tensor(dst=mine, data1=mine, data2=theirs, op=nl.add)
    if me == 0:
        nisa.dma_copy(dst=out, src=mine)
    nisa.core_barrier(out, (0, 1))
    return out


X = np.arange(32, dtype=np.float32).reshape(4, 8)


def test_two_cores_exchange_partial_sums():
    np.testing.assert_array_equal(nkijax.run(row_sums[2], X), X.sum(1, keepdims=True))


def test_the_cost_is_that_of_the_slower_core():
    cost = nkijax.profile(row_sums[2], X, target="trn2").cost
    assert cost.cores == 2 and "2 cores" in str(cost)
    assert cost.total_us < 2 * cost.static_us + cost.fixed_us


def test_case_33_an_unmatched_partner_is_an_error_not_a_hang():
    def kernel(x):
        t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        if nl.program_id(0) == 0:
            nisa.sendrecv(src=t, dst=t, send_to_rank=1, recv_from_rank=1, pipe_id=0)
        return x

    with pytest.raises(KernelError, match="every core must reach it at the same point, core 1 reaches nothing"):
        nkijax.run(nki.jit(kernel)[2], X)


def test_case_33_cores_with_other_trip_counts_are_an_error():
    def kernel(x):
        t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nl.fori_loop(0, 2 + nl.program_id(0), lambda i: nisa.memset(t, 0.0) and None)
        return x

    with pytest.raises(KernelError, match="dynamic loop: every core must turn as often as core 0, 2 times, got 3"):
        nkijax.run(nki.jit(kernel)[2], X)
