"""`nki.jit` and its kin, and what the rest of nkijax asks of the old dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import numpy as np

from nkijax import api, dtypes
from nkijax.api import Kernel
from nkijax.call import DIALECTS, Dialect
from nkijax.cost import cost
from nkijax.dialects.neuronxcc.dtype import name_of
from nkijax.dialects.neuronxcc.grid import grid_of
from nkijax.dialects.neuronxcc.memory import store
from nkijax.dialects.neuronxcc.rewrite import of_dialect, rewrite
from nkijax.dialects.neuronxcc.tensor import HbmTensor, Tile, allocate, face, private_hbm
from nkijax.dialects.neuronxcc.typing import Spec
from nkijax.errors import OutOfRange, Unsupported
from nkijax.trace import recording
from nkijax.view import View

_TARGETS = {"inf2": "trn1", "gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}


@dataclass(frozen=True, eq=False)
class NeuronKernel(Kernel):
    """A kernel of the old dialect; all of `nki.jit`, `trace`, `baremetal`, `benchmark` and `profile` make this.

    `results` is what `benchmark` and `profile` fill: the modelled latency of the last call.
    """

    mode: str = "auto"
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def func(self) -> Callable[..., Any]:
        """The function."""
        return self.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recording() is not None:
            return super().__call__(*args, **kwargs)
        try:
            if self.mode not in ("benchmark", "profile"):
                return super().__call__(*args, **kwargs)
            if any(isinstance(x, Spec) for x in (*args, *kwargs.values())):
                return self._modelled(args, kwargs)
            profiled = api.profile(self, *args, **kwargs)
        except OutOfRange as error:
            raise _index_error(error) from error
        self.results["benchmark_result"] = BenchmarkResult(profiled.cost.total_us)
        return profiled.outputs

    def _modelled(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Fill the results for tensors of which only shape and dtype are known; nothing runs."""
        program = api.trace(self, *map(_stand_in, args), rolled=False, **{k: _stand_in(v) for k, v in kwargs.items()})
        if program.loops:
            raise Unsupported("nki.benchmark: the turns of a dynamic loop are data; call it with arrays, not nt.tensor")
        self.results["benchmark_result"] = BenchmarkResult(cost(program, ()).total_us)

    @property
    def benchmark_result(self) -> BenchmarkResult:
        """The modelled latencies of the last call."""
        return self.results["benchmark_result"]


def _stand_in(x: Any) -> Any:
    """An array, of no memory, of the shape and dtype of `nt.tensor[[…], dtype]`; anything else as it is."""
    if not isinstance(x, Spec):
        return x
    return np.broadcast_to(np.zeros((), dtypes.storage(name_of(x.dtype, "nt.tensor"))), x.shape)


def _index_error(error: OutOfRange) -> IndexError:
    """The IndexError of the vendor's simulator: it counts elements of the flat tensor."""
    view = error.view
    if not isinstance(view, View) or view.dynamic is None:
        return IndexError(str(error))
    flat = error.index * view.dynamic.stride + view.offset
    return IndexError(f"index {flat} is out of bounds for axis 0 with size {view.storage_size}")


@dataclass(frozen=True)
class Latency:
    """Latencies in microseconds: every percentile is the one that the cost model gives, as nothing is measured."""

    modelled_us: float

    def get_latency_percentile(self, percentile: float) -> float:
        """The modelled latency, whatever the percentile."""
        del percentile
        return self.modelled_us


@dataclass(frozen=True)
class BenchmarkResult:
    """What a benchmark gives: `nc_latency`, modelled."""

    modelled_us: float

    @property
    def nc_latency(self) -> Latency:
        return Latency(self.modelled_us)


def _wrapper(name: str, default: str) -> Callable[..., Any]:
    def wrap(func=None, mode=default, platform_target=None, **hints) -> Any:
        del hints
        if func is None:
            return lambda fn: _kernel(name, fn, mode, platform_target)
        return _kernel(name, func, mode, platform_target)

    wrap.__name__ = wrap.__qualname__ = name
    wrap.__doc__ = (
        f"`nki.{name}` of a function or a kernel, bare or with keywords: a kernel.\n\n"
        "    `platform_target` chooses the target; other keywords are accepted without effect.\n    "
    )
    return wrap


def _kernel(name: str, fn: Any, mode: str, platform_target: Any) -> NeuronKernel:
    target = None if platform_target is None else _TARGETS.get(platform_target, platform_target)
    if isinstance(fn, NeuronKernel):
        return replace(fn, mode=mode, target=target or fn.target, results={})
    if not callable(fn):
        raise TypeError(f"nki.{name} func: must be a function or a kernel, got {fn!r}")
    return NeuronKernel(fn, DIALECT, mode=mode, target=target)


jit = _wrapper("jit", "auto")
trace = _wrapper("trace", "trace")
baremetal = _wrapper("baremetal", "baremetal")
benchmark = _wrapper("benchmark", "benchmark")
profile = _wrapper("profile", "profile")


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel (or `kernel[grid]`, or a plain function) on NumPy arrays; arguments that it writes are updated."""
    found = kernel if isinstance(kernel, NeuronKernel) else _kernel("simulate_kernel", kernel, "simulation", None)
    return replace(found, mode="simulation")(*args, **kwargs)


# ---- the dialect


def _view(x: Any) -> View | None:
    """The view of a tensor that a kernel returns, None for what is no tensor."""
    if isinstance(x, HbmTensor):
        return x.raw
    if isinstance(x, Tile):  # the vendor's simulator gives these, too
        out = face(allocate(x.shape, x.dtype.name, private_hbm))
        store(out, x)
        return out.raw
    return None


def _speaks(function: FunctionType) -> bool:
    """Whether a function refers to the dialect's modules or objects."""
    return any(of_dialect(function.__globals__.get(name)) for name in function.__code__.co_names)


DIALECT = Dialect("neuronxcc", face, _view, grid_of, _speaks, parallel=False, prepare=rewrite, target="trn1")
DIALECTS.append(DIALECT)
