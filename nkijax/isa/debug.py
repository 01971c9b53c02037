"""Looking into a running kernel: device_print."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import numpy as np
from jax.core import Tracer

from nkijax import dtypes
from nkijax.isa import rules
from nkijax.machine import Engine, Memory, Target, Transfer
from nkijax.program import In, Instruction, Read


@dataclass(frozen=True)
class DevicePrint(Instruction):
    """stdout <- print_prefix and the elements of tensor

    Executed eagerly it prints at once.  In a jitted function it prints when it runs, once a turn; turns of a static
    loop that run at once print instruction by instruction.
    Memory: SBUF or HBM.  Data types: any.  Layout: any.
    Engine: DMA.
    Cost: a transfer of the tensor's bytes; assumed.
    Not emulated: the files of NEURON_RT_DEBUG_OUTPUT_DIR.
    Source: nki.language.device_print
    """

    print_prefix: str
    tensor: In

    api: ClassVar[str] = "nki.language.device_print"

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def check(self, target: Target) -> None:
        if not isinstance(self.print_prefix, str):
            raise rules.fail(self, "print_prefix", "must be a string", repr(self.print_prefix))
        rules.in_memory(self, "tensor", memories=(Memory.sbuf, Memory.private_hbm, Memory.shared_hbm))

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        value = read(self.tensor).reshape(self.tensor.shape)
        if isinstance(value, Tracer):
            jax.debug.callback(partial(_show, self.print_prefix), value)
        else:
            _show(self.print_prefix, value)
        return ()

    def cycles(self, target: Target) -> Transfer:
        return Transfer(self.tensor.size * dtypes.size(self.tensor.dtype))


def _show(prefix: str, value: jax.Array) -> None:
    print(prefix, np.asarray(value), flush=True)
