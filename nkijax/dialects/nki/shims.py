"""Modules below `nki` that public code imports beside the documented ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from nkijax import api, dtypes
from nkijax.dialects.nki.control import while_loop
from nkijax.errors import Unsupported
from nkijax.trace import dtype_of


def _module(name: str, attributes: Mapping[str, Any]) -> ModuleType:
    """A module of these attributes, of which modules can be imported by their dotted names."""
    module = ModuleType(name)
    module.__path__ = []
    vars(module).update(attributes)
    return module


# ---- nki.compiler: the vendor's compiler itself is not here


def _refuse(name: str) -> NoReturn:
    raise Unsupported(
        f"nki.compiler.{name}: is a part of the vendor's compiler; nkijax.trace(kernel, …) gives a kernel's program"
    )


def _part(module: str, name: str) -> type:
    """A class of the compiler: it can be named, not made."""

    def init(self: Any, *args: Any) -> NoReturn:
        _refuse(f"{module}.{name}")

    return type(name, (), {"__init__": init, "__doc__": f"`nki.compiler.{module}.{name}`: Unsupported."})


def compile_kernel(function: Any, inputs: Any = None, outputs: Any = None, compile_opts: Any = None) -> NoReturn:
    """`nki.compiler.kernel_builder.compile_kernel`: Unsupported."""
    del function, inputs, outputs, compile_opts
    _refuse("kernel_builder.compile_kernel")


def _from_frontend(*args: Any) -> NoReturn:
    _refuse("ncc_driver.CompiledKernel.from_frontend")


_compiled_kernel = _part("ncc_driver", "CompiledKernel")
_compiled_kernel.from_frontend = staticmethod(_from_frontend)  # type: ignore[attr-defined]

_frontend = {name: _part("frontend", name) for name in ("NKIFrontend", "ParserFrontend")}
_driver = {"CompileOptions": _part("ncc_driver", "CompileOptions"), "CompiledKernel": _compiled_kernel}
compiler = _module(
    "nki.compiler",
    {
        "kernel_builder": _module("nki.compiler.kernel_builder", {"compile_kernel": compile_kernel}),
        "frontend": _module("nki.compiler.frontend", _frontend),
        "ncc_driver": _module("nki.compiler.ncc_driver", _driver),
    },
)


# ---- nki.meta.tensor: tensors of the host, known while a kernel is traced


def zeros(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """A NumPy array of zeros, in the storage of an NKI dtype."""
    return np.zeros(shape, dtypes.storage(dtype_of(dtype, "nki.meta.tensor.zeros")))


def identity(n: int, dtype: Any) -> np.ndarray:
    """The (n, n) identity as a NumPy array, in the storage of an NKI dtype."""
    return np.eye(n).astype(dtypes.storage(dtype_of(dtype, "nki.meta.tensor.identity")))


def arange(n: int, dtype: Any) -> np.ndarray:
    """0 … n - 1 as a NumPy array, in the storage of an NKI dtype."""
    return np.arange(n).astype(dtypes.storage(dtype_of(dtype, "nki.meta.tensor.arange")))


_tensor = _module("nki.meta.tensor", {"zeros": zeros, "identity": identity, "arange": arange})
meta = _module("nki.meta", {"tensor": _tensor})


# ---- nki.experimental, nki.simulator

experimental = _module("nki.experimental", {"while_loop": while_loop})


def simulate_kernel(
    func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, _lnc: int = 1
) -> Any:
    """What the kernel returns for these arguments, on `_lnc` cores."""
    return api.run(api.as_kernel(func)[_lnc], *args, **(kwargs or {}))


simulator = _module("nki.simulator", {"simulate_kernel": simulate_kernel})

MODULES: dict[str, ModuleType] = {
    module.__name__: module
    for top in (compiler, meta, experimental, simulator)
    for module in (top, *(m for m in vars(top).values() if isinstance(m, ModuleType)))
}
"""Every module here by its full name."""
