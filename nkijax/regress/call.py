"""The calls of a case: its kernel, its reference, and the gradients of both; and whether they agree."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from nkijax import api
from nkijax.call import Call
from nkijax.lower import Result
from nkijax.program import Program
from nkijax.regress.case import Arguments, Case
from nkijax.regress.compare import Verdict, compare, leaves, numpy_tree, to_numpy

TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a kernel returned, and the arguments that it wrote, in NumPy."""

    returned: Any
    written: tuple[np.ndarray, ...]

    def leaves(self) -> tuple[np.ndarray, ...]:
        return (*leaves(self.returned), *self.written)

    def beside(self, want: Any) -> Any:
        """What a reference is compared with: what was returned, else what was written, or as much of both as it has."""
        if self.returned is None:
            return self.written
        count, wanted = len(leaves(self.returned)), len(leaves(want))
        return self.returned if wanted <= count else self.leaves()[:wanted]


@dataclass(frozen=True, eq=False)
class Ran:
    """A kernel's run: its outputs; the flat program of each kernel called, with the turns of its dynamic loops; and
    the seconds until those could run.
    """

    outputs: Outputs
    programs: tuple[tuple[Program, tuple[int, ...]], ...]
    compile_s: float


def ran(case: Case, given: Arguments, target: str) -> Ran:
    """Run the kernel of a case."""
    mine = given.copy()
    if case.host:
        return _ran_on_host(case, given, mine, target)
    options = {"target": target, "precise": case.precise, "max_trips": case.max_trips}
    profile = api.profile(case.runnable(), *mine.args, **mine.kwargs, **case.static, **options)
    own = arrays_of(case, mine)
    outputs = Outputs(numpy_tree(profile.outputs), tuple(to_numpy(own[i]) for i in profile.program.written))
    return Ran(outputs, ((profile.program, profile.trips),), profile.compile_s)


def taken(case: Case, given: Arguments, target: str) -> str:
    """What is wrong if the kernel of a case that must raise takes its inputs."""
    assert case.raises is not None
    wanted = case.raises if isinstance(case.raises, tuple) else (case.raises,)
    try:
        ran(case, given, target)
    except wanted:
        return ""
    return f"the kernel took these inputs, and should raise {' or '.join(w.__name__ for w in wanted)}"


def _ran_on_host(case: Case, given: Arguments, mine: Arguments, target: str) -> Ran:
    seen: list[tuple[Program, tuple[int, ...]]] = []
    compiled_s: dict[api.Compiled, float] = {}

    def observe(compiled: api.Compiled, result: Result) -> None:
        compiled_s[compiled] = compiled.compile_s
        if not isinstance(result.trips, Tracer):
            program = compiled.program
            seen.append((program, tuple(int(n) for n in np.asarray(result.trips)[: len(program.loops)])))

    before = os.environ.get(TARGET)
    os.environ[TARGET] = target
    api.observers.append(observe)
    try:
        returned = numpy_tree(case.kernel(*mine.args, **mine.kwargs, **case.static))
    finally:
        api.observers.remove(observe)
        os.environ.pop(TARGET)
        if before is not None:
            os.environ[TARGET] = before
    pairs = zip(given.leaves(), mine.leaves(), strict=True)
    written = tuple(new for old, new in pairs if old.tobytes() != new.tobytes())
    return Ran(Outputs(returned, written), tuple(seen), sum(compiled_s.values()))


def arrays_of(case: Case, given: Arguments) -> list[Any]:
    """The arrays that the kernel takes, in the order of its program's arguments."""
    return Call(case.runnable(), given.args, {**given.kwargs, **case.static}).arrays


def reference_of(case: Case, given: Arguments) -> Any:
    """What a case's kernel should give, or None."""
    if not callable(case.reference):
        return case.reference
    mine = given.of_kind(given.kind)
    return case.reference(*mine.args, **mine.kwargs)


def verdict_of(case: Case, got: Any, want: Any) -> Verdict:
    """Compare as the case says."""
    plain = compare(got, want, case.rtol, case.atol)
    if case.compare is None:
        return plain
    try:
        said = case.compare(got, numpy_tree(want))
    except AssertionError as error:
        said = str(error) or "compare raised AssertionError"
    text = said if isinstance(said, str) else "" if said is None or said else "compare returned False"
    return replace(plain, text=text, first=plain.first if text else None)


def gradients(case: Case, given: Arguments, target: str) -> str:
    """Compare reverse modes, with the same random cotangents: what is wrong, or nothing."""
    kernel = api.function(
        case.runnable(), target=target, precise=case.precise, max_trips=case.max_trips, **dict(case.static)
    )
    given = given.of_kind("jax")
    floats = [x for x in given.leaves() if _is_float(x)]
    pulled, weights = [], None
    for function in (kernel, case.reference):
        out, pull = jax.vjp(_of_floats(function, given), *floats)
        if weights is None:
            rng = np.random.default_rng(case.seed)
            weights = [jnp.asarray(rng.standard_normal(x.shape, np.float32)) for x in out]
        pulled.append(pull([w.reshape(x.shape).astype(x.dtype) for w, x in zip(weights, out, strict=True)]))
    text = compare(pulled[0], pulled[1], case.rtol, case.atol).text
    return text and "gradient: " + text.replace("output", "input")


def _of_floats(function: Any, given: Arguments) -> Any:
    """A function of the float arrays among its arguments, that gives the float arrays among its results."""

    def pure(*values: jax.Array) -> list[jax.Array]:
        source = iter(values)
        filled = given.map(lambda x: next(source) if _is_float(x) else x)
        return [x for x in jax.tree.leaves(function(*filled.args, **filled.kwargs)) if _is_float(x)]

    return pure


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
