"""What the programs of a grid do together in the old dialect, where they run one after another on one core."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import jax

from nkijax.isa import rules
from nkijax.machine import Engine, Target, Work
from nkijax.program import In, Instruction, Read


@dataclass(frozen=True)
class ProgramBarrier(Instruction):
    """data = data: every program of the grid reaches this point before any goes on

    Memory: `data`, HBM that the programs share.
    Data types: any.
    Engine: GpSimd.
    Cost: nothing beside the transfers around it, as one core runs the programs in turn.
    Not emulated: nothing.
    Source: nki.language.all_reduce
    """

    data: In

    api: ClassVar[str] = "neuronxcc.nki.language.all_reduce"

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        if not self.data.memory.is_hbm:
            raise rules.fail(self, "data", "must be in HBM", self.data.memory.value)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return ()

    def cycles(self, target: Target) -> Work:
        return Work(0, 0)

    def meets(self) -> Hashable:
        return (self.api, self.data.shape)
