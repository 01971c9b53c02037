"""The doors: `run`, `function`, `trace`, `profile`; and the cache behind them.

A call with the kernel, shapes, dtypes, static arguments and target of an earlier one records and compiles nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import jax
import numpy as np

from nkijax import arrays, artifacts, dtypes
from nkijax.cost import Cost, cost
from nkijax.eager import Eager
from nkijax.lower import Lowered, Result, lower
from nkijax.machine import Target
from nkijax.program import Program
from nkijax.roll import roll
from nkijax.trace import Recorder, recording
from nkijax.view import View

DEFAULT_TARGET = "trn3"  # what the vendor's simulator takes when no chip is there


@dataclass(frozen=True)
class Dialect:
    """How one dialect shows tensors to its kernels."""

    name: str
    tensor: Callable[[View], Any]  # the face of a buffer in a kernel
    view: Callable[[Any], View | None]  # and back; None for what is no tensor
    grid: Callable[[Any], tuple[int, ...]]  # checks the subscript of `kernel[…]`
    speaks: Callable[[types.FunctionType], bool]  # whether a plain function is written in it


DIALECTS: list[Dialect] = []  # the dialects that are imported; the first one takes functions that none speaks for

counters = {"recorded_instructions": 0, "traces": 0}  # how much work the calls so far have made


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel: a function in one dialect, and the grid of programs that run it.

    Calling it does what `run` does.  Inside another kernel the call runs inline.
    """

    function: Callable[..., Any]
    dialect: Dialect
    grid: tuple[int, ...] = ()
    schedule: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __post_init__(self):
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self.function, attribute):
                object.__setattr__(self, attribute, getattr(self.function, attribute))
        object.__setattr__(self, "__wrapped__", self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recording() is not None:
            return self.function(*args, **kwargs)
        return _run(self, args, kwargs, Options())

    def __getitem__(self, grid: Any) -> Kernel:
        return replace(self, grid=self.dialect.grid(grid))

    def with_schedule(self, edges: Sequence[tuple[str, Any]]) -> Kernel:
        """The same kernel with scheduling edges (consumer, producer or producers), names of instructions."""
        flat = tuple((c, tuple(p) if isinstance(p, list | tuple) else (p,)) for c, p in edges)
        return replace(self, schedule=self.schedule + flat)


@dataclass(frozen=True)
class Options:
    """What a door was asked for beside the kernel's own arguments."""

    target: str | Target | None = None
    precise: bool | None = None
    max_trips: int | None = None
    loops: str = "auto"

    def resolve(self) -> Target:
        """The target, from the argument or the environment (`NEURON_PLATFORM_TARGET_OVERRIDE`, `NKI_PRECISE_FP`)."""
        target = Target.of(self.target or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or DEFAULT_TARGET)
        precise = os.environ.get("NKI_PRECISE_FP", "1") != "0" if self.precise is None else self.precise
        return target if target.precise == precise else replace(target, precise=precise)


@dataclass(eq=False)
class Compiled:
    """One signature of one kernel: its program, lowered and jitted."""

    program: Program
    lowered: Lowered
    tree: Any  # the structure of the result, with an `_Output` for each tensor
    call: Callable[..., Result] = field(init=False)
    cost: Cost | None = None

    def __post_init__(self):
        self.call = jax.jit(self.lowered.function)


@dataclass(frozen=True)
class _Output:
    """Stands for the n-th output in the structure that a kernel returned."""

    index: int


@dataclass(frozen=True)
class Profile:
    """A run with its cost.

    `outputs` is what `run` returns, `cost` the report, `program` the flat program, `trips` the turns of each dynamic
    loop by its ident.
    """

    outputs: Any
    cost: Cost
    program: Program
    trips: tuple[int, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as Chrome/Perfetto trace JSON."""
        artifacts.save_timeline(path, self.program, self.trips)


# ---- the doors


def run(
    kernel: Any,
    *args: Any,
    target: str | Target | None = None,
    precise: bool | None = None,
    eager: bool = False,
    max_trips: int | None = None,
    loops: str = "auto",
    **kwargs: Any,
) -> Any:
    """Run a kernel on arrays and return what it returns.

    Args:
      kernel: a plain function, an `@nki.jit` kernel, or `kernel[n]`.
      *args, **kwargs: the kernel's own arguments.  NumPy, JAX and torch arrays become HBM tensors; the rest is static.
      target: trn1, trn2, trn3 (or gen2 … gen4, inf2); by default the environment's, else trn3.
      precise: False stores low-precision floats as float32.
      eager: execute each instruction as it is recorded, so that `print(tile)` and `breakpoint()` show data.
      max_trips: a bound of every dynamic loop whose trip count is data; makes them differentiable.
      loops: "auto", "scan" or "batch": how repeats of static loops run.

    Returns:
      Arrays of the kind that came in.  Arguments of NumPy or torch that the kernel wrote are updated in place; with
      JAX arrays a kernel that returns nothing yields the arrays that it wrote.

    Raises:
      KernelError: the kernel broke a rule, while it was traced or (an address out of bounds) when it ran.
      Unsupported: the kernel needs what nkijax lacks.
    """
    options = Options(target, precise, max_trips, loops)
    kernel = as_kernel(kernel)
    return _run_eagerly(kernel, args, kwargs, options) if eager else _run(kernel, args, kwargs, options)


def function(
    kernel: Any,
    *,
    target: str | Target | None = None,
    precise: bool | None = None,
    max_trips: int | None = None,
    loops: str = "auto",
    **static: Any,
) -> Callable[..., Any]:
    """The kernel as a pure JAX function of its array arguments, for jit, grad, vmap and shard_map.

    `static` are keyword arguments of the kernel, fixed here.  The function takes and returns JAX arrays; it returns
    what the kernel returns, or the arrays that it wrote if it returns nothing.  Run-time errors are not raised.
    """
    kernel = as_kernel(kernel)
    options = Options(target, precise, max_trips, loops)

    @functools.wraps(kernel.function)
    def pure(*args: Any, **kwargs: Any) -> Any:
        call = _Call(kernel, args, {**static, **kwargs})
        compiled = _compiled(call, options)
        result = compiled.call(*call.jax_arrays())
        return _structure(compiled, result.outputs, result.written)

    return pure


def trace(kernel: Any, *args: Any, target: str | Target | None = None, rolled: bool = True, **kwargs: Any) -> Program:
    """The program of a kernel for these arguments (arrays or anything with shape and dtype), rolled by default."""
    call = _Call(as_kernel(kernel), args, kwargs)
    program, _ = _record(call, Options(target).resolve())
    return roll(program) if rolled else program


def profile(
    kernel: Any,
    *args: Any,
    target: str | Target | None = None,
    precise: bool | None = None,
    max_trips: int | None = None,
    **kwargs: Any,
) -> Profile:
    """Run a kernel and say what it would cost; see `Profile`."""
    call = _Call(as_kernel(kernel), args, kwargs)
    options = Options(target, precise, max_trips)
    compiled = _compiled(call, options)
    result = compiled.call(*call.jax_arrays())
    trips = tuple(int(n) for n in np.asarray(result.trips)[: len(compiled.program.loops)])
    outputs = _finish(call, compiled, result)
    return Profile(outputs, cost(compiled.program, trips), compiled.program, trips)


def as_kernel(kernel: Any) -> Kernel:
    """A `Kernel` from a kernel, a wrapper of one, or a plain function."""
    inner = kernel
    while inner is not None and not isinstance(inner, Kernel):
        inner = getattr(inner, "__wrapped__", None)
    if isinstance(inner, Kernel):
        return inner
    if not callable(kernel):
        raise TypeError(f"kernel: must be a function or an @nki.jit kernel, got {type(kernel).__name__}")
    found = _plain.get(kernel) if _hashable(kernel) else None
    if found is None:
        spoken = [d for d in DIALECTS if isinstance(kernel, types.FunctionType) and d.speaks(kernel)]
        found = Kernel(kernel, (spoken or DIALECTS)[0])
        if _hashable(kernel):
            _plain[kernel] = found
    return found


_plain: dict[Any, Kernel] = {}


def _hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


# ---- calls


class _Call:
    """One call's arguments, split into arrays and the static rest."""

    def __init__(self, kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]):
        self.kernel = kernel
        self.arrays: list[Any] = []
        self.args = tuple(self._take(a) for a in args)
        self.kwargs = {k: self._take(v) for k, v in kwargs.items()}
        if not args and not kwargs and _wants_arguments(kernel.function):
            raise TypeError(f"{getattr(kernel, '__name__', 'kernel')}: called without arguments; pass its tensors")

    def _take(self, x: Any) -> Any:
        """The static form of an argument: arrays become `_Slot`s."""
        if arrays.is_array(x):
            self.arrays.append(x)
            shape, dtype = arrays.describe(x)
            return _Slot(len(self.arrays) - 1, shape, dtype)
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
            tuple(map(_key, self.args)),
            tuple((k, _key(v)) for k, v in self.kwargs.items()) if self.kwargs else (),
        )

    def jax_arrays(self) -> list[Any]:
        return [arrays.to_jax(x) for x in self.arrays]


