"""Random numbers and the state of their generators.

Each function translates its arguments and emits the instruction's entry of `nkijax.isa`, whose docstring says what it
computes, its rules, its cost and what is not emulated.  Shapes: P partitions (at most 128), F all free dimensions.
"""

from __future__ import annotations

from typing import Any

from nkijax.dialects.nki.constants import engine
from nkijax.dialects.nki.emit import NkiInstruction, emit, operand
from nkijax.dialects.nki.tensor import view_of
from nkijax.isa.random import STATE_WORDS, Dropout, Rand2, RandGetState, RandSetState, Rng, SetRngSeed
from nkijax.machine import Engine
from nkijax.trace import current
from nkijax.view import View

_VECTOR = Engine.vector


def _generator(api: str, which: Any, lanes: int | None = None) -> View:
    """The state of the generator of an engine (the Vector engine's, unless it is GpSimd), of the first `lanes`."""
    recorder = current(api)
    which = Engine.gpsimd if which is Engine.gpsimd else _VECTOR
    state = recorder.state(f"{which.name} generator", (recorder.target.pmax, STATE_WORDS[which]), "uint32")
    return state if lanes is None else state.slice(0, 0, min(lanes, recorder.target.pmax))


def rng(dst, engine=engine.vector, name=None) -> NkiInstruction:
    """dst = random bits, integers of any width, (P, F)."""
    to = view_of("nki.isa.rng dst", dst)
    return emit(Rng(to, engine, _generator("nki.isa.rng", engine, to.partitions), name=name))


def rand2(dst, min, max, name=None) -> NkiInstruction:
    """dst = uniform random numbers from min to max, numbers or (P, 1) tiles, (P, F)."""
    to = view_of("nki.isa.rand2 dst", dst)
    state = _generator("nki.isa.rand2", _VECTOR, to.partitions)
    return emit(Rand2(to, operand(min), operand(max), state, name=name))


def dropout(dst, data, prob, name=None) -> NkiInstruction:
    """dst = 0 with probability prob, a number or (P, 1), else data, unscaled, (P, F)."""
    to, of = view_of("nki.isa.dropout dst", dst), view_of("nki.isa.dropout data", data)
    state = _generator("nki.isa.dropout", _VECTOR, to.partitions)
    return emit(Dropout(to, of, operand(prob), state, name=name))


def set_rng_seed(src_seeds, name=None) -> NkiInstruction:
    """Start the Vector engine's generator again from a 32-bit seed, a (1, 1) tile."""
    seed = view_of("nki.isa.set_rng_seed src_seeds", src_seeds)
    return emit(SetRngSeed(seed, _generator("nki.isa.set_rng_seed", _VECTOR), name=name))


def rand_set_state(src_seeds, engine=engine.gpsimd, name=None) -> NkiInstruction:
    """Set an engine's generator, a row for each lane: (P, 6) for GpSimd, (P, 24) for Vector."""
    seeds = view_of("nki.isa.rand_set_state src_seeds", src_seeds)
    return emit(RandSetState(seeds, engine, _generator("nki.isa.rand_set_state", engine, seeds.partitions), name=name))


def rand_get_state(dst, engine=engine.gpsimd, name=None) -> NkiInstruction:
    """dst = the state of an engine's generator, a row for each lane; `rand_set_state` resumes from it."""
    to = view_of("nki.isa.rand_get_state dst", dst)
    return emit(RandGetState(to, engine, _generator("nki.isa.rand_get_state", engine, to.partitions), name=name))
