"""Positions that the values of a row imply: bounds of its segments, its nonzero elements (GpSimd engine)."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nkijax.isa import rates, rules
from nkijax.isa.gather import CORE_PARTITIONS, check_core_start
from nkijax.machine import Engine, Generation, Memory, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read

_WORDS = ("float32", "int32")
_START_CYCLES = 150  # of iota and affine_select, documented for gen2; assumed here


def _check_words(inst: Instruction, *operands: str) -> None:
    for name in operands:
        view = getattr(inst, name)
        if view.dtype not in _WORDS:
            raise rules.fail(inst, name, f"must have one of the dtypes {_WORDS}", view.dtype)


@dataclass(frozen=True)
class SequenceBounds(Instruction):
    """dst[0, 0, i] = the first position of i's segment, dst[0, 1, i] = the one behind its last; n and -1 of padding

    A segment is a run of equal segment_ids; padding has the id 0.
    Memory: all in SBUF.
    Data types: float32 or int32.
    Layout: segment_ids (1, n), dst (1, 2, n).
    Engine: GpSimd.
    Cost: 150 + 2n, assumed (the start of an iota, and what is written; unpublished).  n counts twice with a stride
        above 16 bytes.
    Not emulated: nothing.
    Source: nki.isa.sequence_bounds
    """

    dst: Out
    segment_ids: In

    api: ClassVar[str] = "nki.isa.sequence_bounds"

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        tiles = ("segment_ids", "dst")
        rules.in_memory(self, *tiles, memories=(Memory.sbuf,))
        for name in tiles:
            if getattr(self, name).partitions != 1:
                raise rules.fail(self, name, "must have 1 partition", getattr(self, name).shape)
        _check_words(self, *tiles)
        n = self.segment_ids.free
        if self.dst.free != 2 * n:
            raise rules.fail(self, "dst", f"must be (1, 2, {n}): two bounds an element", self.dst.shape)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        ids = lax.stop_gradient(read(self.segment_ids))
        n = ids.shape[1]
        position = lax.broadcasted_iota(jnp.int32, ids.shape, 1)
        differs = ids[:, 1:] != ids[:, :-1]
        edge = jnp.ones((1, 1), jnp.bool_)
        first, last = jnp.concatenate([edge, differs], axis=1), jnp.concatenate([differs, edge], axis=1)
        start = lax.cummax(jnp.where(first, position, 0), axis=1)
        end = lax.cummin(jnp.where(last, position + 1, n), axis=1, reverse=True)
        padding = ids == 0
        return (jnp.stack([jnp.where(padding, n, start), jnp.where(padding, -1, end)], axis=1),)

    def cycles(self, target: Target) -> Work:
        issue = _START_CYCLES + self.dst.free * rates.stride_penalty(self.dst, self.segment_ids)
        return Work(issue, target.latency_cycles(Engine.gpsimd))


@dataclass(frozen=True)
class NonzeroWithCount(Instruction):
    """dst[p] = the positions of the N elements of src[p] that are not 0, plus index_offset; padding_val; at the end N

    Only for p = 0, 16, 32, ...; the other partitions of dst keep their bits.
    Memory: all in SBUF.
    Data types: src float32 or int32, dst int32; index_offset and padding_val int32 numbers.
    Layout: src (P, T), dst (P, T + 1); P at most 128.
    Engine: GpSimd, gen3 or later.
    Cost: 150 + T, assumed (as iota; unpublished).  T counts twice with a stride above 16 bytes.
    Not emulated: nothing.
    Source: nki.isa.nonzero_with_count
    """

    dst: Out
    src: In
    index_offset: Number = 0
    padding_val: Number = -1
    before: In | None = field(default=None, init=False)  # dst, where some of its partitions stay as they are

    api: ClassVar[str] = "nki.isa.nonzero_with_count"

    def __post_init__(self):
        if self.dst.partitions > 1:
            object.__setattr__(self, "before", self.dst)

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen3, "the instruction")
        rules.in_memory(self, "dst", "src", memories=(Memory.sbuf,))
        rules.partitions(self, target, "dst", "src")
        check_core_start(self, "dst")
        check_core_start(self, "src")
        _check_words(self, "src")
        if self.dst.dtype != "int32":
            raise rules.fail(self, "dst", "must have dtype int32", self.dst.dtype)
        if self.dst.free != self.src.free + 1:
            rule = f"must have {self.src.free + 1} elements a partition, one more than src"
            raise rules.fail(self, "dst", rule, self.dst.shape)
        for name in ("index_offset", "padding_val"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or not -(2**31) <= value < 2**31:
                raise rules.fail(self, name, "must be a 32-bit integer", repr(value))

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        x = lax.stop_gradient(read(self.src))
        partitions, size = x.shape
        x = x[::CORE_PARTITIONS]
        position = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        found = lax.sort(jnp.where(x != 0, position, size), dimension=1)
        offset, padding = read(self.index_offset, jnp.int32), read(self.padding_val, jnp.int32)
        listed = jnp.where(found < size, found + offset, padding)
        count = jnp.sum(x != 0, axis=1, keepdims=True, dtype=jnp.int32)
        rows = jnp.concatenate([listed, count], axis=1)
        if self.before is None:
            return (rows,)
        every = jnp.repeat(rows, CORE_PARTITIONS, axis=0)[:partitions]
        written = lax.broadcasted_iota(jnp.int32, every.shape, 0) % CORE_PARTITIONS == 0
        return (jnp.where(written, every, read(self.before)),)

    def cycles(self, target: Target) -> Work:
        issue = _START_CYCLES + self.src.free * rates.stride_penalty(self.dst, self.src)
        return Work(issue, target.latency_cycles(Engine.gpsimd))
