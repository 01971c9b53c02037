"""Control flow of `nki.language`: static ranges, dynamic loops, and which program runs."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from nkijax import arrays
from nkijax.dialects.nki.register import VirtualRegister
from nkijax.errors import KernelError
from nkijax.trace import current
from nkijax.view import View

# ---- static ranges: their turns are recorded one by one


def _static(api: str, start: Any, stop: Any, step: Any) -> range:
    first, last = (0, start) if stop is None else (start, stop)
    try:
        return range(operator.index(first), operator.index(last), operator.index(step))
    except TypeError:
        raise TypeError(
            f"nki.language.{api}: bounds and step must be ints, got {(first, last, step)}; for a register use "
            "nl.fori_loop(lower, upper, body)"
        ) from None


def affine_range(start, stop=None, step=1) -> range:
    """A static loop; the same as `range`."""
    return _static("affine_range", start, stop, step)


def sequential_range(start, stop=None, step=1) -> range:
    """A static loop; the same as `range`."""
    return _static("sequential_range", start, stop, step)


def static_range(start, stop=None, step=1) -> range:
    """A static loop; the same as `range`."""
    return _static("static_range", start, stop, step)


# ---- dynamic loops: their bodies are recorded once


def fori_loop(lower, upper, body_fun: Callable[[VirtualRegister], None], step=1) -> None:
    """`for i in range(lower, upper, step): body_fun(i)` at run time; i is a read-only register.

    Bounds are ints or registers, read once; `step` is a positive int; `body_fun` returns nothing.
    """
    api = "nki.language.fori_loop"
    for register in current(api).turns(api, _bound(api, "lower", lower), _bound(api, "upper", upper), step):
        result = body_fun(VirtualRegister(register))
        if result is not None:
            raise KernelError(f"{api} body_fun: must return None, got {result!r}")


def dynamic_range(start, stop=None, step=1) -> Iterator[VirtualRegister]:
    """`for i in nl.dynamic_range(start, stop, step)`: `fori_loop` as a generator; deprecated, and in wide use.

    The body must run to its end: no break, no return.
    """
    api = "nki.language.dynamic_range"
    warnings.warn(f"{api} is deprecated; use nl.fori_loop", DeprecationWarning, stacklevel=2)
    lower, upper = (0, start) if stop is None else (start, stop)
    turns = current(api).turns(api, _bound(api, "start", lower), _bound(api, "stop", upper), step)
    return map(VirtualRegister, turns)


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """`r = init; while r != 0: r = body_fun(r)` at run time, with registers."""
    api = "nki.language.while_loop"
    if not isinstance(init, VirtualRegister):
        raise KernelError(f"{api} init: must be a register (nki.isa.register_alloc), got {init!r}")

    def body(condition: View) -> View:
        result = body_fun(VirtualRegister(condition))
        if not isinstance(result, VirtualRegister):
            raise KernelError(f"{api} body_fun: must return a register, the next condition, got {result!r}")
        return result._view

    current(api).repeat_while(api, init._view, body)


def _bound(api: str, name: str, bound: Any) -> View | int:
    if isinstance(bound, VirtualRegister):
        return bound._view
    bound = arrays.static(bound)
    if not isinstance(bound, int):
        raise KernelError(f"{api} {name}: must be an int or a register (load a tile with register_load), got {bound!r}")
    return bound


@contextlib.contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions inside wait for the one before; a dynamic loop inside is an error."""
    recorder = current("nki.language.no_reorder")
    recorder.no_reorder += 1
    try:
        yield
    finally:
        recorder.no_reorder -= 1
        if not recorder.no_reorder:
            recorder.ordered_after = None


# ---- programs of a grid


def program_id(axis=0) -> int:
    """Which of the grid's programs this is."""
    recorder = current("nki.language.program_id")
    _check_axis("program_id axis", axis)
    return recorder.program_id


def num_programs(axes=0) -> int:
    """How many programs the grid has; 1 without a grid."""
    recorder = current("nki.language.num_programs")
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        _check_axis("num_programs axes", axis)
    return recorder.programs


def program_ndim() -> int:
    """Dimensions of the grid: 0 without one, 1 for `kernel[n]`."""
    return len(current("nki.language.program_ndim").grid)


def _check_axis(operand: str, axis: Any) -> None:
    if axis != 0:
        raise KernelError(f"nki.language.{operand}: a grid has one axis, 0, got {axis!r}")
