"""A failing case on disk: one .npz with its inputs, what it gave, what it should have given, and how to find the case.

Arrays whose dtype NumPy cannot store (bfloat16, fp8) are stored as bytes; `meta` has every array's dtype and shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nkijax.regress.discover import Found
from nkijax.regress.history import History

COMMAND = "nkijax regress --replay"
_GROUPS = ("inputs", "outputs", "reference")


@dataclass(frozen=True, eq=False)
class Failure:
    """One failing case.  `inputs` are the arrays among its arguments, in order; empty if it never got that far."""

    found: Found
    message: str
    inputs: tuple[np.ndarray, ...] = ()
    outputs: tuple[np.ndarray, ...] = ()
    reference: tuple[np.ndarray, ...] = ()
    good: History | None = None

    def save(self, folder: str) -> str:
        """Write it into a folder; the command that replays it."""
        base = Path(folder)
        base.mkdir(parents=True, exist_ok=True)
        path = base / f"{file_name(self.found.id)}.npz"
        stored: dict[str, np.ndarray] = {}
        meta: dict[str, Any] = {**vars(self.found), "message": self.message}
        for group in _GROUPS:
            given: Sequence[Any] = getattr(self, group)
            meta[group] = [_store(stored, f"{group}{k}", np.asarray(x)) for k, x in enumerate(given)]
        if self.good is not None:
            stored.update((f"good_{k}", v) for k, v in self.good.to_arrays().items())
        np.savez_compressed(path, meta=np.array(json.dumps(meta)), **stored)  # type: ignore[arg-type]
        return f"{COMMAND} {_quoted(str(path))}"

    @staticmethod
    def load(path: str) -> Failure:
        with np.load(path, allow_pickle=False) as data:
            if "meta" not in data:
                raise ValueError(f"{path} is not a failure that nkijax regress saved")
            meta = json.loads(str(data["meta"]))
            groups = {g: tuple(_restore(data[f"{g}{k}"], d) for k, d in enumerate(meta[g])) for g in _GROUPS}
            good = {k.removeprefix("good_"): data[k] for k in data.files if k.startswith("good_")}
        found = Found(**{k: meta[k] for k in Found.__dataclass_fields__})
        return Failure(found, meta["message"], **groups, good=History.from_arrays(good) if good else None)


def file_name(identity: str) -> str:
    """A case's id as the name of a file, one that no shell needs quoted."""
    return re.sub(r"[^\w.+-]+", "_", identity.replace(".py::", "::")).strip("_.")


def _store(stored: dict[str, np.ndarray], name: str, x: np.ndarray) -> dict[str, Any]:
    own = np.dtype(x.dtype.str) == x.dtype  # else NumPy would forget which dtype it was
    stored[name] = x if own else np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return {"dtype": str(x.dtype), "shape": list(x.shape)}


def _restore(x: np.ndarray, described: dict[str, Any]) -> np.ndarray:
    if str(x.dtype) == described["dtype"]:
        return x
    return x.view(np.dtype(described["dtype"])).reshape(described["shape"])


def _quoted(path: str) -> str:
    return path if re.fullmatch(r"[\w./-]+", path) else f"'{path}'"
