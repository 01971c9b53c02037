"""A recorded program executed eagerly, instruction by instruction, with a note of which instruction wrote each element.

The instructions are those that were recorded, in their order, so that two cores which wait for each other run too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from nkijax import access, arrays, dtypes
from nkijax.address import Address
from nkijax.eager import Eager
from nkijax.program import Instruction, Loop, Node, Program
from nkijax.view import Buffer, View

NOBODY = -1  # in place of an instruction's number: the element is as the run began


@dataclass(frozen=True, eq=False)
class Step:
    """One executed instruction: its number in the run, and the values that it wrote, one array for each destination."""

    number: int
    instruction: Instruction
    wrote: tuple[np.ndarray, ...]


class Watch(Eager):
    """The memory of a program that is executed step by step."""

    def __init__(self, program: Program, arguments: Sequence[Any]):
        super().__init__(program.target)
        self.program = program
        self.constants = program.constants
        self.zeros = {program.buffers[i] for i in program.zeros}
        self.count = 0
        for buffer, x in zip(program.arguments, arguments, strict=True):
            kind = dtypes.storage(buffer.dtype, self.precise)
            self.arrays[buffer] = jnp.asarray(arrays.to_jax(x)).astype(kind).reshape(buffer.shape)

    def steps(self, nodes: Sequence[Node] | None = None) -> Iterator[Step]:
        """Execute the program, or some of its nodes; gives each step once it is done."""
        for node in self.program.body if nodes is None else nodes:
            if isinstance(node, Loop):
                yield from self._turns(node)
            else:
                assert isinstance(node, Instruction), "of an unrolled program"
                self.execute(node)
                wrote = tuple(np.asarray(self.load(v, node.index_group)) for v in node.writes())
                yield Step(self.count, node, wrote)
                self.count += 1

    def _turns(self, loop: Loop) -> Iterator[Step]:
        """Take all turns; where cores meet in the loop it has a register for each."""
        values = [self._int(bound) for bound in (loop.lower, *loop.bounds[::2])]
        if loop.condition is None:
            for k in range(0, self._int(loop.upper) - values[0], loop.step):
                yield from self._turn(loop, [value + k for value in values])
        while loop.condition is not None and values[0]:
            yield from self._turn(loop, values)
            values = [self._int(condition) for condition in (loop.condition, *loop.conditions)]

    def _turn(self, loop: Loop, values: Sequence[int]) -> Iterator[Step]:
        idents = (loop.ident, *loop.idents)
        for buffer in [b for b in self.arrays if b.scope in idents]:
            self.forget(buffer)
        for register, value in zip((loop.register, *loop.registers), values, strict=True):
            self.poke(register, value)
        yield from self.steps(loop.body)

    def forget(self, buffer: Buffer) -> None:
        """Make a buffer as new."""
        del self.arrays[buffer]

    def _int(self, bound: View | float | None) -> int:
        return int(self.value(bound).item()) if isinstance(bound, View) else int(bound or 0)


class Provenance(Watch):
    """A watch that also notes, for each element of memory, the number of the instruction that wrote it last.

    `sources[n]` are the numbers of the instructions whose results step n read.
    """

    def __init__(self, program: Program, arguments: Sequence[Any]):
        super().__init__(program, arguments)
        self.sources: list[frozenset[int]] = []
        self._writers: dict[Buffer, np.ndarray] = {}

    def execute(self, instruction: Instruction) -> None:
        kept = instruction.writes() if instruction.skips() else ()  # what it skips stays as it was
        read = [self.writers(v, instruction.index_group) for v in (*instruction.reads(), *kept)]
        self.sources.append(frozenset(int(n) for x in read for n in np.unique(x) if n != NOBODY))
        super().execute(instruction)
        for view in instruction.writes():
            self._note(view, instruction.index_group)

    def writers(self, view: View, group: int) -> np.ndarray:
        """Who wrote each element of a view last, in its shape."""
        noted = self._of(view.buffer)
        if self._other_size(view):
            return noted
        return np.asarray(access.read(jnp.asarray(noted), self._numbers_at(view, group)))

    def forget(self, buffer: Buffer) -> None:
        super().forget(buffer)
        self._writers.pop(buffer, None)

    def _of(self, buffer: Buffer) -> np.ndarray:
        return self._writers.setdefault(buffer, np.full(buffer.shape, NOBODY, np.int32))

    def _note(self, view: View, group: int) -> None:
        now = len(self.sources) - 1
        if self._other_size(view):  # part of an element: the whole buffer counts as written
            self._writers[view.buffer] = np.full(view.buffer.shape, now, np.int32)
            return
        mark = jnp.full(view.shape, now, np.int32)
        noted = access.write(jnp.asarray(self._of(view.buffer)), self._numbers_at(view, group), mark)
        self._writers[view.buffer] = np.asarray(noted)

    def _numbers_at(self, view: View, group: int) -> Address:
        return replace(self.address(view, group), dtype="int32")

    @staticmethod
    def _other_size(view: View) -> bool:
        return dtypes.size(view.dtype) != dtypes.size(view.buffer.dtype)
