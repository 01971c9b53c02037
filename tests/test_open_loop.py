"""The protocols of the recorder's partners hold for those that there are."""

from __future__ import annotations

from nkijax.eager import Eager
from nkijax.isa.accumulate import MatmulFacts
from nkijax.machine import TRN2
from nkijax.open_loop import Executor, OpenLoop, Scoped


def test_eager_memory_is_an_executor():
    executor: Executor = Eager(TRN2)
    assert all(callable(getattr(executor, name)) for name in ("execute", "value", "poke"))


def test_matmul_facts_follow_loops():
    facts: Scoped = MatmulFacts()
    facts.enter_loop()
    facts.exit_loop()


def test_bodies_of_open_loops_are_their_own():
    one, two = (OpenLoop(k, "", None, 0, 1, 1, None) for k in range(2))
    assert one.body == [] and one.body is not two.body