@dataclass(frozen=True)
class _Slot:
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
    if isinstance(x, _Slot | str | Enum | types.NoneType):
        return x
    if isinstance(x, tuple | list):
        return (type(x), tuple(map(_key, x)))
    if isinstance(x, dict):
        return (dict, tuple((k, _key(v)) for k, v in x.items()))
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return (type(x), tuple(_key(getattr(x, f.name)) for f in dataclasses.fields(x)))
    if not _hashable(x) or type(x).__eq__ is not object.__eq__ and type(x).__hash__ is None:
        return (type(x), id(x))
    if not isinstance(x, int | float | complex | types.FunctionType | type) and hasattr(x, "__dict__"):
        return (type(x), tuple((k, _key(v)) for k, v in sorted(vars(x).items(), key=lambda kv: kv[0])))
    return (type(x), x)


_cache: dict[Any, Compiled] = {}
_lock = threading.RLock()


def _compiled(call: _Call, options: Options) -> Compiled:
    """The compiled program of a call, from the cache or made now."""
    target = options.resolve()
    key = (call.key(), target, options.max_trips, options.loops)
    found = _cache.get(key)
    if found is None:
        with _lock:
            found = _cache.get(key)
            if found is None:
                found = _cache[key] = _compile(call, target, options)
    return found


