"""One call of a kernel: its arguments split into arrays and the static rest, and the structure of its results."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nkijax import arrays
from nkijax.view import View


@dataclass(frozen=True)
class Dialect:
    """How one dialect shows tensors to its kernels."""

    name: str
    tensor: Callable[[View], Any]  # the face of a buffer in a kernel
    view: Callable[[Any], View | None]  # and back; None for what is no tensor
    grid: Callable[[Any], tuple[int, ...]]  # checks the subscript of `kernel[…]`
    speaks: Callable[[types.FunctionType], bool]  # whether a plain function is written in it
    parallel: bool = True  # whether the programs of a grid are cores that run side by side
    prepare: Callable[[Callable[..., Any]], None] | None = None  # called with a function before it is traced
    explain: Callable[[TypeError], None] | None = None  # told of a TypeError of a kernel, to add notes to it
    target: str = "trn3"  # for a kernel that nobody gave one; trn3 is what the vendor's simulator takes


DIALECTS: list[Dialect] = []  # the dialects that are imported; the first one takes functions that none speaks for


class Call:
    """One call's arguments, split into arrays and the static rest."""

    def __init__(self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]):
        self.kernel = kernel
        self.arrays: list[Any] = []
        self.args = tuple(self._take(a) for a in args)
        self.kwargs = {k: self._take(v) for k, v in kwargs.items()}
        if not args and not kwargs and _wants_arguments(kernel.function):
            raise TypeError(f"{getattr(kernel, '__name__', 'kernel')}: called without arguments; pass its tensors")

    def _take(self, x: Any) -> Any:
        """The static form of an argument: arrays become `Slot`s."""
        if arrays.is_array(x):
            self.arrays.append(x)
            shape, dtype = arrays.describe(x)
            return Slot(len(self.arrays) - 1, shape, dtype)
        if type(x) in (tuple, list):
            return type(x)(self._take(v) for v in x)
        if type(x) is dict:
            return {k: self._take(v) for k, v in x.items()}
        return arrays.static(x)

    def key(self) -> Any:
        """What the program depends on, hashable."""
        return (
            self.kernel.function,
            self.kernel.grid,
            self.kernel.target,
            self.kernel.schedule,
            self.kernel.mesh_axis,
            tuple(map(_key, self.args)),
            tuple((k, _key(v)) for k, v in self.kwargs.items()) if self.kwargs else (),
        )

    def jax_arrays(self) -> list[Any]:
        return [arrays.to_jax(x) for x in self.arrays]


@dataclass(frozen=True)
class Slot:
    """Stands for the n-th array argument."""

    index: int
    shape: tuple[int, ...]
    dtype: str


def _wants_arguments(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _key(x: Any) -> Any:
    """A hashable stand-in for a static argument; equal numbers of different types differ."""
    if isinstance(x, Slot | str | Enum | types.NoneType):
        return x
    if isinstance(x, tuple | list):
        return (type(x), tuple(map(_key, x)))
    if isinstance(x, dict):
        return (dict, tuple((k, _key(v)) for k, v in x.items()))
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return (type(x), tuple(_key(getattr(x, f.name)) for f in dataclasses.fields(x)))
    if not hashable(x) or type(x).__eq__ is not object.__eq__ and type(x).__hash__ is None:
        return (type(x), id(x))
    if not isinstance(x, int | float | complex | types.FunctionType | type) and hasattr(x, "__dict__"):
        return (type(x), tuple((k, _key(v)) for k, v in sorted(vars(x).items(), key=lambda kv: kv[0])))
    return (type(x), x)


@dataclass(frozen=True)
class Output:
    """Stands for the n-th output in the structure that a kernel returned."""

    index: int


def argument_names(call: Call) -> dict[int, str]:
    try:
        bound = inspect.signature(call.kernel.function).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return {}
    return {v.index: k for k, v in bound.items() if isinstance(v, Slot)}


def slots_in(x: Any) -> list[Slot]:
    if isinstance(x, Slot):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else ()
    return [s for part in parts for s in slots_in(part)]


def fill(x: Any, views: Sequence[View], dialect: Dialect) -> Any:
    """Static arguments with tensors in place of slots."""
    if isinstance(x, Slot):
        return dialect.tensor(views[x.index])
    if type(x) in (tuple, list):
        return type(x)(fill(v, views, dialect) for v in x)
    if type(x) is dict:
        return {k: fill(v, views, dialect) for k, v in x.items()}
    return x


def outputs_of(returned: Any, dialect: Dialect, outputs: list[View]) -> Any:
    """The returned structure with `Output`s for tensors, which are appended to `outputs`."""
    view = dialect.view(returned)
    if view is not None:
        outputs.append(view)
        return Output(len(outputs) - 1)
    if isinstance(returned, tuple | list):
        return tuple(outputs_of(r, dialect, outputs) for r in returned)
    if isinstance(returned, dict):
        return {k: outputs_of(r, dialect, outputs) for k, r in returned.items()}
    return returned


def place(tree: Any, outputs: Sequence[Any]) -> Any:
    if isinstance(tree, Output):
        return outputs[tree.index]
    if isinstance(tree, tuple):
        return tuple(place(t, outputs) for t in tree)
    if isinstance(tree, dict):
        return {k: place(t, outputs) for k, t in tree.items()}
    return tree


def hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True
