"""Activation functions with a scale, a bias and a running sum (Scalar engine)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from nkijax.isa import operators, rates, rules
from nkijax.isa.operators import ACTIVATIONS, ALU, Activation, AluOp, ReduceCmd
from nkijax.machine import Engine, Generation, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read
from nkijax.view import View

_READ_NS = 185  # reading the accumulator out, measured on trn2
_SUMS = (ReduceCmd.reduce, ReduceCmd.reset_reduce)
COMMANDS = (ReduceCmd.idle, ReduceCmd.reset, *_SUMS)


def _check_function(inst: Activate | ActivationReduce) -> None:
    """`op` is an activation function that needs no parameter."""
    op = inst.op
    if not isinstance(op, Activation):
        raise rules.fail(inst, "op", f"must be an activation function, one of {list(ACTIVATIONS)}", op)
    if op.parameter:
        raise rules.fail(inst, "op", "takes no relu_param; use nki.isa.activate2", op.name)


def _check_affine(inst: Activate | ActivationReduce, target: Target) -> None:
    """The rules of dst, data, scale and bias."""
    rules.in_memory(inst, "dst", "data", "bias", "scale", "reduce_res")
    rules.partitions(inst, target, "dst", "data")
    rules.same_free(inst, "dst", "data")
    operators.not_packed(inst, "dst", "data", "bias", "reduce_res")
    rules.per_partition(inst, "scale", "data", kinds=("float32",))
    rules.per_partition(inst, "bias", "data")
    if isinstance(inst.bias, View):
        if inst.bias.dtype == "tfloat32":
            raise rules.fail(inst, "bias", "may have any dtype but tfloat32", inst.bias.dtype)
    elif inst.bias is not None and target.generation is Generation.gen2:
        raise rules.fail(inst, "bias", f"must be a (P, 1) tile on {target.name}; numbers need gen3 or later", inst.bias)
    if inst.bias is not None and inst.op == ACTIVATIONS["reciprocal"] and target.generation is Generation.gen2:
        raise rules.fail(inst, "bias", f"reciprocal takes no bias on {target.name}", "a bias")


def _check_sum(inst: Activate | ActivationReduce) -> None:
    """The only reduction is a sum."""
    if inst.reduce_op is not None and inst.reduce_op != ALU["add"]:
        raise rules.fail(inst, "reduce_op", "must be nl.add", getattr(inst.reduce_op, "name", inst.reduce_op))


def _activated(inst: Activate | ActivationReduce, read: Read) -> jax.Array:
    """op(data * scale + bias), float32."""
    x = read(inst.data, jnp.float32) * read(inst.scale, jnp.float32)
    if inst.bias is not None:
        x = x + read(inst.bias, jnp.float32)
    return inst.op.function(x)


def _results(inst: Activate | ActivationReduce, command: ReduceCmd, read: Read) -> tuple[jax.Array, ...]:
    """The activated tile, then as far as they are asked for: the sums so far, the accumulator registers."""
    out = _activated(inst, read)
    if inst.reduce_res is None and inst.accumulator is None:
        return (out,)
    lanes = operators.registers_after(inst, command, ALU["add"], out, read)
    return (out, *(lanes for x in (inst.reduce_res, inst.accumulator) if x is not None))


def work(inst: Any, target: Target) -> Work:
    """The cost of an activation, and of reading its accumulator out into reduce_res."""
    streamed = rates.work(target, Engine.scalar, inst.data.free, inst.dst, inst.data, copy=inst.op.name == "copy")
    if inst.reduce_res is None:
        return streamed
    gen2 = target.generation is Generation.gen2
    reading = target.min_issue_cycles if gen2 else _READ_NS * target.ghz(Engine.scalar)
    return replace(streamed, issue_cycles=streamed.issue_cycles + reading)


@dataclass(frozen=True)
class Activate(Instruction):
    """dst = cast(op(data * scale + bias)); accumulator += sum of op(data * scale + bias) over the free axis

    reduce_cmd says whether: reset and reset_reduce zero the accumulator first, reset and idle then add nothing.  After
    that reduce_res = cast(accumulator), also with idle.
    Memory: all in SBUF or PSUM; the accumulator, one float32 for each partition, is `accumulator`, (P, 1) of state.
    Data types: any; scale tiles float32, bias tiles any but tfloat32; float32 arithmetic.
    Layout: dst, data (P, F), P at most 128; scale and bias numbers or (P, 1), on gen2 no number as bias; reduce_res
        (P, 1).
    Engine: Scalar.
    Cost: max(64, F), 2F with a stride above 16 bytes; with reduce_res 64 more on gen2, 185 ns more from gen3 on; gen4
        assumed.
    Not emulated: the piecewise polynomials of the hardware, and its garbage outside a function's valid range, except
        that of sin; an idle instruction leaves the accumulator alone.
    Source: nki.isa.activation
    """

    dst: Out
    op: Activation
    data: In
    bias: In | Number | None = None
    scale: In | Number = 1.0
    reduce_op: AluOp | None = None
    reduce_res: Out | None = None
    reduce_cmd: ReduceCmd = ReduceCmd.idle
    accumulator: Out | None = None
    before: In | None = field(default=None, init=False)  # the accumulator, where its old value counts

    api: ClassVar[str] = "nki.isa.activation"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "data")

    def __post_init__(self):
        if self.reduce_cmd in (ReduceCmd.idle, ReduceCmd.reduce):
            object.__setattr__(self, "before", self.accumulator)

    @property
    def queue(self) -> Engine:
        return Engine.scalar

    def check(self, target: Target) -> None:
        _check_function(self)
        _check_affine(self, target)
        _check_sum(self)
        operators.check_accumulator(self, "data", *COMMANDS)
        if self.reduce_cmd in _SUMS and self.reduce_op is None:
            raise rules.fail(self, "reduce_op", f"must be nl.add with reduce_cmd.{self.reduce_cmd.name}", None)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return _results(self, self.reduce_cmd, read)

    def cycles(self, target: Target) -> Work:
        return work(self, target)


@dataclass(frozen=True)
class ActivationReduce(Instruction):
    """dst = cast(op(data * scale + bias)); accumulator = sum of op(data * scale + bias) over the free axis

    After that reduce_res = cast(accumulator): nki.isa.activation with reduce_cmd.reset_reduce.
    Memory: all in SBUF or PSUM; the accumulator, one float32 for each partition, is `accumulator`, (P, 1) of state.
    Data types: any; scale tiles float32, bias tiles any but tfloat32; float32 arithmetic.
    Layout: dst, data (P, F), P at most 128; scale and bias numbers or (P, 1), on gen2 no number as bias; reduce_res
        (P, 1).
    Engine: Scalar.
    Cost: max(64, F), 2F with a stride above 16 bytes; with reduce_res 64 more on gen2, 185 ns more from gen3 on; gen4
        assumed.
    Not emulated: as nki.isa.activation.
    Source: nki.isa.activation_reduce
    """

    dst: Out
    op: Activation
    data: In
    reduce_op: AluOp
    reduce_res: Out | None
    bias: In | Number | None = None
    scale: In | Number = 1.0
    accumulator: Out | None = None
    before: ClassVar[None] = None

    api: ClassVar[str] = "nki.isa.activation_reduce"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "data")

    @property
    def queue(self) -> Engine:
        return Engine.scalar

    def check(self, target: Target) -> None:
        _check_function(self)
        _check_affine(self, target)
        if self.reduce_op is None:
            raise rules.fail(self, "reduce_op", "must be nl.add", None)
        _check_sum(self)
        operators.check_registers(self, "data")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return _results(self, ReduceCmd.reset_reduce, read)

    def cycles(self, target: Target) -> Work:
        return work(self, target)
