"""Choosing elements and keeping their maximum in the accumulator registers (Vector engine)."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import operators, rates, rules
from nkijax.isa.accumulating import accumulated, check_dtype, check_member, reading_out, registers_to_read
from nkijax.isa.operators import ALU, AluOp, ReduceCmd
from nkijax.machine import Engine, Generation, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read
from nkijax.view import View

FLOAT32_MIN = float(np.finfo(np.float32).min)
_FLOATS = tuple(k.name for k in dtypes.KINDS.values() if k.family == "float" and k.name != "float8_e8m0fnu")
_PREDICATES = ("int8", "uint8", "int16", "uint16", "bool")
_ON_TRUE = tuple(k for k in (*_FLOATS, *_PREDICATES) if k != "tfloat32")
_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
_EXACT = 2**24  # float32 counts up to here


@dataclass(frozen=True)
class SelectReduce(Instruction):
    """dst = cast(on_true if predicate != 0 else on_false); accumulator = max(accumulator, that over the free axis)

    With `reverse_pred` where predicate == 0.  reduce_cmd says what the accumulator starts from: reset_reduce from
    -inf, reduce from its value.  After that reduce_res = cast(accumulator).  idle leaves the accumulator undefined:
    here it is NaN.
    Memory: all in SBUF or PSUM, on_true and predicate not both in PSUM; the accumulator, one float32 for each
        partition, is `accumulator`, (P, 1) of state.
    Data types: on_true any but tfloat32 and 32-bit integers; predicate integers of 8 or 16 bits, or bool; reduce_res
        a float.  Elements pass through float32, and the maximum is taken before the cast.
    Layout: dst, predicate, on_true (P, F), P at most 128, free shapes may differ; on_false a number or (P, 1);
        reduce_res (P, 1).
    Engine: Vector.
    Cost: assumed, that of nki.isa.tensor_copy_predicated: gen2 max(64, 2F), max(64, F) with on_true or predicate in
        PSUM; later max(64, 1.065F).  Twice that with a stride above 16 bytes; with reduce_res 64 more.
    Not emulated: nothing.
    Source: nki.isa.select_reduce
    """

    dst: Out
    predicate: In
    on_true: In
    on_false: In | Number
    reduce_res: Out | None = None
    reduce_cmd: ReduceCmd = ReduceCmd.idle
    reduce_op: AluOp = ALU["maximum"]
    reverse_pred: bool = False
    accumulator: Out | None = None
    before: In | None = field(default=None, init=False)

    api: ClassVar[str] = "nki.isa.select_reduce"

    def __post_init__(self):
        object.__setattr__(self, "before", registers_to_read(self))

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        tiles = ("dst", "predicate", "on_true")
        rules.in_memory(self, *tiles, "on_false", "reduce_res")
        rules.partitions(self, target, *tiles)
        rules.same_free(self, *tiles)
        operators.not_packed(self, "dst", "on_false")
        check_dtype(self, "predicate", _PREDICATES)
        check_dtype(self, "on_true", _ON_TRUE)
        check_dtype(self, "reduce_res", _FLOATS)
        rules.not_both_psum(self, "on_true", "predicate")
        if not isinstance(self.on_false, View | int | float | np.number):
            raise rules.fail(self, "on_false", "must be a number or a (P, 1) tile", self.on_false)
        rules.per_partition(self, "on_false", "on_true")
        check_member(self, target, "reduce_op", ("maximum",))
        commands = (ReduceCmd.idle, ReduceCmd.reduce, ReduceCmd.reset_reduce)
        operators.check_accumulator(self, "on_true", *commands)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        chosen = read(self.predicate, jnp.bool_) != self.reverse_pred
        out = jnp.where(chosen, read(self.on_true, jnp.float32), read(self.on_false, jnp.float32))
        return (out, *accumulated(self, self.reduce_op, out, read))

    def cycles(self, target: Target) -> Work:
        cycles = rates.predicated_cycles(target, self.dst, self.on_true, self.predicate)
        streamed = rates.work(target, Engine.vector, cycles, self.dst, self.on_true, self.predicate)
        return reading_out(self, target, streamed)


@dataclass(frozen=True)
class RangeSelect(Instruction):
    """dst[p, i] = cast(on_true_tile[p, i] if (k <comp_op0> bound0[p]) and (k <comp_op1> bound1[p]) else -FLT_MAX), with
    k = range_start + i; accumulator = max(accumulator, that over the free axis)

    reduce_cmd says what the accumulator starts from: reset_reduce from -inf, reduce from its value; reset makes it
    -inf and adds nothing.  After that reduce_res = cast(accumulator).  idle leaves the accumulator undefined: here it
    is NaN.
    Memory: all in SBUF or PSUM; the accumulator, one float32 for each partition, is `accumulator`, (P, 1) of state.
    Data types: on_true_tile a float; bounds float32; k is compared in float32.  The maximum is taken before the cast:
        -FLT_MAX is -inf in a dst of 16 or 8 bits, and stays -FLT_MAX in a float32 reduce_res.
    Layout: dst, on_true_tile (P, F), P at most 128; bounds and reduce_res (P, 1); range_start a static integer, k at
        most 2**24 in magnitude.  on_false_value must be -FLT_MAX, reduce_op maximum.
    Engine: Vector, gen3 or later.
    Cost: max(64, F), 2F with a stride above 16 bytes; gen4 assumed.
    Not emulated: nothing.
    Source: nki.isa.range_select
    """

    dst: Out
    on_true_tile: In
    comp_op0: AluOp
    comp_op1: AluOp
    bound0: In
    bound1: In
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce
    reduce_res: Out | None = None
    reduce_op: AluOp = ALU["maximum"]
    range_start: Number = 0
    on_false_value: float = FLOAT32_MIN
    accumulator: Out | None = None
    before: In | None = field(default=None, init=False)

    api: ClassVar[str] = "nki.isa.range_select"

    def __post_init__(self):
        object.__setattr__(self, "before", registers_to_read(self))

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen3, "the instruction")
        rules.in_memory(self, "dst", "on_true_tile", "bound0", "bound1", "reduce_res")
        rules.partitions(self, target, "dst", "on_true_tile")
        rules.same_free(self, "dst", "on_true_tile")
        operators.not_packed(self, "dst", "reduce_res")
        check_dtype(self, "on_true_tile", _FLOATS)
        for name in ("bound0", "bound1"):
            if not isinstance(getattr(self, name), View):
                raise rules.fail(self, name, "must be a (P, 1) float32 tile", getattr(self, name))
            rules.per_partition(self, name, "on_true_tile", kinds=("float32",))
        for name in ("comp_op0", "comp_op1"):
            check_member(self, target, name, _COMPARISONS)
        check_member(self, target, "reduce_op", ("maximum",))
        operators.check_accumulator(self, "on_true_tile", *(c for c in ReduceCmd if c is not ReduceCmd.load_reduce))
        self._check_constants()

    def _check_constants(self) -> None:
        start, fill, n = self.range_start, self.on_false_value, self.on_true_tile.free
        if not isinstance(start, numbers.Integral):
            raise rules.fail(self, "range_start", "must be a static integer", repr(start))
        if not -_EXACT <= start <= _EXACT - n:
            raise rules.fail(self, "range_start", f"must be within 2**24, and so must the last of {n} indices", start)
        if not isinstance(fill, int | float | np.number) or np.float32(fill) != np.float32(FLOAT32_MIN):
            raise rules.fail(self, "on_false_value", f"must be the least float32, {FLOAT32_MIN:.8g}", fill)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        x = read(self.on_true_tile, jnp.float32)
        k = (read(self.range_start, jnp.int32) + lax.broadcasted_iota(jnp.int32, x.shape, 1)).astype(jnp.float32)
        above = self.comp_op0(k, read(self.bound0, jnp.float32)) != 0
        below = self.comp_op1(k, read(self.bound1, jnp.float32)) != 0
        out = jnp.where(above & below, x, jnp.float32(FLOAT32_MIN))
        return (out, *accumulated(self, self.reduce_op, out, read))

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, self.dst.free, self.dst, self.on_true_tile)
