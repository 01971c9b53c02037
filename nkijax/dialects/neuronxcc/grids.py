"""What makes index objects: `nl.arange` and `nl.mgrid`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from nkijax.dialects.neuronxcc.index import Index
from nkijax.errors import KernelError


def arange(*bounds: Any) -> Index:
    """nl.arange(n) or nl.arange(a, b): the integers, as an index of one axis."""
    first, last = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    n = int(last) - int(first)
    if n < 1:
        raise KernelError(f"nl.arange: must not be empty, got {bounds}")
    return Index((int(n > 1),), (n,), int(first))


class Grid(tuple):
    """The open mesh of `nl.mgrid[…]`: an `Index` for each axis, also called p, x, y, z and w."""

    p = property(lambda self: self[0])
    x = property(lambda self: self[1])
    y = property(lambda self: self[2])
    z = property(lambda self: self[3])
    w = property(lambda self: self[4])


class _Mgrid:
    """`nl.mgrid[a:b, c:d, …]`."""

    def __getitem__(self, key: Any) -> Grid:
        ranges = key if isinstance(key, tuple) else (key,)
        return _mesh(tuple((int(r.start or 0), int(r.stop)) for r in ranges))


@functools.lru_cache(maxsize=1024)
def _mesh(bounds: tuple[tuple[int, int], ...]) -> Grid:
    return Grid(_axes(bounds))


def _axes(bounds: Sequence[tuple[int, int]]) -> Iterator[Index]:
    for axis, (first, last) in enumerate(bounds):
        one = arange(first, last)
        yield one[(*(None for _ in range(axis)), slice(None), *(None for _ in range(len(bounds) - axis - 1)))]


mgrid = _Mgrid()
