"""The doors: `run`, `function`, `trace`, `profile`; and the cache behind them.

A call with the kernel, shapes, dtypes, static arguments and target of an earlier one records and compiles nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from nkijax import arrays, artifacts, dtypes
from nkijax.call import DIALECTS, Call, Dialect, argument_names, fill, hashable, outputs_of, place, slots_in
from nkijax.compiled import Compiled
from nkijax.cores import check_trips
from nkijax.cost import Cost, cost
from nkijax.eager import Eager
from nkijax.lower import Result, lower
from nkijax.machine import Generation, Target
from nkijax.program import Program
from nkijax.roll import roll
from nkijax.trace import Recorder, recording
from nkijax.view import View

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
    target: str | None = None
    mesh_axis: str | tuple[str, ...] | None = None  # what the ranks of collectives count along

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
    loops: str | None = None
    strict: bool = False

    @property
    def how(self) -> str:
        """How repeats run: the argument's, the environment's (`NKIJAX_LOOPS`) or "auto"."""
        return self.loops or os.environ.get("NKIJAX_LOOPS") or "auto"

    @property
    def strictly(self) -> bool:
        """Whether warnings are errors: by the argument, or by the environment (`NKIJAX_STRICT`)."""
        return self.strict or os.environ.get("NKIJAX_STRICT", "0") not in ("", "0")

    def resolve(self, kernel: Kernel | None = None, default: str = "trn3") -> Target:
        """The target: the argument's, the kernel's, the environment's or the dialect's.

        The environment's are `NEURON_PLATFORM_TARGET_OVERRIDE` and `NKI_PRECISE_FP`.
        """
        if kernel is not None:
            default = kernel.dialect.target
        own = self.target or (kernel.target if kernel is not None else None)
        target = Target.of(own or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or default)
        precise = os.environ.get("NKI_PRECISE_FP", "1") != "0" if self.precise is None else self.precise
        return target if target.precise == precise else replace(target, precise=precise)


Observer = Callable[[Compiled, Result], None]

observers: list[Observer] = []  # told of every finished call of `run`, `profile` or a kernel, eager ones excepted


@dataclass(frozen=True)
class Profile:
    """A run with its cost.

    `outputs` is what `run` returns, `cost` the report, `program` the flat program, `trips` the turns of each dynamic
    loop by its ident, `compile_s` how long it took until the kernel could run: see `Compiled`.
    """

    outputs: Any
    cost: Cost
    program: Program
    trips: tuple[int, ...]
    compile_s: float = 0.0

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
    loops: str | None = None,
    strict: bool = False,
    **kwargs: Any,
) -> Any:
    """Run a kernel on arrays and return what it returns.

    Args:
      kernel: a plain function, an `@nki.jit` kernel, or `kernel[n]`.
      *args, **kwargs: the kernel's own arguments.  NumPy, JAX and torch arrays become HBM tensors; the rest is static.
      target: trn1, trn2, trn3 (or gen2 … gen4, inf2); by default the environment's, else trn3.
      precise: False stores low-precision floats as float32.
      eager: execute each instruction as it is recorded, so that `print(tile)` and `breakpoint()` show data.
      max_trips: a bound of every dynamic loop whose trip count is data; gradients then go through a scan of as many.
      loops: how repeats of static loops run: one turn after another ("scan"), at once wherever their turns are
        independent ("vmap"), not folded at all ("unroll"), or chosen by size ("auto", the default).
      strict: a tensor that is placed beyond the memory is a KernelError, not a warning (`NKIJAX_STRICT=1` for all).

    Returns:
      Arrays of the kind that came in.  Arguments of NumPy or torch that the kernel wrote are updated in place; with
      JAX arrays a kernel that returns nothing yields the arrays that it wrote.

    Raises:
      KernelError: the kernel broke a rule, while it was traced or (an address out of bounds) when it ran.
      Unsupported: the kernel needs what nkijax lacks.
    """
    options = Options(target, precise, max_trips, loops, strict)
    kernel = as_kernel(kernel)
    return _run_eagerly(kernel, args, kwargs, options) if eager else _run(kernel, args, kwargs, options)


def function(
    kernel: Any,
    *,
    target: str | Target | None = None,
    precise: bool | None = None,
    max_trips: int | None = None,
    loops: str | None = None,
    strict: bool = False,
    mesh_axis: str | tuple[str, ...] | None = None,
    **static: Any,
) -> Callable[..., Any]:
    """The kernel as a pure JAX function of its array arguments, for jit, grad, vmap and shard_map.

    `static` are keyword arguments of the kernel, fixed here.  The function takes and returns JAX arrays; it returns
    what the kernel returns, or the arrays that it wrote if it returns nothing.  Run-time errors are not raised.
    Ranks of `nki.collectives` are the devices along `mesh_axis`, by default along all manual axes of the mesh.
    Arrays may be sharded over a mesh; over explicit axes of one, results lie whole on each device unless the caller
    says otherwise with `jax.sharding.auto_axes`.
    """
    kernel = replace(as_kernel(kernel), mesh_axis=mesh_axis)
    options = Options(target, precise, max_trips, loops, strict)

    @functools.wraps(kernel.function)
    def pure(*args: Any, **kwargs: Any) -> Any:
        call = Call(kernel, args, {**static, **kwargs})
        compiled = _compiled(call, options)
        result = compiled(*call.jax_arrays())
        return _structure(compiled, result.outputs, result.written)

    return pure


def trace(
    kernel: Any,
    *args: Any,
    target: str | Target | None = None,
    rolled: bool = True,
    strict: bool = False,
    **kwargs: Any,
) -> Program:
    """The program of a kernel for these arguments (arrays or anything with shape and dtype), rolled by default."""
    call = Call(as_kernel(kernel), args, kwargs)
    with _uncollected():
        options = Options(target, strict=strict)
        program, _ = _record(call, options.resolve(call.kernel), strict=options.strictly)
        return roll(program) if rolled else program


def profile(
    kernel: Any,
    *args: Any,
    target: str | Target | None = None,
    precise: bool | None = None,
    max_trips: int | None = None,
    strict: bool = False,
    **kwargs: Any,
) -> Profile:
    """Run a kernel and say what it would cost; see `Profile`."""
    call = Call(as_kernel(kernel), args, kwargs)
    compiled = _compiled(call, Options(target, precise, max_trips, strict=strict))
    result = compiled(*call.jax_arrays())
    trips = tuple(int(n) for n in np.asarray(result.trips)[: len(compiled.program.loops)])
    outputs = _finish(call, compiled, result)
    return Profile(outputs, cost(compiled.program, trips), compiled.program, trips, compiled.compile_s)


def as_kernel(kernel: Any) -> Kernel:
    """A `Kernel` from a kernel, a wrapper of one, or a plain function."""
    inner = kernel
    while inner is not None and not isinstance(inner, Kernel):
        inner = getattr(inner, "__wrapped__", None)
    if isinstance(inner, Kernel):
        return inner
    if not callable(kernel):
        raise TypeError(f"kernel: must be a function or an @nki.jit kernel, got {type(kernel).__name__}")
    found = _plain.get(kernel) if hashable(kernel) else None
    if found is None:
        spoken = [d for d in DIALECTS if isinstance(kernel, types.FunctionType) and d.speaks(kernel)]
        found = Kernel(kernel, (spoken or DIALECTS)[0])
        if hashable(kernel):
            _plain[kernel] = found
    return found


_plain: dict[Any, Kernel] = {}


_cache: dict[Any, Compiled] = {}
_lock = threading.RLock()


def _compiled(call: Call, options: Options) -> Compiled:
    """The compiled program of a call, from the cache or made now."""
    target = options.resolve(call.kernel)
    key = (call.key(), target, options.max_trips, options.how, options.strictly)
    found = _cache.get(key)
    if found is None:
        with _lock:
            found = _cache.get(key)
            if found is None:
                found = _cache[key] = _compile(call, target, options)
    return found


def _compile(call: Call, target: Target, options: Options) -> Compiled:
    begin = time.perf_counter()
    with _uncollected():
        program, tree = _record(call, target, strict=options.strictly)
        rolled = program if options.how == "unroll" else roll(program)
    lowered = lower(rolled, options.max_trips, options.how)
    return Compiled(program, lowered, tree, time.perf_counter() - begin)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: a recorded program is many objects and no garbage, which each collection walks again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _record(call: Call, target: Target, executor: Eager | None = None, strict: bool = False) -> tuple[Program, Any]:
    """Trace a call: its flat program, and the structure that the kernel returned."""
    kernel, dialect = call.kernel, call.kernel.dialect
    name = getattr(kernel.function, "__name__", "kernel")
    programs = int(np.prod(kernel.grid, dtype=int)) if kernel.grid else 1
    recorder = Recorder(name, target, executor, programs, dialect.parallel)
    recorder.strict = strict
    recorder.grid, recorder.schedule, recorder.mesh_axis = kernel.grid, kernel.schedule, kernel.mesh_axis
    names = argument_names(call)
    slots = sorted(slots_in((call.args, call.kwargs)), key=lambda s: s.index)
    kinds = [dtypes.argument(s.dtype, target.generation >= Generation.gen4) for s in slots]
    views = [
        recorder.argument(s.shape, kind, names.get(s.index, ""), recorder.programs > 1)
        for s, kind in zip(slots, kinds, strict=True)
    ]
    if executor is not None:
        executor.zeros, executor.constants = recorder.zeros, recorder.constants
        executor.arrays.update(
            (v.buffer, jax.numpy.asarray(given, dtypes.storage(v.dtype, target.precise)))
            for v, given in zip(views, (arrays.local(x) for x in call.jax_arrays()), strict=True)
        )
    trees: dict[int, Any] = {}  # by program

    if dialect.prepare is not None:
        dialect.prepare(kernel.function)

    def body() -> list[View]:
        args = fill(call.args, views, dialect)
        try:
            returned = kernel.function(*args, **fill(call.kwargs, views, dialect))
        except TypeError as error:
            if dialect.explain is not None:
                dialect.explain(error)
            raise
        outputs: list[View] = []
        trees[recorder.program_id] = outputs_of(returned, dialect, outputs)
        return outputs

    program = recorder.record(body)
    counters["recorded_instructions"] += recorder.instructions
    counters["traces"] += 1
    return program, trees[0]


def _structure(compiled: Compiled, outputs: Sequence[Any], written: Sequence[Any]) -> Any:
    """Arrays in the structure that the kernel returned; the written arguments if it returned nothing."""
    if compiled.tree is None:
        return None if not written else written[0] if len(written) == 1 else tuple(written)
    return place(compiled.tree, outputs)


def _run(kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Any:
    call = Call(kernel, args, kwargs)
    compiled = _compiled(call, options)
    result = compiled(*call.jax_arrays())
    folder = os.environ.get("NKI_ARTIFACTS_DIR")
    if folder and not isinstance(result.trips, Tracer):
        artifacts.save(folder, compiled.program, result.trips)
    return _finish(call, compiled, result)


def _finish(call: Call, compiled: Compiled, result: Result) -> Any:
    """Raise the run's error, tell observers, update arguments in place, convert outputs to the caller's kind."""
    if compiled.lowered.sites and not isinstance(result.error, Tracer):
        compiled.lowered.check(np.asarray(result.error))
    if compiled.program.cores > 1 and not isinstance(result.trips, Tracer):
        check_trips(compiled.program, np.asarray(result.trips).tolist())
    for observer in observers:
        observer(compiled, result)
    return _deliver(call, compiled.program, compiled.tree, result.outputs, result.written)


def _deliver(call: Call, program: Program, tree: Any, outputs: Sequence[Any], written: Sequence[Any]) -> Any:
    kind = arrays.kind_of(call.arrays)
    if kind != "jax":
        for i, value in zip(program.written, written, strict=True):
            arrays.update(call.arrays[i], value)
        if tree is None:
            return None
        device = arrays.device_of(call.arrays)
        return place(tree, [arrays.from_jax(x, kind, device) for x in outputs])
    if tree is None:
        return None if not written else written[0] if len(written) == 1 else tuple(written)
    return place(tree, outputs)


def _run_eagerly(kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Any:
    call = Call(kernel, args, kwargs)
    target = options.resolve(kernel)
    memory = Eager(target)
    program, tree = _record(call, target, memory, options.strictly)
    outputs = [memory.load(v) for v in program.outputs]
    written = [memory.array(program.arguments[i]) for i in program.written]
    return _deliver(call, program, tree, outputs, written)
