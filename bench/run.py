"""Measures nkijax against plain JAX, JAX by hand and NumPy in one run, and prints Markdown tables.

python -m bench.run [SECTION…] [--quick] [--only NAME] [--save [FILE]]     see README.md beside this file
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two processes share a GPU

import jax
import jax.numpy as jnp

import nkijax
from bench import by_hand, growth
from bench.kernels import Case, cases, matmul_case, softmax_case, tiny
from bench.measure import QUICK, Budget, error, in_turns, median, note, ratio, seconds, table
from bench.stages import BEFORE, TARGET, measured, stages

SAVED = Path(__file__).with_name("growth.json")
UNROLLED_SECONDS = 60  # how long the unrolled form may take


# ---- cases: every kernel beside the same math


def run_cases(args: argparse.Namespace, budget: Budget) -> None:
    """Steady calls, gradients, memory and first calls of every kernel."""
    found = {}
    for case in cases(args.quick):
        if args.only in case.name:
            note(f"measuring {case.name}")
            found[case.name] = measured(case, budget)
    print("\nRatios to the same math in jitted JAX, to the kernel's own formula there (`jax.nn.softmax` does not")
    print("differentiate the maximum), and to the faster of the tiles by hand in JAX; less is better.")
    rows = []
    for name, f in found.items():
        hand = f"{f['by hand']['ratio']:.2f}" if "by hand" in f else ""
        gradients = (f["gradient / JAX"], f["gradient / formula"])
        ratios = (f["steady / JAX"], *gradients, hand, f["memory"] / f["JAX memory"])
        cells = [x if isinstance(x, str) else f"{x:.2f}" for x in ratios]
        rows.append((name, *cells, f"{f['NumPy'] / f['steady']:.1f}", f"{f['before']:.2f}"))
    ratios = (
        "steady / JAX",
        "gradient / JAX",
        "gradient / formula",
        "steady / by hand",
        "memory / JAX",
        "NumPy / steady",
    )
    table(("kernel", *ratios, "before, s"), rows)
    print("\nUntil the first result, in seconds; instructions recorded, and left after rolling.")
    table(
        ("kernel", "recorded", "left", "us to record one", *BEFORE),
        [
            (name, f["recorded"], f["leaves"], f"{f['record one']:.1f}", *(f"{f[k]:.3f}" for k in BEFORE))
            for name, f in found.items()
        ],
    )
    print("\nSteady calls in ms, memory in MiB, errors relative to the largest value.")
    times, rest = ("JAX", "by hand", "NumPy", "gradient", "JAX gradient"), ("MiB", "JAX MiB", "error", "gradient error")
    table(("kernel", "ms", *times, *rest), [(name, *_row(f)) for name, f in found.items()])


def _row(f: dict[str, Any]) -> list[str]:
    hand = ", ".join(f"{name} {1e3 * t:.1f}" for name, t in f.get("by hand", {}).items() if name != "ratio")
    taken = [f"{f[k]:.0f}" for k in ("memory", "JAX memory")]
    errors = [f"{f[k]:.0e}" for k in ("error", "gradient error")]
    return [*_ms(f, "steady", "JAX"), hand, *_ms(f, "NumPy", "gradient", "JAX gradient"), *taken, *errors]


def _ms(found: dict[str, Any], *keys: str) -> list[str]:
    return [f"{1e3 * found[k]:.1f}" for k in keys]


# ---- rolling: the same program not rolled


def _rollable(quick: bool) -> list[Case]:
    return [*map(matmul_case, (512,) if quick else (1024, 2048)), softmax_case(512 if quick else 4096)]


def run_rolling(args: argparse.Namespace, budget: Budget) -> None:
    """Rolled and unrolled forms, the latter in a process of its own with a limit of time."""
    rows = []
    for case in _rollable(args.quick):
        if args.only in case.name:
            note(f"rolling {case.name}")
            found, run = stages(case)
            steady = median(in_turns({"run": run}, budget)["run"])
            rolled = (f"{found['lower'] + found['compile']:.2f}", f"{1e3 * steady:.1f}", f"{found['memory']:.0f}")
            rows.append((case.name, found["recorded"], found["leaves"], *rolled, *_unrolled(case, args.quick)))
    print("\nThe same program rolled, and not: lower and compile in seconds, steady calls in ms, MiB.")
    table(("kernel", "recorded", "left", *("rolled, s", "ms", "MiB"), *("unrolled, s", "ms", "MiB")), rows)


def _unrolled(case: Case, quick: bool) -> tuple[str, ...]:
    command = [sys.executable, "-m", "bench.run", "--unrolled", case.name] + ["--quick"] * quick
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=UNROLLED_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        return f"> {UNROLLED_SECONDS}", "", ""
    before, steady, taken = json.loads(done.stdout)
    return f"{before:.2f}", f"{1e3 * steady:.1f}", f"{taken:.0f}"


def _unrolled_child(case: Case) -> None:
    found, run = stages(case, rolled=False)
    took = statistics.median(seconds(run)[0] for _ in range(5))
    print(json.dumps((found["lower"] + found["compile"], took, found["memory"])))


# ---- pallas: the same tiles, interpreted


def run_pallas(args: argparse.Namespace, budget: Budget) -> None:
    """Pallas in interpret mode beside nkijax and plain JAX, steady and first calls."""
    chosen: list[tuple[Case, Callable[..., jax.Array]]] = [
        (matmul_case(n), by_hand.pallas_matmul) for n in ((512,) if args.quick else (1024, 2048))
    ]
    chosen.append((softmax_case(512 if args.quick else 4096), by_hand.pallas_softmax))
    rows = [_interpreted(case, f, budget) for case, f in chosen if args.only in case.name]
    print("\nThe same tiles in Pallas, interpreted: steady calls in ms, first calls in seconds.")
    steady = ("nkijax, ms", "Pallas, ms", "JAX, ms", "Pallas / nkijax", "Pallas / JAX")
    table(("kernel", *steady, "nkijax first, s", "Pallas first, s"), rows)


def _interpreted(case: Case, interpreted: Callable[..., jax.Array], budget: Budget) -> tuple[str, ...]:
    note(f"interpreting {case.name}")
    found, run = stages(case)
    arrays = [jnp.asarray(x) for x in case.inputs]
    pallas, plain = (partial(jax.jit(f), *arrays) for f in (interpreted, case.reference))
    before, result = seconds(pallas)
    assert error(result, run()) < case.tolerance, case.name
    seconds(plain)
    times = in_turns({"nkijax": run, "Pallas": pallas, "JAX": plain}, budget)
    ratios = (ratio(times["Pallas"], times["nkijax"]), ratio(times["Pallas"], times["JAX"]))
    steady = (f"{1e3 * median(t):.1f}" for t in times.values())
    return (case.name, *steady, *(f"{x:.1f}" for x in ratios), f"{found['before']:.2f}", f"{before:.2f}")


# ---- growth


def run_growth(args: argparse.Namespace, budget: Budget) -> None:
    """Attention over sequence lengths; stages of one kernel over ever more tiles."""
    lengths = (512, 1024) if args.quick else (1024, 2048, 4096, 8192, 16384)
    note("attention by sequence length")
    found = growth.attention(lengths, budget if args.quick else Budget(2, 5, 1.0))
    growth.report(found)
    if args.save:
        Path(args.save).write_text(json.dumps(found, indent=1) + "\n")
    print("\nOne tile kernel over ever more tiles, seconds.")
    keys = ("trace", "roll", "lower", "compile")
    counts, rounds = ((16, 64), 1) if args.quick else ((64, 4096), 3)
    rows = [(f["tiles"], int(f["recorded"]), *(f"{f[k]:.3f}" for k in keys)) for f in growth.tiles(counts, rounds)]
    table(("tiles", "recorded", *keys), rows)
    print("\nPrograms as they get longer, seconds before the first call.")
    found = growth.first_calls(*(((10, 20), 8) if args.quick else ((100, 200, 400), 64)))
    rows = [(f["program"], f["recorded"], f["leaves"], *(f"{f[k]:.2f}" for k in keys)) for f in found]
    table(("program", "recorded", "leaves", *keys), rows)


# ---- calls: what a repeated call costs


def run_calls(args: argparse.Namespace, budget: Budget) -> None:
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
    for call in calls.values():
        seconds(call)
    rounds = 20 if args.quick else 2000
    times = in_turns(calls, Budget(rounds, rounds, 0))
    print("\nA repeated call of a kernel of one small tile, medians in us.")
    table(("call", "us"), [(name, f"{1e6 * median(t):.1f}") for name, t in times.items()])


SECTIONS: dict[str, Callable[[argparse.Namespace, Budget], None]] = {
    "cases": run_cases,
    "pallas": run_pallas,
    "growth": run_growth,
    "rolling": run_rolling,
    "calls": run_calls,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; by default all")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    what = "write what growth measures as JSON, by default beside this file"
    parser.add_argument("--save", nargs="?", const=str(SAVED), default="", metavar="FILE", help=what)
    parser.add_argument("--unrolled", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    unknown = set(args.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    with jax.default_matmul_precision("highest"):  # a GPU would take TF32 in plain JAX, which is other math
        if args.unrolled:
            return _unrolled_child(next(c for c in _rollable(args.quick) if c.name == args.unrolled))
        print(f"{jax.devices()[0].device_kind}, {len(os.sched_getaffinity(0))} cores, {platform.machine()};", end=" ")
        print(f"jax {jax.__version__}, Python {platform.python_version()}")
        for name in args.sections or SECTIONS:
            SECTIONS[name](args, QUICK if args.quick else Budget())


if __name__ == "__main__":
    main()
