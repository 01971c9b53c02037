"""Measures nkijax against plain JAX and NumPy in one run, and prints Markdown tables.  See README.md beside this file.

python -m bench.run [--quick] [--only NAME]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nkijax
from bench.kernels import Case, cases, many_tiles, tiny
from nkijax import api
from nkijax.call import Call
from nkijax.lower import lower
from nkijax.roll import roll

REPEATS, SECONDS = 15, 6.0  # of a steady measurement: at most so many pairs, and no new one after so long
UNROLLED_SECONDS = 120  # how long the unrolled form may take to compile
CALLS = 2000  # of a tiny kernel
TARGET = "trn2"


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long `work` takes until its arrays are there, and its result."""
    start = time.perf_counter()
    result = jax.block_until_ready(work())
    return time.perf_counter() - start, result


def paired(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float, float]:
    """Medians of two calls that take turns, and the median of the ratios of neighbours; both are warm."""
    pairs, start = [], time.perf_counter()
    while len(pairs) < 3 or len(pairs) < REPEATS and time.perf_counter() - start < SECONDS:
        pairs.append((seconds(first)[0], seconds(second)[0]))
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def best(work: Callable[[], Any]) -> float:
    """The least of a few runs, for work whose threads compete with those of JAX."""
    times, start = [seconds(work)[0]], time.perf_counter()
    while len(times) < REPEATS and time.perf_counter() - start < SECONDS / 2:
        times.append(seconds(work)[0])
    return min(times)


# ---- one case


