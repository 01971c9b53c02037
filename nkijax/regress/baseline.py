"""A stored baseline: what each case gave when it was last accepted, and what has changed since.

It is one JSON file, to be kept beside the kernels: of each case a digest of every output, the number of instructions
(recorded, and after rolling) and the modelled cost.  `NAME.values.npz` beside it has what each instruction wrote, of
those cases that execute few enough; a replay compares with it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nkijax.regress import result as kinds
from nkijax.regress.digest import Digest
from nkijax.regress.history import History
from nkijax.regress.result import Result

SAME_US = 5e-4  # relative; costs are stored to 0.001 us
ROUNDING = 1e-5  # of an output's norm; a smaller change is told as rounding


@dataclass(frozen=True)
class Entry:
    """One accepted case."""

    instructions: int
    leaves: int
    model_us: float
    outputs: tuple[Digest, ...]

    @staticmethod
    def of(result: Result) -> Entry:
        assert result.instructions is not None and result.leaves is not None and result.model_us is not None
        return Entry(result.instructions, result.leaves, round(result.model_us, 3), result.outputs)

    def to_json(self) -> dict:
        return {**vars(self), "outputs": [d.to_json() for d in self.outputs]}

    @staticmethod
    def from_json(data: dict) -> Entry:
        return Entry(**{**data, "outputs": tuple(Digest.from_json(d) for d in data["outputs"])})


@dataclass(frozen=True)
class Baseline:
    """Accepted cases by id; `made` says with what version of JAX, and on which devices."""

    cases: dict[str, Entry] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict, repr=False)

    @staticmethod
    def load(path: str, wanted: Iterable[str] | None = None) -> Baseline:
        """Read a baseline, with all histories or those of the `wanted` cases.  No file makes an empty one."""
        if not os.path.exists(path):
            return Baseline()
        data = json.loads(Path(path).read_text())
        found = {}
        if os.path.exists(values := values_path(path)):
            with np.load(values, allow_pickle=False) as stored:
                parts: dict[str, list[str]] = {}
                for name in stored.files:
                    parts.setdefault(name.rpartition("/")[0], []).append(name)
                for case in parts if wanted is None else set(wanted).intersection(parts):
                    found[case] = History.from_arrays({n.rpartition("/")[2]: stored[n] for n in parts[case]})
        return Baseline({k: Entry.from_json(v) for k, v in data["cases"].items()}, data["made"], found)

    def changes(self, result: Result) -> tuple[str, ...]:
        """What is different of a case, one phrase each."""
        if result.instructions is None:  # a case that must raise, or did not get that far
            return ()
        old = self.cases.get(result.id)
        if old is None:
            return ("not in the baseline",)
        new = Entry.of(result)
        out = [
            _counted(old, new, name) for name in ("instructions", "leaves") if getattr(old, name) != getattr(new, name)
        ]
        if not math.isclose(new.model_us, old.model_us, rel_tol=SAME_US):
            out.append(_cost(old.model_us, new.model_us))
        if len(new.outputs) != len(old.outputs):
            return (*out, f"outputs {len(old.outputs)} -> {len(new.outputs)}")
        return (*out, *(t for k, d in enumerate(new.outputs) if (t := _values(k, old.outputs[k], d))))

    def updated(self, results: Sequence[Result], gone: Iterable[str]) -> Baseline:
        """With the good ones of `results` in place of what was stored, and without the cases that are `gone`."""
        good = [r for r in results if r.status == kinds.PASSED and r.instructions is not None]
        dropped = set(gone)
        keep: Callable[[dict], dict] = lambda d: {k: v for k, v in d.items() if k not in dropped}  # noqa: E731
        made = {"jax": jax.__version__, "devices": ", ".join(sorted({r.device for r in good}))} if good else self.made
        histories = keep({k: v for k, v in self.histories.items() if k not in {r.id for r in good}})
        histories.update((r.id, r.history) for r in good if r.history is not None)
        return Baseline({**keep(self.cases), **{r.id: Entry.of(r) for r in good}}, made, histories)

    def save(self, path: str) -> None:
        data = {"made": self.made, "cases": {k: self.cases[k].to_json() for k in sorted(self.cases)}}
        Path(path).write_text(json.dumps(data, indent=1) + "\n")
        arrays: dict[str, Any] = {}
        for case, history in sorted(self.histories.items()):
            arrays.update((f"{case}/{k}", v) for k, v in history.to_arrays().items())
        if arrays:
            np.savez_compressed(values_path(path), **arrays)
        elif os.path.exists(values_path(path)):
            os.remove(values_path(path))


def values_path(path: str) -> str:
    """Where the values of a baseline's instructions are."""
    return f"{os.path.splitext(path)[0]}.values.npz"


def _counted(old: Entry, new: Entry, name: str) -> str:
    before, after = getattr(old, name), getattr(new, name)
    return f"{name} {before:,} -> {after:,} ({after - before:+,})"


def _cost(before: float, after: float) -> str:
    ratio = after / before if before else math.inf
    return (
        f"model {before:,.1f} -> {after:,.1f} us ({abs(ratio - 1) * 100:.1f} % {'slower' if ratio > 1 else 'faster'})"
    )


def _values(k: int, old: Digest, new: Digest) -> str:
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"output {k}: {old.dtype}{list(old.shape)} -> {new.dtype}{list(new.shape)}"
    if old.not_finite != new.not_finite:
        return f"output {k}: {old.not_finite:,} -> {new.not_finite:,} elements not finite"
    by = new.change(old)
    if not by:
        return ""
    return f"output {k} by about {by:.1e} of its norm" + (" (rounding)" if by < ROUNDING else "")
