"""One short table of the device that JAX picks: is it right, is it fast, and which way of running repeats is faster.

python -m bench.gpu [--quick] [--only NAME]        about four minutes; on a CPU it measures the CPU
"""

import argparse
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import nkijax
from bench import measure
from bench.kernels import Case, cases, matmul_case
from bench.measure import QUICK, Budget
from bench.stages import TARGET, gradient, stages

LOOPS = ("auto", "scan", "vmap")


def exact(n: int) -> None:
    """A float32 matmul beside one in float64: TF32 would be off by about 1e-3 of the largest value."""
    case = matmul_case(n)
    a, b = case.inputs
    want = a.T.astype(np.float64) @ b.astype(np.float64)
    kernel = nkijax.function(case.kernel, target=TARGET)
    found = {"nkijax": kernel(a, b), "JAX as it is": a.T @ jnp.asarray(b)}
    errors = {name: float(np.abs(np.asarray(x) - want).max() / np.abs(want).max()) for name, x in found.items()}
    print("\n" + ", ".join(f"{name}: {e:.1e}" for name, e in errors.items()), f"off float64 in a matmul {n}³")
    assert errors["nkijax"] < 1e-5, errors


def row(case: Case, budget: Budget) -> tuple[str, ...]:
    """Steady calls of both ways and of plain JAX, the gradient, and what comes before the first result."""
    measure.note(f"measuring {case.name}")
    arrays = [jnp.asarray(x) for x in case.inputs]
    found, _ = stages(case)
    ways = {loops: nkijax.function(case.kernel, target=TARGET, loops=loops) for loops in LOOPS}
    works = {name: partial(jax.jit(f), *arrays) for name, f in {**ways, "JAX": case.reference}.items()}
    for work in works.values():
        jax.block_until_ready(work())
    times = measure.in_turns(works, budget)
    slope = gradient(case, budget)
    return (
        case.name,
        *(f"{1e3 * measure.median(times[name]):.2f}" for name in works),
        f"{measure.ratio(times['auto'], times['JAX']):.2f}",
        f"{slope['gradient / JAX']:.2f}",
        f"{found['before']:.2f}",
        f"{max(found['error'], slope['gradient error']):.0e}",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    args = parser.parse_args(arguments)
    print(f"{jax.devices()[0].device_kind} ({jax.default_backend()}), jax {jax.__version__}")
    exact(512 if args.quick else 2048)
    with jax.default_matmul_precision("highest"):
        chosen = [case for case in cases(args.quick) if args.only in case.name]
        rows = [row(case, QUICK if args.quick else Budget(5, 30, 2.0)) for case in chosen]
    print("\nSteady calls in ms, by how repeats run, and of plain JAX; ratios to plain JAX; errors relative.")
    measure.table(("kernel", *LOOPS, "JAX", "auto / JAX", "gradient / JAX", "before, s", "error"), rows)


if __name__ == "__main__":
    main()
