"""Operators of instructions, matched by name: kernels pass functions of NumPy as well as of `nl`.

`np.add`, `nl.add`, `np.sum` and `nl.sum` all mean the ALU's addition, `np.exp` and `nl.exp` the same activation.
"""

from __future__ import annotations

from typing import Any

from nkijax.errors import KernelError, Unsupported
from nkijax.isa.operators import ACTIVATIONS, ALU, Activation, AluOp

_ALU_NAMES = {
    "sum": "add",
    "prod": "multiply",
    "product": "multiply",
    "max": "maximum",
    "amax": "maximum",
    "min": "minimum",
    "amin": "minimum",
    "true_divide": "divide",
    "absolute": "abs",
    "pow": "power",
    "mean": "average",
    "all": "logical_and",
    "any": "logical_or",
    "bitwise_not": "invert",
    "copy": "bypass",
}
_ACTIVATION_NAMES = {"absolute": "abs", "arctan": "arctan", "fabs": "abs", "identity": "copy"}


def name_of(op: Any) -> str:
    """The name of an operator: of a function, or a string."""
    return op if isinstance(op, str) else getattr(op, "__name__", repr(op))


def alu(op: Any, operand: str) -> AluOp | None:
    """The ALU row of an operator; None stays None.  `operand` is "<api> <operand>"."""
    if op is None:
        return None
    name = name_of(op)
    row = ALU.get(_ALU_NAMES.get(name, name))
    if row is None:
        raise KernelError(f"{operand}: must be one of {', '.join(ALU)}, got {name}")
    return row


def reduction(op: Any, operand: str) -> AluOp:
    """The ALU row of an operator that reduces."""
    row = alu(op, operand)
    if row is None or row.reduction is None:
        raise KernelError(f"{operand}: must be an operator that reduces, got {name_of(op)}")
    return row


def activation_function(op: Any, operand: str) -> Activation:
    """The row of an activation function."""
    name = name_of(op)
    row = ACTIVATIONS.get(_ACTIVATION_NAMES.get(name, name))
    if row is None:
        raise Unsupported(f"{operand}: must be one of {', '.join(ACTIVATIONS)}, got {name}")
    return row
