"""One kernel: every stage up to the first result, steady calls, gradient, beside the same math in plain JAX."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nkijax
from bench import measure
from bench.kernels import Case
from bench.measure import Budget, seconds
from nkijax import api
from nkijax.call import Call
from nkijax.lower import lower
from nkijax.roll import roll

TARGET = "trn2"
BEFORE = ("trace", "roll", "lower", "compile", "first call")
"""The stages before, and with, the first result, in order."""


def prepared(
    kernel: Any, inputs: Sequence[np.ndarray], rolled: bool = True, **static: Any
) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Seconds of every stage before the first call, what was recorded, and the compiled function."""
    target = api.Options(TARGET).resolve()
    call = Call(api.as_kernel(kernel), inputs, static)
    out: dict[str, Any] = {}
    with api._uncollected():
        out["trace"], (program, _) = seconds(lambda: api._record(call, target))
        out["roll"], folded = seconds(lambda: roll(program) if rolled else program)
    out["recorded"] = len(list(nkijax.instructions(program.body)))
    out["leaves"] = len(list(nkijax.instructions(folded.body)))
    out["lower"], lowered = seconds(lambda: lower(folded))
    took, staged = seconds(lambda: jax.jit(lowered.function).lower(*inputs))
    out["lower"] += took
    out["compile"], compiled = seconds(staged.compile)
    return out, compiled


def stages(case: Case, rolled: bool = True) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Seconds of every stage up to the first result, and the compiled function."""
    out, compiled = prepared(case.kernel, case.inputs, rolled)
    arrays = [jnp.asarray(x) for x in case.inputs]
    run = lambda: compiled(*arrays).outputs[0]  # noqa: E731
    out["first call"], result = seconds(run)
    out["before"] = sum(out[k] for k in BEFORE)
    out["memory"] = measure.memory(compiled)
    out["error"] = measure.error(result, jax.jit(case.reference)(*arrays))
    assert out["error"] < case.tolerance, (case.name, out["error"])
    return out, run


def record_us(case: Case) -> float:
    """us of recording the kernel once more: median of ten, or of what three seconds allow."""
    target, call = api.Options(TARGET).resolve(), Call(api.as_kernel(case.kernel), case.inputs, {})
    times, start = [], time.perf_counter()
    while not times or len(times) < 10 and time.perf_counter() - start < 3:
        times.append(seconds(lambda: api._record(call, target))[0])
    return 1e6 * statistics.median(times)


def slope(f: Callable[..., jax.Array], case: Case, weights: jax.Array) -> Callable[..., Any]:
    """The jitted gradient of the sum of f's output, weighted, by every float input."""
    return jax.jit(jax.grad(lambda *x: jnp.sum(f(*x) * weights), argnums=case.floats))


def weights(case: Case) -> jax.Array:
    shape = jax.eval_shape(case.reference, *case.inputs)
    return jnp.asarray(np.random.default_rng(1).standard_normal(shape.shape, dtype=np.float32)).astype(shape.dtype)


def gradient(case: Case, budget: Budget) -> dict[str, float]:
    """Time of the gradient, beside those of the same math in plain JAX and of the kernel's formula written out."""
    arrays = [jnp.asarray(x) for x in case.inputs]
    kernel, w = nkijax.function(case.kernel, target=TARGET), weights(case)
    ours, plain = (slope(f, case, w) for f in (kernel, case.reference))
    errors = [measure.error(a, b) for a, b in zip(ours(*arrays), plain(*arrays), strict=True)]
    assert max(errors) < case.tolerance, (case.name, errors)
    written = plain if case.formula is None else slope(case.formula, case, w)
    works = {name: partial(f, *arrays) for name, f in (("ours", ours), ("plain", plain), ("written", written))}
    seconds(works["written"])
    times = measure.in_turns(works, budget)
    return {
        "gradient": measure.median(times["ours"]),
        "JAX gradient": measure.median(times["plain"]),
        "gradient / JAX": measure.ratio(times["ours"], times["plain"]),
        "gradient / formula": measure.ratio(times["ours"], times["written"]),
        "gradient error": max(errors),
    }


def by_hand(case: Case, run: Callable[[], Any], budget: Budget) -> dict[str, float]:
    """Time of the tiles by hand, and the median ratio to the faster of them."""
    arrays = [jnp.asarray(x) for x in case.inputs]
    works = {name: partial(jax.jit(f), *arrays) for name, f in case.by_hand.items()}
    for name, work in works.items():
        assert measure.error(work(), run()) < case.tolerance, (case.name, name)
    times = measure.in_turns({"ours": run, **works}, budget)
    medians = {name: statistics.median(t) for name, t in times.items()}
    fastest = min(works, key=lambda name: medians[name])
    return {**{name: medians[name] for name in works}, "ratio": measure.ratio(times["ours"], times[fastest])}


def measured(case: Case, budget: Budget) -> dict[str, Any]:
    """Everything about one case."""
    out, run = stages(case)
    arrays = [jnp.asarray(x) for x in case.inputs]
    plain = jax.jit(case.reference).lower(*arrays).compile()
    seconds(lambda: plain(*arrays))
    out["steady"], out["JAX"], out["steady / JAX"] = measure.paired(run, lambda: plain(*arrays), budget)
    out["JAX memory"] = measure.memory(plain)
    out["NumPy"] = measure.best(lambda: case.numpy(*case.inputs), budget)
    out["record one"] = record_us(case) / out["recorded"]
    if case.by_hand:
        out["by hand"] = by_hand(case, run, budget)
    return out | gradient(case, budget)