def _compile(call: _Call, target: Target, options: Options) -> Compiled:
    program, tree = _record(call, target)
    return Compiled(program, lower(roll(program), options.max_trips, options.loops), tree)


def _record(call: _Call, target: Target, executor: Eager | None = None) -> tuple[Program, Any]:
    """Trace a call: its flat program, and the structure that the kernel returned."""
    kernel, dialect = call.kernel, call.kernel.dialect
    name = getattr(kernel.function, "__name__", "kernel")
    recorder = Recorder(name, target, executor, programs=int(np.prod(kernel.grid, dtype=int)) if kernel.grid else 1)
    recorder.grid = kernel.grid
    names = _argument_names(call)
    slots = sorted((s for s in _slots((call.args, call.kwargs))), key=lambda s: s.index)
    views = [recorder.argument(s.shape, s.dtype, names.get(s.index, ""), recorder.programs > 1) for s in slots]
    if executor is not None:
        executor.zeros = recorder.zeros
        executor.arrays.update(
            (v.buffer, jax.numpy.asarray(arrays.to_jax(call.arrays[s.index]), dtypes.storage(s.dtype, target.precise)))
            for v, s in zip(views, slots, strict=True)
        )
    trees: list[Any] = []

    def body() -> list[View]:
        args = _fill(call.args, views, dialect)
        returned = kernel.function(*args, **_fill(call.kwargs, views, dialect))
        outputs: list[View] = []
        trees.append(_outputs(returned, dialect, outputs))
        return outputs

    program = recorder.record(body)
    counters["recorded_instructions"] += recorder.instructions
    counters["traces"] += 1
    return program, trees[0]


