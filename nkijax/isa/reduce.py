"""Reductions along the free axes (Vector engine)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from nkijax.isa import operators, rules
from nkijax.isa.operators import ALU, AluOp
from nkijax.machine import Engine, Generation, Target, Work
from nkijax.program import In, Instruction, Out, Read


@dataclass(frozen=True)
class TensorReduce(Instruction):
    """dst = cast(data[0] <op> data[1] <op> ... over the trailing axes `axis`), times -1 if `negate`

    Memory: dst, data in SBUF or PSUM.
    Data types: any; float32 arithmetic.  Bitvec operators take integers as raw bits, and no `negate`.
    Layout: data (P, K, R), dst (P, K); P at most 128; R spans the last dimension or the last few, never the partitions;
        `keepdims` says nothing about the numbers.  `axis` may be an int or a list and is kept as a sorted tuple.
    Engine: Vector.
    Cost: max(64, KR); gen2 max(64, KR/2) for add and maximum of bf16 to bf16; gen4 assumed.
    Not emulated: tensor indirection (gen4).  Sums are taken in XLA's order.
    Source: nki.isa.tensor_reduce
    """

    dst: Out
    op: AluOp
    data: In
    axis: int | Sequence[int]
    negate: bool = False
    keepdims: bool = False

    api: ClassVar[str] = "nki.isa.tensor_reduce"

    def __post_init__(self):
        axes = (self.axis,) if isinstance(self.axis, int) else tuple(self.axis)
        ndim = self.data.ndim
        axes = sorted(a + ndim if -ndim <= a < 0 else a for a in axes)
        object.__setattr__(self, "axis", tuple(axes))

    @property
    def _axes(self) -> tuple[int, ...]:
        assert isinstance(self.axis, tuple)
        return self.axis

    def _reduced(self) -> int:
        """R: elements that become one."""
        return math.prod(self.data.shape[a] for a in self._axes)

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data")
        rules.partitions(self, target, "dst", "data")
        trailing = tuple(range(self.data.ndim - len(self._axes), self.data.ndim))
        if not self._axes or self._axes != trailing or trailing[0] == 0:
            given = f"{self._axes} of shape {self.data.shape}"
            raise rules.fail(self, "axis", "tensor_reduce axis must be the last contiguous dim(s) of the tile", given)
        operators.check_reduction(self, target, "op")
        operators.suits(self, self.op, "dst", "data")
        kept = self.data.free // self._reduced()
        if self.dst.free != kept:
            raise rules.fail(self, "dst", f"must have {kept} free elements, those of data not reduced", self.dst.shape)
        if self.negate and self.op.bitvec:
            raise rules.fail(self, "negate", "must be False with a bitvec operator", self.op.name)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        assert self.op.reduction is not None
        x = operators.bits(read, self.data) if self.op.bitvec else read(self.data, jnp.float32)
        out = self.op.reduction(x.reshape(x.shape[0], -1, self._reduced()))
        if self.op.bitvec:
            return (operators.from_bits(out, self.dst.dtype),)
        return (-out if self.negate else out,)

    def cycles(self, target: Target) -> Work:
        n = self.data.free
        if target.generation is Generation.gen2 and self.op in (ALU["add"], ALU["maximum"]):
            if self.dst.dtype == self.data.dtype == "bfloat16":
                n = n / 2
        return Work(max(target.min_issue_cycles, n), target.latency_cycles(Engine.vector))
