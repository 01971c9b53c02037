"""`neuronxcc.nki.typing`: annotations of kernel arguments, without effect, and `scalar`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spec:
    """A tensor of which only shape and dtype are known, `tensor[[rows, columns], dtype]`, for `nki.benchmark`."""

    shape: tuple[int, ...]
    dtype: Any


class tensor:
    """A tensor argument, of any shape or of the one in brackets."""

    def __class_getitem__(cls, shape: Any) -> Any:
        if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[0], list | tuple):
            return Spec(tuple(shape[0]), shape[1])
        return cls


class mutable_tensor(tensor):
    """A tensor argument that the kernel writes."""


class mutable:
    """In `tensor[mutable]`: the kernel writes it."""


def scalar(x: Any) -> Any:
    """The value of a 1-element integer tile, as a bound of `range` or an index: the tile itself."""
    return x
