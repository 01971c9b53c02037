"""The operators of `nki.language`: function objects, which instructions take as `op=nl.add`, and which are math
functions when they are called on tiles: `nl.add(x, y)` is a new SBUF tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nkijax.dialects.nki import reductions
from nkijax.dialects.nki.math import binary, unary
from nkijax.dialects.nki.tensor import NkiTensor, allocate, copy_instruction, sbuf, view_of
from nkijax.isa.operators import ACTIVATIONS, ALU
from nkijax.trace import current

Token = Callable[..., Any]


def _named(op: Token, name: str, doc: str) -> Token:
    op.__name__ = op.__qualname__ = name
    op.__doc__ = doc
    return op


def _unary(name: str) -> Token:
    def op(x, dtype=None) -> NkiTensor:
        return unary(name, x, dtype)

    return _named(op, name, f"A new SBUF tile: {name} of a tile, element by element.")


def _binary(name: str) -> Token:
    def op(x, y, dtype=None) -> NkiTensor:
        return binary(name, x, y, dtype)

    return _named(op, name, f"A new SBUF tile: {name} of two tiles, or a tile and a number, element by element.")


def _reduction(name: str) -> Token:
    def op(x, axis, dtype=None, keepdims=False) -> NkiTensor:
        return reductions.reduce(name, x, axis, dtype, keepdims)

    return _named(op, name, f"A new SBUF tile: {name} of a tile along its trailing free axes.")


def _token(name: str, what: str) -> Token:
    def op() -> NoReturn:
        raise TypeError(f"nki.language.{name}: is an operator of instructions, not a function")

    return _named(op, name, f"{what}; not callable.")


# ---- two operands

add = _binary("add")
subtract = _binary("subtract")
multiply = _binary("multiply")
divide = _binary("divide")
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
fmod = _binary("fmod")
mod = _binary("mod")

# ---- one operand

abs = _unary("abs")
square = _unary("square")
invert = _unary("invert")
logical_not = _unary("logical_not")
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
reciprocal = _unary("reciprocal")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
arctan = _unary("arctan")
ceil = _unary("ceil")
floor = _unary("floor")
trunc = _unary("trunc")
negative = _unary("negative")
sign = _unary("sign")


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the elements of `x`, a tile in SBUF or PSUM.  Also an operator: the identity."""
    src = view_of("nki.language.copy x", x)
    tile = allocate("nki.language.copy", src.shape, src.dtype if dtype is None else dtype, sbuf)
    current("nki.language.copy").emit(copy_instruction(tile._view, src))
    return tile


# ---- reductions; `max` and `min` also stand for `maximum` and `minimum` as operators

sum = _reduction("sum")
max = _reduction("max")
min = _reduction("min")
prod = _reduction("prod")


def mean(x, axis, dtype=None, keepdims=False) -> NkiTensor:
    """A new SBUF tile: the mean of a tile along its trailing free axes, in float32."""
    return reductions.mean(x, axis, dtype, keepdims)


def var(x, axis, dtype=None, keepdims=False) -> NkiTensor:
    """A new SBUF tile: the population variance along trailing free axes, kept with size 1; `keepdims` has no effect."""
    return reductions.variance(x, axis, dtype)


def all(x, axis, dtype=None) -> NkiTensor:
    """A new SBUF tile: 1 where all elements along trailing free axes are not zero, else 0."""
    return reductions.reduce("all", x, axis, dtype, False)


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
