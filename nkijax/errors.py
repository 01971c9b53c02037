"""The two kinds of failure, and where in the kernel they happened."""

from __future__ import annotations

import os
import sys
from types import FrameType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def kernel_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame outside nkijax: the kernel's own line while a kernel is being traced."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def kernel_site() -> str:
    """`file:line` of `kernel_frame`, or an empty string."""
    frame = kernel_frame(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


class KernelError(AssertionError):
    """The kernel broke a rule of the machine.

    The message has four parts: which API, which operand, the rule, and what was given; the kernel's `file:line`
    follows.  It is an `AssertionError` because that is what NKI users catch.
    """

    def __init__(self, message: str, site: str | None = None):
        self.message = message
        self.site = kernel_site() if site is None else site
        super().__init__(f"{message}\n  at {self.site}" if self.site else message)


class Outside(KernelError):
    """A view of no elements, or of some that its tensor lacks: kernels form such ones, then guard their use."""


class OutOfRange(KernelError):
    """A run-time index beyond its tensor; `index` and `limit` are numbers, `view` what was addressed, if known."""

    def __init__(self, what: str, index: int, limit: int, site: str | None = None, view: object = None):
        super().__init__(f"{what}: run-time index out of bounds: must be in [0, {limit}), got {index}", site)
        self.index, self.limit, self.view = index, limit, view


class Unsupported(Exception):
    """Legal NKI that nkijax does not emulate; says what, and what to use instead where there is something."""
