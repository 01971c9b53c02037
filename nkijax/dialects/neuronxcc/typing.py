"""`neuronxcc.nki.typing`: annotations of kernel arguments, without effect, and `scalar`."""

from __future__ import annotations

from typing import Any


class tensor:
    """A tensor argument, of any shape or of the one in brackets."""

    def __class_getitem__(cls, shape: Any) -> type[tensor]:
        return cls


class mutable_tensor(tensor):
    """A tensor argument that the kernel writes."""


class mutable:
    """In `tensor[mutable]`: the kernel writes it."""


def scalar(x: Any) -> Any:
    """The value of a 1-element integer tile, as a bound of `range` or an index: the tile itself."""
    return x
