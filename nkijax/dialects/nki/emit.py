"""What every instruction function of the dialect uses: translating operands, emitting, and the handle it returns."""

from __future__ import annotations

from typing import Any

from nkijax import arrays
from nkijax.dialects.nki.register import VirtualRegister
from nkijax.dialects.nki.tensor import NkiTensor
from nkijax.errors import KernelError
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View


class NkiInstruction:
    """What every instruction returns: a handle for scheduling."""

    __slots__ = ("handle",)

    def __init__(self, handle: Instruction):
        self.handle = handle

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Ask that this runs after `producers` are done; returns itself."""
        recorder = current("NkiInstruction.depends_on")
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise KernelError(f"NkiInstruction.depends_on producers: must be instructions, got {producer!r}")
            recorder.edges.append((self.handle, producer.handle))
        return self


def emit(instruction: Instruction) -> NkiInstruction:
    return NkiInstruction(current(instruction.api).emit(instruction))


def accumulator(api: str, engine: str, data: View) -> View:
    """The accumulator of the scalar or the vector engine: one float32 for each of the first partitions, as many as
    `data` has.  It is kept between instructions.
    """
    recorder = current(api)
    registers = recorder.state(f"{engine} accumulator", (recorder.target.pmax, 1), "float32")
    return registers.slice(0, 0, min(data.partitions, recorder.target.pmax))


def operand(x: Any) -> Any:
    """A tensor or register as its view; a number as Python's; None and what is neither as it is, to be refused."""
    if type(x) in (NkiTensor, VirtualRegister):
        return x._view
    return x if x is None or type(x) in (float, int) else arrays.static(x)
