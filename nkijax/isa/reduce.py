"""Reductions along the free axes (Vector engine), and over the partitions (GpSimd engine)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from nkijax.isa import operators, rates, rules
from nkijax.isa.operators import ALU, AluOp
from nkijax.machine import Engine, Generation, Memory, Target, Work
from nkijax.program import In, Instruction, Out, Read


@dataclass(frozen=True)
class TensorReduce(Instruction):
    """dst = cast(data[0] <op> data[1] <op> ... over the trailing axes `axis`), times -1 if `negate`

    Memory: dst, data in SBUF or PSUM.
    Data types: any; float32 arithmetic.  Bitvec operators take integers as raw bits, and no `negate`.
    Layout: data (P, K, R), dst (P, K); P at most 128; R spans the last dimension or the last few, never the partitions;
        `keepdims` says nothing about the numbers.  `axis` may be an int or a list and is kept as a sorted tuple.
    Engine: Vector.
    Cost: max(64, KR); gen2 max(64, KR/2) for add and maximum of bf16 to bf16; gen4 assumed.  Twice
        that with a stride above 16 bytes.
    Indirection: dst, data (gen4).
    Not emulated: the order of sums, which is XLA's.
    Source: nki.isa.tensor_reduce
    """

    dst: Out
    op: AluOp
    data: In
    axis: int | Sequence[int]
    negate: bool = False
    keepdims: bool = False

    api: ClassVar[str] = "nki.isa.tensor_reduce"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "data")

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
        return rates.work(target, Engine.vector, n, self.dst, self.data)


_OVER_PARTITIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


@dataclass(frozen=True)
class TensorPartitionReduce(Instruction):
    """dst[0, i] = cast(data[0, i] <op> data[1, i] <op> ... over all partitions); average is their sum over P

    Memory: dst, data in SBUF.
    Data types: any; float32 arithmetic.  Bitvec operators take integers as raw bits.
    Layout: data (P, F), P at most 128; dst (1, F), free shapes may differ.  op is add, average, maximum, bitwise_or or
        bitwise_and.
    Engine: GpSimd.
    Cost: max(64, F * ceil(log2 P)), a pass for each halving of the partitions, twice that with a stride above 16 bytes:
        assumed, AWS only says that it is slow.
    Not emulated: nothing.  Sums are taken in XLA's order.
    Source: nki.isa.tensor_partition_reduce
    """

    dst: Out
    op: AluOp
    data: In

    api: ClassVar[str] = "nki.isa.tensor_partition_reduce"

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data", memories=(Memory.sbuf,))
        rules.partitions(self, target, "data")
        op = self.op
        if not isinstance(op, AluOp) or op.name not in _OVER_PARTITIONS:
            raise rules.fail(self, "op", f"must be one of {list(_OVER_PARTITIONS)}", getattr(op, "name", op))
        operators.suits(self, op, "dst", "data")
        if self.dst.partitions != 1:
            raise rules.fail(self, "dst", "must have one partition", self.dst.shape)
        rules.same_free(self, "dst", "data")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        assert self.op.reduction is not None
        if self.op.bitvec:
            return (operators.from_bits(self.op.reduction(operators.bits(read, self.data).T), self.dst.dtype),)
        return (self.op.reduction(read(self.data, jnp.float32).T),)

    def cycles(self, target: Target) -> Work:
        halvings = math.ceil(math.log2(self.data.partitions))
        return rates.work(target, Engine.gpsimd, self.data.free * halvings, self.dst, self.data)
