"""Choosing elements by a predicate: of an affine index (GpSimd engine) or of a tile (Vector engine)."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from nkijax import dtypes
from nkijax.isa import operators, rates, rules
from nkijax.isa.index import Pattern, affine, as_pattern, check_pattern
from nkijax.isa.operators import ALU, AluOp
from nkijax.machine import Engine, Generation, Memory, Target, Work
from nkijax.program import In, InOut, Instruction, Masked, Number, Out, Read
from nkijax.view import View

_SELECT_START_CYCLES = 150  # documented for gen2
_SELECT_PASSES = 1.015  # measured on trn2, where the start is part of the latency
_PREDICATES = ("uint8", "uint16", "uint32")
_WORDS = ("int32", "uint32")


@dataclass(frozen=True)
class AffineSelect(Instruction):
    """dst[p, i] = on_true_tile[p, i] if (offset + p * channel_multiplier + sum of step_k * i_k) <cmp_op> 0 else
    on_false_value

    Memory: dst, on_true_tile in SBUF.
    Data types: any; equal dtypes are copied bit for bit, others through float32; on_false_value is a float32 number.
        The index is int32.
    Layout: dst, on_true_tile (P, F), P at most 128, p counts from the first partition of dst; pattern: up to four
        [step, count], outermost first, counts multiplying to F.  offset may be a register.
    Engine: GpSimd.
    Cost: gen2 150 + F; gen3 max(64, 1.015F), assumed for gen4.  F counts twice with a stride above 16 bytes.
    Not emulated: nothing.
    Source: nki.isa.affine_select
    """

    dst: Out
    pattern: Pattern
    channel_multiplier: int
    on_true_tile: In
    on_false_value: Number
    cmp_op: AluOp = ALU["equal"]
    offset: In | Number = 0

    api: ClassVar[str] = "nki.isa.affine_select"

    def __post_init__(self):
        object.__setattr__(self, "pattern", as_pattern(self.pattern))

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "on_true_tile", memories=(Memory.sbuf,))
        rules.partitions(self, target, "dst", "on_true_tile")
        rules.same_free(self, "dst", "on_true_tile")
        operators.not_packed(self, "dst", "on_true_tile")
        operators.check_op(self, target, "cmp_op")
        if self.cmp_op.kind != "compare":
            raise rules.fail(self, "cmp_op", "must be a comparison", self.cmp_op.name)
        if isinstance(self.on_false_value, View) or self.on_false_value is None:
            raise rules.fail(self, "on_false_value", "must be a number", self.on_false_value)
        check_pattern(self)

    def run(self, read: Read) -> tuple[jnp.ndarray, ...]:
        chosen = self.cmp_op(affine(self, read), jnp.int32(0)) != 0
        value = read(self.on_false_value, jnp.float32)
        if self.on_true_tile.dtype != self.dst.dtype:
            return (jnp.where(chosen, read(self.on_true_tile, jnp.float32), value),)
        tile = read(self.on_true_tile)
        precise = tile.dtype == dtypes.storage(self.dst.dtype)
        return (jnp.where(chosen, tile, dtypes.cast(value, self.dst.dtype, precise)),)

    def cycles(self, target: Target) -> Work:
        tiles, n = (self.dst, self.on_true_tile), self.dst.free
        if target.generation is Generation.gen2:
            issue = _SELECT_START_CYCLES + n * rates.stride_penalty(*tiles)
            return Work(issue, target.latency_cycles(Engine.gpsimd))
        return rates.work(target, Engine.gpsimd, _SELECT_PASSES * n, *tiles)


@dataclass(frozen=True)
class TensorCopyPredicated(Instruction):
    """dst[p, i] = src[p, i] where predicate[p, i] != 0 (== 0 with reverse_pred); the other elements keep their bits

    Memory: all in SBUF or PSUM, src and predicate not both in PSUM.
    Data types: src and dst equal, copied bit for bit; predicate uint8, uint16 or uint32.
    Layout: dst, src, predicate (P, F), P at most 128; src may be a number, cast to the dtype of dst.
    Engine: Vector.
    Cost: gen2 max(64, 2F), max(64, F) with src or predicate in PSUM, assumed also with a number; gen3 max(64, 1.065F),
        assumed for gen4.  Twice that with a stride above 16 bytes.
    Indirection: dst, predicate (gen4).
    Not emulated: nothing.
    Source: nki.isa.tensor_copy_predicated
    """

    dst: InOut
    src: In | Number
    predicate: In
    reverse_pred: bool = False

    api: ClassVar[str] = "nki.isa.tensor_copy_predicated"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "predicate")

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        tiles = ("dst", "src", "predicate")
        rules.in_memory(self, *tiles)
        rules.partitions(self, target, *tiles)
        rules.same_free(self, *tiles)
        if self.src is None:
            raise rules.fail(self, "src", "must be a tile or a number", None)
        rules.same_dtype(self, "src", "dst")
        if self.predicate.dtype not in _PREDICATES:
            raise rules.fail(self, "predicate", f"must have one of the dtypes {_PREDICATES}", self.predicate.dtype)
        rules.not_both_psum(self, "src", "predicate")

    def run(self, read: Read) -> tuple[Masked, ...]:
        chosen = (read(self.predicate) != 0) != self.reverse_pred
        value = read(self.src) if isinstance(self.src, View) else self._number(read)
        return (Masked(jnp.broadcast_to(value, chosen.shape), chosen),)

    def _number(self, read: Read) -> jnp.ndarray:
        """`src` as float32; an integer for a 32-bit integer dst exactly."""
        storage = dtypes.storage(self.dst.dtype)
        if self.dst.dtype in _WORDS and isinstance(self.src, numbers.Integral):
            return read(self.src, storage)
        value = read(self.src)
        if self.dst.dtype in _WORDS and jnp.issubdtype(value.dtype, jnp.integer):
            return value.astype(storage)
        return value.astype(jnp.float32)

    def cycles(self, target: Target) -> Work:
        cycles = rates.predicated_cycles(target, self.dst, self.src, self.predicate)
        return rates.work(target, Engine.vector, cycles, self.dst, self.src, self.predicate)
