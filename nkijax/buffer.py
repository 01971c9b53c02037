"""Buffers, and the arithmetic of shapes and strides that views are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nkijax import dtypes
from nkijax.errors import KernelError
from nkijax.machine import Memory


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """One allocation.  `shape` in elements of `dtype`, stored row-major; identity is equality.

    `depth` counts the dynamic loops that were open at the allocation: each iteration of those has a fresh one.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    memory: Memory
    name: str = ""
    depth: int = 0
    scope: int = -1  # the innermost dynamic loop that was open, -1 for none
    pinned: bool = False  # a kernel argument or a constant: never one of a family
    size: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "size", math.prod(self.shape))


def suffix_products(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major shape."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def resolve(sizes: tuple[int, ...], total: int, api: str) -> tuple[int, ...]:
    """Replace one -1 in `sizes` so that their product is `total`."""
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        if known > 0 and total % known == 0:
            sizes = tuple(total // known if n == -1 else n for n in sizes)
    if math.prod(sizes) != total or any(n < 1 for n in sizes):
        raise KernelError(f"{api}: must keep {total} elements, got {sizes}")
    return sizes


def restride(strides: Sequence[int], shape: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """Strides that give `shape` the new `sizes` without a copy, or None (NumPy's no-copy reshape)."""
    dims = [(s, n) for s, n in zip(strides, shape, strict=True) if n != 1]
    runs: list[tuple[int, int]] = []  # (innermost stride, elements) of each maximal contiguous run
    for s, n in dims:
        if runs and runs[-1][0] == s * n:
            runs[-1] = (s, runs[-1][1] * n)
        else:
            runs.append((s, n))
    out: list[int] = []
    step, left = 1, 1
    for size in sizes:
        if size == 1:
            out.append(step * left if left > 1 else 1)
            continue
        if left == 1:
            if not runs:
                return None
            step, left = runs.pop(0)
        if left % size:
            return None
        left //= size
        out.append(step * left)
    return out


def shape_of(shape: Any, api: str) -> tuple[int, ...]:
    """A shape argument as a tuple of ints."""
    try:
        sizes = tuple(int(n) for n in shape)
    except TypeError:
        raise KernelError(f"{api} shape: must be a sequence of ints, got {shape!r}") from None
    if not sizes or min(sizes) < 1 or math.prod(sizes) >= 2**40:
        raise KernelError(f"{api} shape: sizes must be positive, got {sizes}")
    return sizes


def dtype_of(dtype: Any, api: str) -> str:
    """A dtype argument as an NKI dtype name."""
    try:
        return dtypes.of(dtype)
    except TypeError as error:
        raise KernelError(f"{api} dtype: {error}") from None
