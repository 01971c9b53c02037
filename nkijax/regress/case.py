"""`Case`: one kernel with its inputs, its reference, and how near to that it must come."""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, cast

import jax.numpy as jnp
import numpy as np

from nkijax import arrays
from nkijax.api import Kernel, Options, as_kernel
from nkijax.machine import Target

Kind = Literal["numpy", "jax", "torch"]


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel to regress; `nkijax regress` and its pytest plugin find cases at the top level of modules.

        nkijax.Case(softmax, lambda rng: rng.standard_normal((256, 512), np.float32), jax.nn.softmax, targets="trn2")

    Args:
      kernel: a plain function, an `@nki.jit` kernel, or `kernel[n]`.
      inputs: what kernel and reference both take: an array, a sequence of arguments or a mapping of named ones.  Or a
        function that makes those, of a NumPy generator seeded with `seed` and of `params`, or of `params` only
        (NumPy's, Python's and torch's own generators are seeded too).
      reference: what the kernel should give: a function of the same inputs (NumPy, JAX or torch), or the values: of
        what the kernel returns, and then, if there are more, of the arguments that it writes.  Without one, the values
        of a stored baseline serve.
      params: keyword arguments of `inputs`, for sweeps.  (A lambda that reads a loop's variable instead finds its last
        value, because inputs are made when the case runs.)
      name: by default the kernel's with the values of `params`.  With the file and the target it is the case's id,
        `file.py::name[trn2]`.
      static: further keyword arguments, of the kernel only.
      rtol, atol: |got - want| must be at most atol + rtol |want|.  By default rtol follows the output's dtype (1e-4 in
        float32, 1e-2 in bfloat16; integers are exact), and atol is rtol times the root mean square of the reference.
      compare: instead, a function of (outputs, reference values), each as it is returned, arrays in NumPy (outputs
        are a flat tuple where arguments that the kernel writes are among them).  It raises AssertionError, or returns
        False or a text, where they are too far apart.
      grid: as in `kernel[grid]`.
      targets: "trn1", "trn2", "trn3", or several of them; by default the environment's, else the dialect's own.
      arrays: "numpy", "jax" or "torch": the kind of arrays that the reference gets; by default that of the inputs.
      host: `kernel` is no kernel but a function that calls some, on a mesh for instance, or with a grid of its choice.
        It runs as it is, on the target as NEURON_PLATFORM_TARGET_OVERRIDE; a replay names no instruction of it.
      grad: also compare the gradients by all float inputs with those of the reference, which must be JAX.
      raises: the kernel must refuse these inputs with such an exception, KernelError for instance.
      xfail: why the case is known to fail.
      timeout_s: how long it may take, if not as long as `--timeout` says.
      seed: of the generator that `inputs` gets, and of the gradient's cotangents.
      max_trips, precise: as in `nkijax.run`.

    Raises:
      TypeError, ValueError: a field is not of these kinds.
    """

    kernel: Any
    inputs: Any
    reference: Any = None
    _: KW_ONLY
    params: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    static: Mapping[str, Any] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    compare: Callable[[Any, Any], Any] | None = None
    grid: Any = None
    targets: str | Sequence[str] = ()
    arrays: Kind | None = None
    host: bool = False
    grad: bool = False
    raises: type[BaseException] | tuple[type[BaseException], ...] | None = None
    xfail: str = ""
    timeout_s: float | None = None
    seed: int = 0
    max_trips: Any = None
    precise: bool | None = None

    def __post_init__(self):
        parts = (getattr(self._kernel(), "__name__", "kernel"), *map(_short, self.params.values()))
        object.__setattr__(self, "name", self.name or "-".join(parts))
        object.__setattr__(self, "targets", (self.targets,) if isinstance(self.targets, str) else tuple(self.targets))
        for target in self.targets:
            Target.of(target)
        if self.arrays not in (None, "numpy", "jax", "torch"):
            raise ValueError(f"Case {self.name} arrays: must be numpy, jax or torch, got {self.arrays!r}")
        if self.grad and (self.host or not callable(self.reference)):
            raise TypeError(f"Case {self.name} grad: needs a kernel, and a reference that is a JAX function")
        if self.host and self.grid is not None:
            raise TypeError(f"Case {self.name} grid: is the function's own to choose, with host")
        if self.params and not callable(self.inputs):
            raise TypeError(
                f"Case {self.name} params: need `inputs` to be a function, got {type(self.inputs).__name__}"
            )

    def _kernel(self) -> Any:
        return self.kernel if self.host else as_kernel(self.kernel)

    def runnable(self) -> Any:
        """The kernel with its grid; the function, with `host`."""
        kernel = self._kernel()
        return kernel if self.grid is None else kernel[self.grid]

    def on(self, wanted: Sequence[str] = ()) -> tuple[str, ...]:
        """The targets to run on: the case's own, of which `wanted` picks some; else `wanted`, or the default one."""
        return _on(self.targets, wanted, None if self.host else as_kernel(self.kernel))

    def made(self) -> Case:
        return self

    @staticmethod
    def later(name: str, make: Callable[[], Case], targets: str | Sequence[str] = ()) -> Later:
        """A case that `make` makes when it runs, for what is slow to import or to make.

        It runs on these targets; without any, on the environment's or else on trn3, whatever its kernel's dialect.
        """
        return Later(name, make, (targets,) if isinstance(targets, str) else tuple(targets))

    def arguments(self) -> Arguments:
        """The inputs, made anew: always the same ones, in NumPy."""
        made: Any = self.inputs
        if callable(made):
            _seed(self.seed)
            rng = (np.random.default_rng(self.seed),) if _takes_a_generator(made, self.params) else ()
            made = made(*rng, **self.params)
        if isinstance(made, Mapping):
            given = Arguments((), dict(made))
        else:
            given = Arguments((made,) if arrays.is_array(made) else tuple(made), {})
        kind = self.arrays or arrays.kind_of(given.leaves())
        return replace(given.map(_own), kind=cast(Kind, kind))


