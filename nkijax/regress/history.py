"""What each instruction of a good run wrote, in short; and the first one of a later run that writes otherwise.

An instruction of the later run is matched with the first one of the good run, not matched yet, that has the same API
and destinations and wrote the same values.  So instructions may be added, left out and reordered: the first that finds
no match is the first whose value the good run had nowhere.  Values are the same if they differ by rounding at most
(`ROUNDING`); where none differs by more, the first whose bits differ is told instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from nkijax.program import Instruction
from nkijax.regress.compare import wide
from nkijax.regress.digest import distance, hash_of, sketch
from nkijax.regress.watch import Step

BUCKETS = 8
ROUNDING = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 8e-3}  # of a result's norm
ROUNDING_FP8 = 0.1


@dataclass(frozen=True, eq=False)
class Entry:
    """What one instruction wrote: `key` is its API and destinations, `numbers` the norm and then the sketch."""

    key: str
    site: str
    hash: int
    not_finite: int
    numbers: np.ndarray

    @staticmethod
    def of(step: Step) -> Entry:
        flat = np.concatenate([wide(x).reshape(-1) for x in step.wrote] or [np.zeros(0)])
        finite = np.isfinite(flat)
        missing = int(flat.size - finite.sum())
        flat = np.where(finite, flat, 0.0)
        numbers = np.array([np.linalg.norm(flat), *sketch(flat, BUCKETS)], np.float64)
        return Entry(_key(step), site_of(step.instruction), int(hash_of(step.wrote), 16), missing, numbers)

    def off(self, other: Entry) -> float:
        """About how far the values of two entries of one key are apart, of the larger norm."""
        if self.hash == other.hash:
            return 0.0
        if self.not_finite != other.not_finite:
            return np.inf
        return distance(self.numbers[1:], other.numbers[1:]) / (max(self.numbers[0], other.numbers[0]) or 1.0)


@dataclass(frozen=True, eq=False)
class History:
    """A good run, instruction by instruction."""

    entries: tuple[Entry, ...]

    @staticmethod
    def of(steps: Iterable[Step]) -> History:
        return History(tuple(Entry.of(step) for step in steps))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """As arrays, for an .npz."""
        keys, key = np.unique([e.key for e in self.entries], return_inverse=True)
        sites, site = np.unique([e.site for e in self.entries], return_inverse=True)
        return {
            "keys": keys,
            "key": key.astype(np.int32),
            "sites": sites,
            "site": site.astype(np.int32),
            "hash": np.array([e.hash for e in self.entries], np.uint64),
            "not_finite": np.array([e.not_finite for e in self.entries], np.int64),
            "numbers": np.array([e.numbers for e in self.entries], np.float32).reshape(-1, BUCKETS + 1),
        }

    @staticmethod
    def from_arrays(data: Mapping[str, np.ndarray]) -> History:
        columns = (
            data["keys"][data["key"]].tolist(),
            data["sites"][data["site"]].tolist(),
            data["hash"].tolist(),
            data["not_finite"].tolist(),
            data["numbers"].astype(np.float64),
        )
        return History(tuple(Entry(*row) for row in zip(*columns, strict=True)))


@dataclass(frozen=True, eq=False)
class Difference:
    """The first instruction whose value the good run had nowhere.

    `instead` is the good run's next one of the same API and destinations, if there is one; `off` is how far from its.
    """

    step: Step
    off: float
    instead: Entry | None


@dataclass(eq=False)
class Search:
    """Goes along a run, and keeps the first `rounding` difference and the first larger one."""

    good: History
    rounded: Difference | None = None
    first: Difference | None = None
    _left: dict[str, list[Entry]] = field(default_factory=dict)

    def __post_init__(self):
        for entry in self.good.entries:
            self._left.setdefault(entry.key, []).append(entry)

    def see(self, step: Step) -> Difference | None:
        """Take in the next step; the difference if this is the first that is more than rounding."""
        entry = Entry.of(step)
        left = self._left.get(entry.key, [])
        match = next((old for old in left if old.hash == entry.hash), None)
        match = match or next((old for old in left if entry.off(old) <= _rounding(step)), None)
        if match is not None:
            left.remove(match)
            if self.rounded is None and match.hash != entry.hash:
                self.rounded = Difference(step, entry.off(match), match)
            return None
        instead = left[0] if left else None
        self.first = Difference(step, np.inf if instead is None else entry.off(instead), instead)
        return self.first


def site_of(instruction: Instruction) -> str:
    """`file:line` of an instruction, the file relative to the current directory where it is below that."""
    file, _, line = instruction.site.rpartition(":")
    return f"{os.path.relpath(file)}:{line}" if file.startswith(os.getcwd() + os.sep) else instruction.site


def _key(step: Step) -> str:
    return f"{step.instruction.api} -> " + ", ".join(f"{x.dtype}{list(x.shape)}" for x in step.wrote)


def _rounding(step: Step) -> float:
    """The tolerance of a step: of its least precise destination; integers have none."""
    kinds = {x.dtype for x in step.wrote}
    return max((0.0 if k.kind in "biu" else ROUNDING.get(str(k), ROUNDING_FP8) for k in kinds), default=0.0)
