"""The operators of `nki.language`: each is a function object, which instructions take as `op=nl.add`.

Calling them as math functions is not emulated yet, except `copy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nkijax.dialects.nki.tensor import NkiTensor, allocate, copy_instruction, sbuf, view_of
from nkijax.errors import Unsupported
from nkijax.isa.operators import ACTIVATIONS, ALU
from nkijax.trace import current

Token = Callable[..., Any]


def _named(op: Token, name: str, doc: str) -> Token:
    op.__name__ = op.__qualname__ = name
    op.__doc__ = doc
    return op


def _unary(name: str, instead: str = "") -> Token:
    instead = instead or f"nki.isa.activation(dst, op=nl.{name}, data=x)"

    def op(x, dtype=None) -> NoReturn:
        raise Unsupported(f"nki.language.{name}: calling it is not emulated yet; use {instead}")

    return _named(op, name, f"Element by element; as an operator: {instead}.")


def _binary(name: str, instead: str = "") -> Token:
    instead = instead or f"nki.isa.tensor_tensor(dst, x, y, op=nl.{name})"

    def op(x, y, dtype=None) -> NoReturn:
        raise Unsupported(f"nki.language.{name}: calling it is not emulated yet; use {instead}")

    return _named(op, name, f"Element by element; as an operator: {instead}.")


def _reduction(name: str, instead: str) -> Token:
    def op(x, axis, dtype=None, keepdims=False) -> NoReturn:
        raise Unsupported(f"nki.language.{name}: calling it is not emulated yet; use {instead}")

    return _named(op, name, f"Along trailing free axes; as instructions: {instead}.")


def _token(name: str, what: str) -> Token:
    def op() -> NoReturn:
        raise TypeError(f"nki.language.{name}: is an operator of instructions, not a function")

    return _named(op, name, f"{what}; not callable.")


_NONE = "an instruction sequence of your own: no instruction has it"
_SCALAR = "nki.isa.tensor_scalar(dst, data, op0=nl.{}, operand0=None)"

# ---- two operands

add = _binary("add")
subtract = _binary("subtract")
multiply = _binary("multiply")
divide = _binary("divide", "nki.isa.reciprocal(dst, y), then nki.isa.tensor_tensor(dst, x, dst, op=nl.multiply)")
maximum = _binary("maximum")
minimum = _binary("minimum")
abs_max = _binary("abs_max")
abs_min = _binary("abs_min")
power = _binary("power")
equal = _binary("equal")
not_equal = _binary("not_equal")
less = _binary("less")
less_equal = _binary("less_equal")
greater = _binary("greater")
greater_equal = _binary("greater_equal")
bitwise_and = _binary("bitwise_and")
bitwise_or = _binary("bitwise_or")
bitwise_xor = _binary("bitwise_xor")
left_shift = _binary("left_shift")
right_shift = _binary("right_shift")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
fmod = _binary("fmod", _NONE)
mod = _binary("mod", _NONE)

# ---- one operand

abs = _unary("abs")
square = _unary("square")
invert = _unary("invert", _SCALAR.format("invert"))
logical_not = _unary("logical_not", "nki.isa.tensor_scalar(dst, data, op0=nl.logical_xor, operand0=1.0)")
exp = _unary("exp")
log = _unary("log")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
tanh = _unary("tanh")
sigmoid = _unary("sigmoid")
relu = _unary("relu")
gelu = _unary("gelu")
gelu_apprx_sigmoid = _unary("gelu_apprx_sigmoid")
gelu_apprx_tanh = _unary("gelu_apprx_tanh")
gelu_dx = _unary("gelu_dx")
gelu_apprx_sigmoid_dx = _unary("gelu_apprx_sigmoid_dx")
silu = _unary("silu")
silu_dx = _unary("silu_dx")
softplus = _unary("softplus")
mish = _unary("mish")
erf = _unary("erf")
erf_dx = _unary("erf_dx")
reciprocal = _unary("reciprocal", "nki.isa.reciprocal(dst, x)")
sin = _unary("sin")
cos = _unary("cos", "nki.isa.activation(dst, op=nl.sin, data=x, bias=pi / 2)")
tan = _unary("tan", _NONE)
arctan = _unary("arctan")
ceil = _unary("ceil", _NONE)
floor = _unary("floor", _NONE)
trunc = _unary("trunc", _NONE)
negative = _unary("negative", "nki.isa.tensor_scalar(dst, x, op0=nl.multiply, operand0=-1.0)")
sign = _unary("sign")


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the elements of `x`, a tile in SBUF or PSUM.  Also an operator: the identity."""
    src = view_of("nki.language.copy x", x)
    tile = allocate("nki.language.copy", src.shape, src.dtype if dtype is None else dtype, sbuf)
    current("nki.language.copy").emit(copy_instruction(tile._view, src))
    return tile


# ---- reductions; `max` and `min` also stand for `maximum` and `minimum` as operators

_REDUCE = "nki.isa.tensor_reduce(dst, op=nl.{}, data=x, axis=axis)"
sum = _reduction("sum", _REDUCE.format("add"))
max = _reduction("max", _REDUCE.format("maximum"))
min = _reduction("min", _REDUCE.format("minimum"))
prod = _reduction("prod", _REDUCE.format("multiply"))
mean = _reduction("mean", f"{_REDUCE.format('add')} and nki.isa.tensor_scalar")
var = _reduction("var", f"{_REDUCE.format('add')}, of x and of its squares")

# ---- operators only

average = _token("average", "The mean, of a reduction over partitions")
prelu = _token("prelu", "x where it is positive, else relu_param times x")
bypass = _token("bypass", "The first operand, unchanged")

# ---- what instructions compute with

_HERE = dict(globals())
_ALU = {_HERE[name]: row for name, row in ALU.items()} | {max: ALU["maximum"], min: ALU["minimum"]}
_ACTIVATIONS = {_HERE[name]: row for name, row in ACTIVATIONS.items()}


def alu(op: Any) -> Any:
    """The ALU row of an operator; of anything else its name, for the instruction to refuse; None stays None."""
    return _row(_ALU, op)


def activation_function(op: Any) -> Any:
    """The row of an activation function; otherwise as `alu`."""
    return _row(_ACTIVATIONS, op)


def _row(table: dict[Token, Any], op: Any) -> Any:
    try:
        found = table.get(op)
    except TypeError:
        found = None
    return getattr(op, "__name__", op) if found is None else found
