"""What the recorder works with: dynamic loops that are open, executors of eager mode, facts that follow loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from nkijax.program import Instruction, Node
from nkijax.view import View


class Executor(Protocol):
    """What eager mode needs: memory that lives while the kernel's Python runs."""

    def execute(self, instruction: Instruction) -> None:
        """Execute one instruction on concrete values."""
        ...

    def value(self, view: View) -> np.ndarray:
        """The elements of a view, in its shape."""
        ...

    def poke(self, register: View, value: int) -> None:
        """Set a register."""
        ...


class Scoped(Protocol):
    """Facts that a chapter of instructions keeps while a kernel is traced (see `Recorder.facts`)."""

    def enter_loop(self) -> None: ...
    def exit_loop(self) -> None: ...


@dataclass
class OpenLoop:
    """A dynamic loop whose body is being traced."""

    ident: int
    site: str
    register: View
    lower: View | int
    upper: View | int | None
    step: int
    key: object  # which `while` statement opened it, None for the other forms
    body: list[Node] = field(default_factory=list)
