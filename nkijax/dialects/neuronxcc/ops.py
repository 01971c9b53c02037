"""Which operator a kernel means: operators come from NumPy or from `nl`, and count by their names."""

from __future__ import annotations

from typing import Any

from nkijax.isa.operators import ACTIVATIONS, ALU, Activation, AluOp

_SAME = {
    "sum": "add",
    "max": "maximum",
    "amax": "maximum",
    "min": "minimum",
    "amin": "minimum",
    "prod": "multiply",
    "absolute": "abs",
    "fabs": "abs",
    "true_divide": "divide",
    "bitwise_not": "invert",
    "all": "logical_and",
    "any": "logical_or",
    "pow": "power",
    "identity": "copy",
}


def op_name(op: Any) -> str:
    """The name of an operator: a string, a function of `nl`, or one of NumPy's."""
    name = op if isinstance(op, str) else getattr(op, "__name__", None) or getattr(op, "name", None) or repr(op)
    return _SAME.get(name, name)


def alu(op: Any) -> AluOp | Any:
    """The ALU row of an operator; None stays None, anything else is left for the instruction to refuse."""
    if op is None or isinstance(op, AluOp):
        return op
    return ALU.get(op_name(op), op_name(op))


def activation_function(op: Any) -> Activation | Any:
    """The row of an activation function; otherwise as `alu`."""
    if op is None or isinstance(op, Activation):
        return op
    return ACTIVATIONS.get(op_name(op), op_name(op))
