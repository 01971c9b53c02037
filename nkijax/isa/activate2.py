"""Activation functions after one or two scalar operators, with a running reduction (Scalar engine of gen4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nkijax.isa import activation, operators, rules
from nkijax.isa.accumulating import accumulated, check_member
from nkijax.isa.operators import ACTIVATIONS, Activation, AluOp, ReduceCmd
from nkijax.machine import Engine, Generation, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read
from nkijax.view import View

_PAIRS = (
    *(("multiply", "add"), ("multiply", "subtract"), ("multiply", "bypass")),
    *(("add", "bypass"), ("subtract", "bypass"), ("bypass", "bypass")),
)
_REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")


@dataclass(frozen=True)
class Activate2(Instruction):
    """dst = cast(op((data <op0> imm0) <op1> imm1)); accumulator = accumulator <reduce_op> that, over the free axis

    Operands are swapped where reversed; bypass gives its first operand.  reduce_cmd says what the accumulator starts
    from: reset and reset_reduce from the identity of reduce_op (abs_max 0, abs_min inf), reduce from its value; reset
    and idle then add nothing.  After that reduce_res = cast(accumulator), also with idle.
    Memory: all in SBUF or PSUM; the accumulator, one float32 for each partition, is `accumulator`, (P, 1) of state,
        that of nki.isa.activation.
    Data types: any; tiles of imm0 and imm1 of equal dtypes; float32 arithmetic, reduced before the cast.
    Layout: dst, data (P, F), P at most 128; imm0, imm1 and relu_param, which only prelu uses, numbers or (P, 1);
        reduce_res (P, 1).  (op0, op1) is one of (multiply, add), (multiply, subtract), (multiply, bypass),
        (add, bypass), (subtract, bypass), (bypass, bypass); only what is not bypassed can be reversed.
    Engine: Scalar, gen4.
    Cost: as nki.isa.activation, assumed.
    Indirection: dst, data.
    Not emulated: as nki.isa.activation.
    Source: nki.isa.activate2
    """

    dst: Out
    op: Activation
    data: In
    imm0: In | Number
    imm1: In | Number
    op0: AluOp
    op1: AluOp
    relu_param: In | Number = 0.0
    reverse0: bool = False
    reverse1: bool = False
    reduce_op: AluOp | None = None
    reduce_res: Out | None = None
    reduce_cmd: ReduceCmd = ReduceCmd.idle
    accumulator: Out | None = None
    before: In | None = field(default=None, init=False)

    api: ClassVar[str] = "nki.isa.activate2"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "data")

    def __post_init__(self):
        if self.reduce_cmd in (ReduceCmd.idle, ReduceCmd.reduce):
            object.__setattr__(self, "before", self.accumulator)

    @property
    def queue(self) -> Engine:
        return Engine.scalar

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen4, "the instruction")
        if not isinstance(self.op, Activation):
            raise rules.fail(self, "op", f"must be an activation function, one of {list(ACTIVATIONS)}", self.op)
        tiles = ("dst", "data", "imm0", "imm1", "relu_param", "reduce_res")
        rules.in_memory(self, *tiles)
        rules.partitions(self, target, "dst", "data")
        rules.same_free(self, "dst", "data")
        operators.not_packed(self, *tiles)
        self._check_scalars()
        if self.reduce_op is not None:
            check_member(self, target, "reduce_op", _REDUCTIONS)
        operators.check_accumulator(self, "data", *activation.COMMANDS)
        if self.reduce_op is None and self.reduce_cmd is not ReduceCmd.idle:
            rule = f"must be one of {list(_REDUCTIONS)} with reduce_cmd.{self.reduce_cmd.name}"
            raise rules.fail(self, "reduce_op", rule, None)

    def _check_scalars(self) -> None:
        ops = tuple(getattr(op, "name", op) for op in (self.op0, self.op1))
        if ops not in _PAIRS:
            raise rules.fail(self, "op0, op1", f"must be one of the pairs {list(_PAIRS)}", ops)
        for name, value in (("imm0", self.imm0), ("imm1", self.imm1), ("relu_param", self.relu_param)):
            if not isinstance(value, View | int | float | np.number):
                raise rules.fail(self, name, "must be a number or a (P, 1) tile", value)
            rules.per_partition(self, name, "data")
        rules.same_dtype(self, "imm1", "imm0")
        for name, op in (("reverse0", self.op0), ("reverse1", self.op1)):
            if getattr(self, name) and op.name == "bypass":
                raise rules.fail(self, name, "must be False where the operator is bypass", True)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        x = read(self.data, jnp.float32)
        if self.op0.name != "bypass":
            x = self.op0(x, read(self.imm0, jnp.float32), self.reverse0)
        if self.op1.name != "bypass":
            x = self.op1(x, read(self.imm1, jnp.float32), self.reverse1)
        out = self.op.function(x, read(self.relu_param, jnp.float32)) if self.op.parameter else self.op.function(x)
        reduce_op = self.reduce_op or operators.ALU["add"]  # idle reads the accumulator out, whatever was reduced
        return (out, *accumulated(self, reduce_op, out, read))

    def cycles(self, target: Target) -> Work:
        return activation.work(self, target)
