"""The recurrence along the free axis (Vector engine)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nkijax.isa import operators, rules
from nkijax.isa.operators import AluOp
from nkijax.machine import Engine, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read

# Pairs (op0, op1) of commutative operators where op0 distributes over op1: two steps are one step of the same kind.
_COMPOSABLE = {
    ("multiply", "add"),
    ("add", "maximum"),
    ("add", "minimum"),
    ("maximum", "minimum"),
    ("minimum", "maximum"),
    ("maximum", "maximum"),
    ("minimum", "minimum"),
}
_PASSES = 2  # elements go through the engine twice


def in_sequence(inst: TensorTensorScan, a: jax.Array, b: jax.Array, initial: jax.Array) -> jax.Array:
    """One step after the other; a, b (P, F), initial (P, 1)."""

    def step(r: jax.Array, ab: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        r = inst.op1(inst.op0(ab[0], r, inst.reverse0), ab[1], inst.reverse1)
        return r, r

    _, out = lax.scan(step, initial[:, 0], (a.T, b.T))
    return out.T


def in_parallel(inst: TensorTensorScan, a: jax.Array, b: jax.Array, initial: jax.Array) -> jax.Array:
    """Log F rounds over steps r -> (a <op0> r) <op1> b, of a composable pair."""
    first = inst.op1(inst.op0(a[:, :1], initial), b[:, :1])
    b = jnp.concatenate([first, b[:, 1:]], axis=1)

    def compose(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return inst.op0(right[0], left[0]), inst.op1(inst.op0(right[0], left[1]), right[1])

    return lax.associative_scan(compose, (a, b), axis=1)[1]


def in_parallel_if_exact(inst: TensorTensorScan, a: jax.Array, b: jax.Array, initial: jax.Array) -> jax.Array:
    """In parallel unless products of multipliers could overflow where the recurrence itself does not."""
    if inst.op0.name != "multiply":
        return in_parallel(inst, a, b, initial)
    tame = jnp.all(jnp.abs(a) <= 1)
    tamed = jnp.where(tame, a, 0)  # under vmap both branches run: keep the overflow out of gradients too
    return lax.cond(
        tame,
        lambda: in_parallel(inst, tamed, b, initial),
        lambda: in_sequence(inst, a, b, initial),
    )


@dataclass(frozen=True)
class TensorTensorScan(Instruction):
    """r[i] = (data0[i] <op0> r[i-1]) <op1> data1[i], r[-1] = initial, operands swapped where reversed; dst = cast(r)

    Memory: all in SBUF or PSUM, data0 and data1 not both in PSUM.
    Data types: any; float32 arithmetic, r unrounded.
    Layout: dst, data0, data1 (P, F), P at most 128; initial a number or (P, 1).
    Engine: Vector.
    Cost: max(64, 2F) cycles on gen2 and gen3; gen4 assumed.
    Not emulated: nothing.  On a CPU the steps run one by one (measured: as fast as in parallel, and compiled in a fifth
        of the time).  Elsewhere pairs such as (multiply, add) run in parallel, given multipliers of at most 1 in
        magnitude; their sums then round differently.
    Source: nki.isa.tensor_tensor_scan
    """

    dst: Out
    data0: In
    data1: In
    initial: In | Number
    op0: AluOp
    op1: AluOp
    reverse0: bool = False
    reverse1: bool = False

    api: ClassVar[str] = "nki.isa.tensor_tensor_scan"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        tiles = ("dst", "data0", "data1")
        rules.in_memory(self, *tiles, "initial")
        rules.partitions(self, target, *tiles)
        rules.same_free(self, *tiles)
        for name in ("op0", "op1"):
            operators.check_op(self, target, name, arity=2, arithmetic=True)
            if getattr(self, name).engine is Engine.gpsimd:
                raise rules.fail(self, name, "must be an operator of the vector engine", getattr(self, name).name)
        operators.not_packed(self, *tiles, "initial")
        rules.per_partition(self, "initial", "data0")
        rules.not_both_psum(self, "data0", "data1")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        a, b = read(self.data0, jnp.float32), read(self.data1, jnp.float32)
        initial = jnp.broadcast_to(read(self.initial, jnp.float32), (a.shape[0], 1))
        composable = (self.op0.name, self.op1.name) in _COMPOSABLE and jax.default_backend() != "cpu"
        return ((in_parallel_if_exact if composable else in_sequence)(self, a, b, initial),)

    def cycles(self, target: Target) -> Work:
        issue = max(target.min_issue_cycles, _PASSES * self.dst.free)
        return Work(issue, target.latency_cycles(Engine.vector))
