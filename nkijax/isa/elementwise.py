"""Element by element: one or two math operators on tiles and scalars (Vector, Scalar and GpSimd engines)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nkijax import dtypes
from nkijax.isa import operators, rates, rules
from nkijax.isa.operators import ALU, AluOp
from nkijax.machine import Engine, Generation, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read
from nkijax.view import View

_WORDS = ("int32", "uint32")
_RECIPROCAL_PASSES = {Generation.gen2: 8, Generation.gen3: 6, Generation.gen4: 6}  # gen4 assumed
_GPSIMD_PASSES = 4  # rsqrt runs at a quarter of the Scalar engine's rate; power is assumed to do the same


def two_input_cycles(target: Target, op: AluOp, dst: View, first: View, second: View) -> float:
    """Vector engine cycles of streaming two tiles through it, before the minimum."""
    n, psum = dst.free, rates.in_psum(first, second)
    if target.generation is Generation.gen2:
        fast = op in (ALU["add"], ALU["subtract"], ALU["multiply"])
        fast = fast and all(v.dtype == "bfloat16" and v.is_contiguous() for v in (dst, first, second))
        return n if psum or fast else 2 * n
    return n / 2 if not psum and rates.narrow(target, dst, first, second) else n


def check_scalar(inst: Instruction, op_name: str, name: str, like: str, kinds: tuple[str, ...] | None = None) -> None:
    """Operand `name` suits the operator in field `op_name`.

    A unary operator takes None or 0, no operator None; a binary one a number or a (P, 1) tile with a dtype in `kinds`.
    A bitvec operator takes integers only.
    """
    op, operand = getattr(inst, op_name), getattr(inst, name)
    if op is None:
        if operand is not None:
            raise rules.fail(inst, name, f"must be None without {op_name}", operand)
    elif op.arity == 1:
        if operand is not None and (isinstance(operand, View) or operand != 0):
            raise rules.fail(inst, name, f"must be None or 0 with the unary operator {op.name}", operand)
    elif operand is None:
        raise rules.fail(inst, name, f"must be a number or a (P, 1) tile with the binary operator {op.name}", None)
    elif op.bitvec:
        if isinstance(operand, float | np.floating):
            raise rules.fail(inst, name, f"must be an integer with the bitvec operator {op.name}", operand)
        rules.integers(inst, name)
        rules.per_partition(inst, name, like)
    else:
        operators.not_packed(inst, name)
        rules.per_partition(inst, name, like, kinds=kinds)


def _step(op: AluOp, x: jax.Array, operand: Any, reverse: bool, read: Read) -> jax.Array:
    """x <op> operand on whatever `x` is: raw bits for bitvec operators, else float32."""
    if op.arity == 1:
        return op(x)
    return op(x, operators.bits(read, operand) if op.bitvec else read(operand, jnp.float32), reverse)


@dataclass(frozen=True)
class TensorTensor(Instruction):
    """dst = cast(data1 <op> data2)

    Memory: dst, data1, data2 in SBUF or PSUM, data1 and data2 not both in PSUM; no PSUM on GpSimd.
    Data types: any; float32 arithmetic.  Bitvec operators take integers as raw bits.  On GpSimd, 32-bit integers
    throughout are computed exactly, modulo 2**32; data2 then counts as the dtype of data1.
    Layout: all (P, F); P at most 128; only P and F must agree, not the free shapes.
    Engine: Vector or GpSimd.  Unknown means GpSimd for power, and for 32-bit integers outside PSUM; else Vector.
    Cost: gen2 max(64, 2F); max(64, F) with an input in PSUM, or for add, subtract, multiply of contiguous bf16.
        gen3 max(64, F); F/2 when all is bf16 or fp16 (gen4: or fp8) and the inputs are in SBUF; gen4 assumed as gen3.
        GpSimd: as the slow case of its generation, assumed from gen3 on.  Twice that with a stride above 16 bytes.
    Indirection: dst, data1 (gen4).
    Not emulated: nothing.
    Source: nki.isa.tensor_tensor
    """

    dst: Out
    data1: In
    data2: In
    op: AluOp
    engine: Engine = Engine.unknown

    api: ClassVar[str] = "nki.isa.tensor_tensor"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "data1")

    def _words(self) -> bool:
        """Whether the operator has an exact form for 32-bit integers and all tiles hold such."""
        return self.op.integers and all(v.dtype in _WORDS for v in (self.dst, self.data1, self.data2))

    @property
    def queue(self) -> Engine:
        if self.engine is not Engine.unknown:
            return self.engine
        if self.op.engine is not None:
            return self.op.engine
        exact = self._words() and not rates.in_psum(self.dst, self.data1, self.data2)
        return Engine.gpsimd if exact else Engine.vector

    def check(self, target: Target) -> None:
        tiles = ("dst", "data1", "data2")
        rules.in_memory(self, *tiles)
        rules.partitions(self, target, *tiles)
        rules.same_free(self, *tiles)
        operators.check_op(self, target, "op", arity=2)
        operators.suits(self, self.op, *tiles)
        rules.engine_is(self, Engine.vector, Engine.gpsimd)
        if self.op.engine not in (None, self.queue):
            raise rules.fail(self, "engine", f"{self.op.name} runs on gpsimd only", self.engine.name)
        if self.queue is Engine.gpsimd:
            rules.no_psum_on_gpsimd(self, *tiles)
        rules.not_both_psum(self, "data1", "data2")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        if self.op.bitvec:
            raw = self.op(operators.bits(read, self.data1), operators.bits(read, self.data2))
            return (operators.from_bits(raw, self.dst.dtype),)
        if self.queue is Engine.gpsimd and self._words():
            first = read(self.data1)
            out = self.op(first, read(self.data2).astype(first.dtype))
            return (out.astype(dtypes.storage(self.dst.dtype)),)
        return (self.op(read(self.data1, jnp.float32), read(self.data2, jnp.float32)),)

    def cycles(self, target: Target) -> Work:
        tiles = (self.dst, self.data1, self.data2)
        if self.queue is Engine.gpsimd:
            passes = 2 if target.generation is Generation.gen2 else 1
            return rates.work(target, Engine.gpsimd, passes * self.dst.free, *tiles)
        return rates.work(target, Engine.vector, two_input_cycles(target, self.op, *tiles), *tiles)


@dataclass(frozen=True)
class TensorScalar(Instruction):
    """dst = cast((data <op0> operand0) <op1> operand1), operands swapped where reversed

    Memory: all in SBUF or PSUM; no PSUM on GpSimd.
    Data types: any, float32 arithmetic, unrounded between the two operators; operand tiles float32.  Bitvec operators
        take integers as raw bits; both operators are bitvec or neither is.
    Layout: dst, data (P, F), P at most 128; operands numbers or (P, 1).  A unary operator's operand is None or 0.
    Engine: Vector; Scalar for (multiply, add), multiply and add; GpSimd for rsqrt and power, and only for them.
    Cost: Vector gen2 max(64, F); from gen3 on F/2, or F/4 when dst and data are bf16 or fp16 (gen4: or fp8) and
        dense along their innermost dimension; F with one of them in PSUM, or F/2 for those dtypes.  Scalar F; gen4 F/2
        in bf16 or fp16.  Twice that with a stride above 16 bytes.  GpSimd 4F, assumed for power.  At least 64; one
        operator costs as two.
    Indirection: dst, data (gen4).
    Not emulated: exact 32-bit address addition (integers go through float32).
    Source: nki.isa.tensor_scalar
    """

    dst: Out
    data: In
    op0: AluOp
    operand0: In | Number | None
    reverse0: bool = False
    op1: AluOp | None = None
    operand1: In | Number | None = None
    reverse1: bool = False
    engine: Engine = Engine.unknown

    api: ClassVar[str] = "nki.isa.tensor_scalar"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "data")

    def _ops(self) -> tuple[AluOp, ...]:
        return (self.op0,) if self.op1 is None else (self.op0, self.op1)

    @property
    def queue(self) -> Engine:
        if self.engine is not Engine.unknown:
            return self.engine
        return Engine.gpsimd if any(op.engine is Engine.gpsimd for op in self._ops()) else Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data", "operand0", "operand1")
        rules.partitions(self, target, "dst", "data")
        rules.same_free(self, "dst", "data")
        for name in ("op0", "op1") if self.op1 is not None else ("op0",):
            operators.check_op(self, target, name)
        if self.op1 is not None and self.op0.bitvec != self.op1.bitvec:
            given = f"{self.op0.name} and {self.op1.name}"
            raise rules.fail(self, "op0, op1", "must both be bitvec or both be arithmetic operators", given)
        operators.suits(self, self.op0, "dst", "data")
        check_scalar(self, "op0", "operand0", "data", ("float32",))
        check_scalar(self, "op1", "operand1", "data", ("float32",))
        self._check_engine()

    def _check_engine(self) -> None:
        rules.engine_is(self, Engine.vector, Engine.scalar, Engine.gpsimd)
        names = tuple(op.name for op in self._ops())
        if self.op0.bitvec and self.queue is not Engine.vector:
            raise rules.fail(self, "engine", "bitvec operators run on the vector engine", self.engine.name)
        if self.queue is Engine.scalar and names not in (("multiply", "add"), ("multiply",), ("add",)):
            legal = "the scalar engine has only (multiply, add), multiply and add"
            raise rules.fail(self, "engine", legal, ", ".join(names))
        slow = any(op.engine is Engine.gpsimd for op in self._ops())
        if slow != (self.queue is Engine.gpsimd):
            rule = "gpsimd is for rsqrt and power, and they run there only"
            raise rules.fail(self, "engine", rule, f"{', '.join(names)} on {self.engine.name}")
        if self.queue is Engine.gpsimd:
            rules.no_psum_on_gpsimd(self, "dst", "data", "operand0", "operand1")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        x = operators.bits(read, self.data) if self.op0.bitvec else read(self.data, jnp.float32)
        x = _step(self.op0, x, self.operand0, self.reverse0, read)
        if self.op1 is not None:
            x = _step(self.op1, x, self.operand1, self.reverse1, read)
        return (operators.from_bits(x, self.dst.dtype) if self.op0.bitvec else x,)

    def cycles(self, target: Target) -> Work:
        tiles, engine, n = (self.dst, self.data), self.queue, self.dst.free
        if engine is Engine.gpsimd:
            return rates.work(target, engine, _GPSIMD_PASSES * n)
        if engine is Engine.scalar:
            double = target.generation >= Generation.gen4 and all(v.dtype in rates.NARROW for v in tiles)
            return rates.work(target, engine, n / 2 if double else n, *tiles)
        return rates.work(target, engine, rates.one_input_cycles(target, *tiles), *tiles)


@dataclass(frozen=True)
class ScalarTensorTensor(Instruction):
    """dst = cast((data <op0> operand0) <op1> operand1), operands swapped where reversed

    Memory: all in SBUF or PSUM, data and operand1 not both in PSUM.
    Data types: any; float32 arithmetic, unrounded between the two operators; no bitvec operators.
    Layout: dst, data, operand1 (P, F), P at most 128; operand0 a number or (P, 1).
    Engine: Vector.
    Cost: gen2 max(64, 2F); max(64, F) for subtract then multiply of bf16 with F even.  gen3 max(64, F), also gen4
        (assumed).  Twice that with a stride above 16 bytes.
    Not emulated: nothing.
    Source: nki.isa.scalar_tensor_tensor
    """

    dst: Out
    data: In
    op0: AluOp
    operand0: In | Number | None
    op1: AluOp
    operand1: In
    reverse0: bool = False
    reverse1: bool = False

    api: ClassVar[str] = "nki.isa.scalar_tensor_tensor"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        tiles = ("dst", "data", "operand1")
        rules.in_memory(self, *tiles, "operand0")
        rules.partitions(self, target, *tiles)
        rules.same_free(self, *tiles)
        operators.check_op(self, target, "op0", arithmetic=True)
        operators.check_op(self, target, "op1", arity=2, arithmetic=True)
        for name in ("op0", "op1"):
            if getattr(self, name).engine is Engine.gpsimd:
                raise rules.fail(self, name, "must be an operator of the vector engine", getattr(self, name).name)
        operators.not_packed(self, *tiles)
        check_scalar(self, "op0", "operand0", "data")
        rules.not_both_psum(self, "data", "operand1")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        x = _step(self.op0, read(self.data, jnp.float32), self.operand0, self.reverse0, read)
        return (self.op1(x, read(self.operand1, jnp.float32), self.reverse1),)

    def cycles(self, target: Target) -> Work:
        n = self.dst.free
        if target.generation is Generation.gen2:
            fast = (self.op0, self.op1) == (ALU["subtract"], ALU["multiply"]) and n % 2 == 0
            fast = fast and self.data.dtype == self.operand1.dtype == "bfloat16"
            n = n if fast else 2 * n
        return rates.work(target, Engine.vector, n, self.dst, self.data, self.operand1)


@dataclass(frozen=True)
class Reciprocal(Instruction):
    """dst = cast(1 / data)

    Memory: dst, data in SBUF or PSUM.
    Data types: any; float32 arithmetic; 1 / +-0 is +-inf.
    Layout: dst, data (P, F), P at most 128.
    Engine: Vector.
    Cost: max(64, 8F) on gen2, max(64, 6F) from gen3 on, assumed for gen4.
    Not emulated: nothing.
    Source: nki.isa.reciprocal
    """

    dst: Out
    data: In

    api: ClassVar[str] = "nki.isa.reciprocal"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data")
        rules.partitions(self, target, "dst", "data")
        rules.same_free(self, "dst", "data")
        operators.not_packed(self, "dst", "data")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return (ALU["reciprocal"](read(self.data, jnp.float32)),)

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, _RECIPROCAL_PASSES[target.generation] * self.dst.free)
