"""Cores that meet: their programs are joined stretch by stretch, and a core that stays away is an error."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nkijax.cores import joined
from nkijax.errors import KernelError, Unsupported
from nkijax.isa.move import Memset
from nkijax.machine import TRN2, Engine, Memory, Work
from nkijax.program import In, Instruction, Out
from nkijax.trace import Recorder
from nkijax.view import View


@dataclass(frozen=True)
class Meet(Instruction):
    """A meeting at which nothing happens."""

    dst: Out
    src: In
    ident: int = 0
    api = "meet"

    @property
    def queue(self):
        return Engine.sync

    def check(self, target):
        pass

    def run(self, read):
        return (read(self.src),)

    def cycles(self, target):
        return Work(1, 0)

    def meets(self):
        return self.ident


def record(kernel):
    r = Recorder("kernel", TRN2, programs=2)
    t = View.whole(r.allocate((4, 4), "float32", Memory.sbuf))
    return r.record(lambda: kernel(r, t) or [])


def test_stretches_alternate_between_meetings():
    def kernel(r, t):
        r.emit(Memset(t, 0.0))
        r.emit(Meet(t, t))
        r.emit(Memset(t, 1.0))

    body = record(kernel).body
    assert [(type(n).__name__, n.core) for n in body] == [
        ("Memset", 0),
        ("Memset", 1),
        ("Meet", 0),
        ("Meet", 1),
        ("Memset", 0),
        ("Memset", 1),
    ]


def test_programs_that_never_meet_follow_one_another():
    assert joined([["a", "b"], ["c"]]) == ["a", "b", "c"]


def test_a_core_that_stays_away_is_an_error():
    def kernel(r, t):
        for _ in range(2 - r.program_id):
            r.emit(Meet(t, t))

    with pytest.raises(KernelError, match="meet: every core must reach it at the same point, core 1 reaches nothing"):
        record(kernel)


def test_cores_that_meet_in_another_order_are_an_error():
    def kernel(r, t):
        r.emit(Meet(t, t, r.program_id))

    with pytest.raises(KernelError, match="core 1 reaches meet at"):
        record(kernel)


def test_meeting_inside_a_dynamic_loop_is_unsupported():
    def kernel(r, t):
        for _ in r.turns("loop", 0, 3, 1):
            r.emit(Meet(t, t))

    with pytest.raises(Unsupported, match="wait for each other inside a dynamic loop"):
        record(kernel)
