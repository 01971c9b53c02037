"""`nki.jit` and `nki.simulate`, and what the rest of nkijax asks of the dialect."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any

from nkijax import api
from nkijax.api import Kernel
from nkijax.call import DIALECTS, Dialect
from nkijax.dialects.nki import absent, collectives, isa, language
from nkijax.dialects.nki.tensor import NkiTensor
from nkijax.errors import KernelError
from nkijax.view import View

_PACKAGE = __name__.rpartition(".")[0]
_CORES = (1, 2)


def jit(
    fn: Callable[..., Any] | Kernel | None = None,
    *,
    mode: Any = None,
    platform_target: Any = None,
    debug_kernel: Any = None,
    show_compiler_tb: Any = None,
    experimental_flags: Any = None,
) -> Any:
    """`@nki.jit`, `@nki.jit()` or `nki.jit(function)`: a `Kernel`, called with arrays or from another kernel.

    `kernel[n]` runs it on n = 1 or 2 cores.  `mode`, `debug_kernel`, `show_compiler_tb` and `experimental_flags` are
    accepted without effect; `platform_target` was removed in NKI 0.3 and raises TypeError.
    """
    del mode, debug_kernel, show_compiler_tb, experimental_flags
    if platform_target is not None:
        raise TypeError(
            "nki.jit platform_target: was removed; set NEURON_PLATFORM_TARGET_OVERRIDE or use nkijax.run(…, target=…), "
            f"got {platform_target!r}"
        )
    return _kernel if fn is None else _kernel(fn)


def _kernel(fn: Callable[..., Any] | Kernel) -> Kernel:
    if isinstance(fn, Kernel):
        return fn
    if not callable(fn):
        raise TypeError(f"nki.jit fn: must be a function, got {fn!r}")
    return Kernel(fn, DIALECT)


def simulate(kernel: Any, eager: bool = False) -> Callable[..., Any]:
    """The kernel (or `kernel[n]`, or a plain function) as a function of NumPy or torch arrays, which it returns too.

    `eager=True`, an argument that NKI's own `simulate` does not have, executes each instruction as it is reached: then
    `print(tensor)`, `int(register)` and `breakpoint()` show data.
    """
    found = api.as_kernel(kernel)

    def simulated(*args: Any, **kwargs: Any) -> Any:
        return api.run(found, *args, eager=eager, **kwargs)

    return simulated


# ---- the dialect


def _view(x: Any) -> View | None:
    """The view of a tensor that a kernel returns, None for what is no tensor."""
    if not isinstance(x, NkiTensor):
        return None
    if x._view.memory.on_chip:
        rule = "must be in HBM; copy it there with nki.isa.dma_copy"
        raise KernelError(f"kernel result: {rule}, got a tensor in {x.buffer.value}")
    return x._view


def _grid(n: Any) -> tuple[int, ...]:
    """The grid of `kernel[n]`."""
    cores = None if isinstance(n, bool | tuple | list) else n
    try:
        cores = operator.index(cores)  # type: ignore[arg-type]
    except TypeError:
        cores = None
    if cores not in _CORES:
        raise KernelError(f"kernel[n]: NKI only supports LNC 1 or 2, but got {n!r}")
    return (cores,)


def _speaks(function: FunctionType) -> bool:
    """Whether a function refers to the dialect's modules or objects."""
    found = (function.__globals__.get(name) for name in function.__code__.co_names)
    return any(_of_dialect(getattr(x, "__module__", None) or getattr(x, "__name__", None)) for x in found)


def _of_dialect(name: Any) -> bool:
    return isinstance(name, str) and (name == _PACKAGE or name.startswith(_PACKAGE + "."))


def _explain(error: TypeError) -> None:
    """Say of an unknown keyword of one of the dialect's functions what may have been meant."""
    absent.explain_keyword(error, (isa, language, collectives))


DIALECT = Dialect("nki", NkiTensor, _view, _grid, _speaks, explain=_explain)
DIALECTS.insert(0, DIALECT)
