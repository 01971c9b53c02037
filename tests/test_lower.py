"""Lowering: rolled and flat programs mean the same, in every mode, and what NumPy says."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax.lower import lower
from nkijax.roll import roll
from tests.programs import Maker, arguments, interpret


def same(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(g), w)


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["float32", "bfloat16"]))
def test_lowering_rolled_programs_is_executing_them(random, dtype):
    program = Maker(random, dtype=dtype).make()
    inputs = arguments(random.randint(0, 99))
    want = interpret(program, inputs)
    rolled = roll(program)
    for loops in ("auto", "scan"):
        same(jax.jit(lower(rolled, loops=loops).function)(*inputs).outputs, want)


@pytest.mark.nightly
@settings(max_examples=2000, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["float32", "bfloat16"]))
def test_flat_and_rolled_lowerings_agree(random, dtype):
    program = Maker(random, dtype=dtype).make()
    inputs = arguments(random.randint(0, 99))
    want = interpret(program, inputs)
    for p, loops in ((program, "auto"), (roll(program), "batch"), (roll(program), "scan")):
        same(jax.jit(lower(p, loops=loops).function)(*inputs).outputs, want)
