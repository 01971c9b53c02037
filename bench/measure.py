"""Clocks, memory and tables."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Work = Callable[[], Any]


@dataclass(frozen=True)
class Budget:
    """Of a steady measurement: at least and at most so many rounds, and no new one after so many seconds."""

    least: int = 3
    most: int = 15
    seconds: float = 6.0


QUICK = Budget(2, 3, 0.2)


def seconds(work: Work) -> tuple[float, Any]:
    """How long `work` takes until its arrays are there, and its result."""
    start = time.perf_counter()
    result = jax.block_until_ready(work())
    return time.perf_counter() - start, result


def in_turns(works: Mapping[str, Work], budget: Budget) -> dict[str, list[float]]:
    """Seconds of warm calls that take turns, so that what else the machine does falls on all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    rounds, start = 0, time.perf_counter()
    while rounds < budget.least or rounds < budget.most and time.perf_counter() - start < budget.seconds:
        for name, work in works.items():
            times[name].append(seconds(work)[0])
        rounds += 1
    return times


def paired(first: Work, second: Work, budget: Budget) -> tuple[float, float, float]:
    """Medians of two warm calls that take turns, and the median of the ratios of neighbours."""
    times = in_turns({"first": first, "second": second}, budget)
    return median(times["first"]), median(times["second"]), ratio(times["first"], times["second"])


def ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """The median of the ratios of neighbours."""
    return median([a / b for a, b in zip(first, second, strict=True)])


def median(times: Sequence[float]) -> float:
    return statistics.median(times)


def best(work: Work, budget: Budget) -> float:
    """The least of a few runs, for work whose threads compete with those of JAX."""
    half = Budget(1, budget.most, budget.seconds / 2)
    return min(in_turns({"work": work}, half)["work"])


def memory(compiled: Any) -> float:
    """MiB that XLA plans for arguments, results and temporaries."""
    stats = compiled.memory_analysis()
    used = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return used / 2**20


def temporaries(compiled: Any) -> float:
    """MiB that XLA plans for temporaries."""
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


def error(got: Any, want: Any) -> float:
    """The largest difference, relative to the largest value."""
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    return float(np.abs(got - want).max() / np.abs(want).max())


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A Markdown table."""
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    sys.stdout.flush()


def note(text: str) -> None:
    """What is being done now, beside the tables."""
    print(text, file=sys.stderr, flush=True)
