"""Modules below `neuronxcc` that public kernels and their tests import, beside those of the dialect proper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from nkijax.dialects.neuronxcc.index import Index
from nkijax.errors import Unsupported


def package(name: str, attributes: Mapping[str, Any] | None = None) -> ModuleType:
    """A package that only holds others."""
    module = ModuleType(name)
    module.__path__ = []
    vars(module).update(attributes or {})
    return module


def _absent(name: str) -> Callable[..., NoReturn]:
    def absent(*args: Any, **kwargs: Any) -> NoReturn:
        raise Unsupported(f"neuronxcc.nki.compiler.{name}: is a part of the vendor's compiler that nkijax lacks")

    absent.__name__ = absent.__qualname__ = name.rpartition(".")[2]
    return absent


def _undocumented(name: str) -> Callable[..., NoReturn]:
    def undocumented() -> NoReturn:
        raise Unsupported(f"nl.{name}: nothing says what it gives; use nl.mgrid with the sizes of nl.tile_size")

    undocumented.__name__ = undocumented.__qualname__ = name
    return undocumented


gemm_grid, gemm_stationary_grid = _undocumented("gemm_grid"), _undocumented("gemm_stationary_grid")
indexing = package("indexing", {"TileIndex": Index})
tensor = package("tensor", {"local_tile": _absent("backends.neuron.tensor.local_tile")})


def allclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=False, verbose=0) -> bool:
    """NumPy's allclose; `verbose` has no effect."""
    del verbose
    return bool(np.allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol, atol, equal_nan))


util = package("util", {"allclose": allclose})
