"""The operators that instructions take: ALU operators and activation functions, one checked row each.

ALU rows compute on float32 arrays, bitvec rows on unsigned integers; comparisons and logical rows give 1.0 or 0.0.
Beside the tables: the rules about operators, raw bits, and the accumulator registers that reductions leave behind.

Source: nki.api.shared (Supported Math Operators, Supported Activation Functions), nki.isa.reduce_cmd.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import rules
from nkijax.isa.extremes import extreme
from nkijax.machine import Engine, Generation, Memory, Target
from nkijax.program import Instruction, Read
from nkijax.view import View

Function = Callable[..., jax.Array]

_KINDS = ("bitvec", "arithmetic", "compare", "logical", "pseudo")


@dataclass(frozen=True)
class AluOp:
    """One ALU operator; equal and hashed by name.

    `function` takes `arity` arrays.  `reduction` folds the last axis of one array, first element first, and `identity`
    starts an accumulator; both None unless the operator reduces.  `integers`: exact on 32-bit integers in GpSimd.
    """

    name: str
    kind: str = field(compare=False)  # one of _KINDS; all but bitvec are arithmetic in AWS's words
    function: Function = field(compare=False, repr=False)
    arity: int = field(default=2, compare=False)
    reduction: Function | None = field(default=None, compare=False, repr=False)
    identity: float | None = field(default=None, compare=False)
    reducible: bool = field(default=False, compare=False)  # in the column "legal reduction op"
    integers: bool = field(default=False, compare=False)
    engine: Engine | None = field(default=None, compare=False)  # the only engine that has it
    since: Generation = field(default=Generation.gen2, compare=False)

    def __post_init__(self):
        assert self.name.isidentifier() and self.kind in _KINDS and callable(self.function), self
        assert self.arity in (1, 2), self
        assert (self.reduction is None) == (self.identity is None), self
        assert not self.reducible or (self.reduction is not None and self.arity != 1), self

    @property
    def bitvec(self) -> bool:
        return self.kind == "bitvec"

    def __call__(self, first: jax.Array, second: jax.Array | None = None, reverse: bool = False) -> jax.Array:
        """first <op> second, or second <op> first; a unary operator ignores `second`."""
        if self.arity == 1:
            return self.function(first)
        return self.function(second, first) if reverse else self.function(first, second)


@dataclass(frozen=True)
class Activation:
    """One function of the Scalar engine, on float32 arrays; equal and hashed by name.

    With `parameter` the function takes a second argument (PReLU's slope), which only activate2 can pass.
    """

    name: str
    function: Function = field(compare=False, repr=False)
    parameter: bool = field(default=False, compare=False)

    def __post_init__(self):
        assert self.name.isidentifier() and callable(self.function), self


class ReduceCmd(Enum):
    """What an instruction does to its accumulator registers (nki.isa.reduce_cmd)."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


# ---- ALU operators


def _truth(function: Function) -> Function:
    """A comparison as 1.0 or 0.0."""
    return lambda a, b: function(a, b).astype(jnp.float32)


def _logical(function: Function) -> Function:
    """A logical operator of (a != 0) and (b != 0), as 1.0 or 0.0."""
    return lambda a, b: function(a != 0, b != 0).astype(jnp.float32)


def _subtract_all(x: jax.Array) -> jax.Array:
    """x0 - x1 - x2 - ..."""
    return x[..., 0] - jnp.sum(x[..., 1:], axis=-1)


def _parity(x: jax.Array) -> jax.Array:
    return (jnp.sum((x != 0).astype(jnp.int32), axis=-1) % 2).astype(jnp.float32)


def _extreme_magnitude(pick: Function, x: jax.Array) -> jax.Array:
    """The element of largest or least magnitude, with its sign; the last one of equals."""
    backwards = jnp.flip(x, axis=-1)
    index = pick(jnp.abs(backwards), axis=-1, keepdims=True)
    return jnp.take_along_axis(backwards, index, axis=-1)[..., 0]


def _bits(name: str, function: Function, **row: Any) -> AluOp:
    return AluOp(name, "bitvec", function, **row)


def _arithmetic(name: str, function: Function, **row: Any) -> AluOp:
    return AluOp(name, "arithmetic", function, **row)


def _compare(name: str, function: Function) -> AluOp:
    return AluOp(name, "compare", _truth(function), integers=True)


def _fold(function: Function) -> Function:
    return partial(function, axis=-1)


def _fold_bits(function: Function) -> Function:
    return lambda x: function(x, (x.ndim - 1,))


def _fold_truth(function: Function) -> Function:
    return lambda x: function(x != 0, axis=-1).astype(jnp.float32)


_ALL_ONES = 0xFFFFFFFF
_GEN4, _GPSIMD = Generation.gen4, Engine.gpsimd

_ALU_ROWS = (
    _bits("invert", jnp.invert, arity=1),
    _bits("bitwise_and", jnp.bitwise_and, reduction=_fold_bits(lax.reduce_and), identity=_ALL_ONES, reducible=True),
    _bits("bitwise_or", jnp.bitwise_or, reduction=_fold_bits(lax.reduce_or), identity=0, reducible=True),
    _bits("bitwise_xor", jnp.bitwise_xor, reduction=_fold_bits(lax.reduce_xor), identity=0, reducible=True),
    _bits("left_shift", jnp.left_shift),
    _bits("right_shift", lambda a, b: lax.shift_right_logical(*jnp.broadcast_arrays(a, b))),
    _arithmetic("add", jnp.add, reduction=_fold(jnp.sum), identity=0.0, reducible=True, integers=True),
    _arithmetic("subtract", jnp.subtract, reduction=_subtract_all, identity=0.0, reducible=True, integers=True),
    _arithmetic("multiply", jnp.multiply, reduction=_fold(jnp.prod), identity=1.0, reducible=True, integers=True),
    _arithmetic("maximum", jnp.maximum, reduction=extreme(jnp.max), identity=-math.inf, reducible=True, integers=True),
    _arithmetic("minimum", jnp.minimum, reduction=extreme(jnp.min), identity=math.inf, reducible=True, integers=True),
    _compare("equal", jnp.equal),
    _compare("not_equal", jnp.not_equal),
    _compare("greater_equal", jnp.greater_equal),
    _compare("greater", jnp.greater),
    _compare("less_equal", jnp.less_equal),
    _compare("less", jnp.less),
    AluOp("logical_and", "logical", _logical(jnp.logical_and), 2, _fold_truth(jnp.all), 1.0, True, True),
    AluOp("logical_or", "logical", _logical(jnp.logical_or), 2, _fold_truth(jnp.any), 0.0, True, True),
    AluOp("logical_xor", "logical", _logical(jnp.logical_xor), 2, _parity, 0.0, True, True),
    _arithmetic("power", jnp.power, engine=_GPSIMD),
    _arithmetic("divide", jnp.divide),
    _arithmetic(
        "abs_max",
        lambda a, b: jnp.where(jnp.abs(a) > jnp.abs(b), a, b),
        reduction=partial(_extreme_magnitude, jnp.argmax),
        identity=0.0,
        since=_GEN4,
    ),
    _arithmetic(
        "abs_min",
        lambda a, b: jnp.where(jnp.abs(a) < jnp.abs(b), a, b),
        reduction=partial(_extreme_magnitude, jnp.argmin),
        identity=math.inf,
        since=_GEN4,
    ),
    _arithmetic("abs", jnp.abs, arity=1),
    _arithmetic("square", jnp.square, arity=1, since=_GEN4),
    _arithmetic("relu", jax.nn.relu, arity=1, since=_GEN4),
    _arithmetic("rsqrt", lax.rsqrt, arity=1, engine=_GPSIMD),
    _arithmetic("reciprocal", jnp.reciprocal, arity=1),
    _arithmetic("bypass", lambda a, b: a),
    AluOp("average", "pseudo", jnp.add, reduction=_fold(jnp.mean), identity=0.0),
)

ALU: dict[str, AluOp] = {op.name: op for op in _ALU_ROWS}
"""Every ALU operator by name.  `divide` is in no generation's hardware; the old lists of AWS have it."""


# ---- activation functions

_SQRT_HALF = math.sqrt(0.5)
_GELU_SIGMOID = 1.702  # deduced from real kernels


def _phi(x: jax.Array) -> jax.Array:
    """The distribution function of the standard normal; erfc keeps the left tail."""
    return 0.5 * lax.erfc(-_SQRT_HALF * x)


def _gelu_apprx_tanh(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _gelu_apprx_sigmoid_dx(x: jax.Array) -> jax.Array:
    s = lax.logistic(_GELU_SIGMOID * x)
    return s * (1 + _GELU_SIGMOID * x * (1 - s))


def _silu_dx(x: jax.Array) -> jax.Array:
    s = lax.logistic(x)
    return s * (1 + x * (1 - s))


def _sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; of -0.0 it is 0.0, where XLA's compiler and its constant folding differ."""
    return jnp.where(x == 0, jnp.zeros_like(x), jnp.sign(x))


def _sin(x: jax.Array) -> jax.Array:
    """Sine inside [-pi, pi]; outside, the cubic that the hardware extrapolates."""
    t = x - jnp.sign(x) * math.pi
    return jnp.where(jnp.abs(x) <= math.pi, jnp.sin(x), t * t * t / 6 - t)


_ACTIVATION_ROWS = (
    Activation("copy", lambda x: x),
    Activation("square", jnp.square),
    Activation("abs", jnp.abs),
    Activation("sign", _sign),
    Activation("relu", jax.nn.relu),
    Activation("prelu", lambda x, slope: jnp.where(x > 0, x, slope * x), parameter=True),
    Activation("sigmoid", lax.logistic),
    Activation("tanh", jnp.tanh),
    Activation("exp", jnp.exp),
    Activation("gelu", lambda x: x * _phi(x)),
    Activation("gelu_dx", lambda x: _phi(x) + x * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)),
    Activation("gelu_apprx_tanh", _gelu_apprx_tanh),
    Activation("gelu_apprx_sigmoid", lambda x: x * lax.logistic(_GELU_SIGMOID * x)),
    Activation("gelu_apprx_sigmoid_dx", _gelu_apprx_sigmoid_dx),
    Activation("silu", jax.nn.silu),
    Activation("silu_dx", _silu_dx),
    Activation("softplus", jax.nn.softplus),
    Activation("mish", lambda x: x * jnp.tanh(jax.nn.softplus(x))),
    Activation("erf", lax.erf),
    Activation("erf_dx", lambda x: 2 / math.sqrt(math.pi) * jnp.exp(-x * x)),
    Activation("log", jnp.log),
    Activation("sin", _sin),
    Activation("arctan", jnp.arctan),
    Activation("sqrt", jnp.sqrt),
    Activation("rsqrt", lax.rsqrt),
    Activation("reciprocal", jnp.reciprocal),
)

ACTIVATIONS: dict[str, Activation] = {a.name: a for a in _ACTIVATION_ROWS}
"""Every activation function by name.  Exact also where hardware is not: log outside [2^-64, 2^64], sqrt outside
[2^-116, 2^118], rsqrt outside [2^-87, 2^97], reciprocal outside 2^+-42, arctan outside [-pi/2, pi/2]."""

assert len(ALU) == len(_ALU_ROWS) and len(ACTIVATIONS) == len(_ACTIVATION_ROWS)


# ---- rules about operators


def check_op(inst: Instruction, target: Target, name: str, *, arity: int | None = None, arithmetic=False) -> None:
    """Field `name` is an ALU operator that `target` has, of the arity, and of no bitvec kind if `arithmetic`."""
    op = getattr(inst, name)
    if not isinstance(op, AluOp) or op.kind == "pseudo":
        raise rules.fail(inst, name, "must be a math operator of nki.language", getattr(op, "name", op))
    if arity is not None and op.arity != arity:
        raise rules.fail(inst, name, f"must be a {'unary' if arity == 1 else 'binary'} operator", op.name)
    if arithmetic and op.bitvec:
        raise rules.fail(inst, name, "must be an arithmetic operator", op.name)
    rules.since(inst, target, op.since, f"{name} {op.name}")


def check_reduction(inst: Instruction, target: Target, name: str) -> None:
    """Field `name` is an ALU operator of the column "legal reduction op"."""
    check_op(inst, target, name)
    if not getattr(inst, name).reducible:
        legal = [op.name for op in ALU.values() if op.reducible]
        raise rules.fail(inst, name, f"must be a reduction operator, one of {legal}", getattr(inst, name).name)


def suits(inst: Instruction, op: AluOp, *operands: str) -> None:
    """The named tiles have dtypes that `op` takes: integers for bitvec, anything but packed x4 types for arithmetic."""
    if op.bitvec:
        rules.integers(inst, *operands)
    else:
        not_packed(inst, *operands)


def not_packed(inst: Instruction, *operands: str) -> None:
    """No named tile has an x4 dtype, which only the MX instructions, DMA and memset take."""
    for name in operands:
        view = getattr(inst, name)
        if isinstance(view, View) and dtypes.KINDS[view.dtype].family == "packed":
            raise rules.fail(inst, name, "packed x4 types take no arithmetic", view.dtype)


# ---- raw bits


def bits(read: Read, operand: Any) -> jax.Array:
    """The raw bits of an integer operand, zero-extended to uint32: bitvec rows then need to know no dtype."""
    if isinstance(operand, numbers.Integral):  # a mask such as -1, known while the function is traced
        return jnp.asarray(np.uint32(int(operand) & _ALL_ONES))
    if not isinstance(operand, View):
        return read(operand, jnp.uint32)
    x = read(operand)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    return x.astype(unsigned).astype(jnp.uint32)


def from_bits(x: jax.Array, dtype: str) -> jax.Array:
    """The low bits of uint32 elements as storage of an integer dtype."""
    storage = dtypes.storage(dtype)
    return (x & 0xFF) != 0 if storage == jnp.bool_ else x.astype(storage)


# ---- accumulator registers


def check_accumulator(inst: Any, like: str, *commands: ReduceCmd) -> None:
    """`reduce_cmd` is one of `commands`; `reduce_res` and the registers are columns with the partitions of `like`."""
    command, registers = inst.reduce_cmd, inst.accumulator
    if not isinstance(command, ReduceCmd) or command not in commands:
        *most, last = (c.name for c in commands)
        rule = f"must be reduce_cmd.{', '.join(most)} or {last}"
        raise rules.fail(inst, "reduce_cmd", rule, getattr(command, "name", repr(command)))
    check_registers(inst, like)
    if registers is None and (command is not ReduceCmd.idle or inst.reduce_res is not None):
        raise rules.fail(inst, "accumulator", "must be given with a reduce_cmd or reduce_res", None)


def check_registers(inst: Any, like: str) -> None:
    """`reduce_res`, and the registers, which are a float32 column of state, have the partitions of `like`."""
    rules.per_partition(inst, "reduce_res", like)
    registers, partitions = inst.accumulator, getattr(inst, like).partitions
    if registers is None:
        return
    legal = registers.memory is Memory.state and registers.dtype == "float32" and registers.free == 1
    if not legal or registers.partitions != partitions:
        rule = f"must be a column of float32 state for {partitions} partitions"
        raise rules.fail(inst, "accumulator", rule, f"{registers.dtype} {registers.shape} in {registers.memory.value}")


def accumulate(
    command: ReduceCmd, op: AluOp, before: jax.Array, reduced: jax.Array, loaded: jax.Array | None = None
) -> jax.Array:
    """The registers (P, 1) after an instruction that reduced its result to `reduced`, (P, 1).

    `loaded` is what load_reduce starts from.
    """
    if command is ReduceCmd.idle:
        return before
    if command is ReduceCmd.reset:
        assert op.identity is not None
        return jnp.full_like(before, op.identity)
    if command is ReduceCmd.reset_reduce:
        return reduced
    if command is ReduceCmd.load_reduce:
        assert loaded is not None
        before = jnp.broadcast_to(loaded, reduced.shape)
    return op(before, reduced)


def registers_after(
    inst: Any, command: ReduceCmd, op: AluOp, values: jax.Array, read: Read, loaded: jax.Array | None = None
) -> jax.Array:
    """The registers (P, 1) after `values` (P, F) were reduced; NaN where nothing says what they held before."""
    if inst.before is None:
        before = jnp.full((values.shape[0], 1), jnp.nan, jnp.float32)
    else:
        before = read(inst.before, jnp.float32)
    assert op.reduction is not None
    return accumulate(command, op, before, op.reduction(values)[:, None], loaded)
