"""Affine index patterns (GpSimd engine)."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import operators, rates, rules
from nkijax.machine import Engine, Memory, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read
from nkijax.view import View

Pattern = Sequence[Sequence[int]]

_DIMS = 4  # a pattern has at most four [step, count] pairs
_START_CYCLES = 150  # documented for gen2, assumed for later generations


def as_pattern(pattern: Pattern) -> tuple[tuple[int, ...], ...]:
    """The pairs of a pattern as a hashable value, NumPy integers as ints."""
    return tuple(tuple(int(x) if isinstance(x, numbers.Integral) else x for x in pair) for pair in pattern)


def _fits(x: object) -> bool:
    return isinstance(x, numbers.Integral) and -(2**31) <= int(x) < 2**31


def check_pattern(inst: Any) -> None:
    """`pattern`, `offset` and `channel_multiplier` are int32, and the pattern counts the free elements of dst."""
    pattern = inst.pattern
    pairs = all(len(p) == 2 and all(map(_fits, p)) and p[1] > 0 for p in pattern)  # noqa: PLR2004
    if not pairs or not 1 <= len(pattern) <= _DIMS:
        raise rules.fail(inst, "pattern", f"must be 1 to {_DIMS} pairs [step, count] of 32-bit integers", pattern)
    if math.prod(n for _, n in pattern) != inst.dst.free:
        raise rules.fail(inst, "pattern", f"must count the {inst.dst.free} free elements of dst", pattern)
    if not _fits(inst.channel_multiplier):
        raise rules.fail(inst, "channel_multiplier", "must be a 32-bit integer", repr(inst.channel_multiplier))
    offset = inst.offset
    if isinstance(offset, View):
        if offset.memory is not Memory.register:
            raise rules.fail(
                inst, "offset", "must be a 32-bit integer or a register", f"a tile in {offset.memory.value}"
            )
    elif not _fits(offset):
        raise rules.fail(inst, "offset", "must be a 32-bit integer or a register", repr(offset))


def affine(inst: Any, read: Read) -> jax.Array:
    """offset + p * channel_multiplier + sum of step_k * i_k, (P, F) in int32."""
    shape = (inst.dst.partitions, *(n for _, n in inst.pattern))
    value = jnp.broadcast_to(read(inst.offset, jnp.int32).reshape(()), shape)
    for dim, step in enumerate((inst.channel_multiplier, *(s for s, _ in inst.pattern))):
        if step:
            value = value + np.int32(step) * lax.broadcasted_iota(jnp.int32, shape, dim)
    return value.reshape(shape[0], -1)


@dataclass(frozen=True)
class Iota(Instruction):
    """dst[p, i] = cast(offset + p * channel_multiplier + sum of step_k * i_k)

    Memory: dst in SBUF.
    Data types: any; int32 arithmetic.  Integers are kept modulo the range of dst, floats rounded to nearest even.
    Layout: dst (P, F), P at most 128, p counts from the first partition of dst; pattern: up to four [step, count],
        outermost first, counts multiplying to F.  offset may be a register.
    Engine: GpSimd.
    Cost: 150 + F on gen2, assumed for later generations.  F counts twice with a stride above 16 bytes.
    Not emulated: nothing.
    Source: nki.isa.iota
    """

    dst: Out
    pattern: Pattern
    offset: In | Number = 0
    channel_multiplier: int = 0

    api: ClassVar[str] = "nki.isa.iota"

    def __post_init__(self):
        object.__setattr__(self, "pattern", as_pattern(self.pattern))

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", memories=(Memory.sbuf,))
        rules.partitions(self, target, "dst")
        operators.not_packed(self, "dst")
        check_pattern(self)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        value = affine(self, read)
        wraps = dtypes.KINDS[self.dst.dtype].family == "int"
        return (value.astype(dtypes.storage(self.dst.dtype)) if wraps else value,)

    def cycles(self, target: Target) -> Work:
        issue = _START_CYCLES + self.dst.free * rates.stride_penalty(self.dst)
        return Work(issue, target.latency_cycles(Engine.gpsimd))