def stages(case: Case, rolled: bool = True) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Seconds of every stage up to the first result, and the compiled function."""
    target = api.Options(TARGET).resolve()
    call = Call(api.as_kernel(case.kernel), case.inputs, {})
    out: dict[str, Any] = {}
    out["trace"], (program, _) = seconds(lambda: api._record(call, target))
    out["recorded"] = len(list(nkijax.instructions(program.body)))
    out["roll"], program = seconds(lambda: roll(program) if rolled else program)
    out["leaves"] = len(list(nkijax.instructions(program.body)))
    out["lower"], lowered = seconds(lambda: lower(program))
    took, staged = seconds(lambda: jax.jit(lowered.function).lower(*case.inputs))
    out["lower"] += took
    out["compile"], compiled = seconds(staged.compile)
    arrays = [jnp.asarray(x) for x in case.inputs]
    run = lambda: compiled(*arrays).outputs[0]  # noqa: E731
    out["first call"], result = seconds(run)
    out["memory"] = _memory(compiled)
    out["error"] = _error(result, case)
    return out, run


def _record_us(case: Case) -> float:
    """us of recording the kernel once more: median of ten, or of what three seconds allow."""
    target, call = api.Options(TARGET).resolve(), Call(api.as_kernel(case.kernel), case.inputs, {})
    times, start = [], time.perf_counter()
    while not times or len(times) < 10 and time.perf_counter() - start < 3:
        times.append(seconds(lambda: api._record(call, target))[0])
    return 1e6 * statistics.median(times)


def _memory(compiled: Any) -> float:
    """MiB that XLA plans for arguments, results and temporaries."""
    stats = compiled.memory_analysis()
    used = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return used / 2**20


def _error(result: Any, case: Case) -> float:
    want = np.asarray(jax.jit(case.reference)(*case.inputs), np.float32)
    return float(np.abs(np.asarray(result, np.float32) - want).max() / np.abs(want).max())


def gradient(case: Case) -> dict[str, float]:
    """Time of the gradient of a weighted sum of the outputs, beside that of the same formula in plain JAX."""
    arrays = [jnp.asarray(x) for x in case.inputs]
    shape = jax.eval_shape(case.reference, *arrays)
    weights = jnp.asarray(np.random.default_rng(1).standard_normal(shape.shape, dtype=np.float32)).astype(shape.dtype)
    kernel = nkijax.function(case.kernel, target=TARGET)
    every = tuple(range(len(arrays)))
    ours = jax.jit(jax.grad(lambda *x: jnp.sum(kernel(*x) * weights), argnums=every))
    plain = jax.jit(jax.grad(lambda *x: jnp.sum(case.reference(*x) * weights), argnums=every))
    errors = [
        float(jnp.abs((a - b).astype(np.float32)).max() / jnp.abs(b.astype(np.float32)).max())
        for a, b in zip(ours(*arrays), plain(*arrays), strict=True)
    ]
    mine, theirs, ratio = paired(lambda: ours(*arrays), lambda: plain(*arrays))
    return {"gradient": mine, "JAX gradient": theirs, "gradient / JAX": ratio, "gradient error": max(errors)}


def unrolled(case: Case, quick: bool) -> dict[str, Any]:
    """Compile and run without rolling, in a process of its own with a limit of time."""
    command = [sys.executable, "-m", "bench.run", "--unrolled", case.name] + ["--quick"] * quick
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=UNROLLED_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        return {"unrolled": f"> {UNROLLED_SECONDS} s"}
    except subprocess.CalledProcessError as error:
        return {"unrolled": f"exit {error.returncode}"}
    return {"unrolled": json.loads(done.stdout.splitlines()[-1])}


def _unrolled_child(case: Case) -> None:
    found, run = stages(case, rolled=False)
    took = statistics.median(seconds(run)[0] for _ in range(5))
    print(json.dumps({"before": found["lower"] + found["compile"], "steady": took, "memory": found["memory"]}))


def measure(case: Case, quick: bool) -> dict[str, Any]:
    """Everything about one case."""
    out, run = stages(case)
    arrays = [jnp.asarray(x) for x in case.inputs]
    plain = jax.jit(case.reference).lower(*arrays).compile()
    seconds(lambda: plain(*arrays))
    out["steady"], out["JAX"], out["steady / JAX"] = paired(run, lambda: plain(*arrays))
    out["JAX memory"] = _memory(plain)
    out["NumPy"] = best(lambda: case.numpy(*case.inputs))
    out["record one"] = _record_us(case) / out["recorded"]
    out["before first result"] = sum(out[k] for k in ("trace", "roll", "lower", "compile", "first call"))
    assert out["error"] < case.tolerance, (case.name, out["error"])
    return out | gradient(case) | unrolled(case, quick)


# ---- what is no case


def overhead() -> dict[str, float]:
    """us of a repeated call of a tiny kernel, by each door, and of its jitted function alone."""
    x = jnp.ones((128, 8), jnp.float32)
    plain = jax.jit(lambda x: jnp.exp(x))
    pure = nkijax.function(tiny, target=TARGET)
    jitted = jax.jit(pure)
    calls = {
        "jax.jit(jnp.exp)(x)": lambda: plain(x),
        "jax.jit(nkijax.function(kernel))(x)": lambda: jitted(x),
        "nkijax.function(kernel)(x)": lambda: pure(x),
        "nkijax.run(kernel, x)": lambda: nkijax.run(tiny, x, target=TARGET),
        "kernel(x)": lambda: tiny(x),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        seconds(call)
    for _ in range(CALLS):
        for name, call in calls.items():
            times[name].append(seconds(call)[0])
    return {name: 1e6 * statistics.median(t) for name, t in times.items()}


def growth(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Stages of one kernel over ever more tiles; compile times are medians of three, taken in turns."""
    found: dict[int, list[dict[str, Any]]] = {n: [] for n in counts}
    for _ in range(3):
        for n in counts:
            x = np.ones((n, 128, 16), np.float32)
            case = Case(f"{n}", many_tiles, (x,), lambda x: 2 * jnp.exp(x) + 1, lambda x: 2 * np.exp(x) + 1)
            found[n].append(stages(case)[0])
    return [{k: statistics.median(f[k] for f in fs) for k in fs[0]} | {"tiles": n} for n, fs in found.items()]


