"""Element by element with a running reduction along the free axis (Vector engine).

What these instructions and those of `selecting` reduce lives in the accumulator registers of the Vector engine, one
float32 for each partition, which outlive an instruction: `accumulator`, a column of state that the dialect passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax.isa import operators, rates, rules
from nkijax.isa.elementwise import check_scalar
from nkijax.isa.operators import ALU, AluOp, ReduceCmd
from nkijax.machine import Engine, Generation, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read
from nkijax.view import View

REDUCE_COMMANDS = (ReduceCmd.reset_reduce, ReduceCmd.reduce, ReduceCmd.load_reduce)


def registers_to_read(inst: Any) -> View | None:
    """The accumulator where its old value counts.  After reduce_cmd.idle it is undefined: then it is not read."""
    return inst.accumulator if inst.reduce_cmd is ReduceCmd.reduce else None


def accumulated(
    inst: Any, op: AluOp, values: jax.Array, read: Read, loaded: jax.Array | None = None, negate: bool = False
) -> tuple[jax.Array, ...]:
    """reduce_res and the accumulator after `values` (P, F), as far as there are such."""
    if inst.reduce_res is None and inst.accumulator is None:
        return ()
    lanes = operators.registers_after(inst, inst.reduce_cmd, op, values, read, loaded)
    result = () if inst.reduce_res is None else (-lanes if negate else lanes,)
    return result if inst.accumulator is None else (*result, lanes)


def check_number(inst: Instruction, name: str, like: str) -> None:
    """Operand `name` is a number or a (P, 1) float32 tile."""
    value = getattr(inst, name)
    if not isinstance(value, View | int | float | np.number):
        raise rules.fail(inst, name, "must be a number or a (P, 1) float32 tile", value)
    rules.per_partition(inst, name, like, kinds=("float32",))


def reading_out(inst: Any, target: Target, streamed: Work) -> Work:
    """The cost `streamed`, and with a reduce_res that of reading the accumulator out into it."""
    if inst.reduce_res is None:
        return streamed
    return replace(streamed, issue_cycles=streamed.issue_cycles + target.min_issue_cycles)


def check_vector_op(inst: Instruction, target: Target, name: str) -> None:
    """Field `name` is an arithmetic operator that the Vector engine has."""
    operators.check_op(inst, target, name, arithmetic=True)
    op: AluOp = getattr(inst, name)
    if op.engine not in (None, Engine.vector):
        raise rules.fail(inst, name, "must be an operator of the vector engine", op.name)


def check_member(inst: Instruction, target: Target, name: str, legal: tuple[str, ...]) -> None:
    """Field `name` is one of the ALU operators called `legal`."""
    op = getattr(inst, name)
    if not isinstance(op, AluOp) or op.name not in legal:
        raise rules.fail(inst, name, f"must be one of {list(legal)}", getattr(op, "name", op))
    rules.since(inst, target, op.since, f"{name} {op.name}")


def check_dtype(inst: Instruction, name: str, legal: tuple[str, ...]) -> None:
    """Tile `name`, if there is one, has one of the dtypes `legal`."""
    view = getattr(inst, name)
    if isinstance(view, View) and view.dtype not in legal:
        raise rules.fail(inst, name, f"must have one of the dtypes {list(legal)}", view.dtype)


# ---- a scalar operator, then a reduction

_REDUCTIONS = ("add", "multiply", "maximum", "minimum")


@dataclass(frozen=True)
class TensorScalarReduce(Instruction):
    """dst = cast(data <op0> operand0); accumulator = accumulator <reduce_op> that, reduced over the free axis

    reduce_cmd says what the accumulator starts from: reset_reduce from the identity of reduce_op, reduce from its
    value, load_reduce from reduce_init.  After that reduce_res = cast(accumulator), times -1 if `reduce_res_negate`.
    Memory: all in SBUF or PSUM; the accumulator, one float32 for each partition, is `accumulator`, (P, 1) of state.
    Data types: any; float32 arithmetic, reduced before the cast; tiles of operand0 and reduce_init float32.
    Layout: dst, data (P, F), P at most 128; operand0 and reduce_init numbers or (P, 1); reduce_res (P, 1).  A unary
        operator's operand0 is None or 0.  `reverse0` is a parameter that NKI does not support yet.
    Engine: Vector.
    Cost: max(64, F), 2F with a stride above 16 bytes; with reduce_res 64 more; gen3 and gen4 assumed.
    Indirection: dst, data (gen4).
    Not emulated: the order of sums, which is XLA's.
    Source: nki.isa.tensor_scalar_reduce
    """

    dst: Out
    data: In
    op0: AluOp
    operand0: In | Number | None
    reduce_op: AluOp
    reduce_res: Out | None = None
    reverse0: bool = False
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce
    reduce_init: In | Number | None = None
    reduce_res_negate: bool = False
    accumulator: Out | None = None
    before: In | None = field(default=None, init=False)

    api: ClassVar[str] = "nki.isa.tensor_scalar_reduce"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "data")

    def __post_init__(self):
        object.__setattr__(self, "before", registers_to_read(self))

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        tiles = ("dst", "data", "operand0", "reduce_res", "reduce_init")
        rules.in_memory(self, *tiles)
        rules.partitions(self, target, "dst", "data")
        rules.same_free(self, "dst", "data")
        operators.not_packed(self, *tiles)
        check_vector_op(self, target, "op0")
        check_scalar(self, "op0", "operand0", "data", ("float32",))
        check_member(self, target, "reduce_op", _REDUCTIONS)
        if self.reverse0:
            raise rules.fail(self, "reverse0", "must be False, NKI does not support it", self.reverse0)
        operators.check_accumulator(self, "data", *REDUCE_COMMANDS)
        if self.reduce_cmd is ReduceCmd.load_reduce:
            check_number(self, "reduce_init", "data")
        elif self.reduce_init is not None:
            raise rules.fail(self, "reduce_init", "must be None without reduce_cmd.load_reduce", self.reduce_init)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        operand = None if self.operand0 is None else read(self.operand0, jnp.float32)
        out = self.op0(read(self.data, jnp.float32), operand)
        loaded = None if self.reduce_init is None else read(self.reduce_init, jnp.float32)
        return (out, *accumulated(self, self.reduce_op, out, read, loaded, self.reduce_res_negate))

    def cycles(self, target: Target) -> Work:
        return reading_out(self, target, rates.work(target, Engine.vector, self.dst.free, self.dst, self.data))


# ---- a scalar operator, then a running reduction

_CUMULATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
_CUMULATIVE_DTYPES = (
    *("bfloat16", "float16", "float32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"),
    *("uint8", "uint16", "int8", "int16"),
)
_RUNNING = {"add": lax.cumsum, "multiply": lax.cumprod, "maximum": lax.cummax, "minimum": lax.cummin}


def in_sequence(op: AluOp, x: jax.Array, initial: jax.Array) -> jax.Array:
    """r[i] = x[i] <op> r[i-1], one step after the other; x (P, F), initial (P, 1)."""

    def step(r: jax.Array, column: jax.Array) -> tuple[jax.Array, jax.Array]:
        r = op(column, r)
        return r, r

    return lax.scan(step, initial[:, 0], x.T)[1].T


def in_parallel(op: AluOp, x: jax.Array, initial: jax.Array) -> jax.Array:
    """The same in log F rounds."""
    x = jnp.concatenate([op(x[:, :1], initial), x[:, 1:]], axis=1)
    if op.name != "subtract":
        return _RUNNING[op.name](x, axis=1)
    signs = 1 - 2 * (lax.broadcasted_iota(jnp.int32, x.shape, 1) % 2).astype(jnp.float32)
    return signs * lax.cumsum(signs * x, axis=1)  # every second r changes sign


@dataclass(frozen=True)
class TensorScalarCumulative(Instruction):
    """r[i] = (src[i] <op0> imm0) <op1> r[i-1]; dst = cast(r); accumulator = the last r

    reduce_cmd says what r starts from: reset_reduce from 0 (op1 add, subtract), 1 (multiply), -inf (maximum) or inf
    (minimum), reduce from the accumulator, load_reduce from imm1, which counts for nothing else.
    Memory: dst, src, imm0, imm1 in SBUF or PSUM; the accumulator, one float32 for each partition, is `accumulator`,
        (P, 1) of state.
    Data types: dst and src bf16, fp16, fp32, fp8 or integers of 8 or 16 bits; tiles of imm0 and imm1 float32; float32
        arithmetic, r unrounded.
    Layout: dst, src (P, F), P at most 128; imm0 and imm1 numbers or (P, 1).  A unary op0 has imm0 None or 0.
    Engine: Vector.
    Cost: max(64, F), 2F with a stride above 16 bytes; assumed on every generation.
    Indirection: dst, src (gen4).
    Not emulated: nothing.  On a CPU the steps run one by one, elsewhere in parallel, where sums and
        products round differently.
    Source: nki.isa.tensor_scalar_cumulative
    """

    dst: Out
    src: In
    op0: AluOp
    op1: AluOp
    imm0: In | Number | None
    imm1: In | Number | None = None
    reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce
    accumulator: Out | None = None
    before: In | None = field(default=None, init=False)
    reduce_res: ClassVar[None] = None

    api: ClassVar[str] = "nki.isa.tensor_scalar_cumulative"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "src")

    def __post_init__(self):
        object.__setattr__(self, "before", registers_to_read(self))

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "src", "imm0", "imm1")
        rules.partitions(self, target, "dst", "src")
        rules.same_free(self, "dst", "src")
        for name in ("dst", "src"):
            check_dtype(self, name, _CUMULATIVE_DTYPES)
        check_vector_op(self, target, "op0")
        check_scalar(self, "op0", "imm0", "src", ("float32",))
        check_member(self, target, "op1", _CUMULATIVE)
        operators.check_accumulator(self, "src", *REDUCE_COMMANDS)
        if self.reduce_cmd is ReduceCmd.load_reduce or self.imm1 is not None:
            check_number(self, "imm1", "src")

    def _initial(self, read: Read) -> jax.Array:
        if self.before is not None:
            return read(self.before, jnp.float32)
        if self.reduce_cmd is ReduceCmd.load_reduce:
            return read(self.imm1, jnp.float32)
        return jnp.float32(self.op1.identity)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        operand = None if self.imm0 is None else read(self.imm0, jnp.float32)
        x = self.op0(read(self.src, jnp.float32), operand)
        initial = jnp.broadcast_to(self._initial(read), (x.shape[0], 1))
        out = (in_sequence if jax.default_backend() == "cpu" else in_parallel)(self.op1, x, initial)
        return (out,) if self.accumulator is None else (out, out[:, -1:])

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, self.dst.free, self.dst, self.src)


# ---- the exponential

_FLOATS = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32")
_EXPONENTIAL_DTYPES = (*_FLOATS, "int8", "int16", "int32", "uint8", "uint16")
_EXPONENTIAL_RATE = 4  # elements a cycle: four times the Scalar engine's, nki/guides/architecture/trainium3_arch.rst


@dataclass(frozen=True)
class Exponential(Instruction):
    """dst = cast(exp(src - max_value)); accumulator += sum of exp(src - max_value) over the free axis

    reduce_cmd says what the accumulator starts from: reset_reduce from 0, reduce from its value, load_reduce from
    reduce_init.  After that reduce_res = cast(accumulator).  idle leaves the accumulator undefined: here it is NaN.
    Memory: all in SBUF or PSUM; the accumulator, one float32 for each partition, is `accumulator`, (P, 1) of state.
    Data types: src any but bool and packed types; dst the same but uint32; reduce_res a float; tiles of max_value and
        reduce_init float32; float32 arithmetic, summed before the cast.
    Layout: dst, src (P, F), P at most 128; max_value and reduce_init numbers or (P, 1); reduce_res (P, 1).
    Engine: Vector, gen4.
    Cost: max(64, F/4), twice that with a stride above 16 bytes; with reduce_res 64 more, assumed.
    Indirection: dst, src.
    Not emulated: the approximation of the hardware.
    Source: nki.isa.exponential
    """

    dst: Out
    src: In
    max_value: In | Number = 0.0
    reduce_res: Out | None = None
    reduce_cmd: ReduceCmd = ReduceCmd.idle
    reduce_init: In | Number = 0.0
    accumulator: Out | None = None
    before: In | None = field(default=None, init=False)

    api: ClassVar[str] = "nki.isa.exponential"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "src")

    def __post_init__(self):
        object.__setattr__(self, "before", registers_to_read(self))

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen4, "the instruction")
        rules.in_memory(self, "dst", "src", "max_value", "reduce_res", "reduce_init")
        rules.partitions(self, target, "dst", "src")
        rules.same_free(self, "dst", "src")
        check_dtype(self, "dst", _EXPONENTIAL_DTYPES)
        check_dtype(self, "src", (*_EXPONENTIAL_DTYPES, "uint32"))
        check_dtype(self, "reduce_res", _FLOATS)
        check_number(self, "max_value", "src")
        check_number(self, "reduce_init", "src")
        operators.check_accumulator(self, "src", ReduceCmd.idle, *REDUCE_COMMANDS)
        loads = self.reduce_cmd is ReduceCmd.load_reduce
        if not loads and (isinstance(self.reduce_init, View) or self.reduce_init != 0):
            raise rules.fail(self, "reduce_init", "must be 0.0 without reduce_cmd.load_reduce", self.reduce_init)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        out = jnp.exp(read(self.src, jnp.float32) - read(self.max_value, jnp.float32))
        loaded = read(self.reduce_init, jnp.float32) if self.reduce_cmd is ReduceCmd.load_reduce else None
        return (out, *accumulated(self, ALU["add"], out, read, loaded))

    def cycles(self, target: Target) -> Work:
        cycles = self.dst.free / _EXPONENTIAL_RATE
        return reading_out(self, target, rates.work(target, Engine.vector, cycles, self.dst, self.src))
