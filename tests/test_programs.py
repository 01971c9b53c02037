"""Random programs over the whole shelf: every way to run one gives what NumPy gives, to the bit.

A program is run in one of five forms: flat, rolled (as scans, batched where possible, or as nkijax chooses), and
eagerly; each is compared with `tests.reference`, which executes the flat program, and so with the others.  Loop counts
and the error word are compared, too.

`make test` runs 100 programs in one form each, the nightly mark 2,000 flat, rolled in one of the three ways, and
eagerly.  They are compiled at the level of optimisation that users get, and but for the bfloat16 ones of `make test`
with the emitters that users have.  Measured, in CPU seconds a program: 0.06 to
trace, 0.03 to lower, 0.21 to compile.  `xla_backend_optimization_level=0` compiles in 0.16, too little a gain for
testing another compiler.  An eager program takes 0.1, once each primitive has compiled for each shape, about 14 in
all: so they are few, in one test.  In the old dialect masks are boxes and predicated copies by the time they are a
program.
"""

from __future__ import annotations

from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkijax.isa import collectives, collectives_v, debug, permute, programs, sync
from nkijax.lower import lower
from nkijax.program import Instruction, Program, instructions
from nkijax.roll import roll
from tests import SHIPPED
from tests.programs import Maker, arguments, eagerly
from tests.reference import OWN, REFERENCES, interpret
from tests.test_style import INSTRUCTIONS

LEFT_OUT = {
    **dict.fromkeys([collectives.AllReduce, collectives.AllGather, collectives.ReduceScatter], "needs a mesh axis"),
    **dict.fromkeys([collectives.AllToAll, collectives_v.AllGatherV, collectives_v.AllToAllV], "needs a mesh axis"),
    **dict.fromkeys([permute.CollectivePermute, permute.CollectivePermuteImplicit], "needs a mesh axis"),
    **dict.fromkeys([permute.CollectivePermuteImplicitReduce, permute.RankId], "needs a mesh axis"),
    permute.CurrentProcessingRankId: "needs a mesh axis",
    **dict.fromkeys([sync.SendRecv, sync.Swap, sync.CoreBarrier], "needs two cores"),
    programs.ProgramBarrier: "needs a grid of programs",
    debug.DevicePrint: "writes nothing but text",
}
DTYPES = ["float32", "bfloat16"]
FORMS = {
    "unroll": lambda program: lower(program, loops="unroll"),
    "scan": lambda program: lower(roll(program), loops="scan"),
    "vmap": lambda program: lower(roll(program), loops="vmap"),
    "auto": lambda program: lower(roll(program)),
}
draws = given(st.randoms(use_true_random=False))


def same(got, want) -> None:
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(g), w)


def check(program: Program, form: str, inputs, dtype: str = "float32") -> None:
    """Of both dtypes, one is compiled as users have it."""
    outputs, written, trips = interpret(program, inputs)
    lowered = FORMS[form](program)
    options = SHIPPED if jax.default_backend() == "cpu" and dtype == "float32" else None
    result = jax.jit(lowered.function, compiler_options=options)(*inputs)
    lowered.check(np.asarray(result.error))
    same(result.outputs, outputs)
    same(result.written, written)
    assert result.trips.tolist()[: len(trips)] == trips


def check_eager(random: Random, dtype: str) -> Program:
    state = random.getstate()
    program = Maker(random, dtype).make()
    random.setstate(state)
    inputs = arguments(0)
    same(eagerly(random, dtype, inputs), interpret(program, inputs)[0])
    return program


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=12)
@draws
def test_lowered_programs(form, dtype, random):
    check(Maker(random, dtype).make(), form, arguments(1), dtype)


@settings(max_examples=4)
@draws
def test_eager_programs(random):
    check_eager(random, random.choice(DTYPES))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=1000)
@draws
def test_programs_in_three_forms(dtype, random):
    program = check_eager(random, dtype)
    for form in ("unroll", random.choice(["scan", "vmap", "auto"])):
        check(program, form, arguments(1))


def gradients(program: Program, form: str, inputs) -> list[jax.Array]:
    """By the float inputs, of a weighted sum of all float results."""
    lowered = lower(roll(program), max_trips=8, loops="scan") if form == "bounded" else FORMS[form](program)

    def loss(*args):
        result = lowered.function(*args)
        floats = [x for x in (*result.outputs, *result.written) if jnp.issubdtype(x.dtype, jnp.inexact)]
        weights = (np.random.default_rng(k).integers(-2, 3, x.shape) for k, x in enumerate(floats))
        return sum((x * np.asarray(w, np.float32)).sum() for x, w in zip(floats, weights, strict=True))

    return jax.jit(jax.grad(loss, [i for i, x in enumerate(inputs) if x.dtype == np.float32]))(*inputs)


@pytest.mark.nightly
@settings(max_examples=100)
@draws
def test_gradients_in_all_forms(random):
    """As the flat program's; loops whose trip count is data also as a scan that is bounded."""
    program, inputs = Maker(random, "float32").make(), arguments(1)
    flat = gradients(program, "unroll", inputs)
    for form in ("scan", "auto", *["bounded"] * bool(program.loops)):
        for got, want in zip(gradients(program, form, inputs), flat, strict=True):
            largest = np.max(np.abs(want), where=np.isfinite(want), initial=1e-6)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * largest)


def test_programs_have_every_instruction_of_one_core():
    assert {*REFERENCES, *OWN, *LEFT_OUT} == {*INSTRUCTIONS}
    assert not {*REFERENCES, *OWN} & {*LEFT_OUT}
    made: set[type[Instruction]] = set()
    for seed in range(300):
        made |= {type(i) for i in instructions(Maker(Random(seed)).make().body)}
    assert {*REFERENCES, *OWN} - made == set()
