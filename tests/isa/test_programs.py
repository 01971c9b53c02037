"""The meeting of a grid's programs."""

import pytest

from nkijax import KernelError
from nkijax.isa.programs import ProgramBarrier
from nkijax.machine import TRN1, Engine, Memory, Work
from nkijax.view import Buffer, View


def test_a_barrier():
    shared = View.whole(Buffer(0, (2, 4), "float32", Memory.shared_hbm))
    barrier = ProgramBarrier(shared)
    barrier.check(TRN1)
    assert barrier.meets() == (barrier.api, (2, 4)) and barrier.join([barrier]) == (barrier, barrier)
    assert barrier.queue is Engine.gpsimd and barrier.cycles(TRN1) == Work(0, 0) and barrier.writes() == ()
    with pytest.raises(KernelError, match="data: must be in HBM, got sbuf"):
        ProgramBarrier(View.whole(Buffer(0, (2, 4), "float32", Memory.sbuf))).check(TRN1)
