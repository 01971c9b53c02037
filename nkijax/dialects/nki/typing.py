"""`nki.typing`: annotations of kernel arguments, without effect: `x: nt.tensor[128, 512]`."""

from __future__ import annotations

from typing import Any


class tensor:
    """A tensor argument, of any shape or of the one in brackets."""

    def __class_getitem__(cls, shape: Any) -> type[tensor]:
        return cls


class mutable_tensor(tensor):
    """A tensor argument that the kernel writes."""