# ---- the tables


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    sys.stdout.flush()


def report(found: dict[str, dict[str, Any]]) -> None:
    """The tables of all cases, ratios first."""
    print("\nRatios to the same math in jitted JAX; less is better.  `before` is all before and with the first result.")
    table(
        ("kernel", "steady / JAX", "gradient / JAX", "memory / JAX", "NumPy / steady", "before, s"),
        [
            (
                name,
                f"{f['steady / JAX']:.2f}",
                f"{f['gradient / JAX']:.2f}",
                f"{f['memory'] / f['JAX memory']:.2f}",
                f"{f['NumPy'] / f['steady']:.1f}",
                f"{f['before first result']:.2f}",
            )
            for name, f in found.items()
        ],
    )
    print("\nUntil the first result, in seconds; instructions recorded, and left after rolling.")
    keys = ("trace", "roll", "lower", "compile", "first call")
    table(
        ("kernel", "recorded", "left", "us to record one", *keys),
        [
            (
                name,
                f["recorded"],
                f["leaves"],
                f"{f['record one']:.1f}",
                *(f"{f[k]:.3f}" for k in keys),
            )
            for name, f in found.items()
        ],
    )
    print("\nSteady calls in ms, memory in MiB, errors relative to the largest value.")
    table(
        ("kernel", "ms", "JAX", "NumPy", "gradient", "JAX gradient", "MiB", "JAX MiB", "error", "gradient error"),
        [
            (
                name,
                *(f"{1e3 * f[k]:.1f}" for k in ("steady", "JAX", "NumPy", "gradient", "JAX gradient")),
                *(f"{f[k]:.0f}" for k in ("memory", "JAX memory")),
                *(f"{f[k]:.0e}" for k in ("error", "gradient error")),
            )
            for name, f in found.items()
        ],
    )
    print("\nThe same program without rolling: lower and compile in seconds, then steady calls.")
    table(
        ("kernel", "rolled, s", "unrolled, s", "rolled, ms", "unrolled, ms", "unrolled MiB"),
        [
            (name, f"{f['lower'] + f['compile']:.2f}", *_unrolled_columns(f["unrolled"], f["steady"]))
            for name, f in found.items()
        ],
    )


def _unrolled_columns(found: Any, steady: float) -> tuple[str, ...]:
    if isinstance(found, str):
        return found, f"{1e3 * steady:.1f}", "", ""
    return (
        f"{found['before']:.2f}",
        f"{1e3 * steady:.1f}",
        f"{1e3 * found['steady']:.1f}",
        f"{found['memory']:.0f}",
    )


def _seconds(found: dict[str, Any], keys: Sequence[str]) -> list[str]:
    return [f"{found[k]:.3f}" for k in keys]


def report_rest() -> None:
    """The tables of what is no case."""
    print("\nA repeated call of a kernel of one small tile, medians in us.")
    table(("call", "us"), [(name, f"{us:.1f}") for name, us in overhead().items()])
    print("\nOne tile kernel over ever more tiles, seconds.")
    keys = ("trace", "roll", "lower", "compile")
    rows = [(f["tiles"], int(f["recorded"]), *_seconds(f, keys)) for f in growth((64, 4096))]
    table(("tiles", "recorded", *keys), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--unrolled", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = [c for c in cases(args.quick) if args.only in c.name]
    if args.unrolled:
        return _unrolled_child(next(c for c in chosen if c.name == args.unrolled))
    print(f"{jax.devices()[0].device_kind}, {len(os.sched_getaffinity(0))} cores, {platform.machine()};", end=" ")
    print(f"jax {jax.__version__}, Python {platform.python_version()}")
    found = {}
    for case in chosen:
        print(f"measuring {case.name}", file=sys.stderr)
        found[case.name] = measure(case, args.quick)
    report(found)
    if not args.only:
        report_rest()


if __name__ == "__main__":
    main()
