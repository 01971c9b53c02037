"""Functions of `nki.language` that no instruction of the machine has: an entry of the emulator's own stands for the
several instructions that the compiler makes of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from nkijax.isa import operators, rules
from nkijax.isa.elementwise import Reciprocal, TensorScalar
from nkijax.isa.operators import ALU
from nkijax.machine import Engine, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read
from nkijax.view import View


@dataclass(frozen=True)
class MathFunction:
    """One function, on float32 arrays; equal and hashed by name.

    Its cost is that of `steps` plain Vector instructions and of `reciprocals` reciprocals, one after another; assumed.
    """

    name: str
    function: Callable[..., jax.Array] = field(compare=False, repr=False)
    arity: int = field(compare=False)
    steps: int = field(compare=False)
    reciprocals: int = field(default=0, compare=False)

    def __post_init__(self):
        assert self.name.isidentifier() and callable(self.function), self
        assert self.arity in (1, 2) and self.steps >= 1 and self.reciprocals >= 0, self


_DIVIDE = 1  # steps beside a reciprocal: a multiplication
_FLOOR = 3  # to an integer and back, a comparison, a subtraction
_TRUNC = _FLOOR + 1  # the magnitude's floor, with the sign put back
_SINE = 5  # four to bring the angle into [-pi, pi], and the function itself
_REMAINDER = 2  # a multiplication and a subtraction, after the quotient was rounded

_ROWS = (
    MathFunction("sin", jnp.sin, 1, _SINE),
    MathFunction("cos", jnp.cos, 1, _SINE + 1),
    MathFunction("tan", jnp.tan, 1, 2 * _SINE + 1 + _DIVIDE, reciprocals=1),
    MathFunction("floor", jnp.floor, 1, _FLOOR),
    MathFunction("ceil", jnp.ceil, 1, _FLOOR),
    MathFunction("trunc", jnp.trunc, 1, _TRUNC),
    MathFunction("divide", jnp.divide, 2, _DIVIDE, reciprocals=1),
    MathFunction("fmod", jnp.fmod, 2, _DIVIDE + _TRUNC + _REMAINDER, reciprocals=1),
    MathFunction("mod", jnp.mod, 2, _DIVIDE + _FLOOR + _REMAINDER, reciprocals=1),
)

FUNCTIONS: dict[str, MathFunction] = {f.name: f for f in _ROWS}
"""Every function by name.  `sin` is right for every angle, unlike the activation function."""

assert len(FUNCTIONS) == len(_ROWS)


@dataclass(frozen=True)
class Elementwise(Instruction):
    """dst = cast(function(a)) or dst = cast(function(a, b))

    No device instruction: the compiler lowers it to several, on tiles of its own.
    Memory: all in SBUF or PSUM, a and b not both in PSUM.
    Data types: any but x4; float32 arithmetic.
    Layout: dst (P, F), P at most 128; a and b (P, F), (P, 1) or numbers, at least one of them a tile.
    Engine: Vector.
    Cost: as many instructions as its row of FUNCTIONS says, each that of one add of a number to dst, or of one
        reciprocal; assumed.
    Not emulated: the rounding of each of the several instructions.
    Source: nki.language
    """

    dst: Out
    a: In | Number
    b: In | Number | None
    function: MathFunction

    @property
    def api(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name of the function."""
        return f"nki.language.{getattr(self.function, 'name', self.function)}"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        if not isinstance(self.function, MathFunction):
            raise rules.fail(self, "function", f"must be one of {list(FUNCTIONS)}", self.function)
        rules.in_memory(self, "dst", "a", "b")
        rules.partitions(self, target, "dst", "a", "b")
        operators.not_packed(self, "dst", "a", "b")
        if (self.b is None) != (self.function.arity == 1):
            rule = "be None with the unary" if self.function.arity == 1 else "be given with the binary"
            raise rules.fail(self, "b", f"must {rule} function {self.function.name}", self.b)
        if not isinstance(self.a, View) and not isinstance(self.b, View):
            raise rules.fail(self, "a, b", "one of them must be a tile", f"{self.a} and {self.b}")
        for name in ("a", "b"):
            view = getattr(self, name)
            if isinstance(view, View) and view.free not in (1, self.dst.free):
                rule = f"must have the {self.dst.free} free elements of dst, or one"
                raise rules.fail(self, name, rule, view.shape)
        rules.not_both_psum(self, "a", "b")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        operands = [self.a] if self.b is None else [self.a, self.b]
        values = [read(x, jnp.float32) for x in operands]
        shape = (self.dst.partitions, self.dst.free)
        return (jnp.broadcast_to(self.function.function(*values), shape),)

    def cycles(self, target: Target) -> Work:
        step: Any = TensorScalar(self.dst, self.dst, ALU["add"], 1.0).cycles(target)
        reciprocal: Any = Reciprocal(self.dst, self.dst).cycles(target)
        row = self.function
        issue = row.steps * step.issue_cycles + row.reciprocals * reciprocal.issue_cycles
        return Work(issue, step.latency_cycles)
