"""sendrecv and core_barrier: rules, and what partners amount to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nkijax.errors import KernelError
from nkijax.isa.sync import CoreBarrier, DmaEngine, SendRecv
from nkijax.machine import TRN1, TRN2, Engine, Memory, Transfer
from tests.isa.harness import execute, load, random, rule, store, tile

SEND = SendRecv(tile((4, 6)), tile((4, 6)), 1, 1, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "float8_e5m2"])
def test_partners_swap_even_in_place(dtype):
    (a, memory), (b, more) = (store(random((4, 6), dtype, seed), dtype) for seed in range(2))
    memory |= more
    before = load(a, memory).copy(), load(b, memory).copy()
    (swap,) = SendRecv(a, a, 1, 1, 0).join([SendRecv(b, b, 0, 0, 0, core=1)])
    execute(swap, memory)
    np.testing.assert_array_equal(load(a, memory), before[1])
    np.testing.assert_array_equal(load(b, memory), before[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "float8_e5m2"])
def test_sending_to_oneself_is_a_copy_and_meets_nobody(dtype):
    src, memory = store(random((4, 6), dtype), dtype)
    dst, more = store(np.zeros((4, 6)), dtype)
    memory |= more
    own = SendRecv(src, dst, 0, 0, 0)
    assert own.meets() is None and SEND.meets() is not None and replace(own, core=1).meets() is not None
    execute(own, memory)
    np.testing.assert_array_equal(load(dst, memory), load(src, memory))


def test_parts_of_tiles():
    """The odd columns of one core's tile for the last rows of the other's, and the other way round."""
    (a, memory), (b, more) = (store(random(shape, seed=k)) for k, shape in enumerate([(2, 6), (4, 3)]))
    memory |= more
    one, two = a.slice(1, 1, 6, 2), b.slice(0, 2, 4)
    before = load(one, memory).copy(), load(two, memory).copy()
    (swap,) = SendRecv(one, one, 1, 1, 0).join([SendRecv(two, two, 0, 0, 0, core=1)])
    execute(swap, memory)
    np.testing.assert_array_equal(load(one, memory), before[1])
    np.testing.assert_array_equal(load(two, memory), before[0])
    np.testing.assert_array_equal(memory[a.buffer][:, ::2], random((2, 6))[:, ::2])
    own = SendRecv(one, two, 0, 0, 0)
    assert rule(own) == ""
    execute(own, memory)
    np.testing.assert_array_equal(load(two, memory), before[1])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"src": tile((4, 6), memory=Memory.psum)}, r"src: src must be in \['sbuf'\], got psum"),
        ({"dst": tile((4, 5))}, r"dst: must be float32 \(4, 6\) like src, got float32 \(4, 5\)"),
        ({"dst": tile((4, 6), "int32")}, "dst: must be float32"),
        ({"send_to_rank": 2}, "send_to_rank: must be 0 or 1, got 2"),
        ({"recv_from_rank": 0}, "recv_from_rank: must be the send_to_rank 1, got 0"),
        ({"dma_engine": 1}, "dma_engine: must be a member of nki.isa.dma_engine"),
        (
            {"src": tile((4, 257)), "dst": tile((4, 257)), "dma_engine": DmaEngine.gpsimd_dma},
            "src: takes at most 256 elements of a partition with gpsimd_dma, got 257",
        ),
    ],
)
def test_rules(changes, message):
    assert rule(SEND, TRN2) == ""
    with pytest.raises(KernelError, match="nki.isa.sendrecv " + message):
        replace(SEND, **changes).check(TRN2)


def test_generations():
    assert "needs gen3 or later, got trn1" in rule(SEND, TRN1)
    assert "needs gen3 or later, got trn1" in rule(CoreBarrier(tile((1, 1)), (0, 1)), TRN1)


def test_partners_must_agree_on_the_shape():
    with pytest.raises(KernelError, match="must be int32"):
        SEND.join([SendRecv(tile((4, 6), "int32"), tile((4, 6), "int32"), 0, 0, 0, core=1)])
    (swap,) = SEND.join([SendRecv(tile((4, 6)), tile((4, 6)), 0, 0, 0, core=1)])
    assert rule(swap) == "" and "(4, 5)" in rule(replace(swap, dst1=tile((4, 5))))


@pytest.mark.parametrize("cores, meets", [((0, 1), True), ([0, 1], True), ((0,), False), (0, False)])
def test_trap_22_a_barrier_of_one_core_meets_nobody(cores, meets):
    barrier = CoreBarrier(tile((1, 1)), cores)
    assert rule(barrier, TRN2) == "" and (barrier.meets() is not None) == meets and barrier.writes() == ()


def test_barrier_rules():
    assert "cores: must name cores 0 and 1, got (0, 2)" in rule(CoreBarrier(tile((1, 1)), (0, 2)), TRN2)
    assert CoreBarrier(tile((1, 1)), (0, 1), Engine.unknown).queue is Engine.gpsimd


def test_cost():
    assert SEND.cycles(TRN2) == Transfer(4 * 6 * 4)
    assert CoreBarrier(tile((1, 1)), (0, 1)).cycles(TRN2).issue_cycles == TRN2.min_issue_cycles
