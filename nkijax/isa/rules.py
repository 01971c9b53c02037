"""The rules that many instructions share, each a function that raises KernelError in the four-part form:

<api> <operand>: <rule>, got <what was given>
"""

from __future__ import annotations

from collections.abc import Iterable

from nkijax import dtypes
from nkijax.errors import KernelError
from nkijax.machine import Engine, Generation, Memory, Target
from nkijax.program import Instruction
from nkijax.view import View


def fail(inst: Instruction, operand: str, rule: str, given: object) -> KernelError:
    """The error of a broken rule, to be raised."""
    return KernelError(f"{inst.api} {operand}: {rule}, got {given}")


def in_memory(inst: Instruction, *operands: str, memories: Iterable[Memory] = (Memory.sbuf, Memory.psum)) -> None:
    """Each named operand that is a tile lives in one of `memories`."""
    for name in operands:
        view = getattr(inst, name)
        if isinstance(view, View) and view.memory not in memories:
            names = [m.value for m in memories]
            raise KernelError(f"{inst.api} {name}: {name} must be in {names}, got {view.memory.value}")


def partitions(inst: Instruction, target: Target, *operands: str, equal: bool = True) -> None:
    """Each named tile spans at most `pmax` partitions, and all of them the same number of partitions."""
    first: tuple[str, int] | None = None
    for name in operands:
        view = getattr(inst, name)
        if not isinstance(view, View):
            continue
        if view.partitions > target.pmax:
            raise KernelError(f"{inst.api} {name} partition dimension {view.partitions} exceeds maximum {target.pmax}")
        if first is None:
            first = (name, view.partitions)
        elif equal and view.partitions != first[1]:
            raise fail(inst, name, f"must have the {first[1]} partitions of {first[0]}", view.shape)


def same_free(inst: Instruction, *operands: str) -> None:
    """All named tiles have the same number of free elements; their ranks and free shapes may differ."""
    first: tuple[str, View] | None = None
    for name in operands:
        view = getattr(inst, name)
        if not isinstance(view, View):
            continue
        if first is None:
            first = (name, view)
        elif view.free != first[1].free:
            raise fail(inst, name, f"must have the {first[1].free} free elements of {first[0]}", view.shape)


def per_partition(inst: Instruction, operand: str, like: str, *, kinds: Iterable[str] | None = None) -> None:
    """A scalar operand: a number, or a tile of one element a partition, with the partitions of `like`."""
    view = getattr(inst, operand)
    if not isinstance(view, View):
        return
    if view.free != 1 or view.partitions != getattr(inst, like).partitions:
        raise fail(inst, operand, f"must be a number or a ({getattr(inst, like).partitions}, 1) tile", view.shape)
    if kinds is not None and view.dtype not in kinds:
        raise fail(inst, operand, f"must be one of {sorted(kinds)}", view.dtype)


def not_both_psum(inst: Instruction, first: str, second: str) -> None:
    """At most one of two streaming inputs is in PSUM."""
    a, b = getattr(inst, first), getattr(inst, second)
    if isinstance(a, View) and isinstance(b, View) and a.memory is Memory.psum and b.memory is Memory.psum:
        raise fail(inst, f"{first}, {second}", "at most one of them may be in psum", "both in psum")


def engine_is(inst: Instruction, *allowed: Engine) -> None:
    """The `engine` argument is unknown (let the compiler choose) or one of `allowed`."""
    engine = inst.engine  # type: ignore[attr-defined]
    if not isinstance(engine, Engine):
        raise fail(inst, "engine", "must be a member of nki.isa.engine", repr(engine))
    if engine is not Engine.unknown and engine not in allowed:
        raise fail(inst, "engine", f"must be one of {[e.name for e in allowed]}", engine.name)


def no_psum_on_gpsimd(inst: Instruction, *operands: str) -> None:
    """GpSimd never touches PSUM."""
    for name in operands:
        view = getattr(inst, name)
        if isinstance(view, View) and view.memory is Memory.psum:
            raise fail(inst, name, "the gpsimd engine cannot access psum", "a psum tile")


def indirect(inst: Instruction, *operands: str) -> list[str]:
    """Those named operands that are views made by `.indirect`."""
    views = [(name, getattr(inst, name)) for name in operands]
    return [name for name, view in views if isinstance(view, View) and view.dynamic and view.dynamic.columns]


def not_indirect(inst: Instruction, where: str, *operands: str) -> None:
    """No named tile is a view made by `.indirect`, which the instruction otherwise takes."""
    for name in indirect(inst, *operands):
        raise fail(inst, name, f"must not be indirect {where}", "a view made by .indirect")


def same_dtype(inst: Instruction, first: str, second: str) -> None:
    """Two tiles have equal dtypes: the elements are moved bit for bit."""
    a, b = getattr(inst, first), getattr(inst, second)
    if isinstance(a, View) and isinstance(b, View) and a.dtype != b.dtype:
        raise fail(inst, first, f"must have the dtype {b.dtype} of {second}", a.dtype)


def integers(inst: Instruction, *operands: str) -> None:
    """Named tiles hold integers (bit operations work on raw bits)."""
    for name in operands:
        view = getattr(inst, name)
        if isinstance(view, View) and not dtypes.is_int(view.dtype):
            raise fail(inst, name, "must have an integer dtype", view.dtype)


def since(inst: Instruction, target: Target, generation: Generation, what: str) -> None:
    """`what` needs at least `generation`."""
    if target.generation < generation:
        raise KernelError(f"{inst.api} {what}: needs {generation.name} or later, got {target.name}")
