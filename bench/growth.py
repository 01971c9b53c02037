"""What grows: attention over ever longer sequences, and one kernel over ever more tiles."""

import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nkijax
from bench import measure
from bench.kernels import Case, attention_case, deep, many_tiles, scattered
from bench.measure import Budget
from bench.stages import TARGET, prepared, slope, stages, weights

MOST_MIB = 6 * 1024  # of temporaries, in a call that is run
TOLERANCE = 1e-3


def attention(lengths: Sequence[int], budget: Budget) -> list[dict[str, Any]]:
    """Seconds and MiB of temporaries of attention and its gradient, as a kernel, plain, and in tiles by hand."""
    rows = []
    for seq in lengths:
        case = attention_case(seq)
        kernel = nkijax.function(case.kernel, target=TARGET)
        forms = {"nkijax": kernel, "plain": case.reference} | {f"tiles, {n}": f for n, f in case.by_hand.items()}
        w = weights(case)
        forward = _side_by_side({name: jax.jit(f) for name, f in forms.items()}, case, budget)
        backward = _side_by_side({name: slope(f, case, w) for name, f in forms.items()}, case, budget)
        rows.append({"seq": seq, "forward": forward, "gradient": backward})
        measure.note(f"  {seq} done")
    return rows


def _side_by_side(forms: dict[str, Any], case: Case, budget: Budget) -> dict[str, dict[str, float | None]]:
    """Median seconds (None where memory does not allow) and MiB of temporaries of each form; all must agree."""
    arrays = [jnp.asarray(x) for x in case.inputs]
    compiled = {name: f.lower(*arrays).compile() for name, f in forms.items()}
    taken = {name: measure.temporaries(c) for name, c in compiled.items()}
    works = {name: (lambda c=c: c(*arrays)) for name, c in compiled.items() if taken[name] < MOST_MIB}
    first: Any = None
    for name, work in works.items():
        result = jax.tree.leaves(jax.block_until_ready(work()))
        first = result if first is None else first
        for x, y in zip(result, first, strict=True):
            assert measure.error(x, y) < TOLERANCE, (case.name, name)
    times = measure.in_turns(works, budget)
    return {n: {"seconds": statistics.median(times[n]) if n in times else None, "MiB": taken[n]} for n in forms}


def tiles(counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Stages of one kernel over ever more tiles; medians of a few, taken in turns."""
    found: dict[int, list[dict[str, Any]]] = {n: [] for n in counts}
    for _ in range(rounds):
        for n in counts:
            x = np.ones((n, 128, 16), np.float32)
            case = Case(f"{n}", many_tiles, (x,), lambda x: 2 * jnp.exp(x) + 1, lambda x: 2 * np.exp(x) + 1)
            found[n].append(stages(case)[0])
    return [{k: statistics.median(f[k] for f in fs) for k in fs[0]} | {"tiles": n} for n, fs in found.items()]


def first_calls(counts: Sequence[int], turns: int) -> list[dict[str, Any]]:
    """Stages before the first call: of n instructions in which nothing repeats, and of one in three nested loops."""
    x = np.ones((128, 512), np.float32)
    found = [{"program": "nothing repeats"} | prepared(scattered, (x,), n=n)[0] for n in counts]
    name = f"matmul in three loops of {turns}"
    return [*found, {"program": name} | prepared(deep, (x[:, :128], x), turns=turns)[0]]


def report(rows: list[dict[str, Any]]) -> None:
    """Tables of time and memory."""
    forms = list(rows[0]["forward"])
    for what in ("forward", "gradient"):
        print(f"\nAttention, d 128, {what}: ms of a call / MiB of temporaries; -: more than {MOST_MIB} MiB, not run.")
        measure.table(("sequence", *forms), [(r["seq"], *(_cell(r[what][name]) for name in forms)) for r in rows])


def _cell(found: dict[str, float | None]) -> str:
    taken = found["seconds"]
    return f"{'-' if taken is None else f'{1e3 * taken:.1f}'} / {found['MiB']:.0f}"
