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


indexing = package("indexing", {"TileIndex": Index})
tensor = package("tensor", {"local_tile": _absent("backends.neuron.tensor.local_tile")})
util = package("util", {"allclose": np.allclose})
