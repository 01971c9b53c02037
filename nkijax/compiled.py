"""A kernel for one signature, ready to be called."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.core import Tracer

from nkijax.arrays import auto_axes
from nkijax.lower import Lowered, Result
from nkijax.program import Program


@dataclass(eq=False)
class Compiled:
    """One signature of one kernel: its program, lowered and jitted.

    `compile_s` is how many seconds it took until it could run: recording, rolling, lowering, and XLA's work, which
    the first call on arrays adds.
    """

    program: Program
    lowered: Lowered
    tree: Any  # the structure of the result, with an `Output` for each tensor
    compile_s: float = 0.0
    jitted: Callable[..., Result] = field(init=False)
    ready: bool = False

    def __post_init__(self):
        function = auto_axes(self.lowered.function)
        function.__name__ = self.program.name  # names XLA's module in profiles and in JAX's compilation cache
        self.jitted = jax.jit(function)

    def __call__(self, *arrays: Any) -> Result:
        """Run it; of tracers, become a part of what is being traced."""
        if not self.ready and not any(isinstance(x, Tracer) for x in arrays):
            begin = time.perf_counter()
            self.jitted.lower(*arrays).compile()  # type: ignore[attr-defined]  # JAX keeps it for the call
            self.compile_s += time.perf_counter() - begin
            self.ready = True
        return self.jitted(*arrays)
