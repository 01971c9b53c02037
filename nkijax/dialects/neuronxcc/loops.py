"""Loops of the dialect.  Those over Python ints simply run; those over a tile are the machine's dynamic loops.

For `language`: affine_range, sequential_range, static_range.  `TracedOnce` marks an iterator whose body the vendor
traced once (see `rewrite`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from nkijax.dialects.neuronxcc.index import RUNTIME, Index, as_index
from nkijax.isa.register import RegisterLoad
from nkijax.trace import current
from nkijax.view import View


class TracedOnce:
    """The turns of an NKI loop."""

    def __init__(self, turns: Any):
        self._turns = turns

    def __iter__(self) -> Iterator[Any]:
        return iter(self._turns)

    def __len__(self) -> int:
        return len(self._turns)

    def __getitem__(self, key: Any) -> Any:
        return self._turns[key]


def _runtime(x: Any) -> Index | None:
    """A bound that is known only at run time."""
    if isinstance(x, int | float):
        return None
    index = as_index(x)
    return None if index is None or index.moving is None else index


def _turns(api: str, args: tuple[Any, ...]) -> Any:
    """`range(*args)`, whose bounds may be 1-element tiles."""
    if not any(map(_runtime, args)):
        return range(*map(operator.index, args))
    lower, upper, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    return _dynamic(api, lower, upper, operator.index(step))


def _dynamic(api: str, lower: Any, upper: Any, step: int) -> Iterator[Index]:
    for register in current(api).turns(api, _bound(api, lower), _bound(api, upper), step):
        yield Index((), (), 0, (register, 1))


def _bound(api: str, x: Any) -> View | int:
    index = _runtime(x)
    if index is None or index.moving is None:
        return operator.index(x)
    value, factor = index.moving
    if factor != 1 or index.constant:
        value = RUNTIME["total"]([index.moving], index.constant)
    recorder = current(api)
    register = recorder.register()
    recorder.emit(RegisterLoad(register, value))
    return register


def affine_range(start, stop=None, step=1, **hints) -> TracedOnce:
    """A loop whose turns do not depend on each other; hints, such as `directives`, are accepted without effect."""
    del hints
    return TracedOnce(_turns("nki.language.affine_range", (start,) if stop is None else (start, stop, step)))


def sequential_range(start, stop=None, step=1, **hints) -> TracedOnce:
    """A loop whose turns depend on each other through tensors; hints are accepted without effect."""
    del hints
    return TracedOnce(_turns("nki.language.sequential_range", (start,) if stop is None else (start, stop, step)))


def static_range(start, stop=None, step=1, **hints) -> Any:
    """A loop that is unrolled: Python's range; hints are accepted without effect."""
    del hints
    return _turns("nki.language.static_range", (start,) if stop is None else (start, stop, step))


def range_of(given: Any, *args: Any, **kwargs: Any) -> Any:
    """What `range(…)` in a kernel means: Python's, unless a bound is a tile."""
    if given is range and any(map(_runtime, args)):
        return _turns("range", args)
    return given(*args, **kwargs)


class Repeated:
    """What `with` in a kernel can repeat; `rewrite` makes such a block a loop over `turns()`."""

    def turns(self) -> Iterator[None]:
        raise NotImplementedError("Repeated.turns: is the subclass's")