@dataclass(frozen=True)
class Later:
    """A case to be made when it runs; see `Case.later`."""

    name: str
    make: Callable[[], Case]
    targets: tuple[str, ...] = ()
    timeout_s: float | None = None

    def made(self) -> Case:
        return self.make()

    def on(self, wanted: Sequence[str] = ()) -> tuple[str, ...]:
        """As `Case.on`."""
        return _on(self.targets, wanted, None)


def _on(own: Sequence[str], wanted: Sequence[str], kernel: Kernel | None) -> tuple[str, ...]:
    picked = tuple(Target.of(t).name for t in wanted)
    if own:
        return tuple(name for t in own if (name := Target.of(t).name) in picked or not picked)
    return picked or (Options().resolve(kernel).name,)


@dataclass(frozen=True, eq=False)
class Arguments:
    """What one call takes: positional arguments and named ones, arrays in NumPy; `kind` is what a reference gets."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kind: Kind = "numpy"

    def map(self, change: Callable[[Any], Any]) -> Arguments:
        """Each array, in nested tuples, lists and dicts too, replaced by what `change` makes of it."""
        args = tuple(_map(a, change) for a in self.args)
        return Arguments(args, {k: _map(v, change) for k, v in self.kwargs.items()}, self.kind)

    def leaves(self) -> list[Any]:
        """The arrays, in the order in which `map` meets them."""
        found: list[Any] = []
        self.map(found.append)
        return found

    def copy(self) -> Arguments:
        """The same with arrays of its own, which a kernel may write."""
        return self.map(_own)

    def of_kind(self, kind: Kind) -> Arguments:
        """The same with arrays of its own of another kind."""
        return self.map(lambda x: _convert(x, kind))


def _map(x: Any, change: Callable[[Any], Any]) -> Any:
    if arrays.is_array(x):
        return change(x)
    if type(x) in (tuple, list):
        return type(x)(_map(v, change) for v in x)
    if type(x) is dict:
        return {k: _map(v, change) for k, v in x.items()}
    return x


def _own(x: Any) -> np.ndarray:
    return x.copy() if isinstance(x, np.ndarray) else np.array(arrays.to_jax(x))


def _convert(x: np.ndarray, kind: Kind) -> Any:
    if kind == "jax":
        return jnp.asarray(arrays.to_jax(x))
    if kind == "torch":
        importlib.import_module("torch")
        return arrays.from_jax(arrays.to_jax(x), "torch")
    return x.copy()


def _takes_a_generator(function: Callable[..., Any], params: Mapping[str, Any]) -> bool:
    """Whether a function has a positional parameter beside those called as `params` are."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [p for p in inspect.signature(function).parameters.values() if p.kind in positional]
    return any(p.default is p.empty and p.name not in params for p in own)


def _short(value: Any) -> str:
    """A parameter in a name: numbers, words and dtypes as they are, in as few characters."""
    return getattr(value, "__name__", None) or str(value).replace(" ", "")


def _seed(seed: int) -> None:
    """Seed the generators that have a global state."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