def _argument_names(call: _Call) -> dict[int, str]:
    try:
        bound = inspect.signature(call.kernel.function).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return {}
    return {v.index: k for k, v in bound.items() if isinstance(v, _Slot)}


def _slots(x: Any) -> list[_Slot]:
    if isinstance(x, _Slot):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else ()
    return [s for part in parts for s in _slots(part)]


def _fill(x: Any, views: Sequence[View], dialect: Dialect) -> Any:
    """Static arguments with tensors in place of slots."""
    if isinstance(x, _Slot):
        return dialect.tensor(views[x.index])
    if type(x) in (tuple, list):
        return type(x)(_fill(v, views, dialect) for v in x)
    if type(x) is dict:
        return {k: _fill(v, views, dialect) for k, v in x.items()}
    return x


def _outputs(returned: Any, dialect: Dialect, outputs: list[View]) -> Any:
    """The returned structure with `_Output`s for tensors, which are appended to `outputs`."""
    view = dialect.view(returned)
    if view is not None:
        outputs.append(view)
        return _Output(len(outputs) - 1)
    if isinstance(returned, tuple | list):
        return tuple(_outputs(r, dialect, outputs) for r in returned)
    if isinstance(returned, dict):
        return {k: _outputs(r, dialect, outputs) for k, r in returned.items()}
    return returned


def _structure(compiled: Compiled, outputs: Sequence[Any], written: Sequence[Any]) -> Any:
    """Arrays in the structure that the kernel returned; the written arguments if it returned nothing."""
    if compiled.tree is None:
        return None if not written else written[0] if len(written) == 1 else tuple(written)
    return _place(compiled.tree, outputs)


def _place(tree: Any, outputs: Sequence[Any]) -> Any:
    if isinstance(tree, _Output):
        return outputs[tree.index]
    if isinstance(tree, tuple):
        return tuple(_place(t, outputs) for t in tree)
    if isinstance(tree, dict):
        return {k: _place(t, outputs) for k, t in tree.items()}
    return tree


def _run(kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Any:
    call = _Call(kernel, args, kwargs)
    compiled = _compiled(call, options)
    result = compiled.call(*call.jax_arrays())
    folder = os.environ.get("NKI_ARTIFACTS_DIR")
    if folder:
        artifacts.save(folder, compiled.program, result.trips)
    return _finish(call, compiled, result)


def _finish(call: _Call, compiled: Compiled, result: Result) -> Any:
    """Raise the run's error, update arguments in place, and convert the outputs to the caller's kind."""
    if compiled.lowered.sites and not isinstance(result.error, jax.core.Tracer):
        compiled.lowered.check(np.asarray(result.error))
    return _deliver(call, compiled.program, compiled.tree, result.outputs, result.written)


def _deliver(call: _Call, program: Program, tree: Any, outputs: Sequence[Any], written: Sequence[Any]) -> Any:
    kind = arrays.kind_of(call.arrays)
    if kind != "jax":
        for i, value in zip(program.written, written, strict=True):
            arrays.update(call.arrays[i], value)
        if tree is None:
            return None
        return _place(tree, [arrays.from_jax(x, kind) for x in outputs])
    if tree is None:
        return None if not written else written[0] if len(written) == 1 else tuple(written)
    return _place(tree, outputs)


def _run_eagerly(kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Any:
    call = _Call(kernel, args, kwargs)
    target = options.resolve()
    memory = Eager(target)
    program, tree = _record(call, target, memory)
    outputs = [memory.load(v) for v in program.outputs]
    written = [memory.array(program.arguments[i]) for i in program.written]
    return _deliver(call, program, tree, outputs, written)
