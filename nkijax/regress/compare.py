"""Whether values are near enough to what they should be, and how far off they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nkijax import arrays

RTOL = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}
RTOL_FP8 = 0.1


@dataclass(frozen=True)
class Verdict:
    """How far values are off: `text` says where they are too far, "" if nowhere.

    `error` is the largest difference and `relative` the same in units of the largest wanted magnitude; `first` is
    (output, flat position) of the first element that is too far off.
    """

    text: str = ""
    error: float = 0.0
    relative: float = 0.0
    first: tuple[int, int] | None = None


def to_numpy(x: Any) -> np.ndarray:
    """An array of any kind, or a number, in NumPy."""
    return np.asarray(arrays.to_jax(x) if arrays.is_array(x) else x)


def numpy_tree(x: Any) -> Any:
    """A structure of results with its arrays in NumPy."""
    if isinstance(x, Mapping):
        return {k: numpy_tree(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return tuple(numpy_tree(v) for v in x)
    return to_numpy(x) if arrays.is_array(x) else x


def leaves(x: Any) -> list[np.ndarray]:
    """The arrays and numbers of a structure of results in order; whatever else is there is left out."""
    if isinstance(x, Mapping):
        return [leaf for v in x.values() for leaf in leaves(v)]
    if isinstance(x, tuple | list):
        return [leaf for v in x for leaf in leaves(v)]
    return [to_numpy(x)] if arrays.is_array(x) or isinstance(x, int | float | np.generic) else []


def rtol_of(dtype: np.dtype) -> float:
    """The default tolerance of an output."""
    if dtype.kind in "biu":
        return 0.0
    return RTOL.get(str(dtype), RTOL_FP8)


def compare(got: Any, want: Any, rtol: float | None, atol: float | None) -> Verdict:
    """Compare two structures of results, array by array; see `Case` for the tolerances."""
    if isinstance(got, Mapping) and isinstance(want, Mapping) and set(got) == set(want):
        want = {k: want[k] for k in got}
    ours, theirs = leaves(got), leaves(want)
    if len(ours) != len(theirs):
        return Verdict(f"the kernel gave {len(ours)} outputs, the reference {len(theirs)}")
    verdicts = [_compare(k, a, b, rtol, atol) for k, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    wrong = [v for v in verdicts if v.text]
    error, relative = (max((getattr(v, n) for v in verdicts), default=0.0) for n in ("error", "relative"))
    return Verdict("; ".join(v.text for v in wrong), error, relative, wrong[0].first if wrong else None)


def _compare(k: int, got: np.ndarray, want: np.ndarray, rtol: float | None, atol: float | None) -> Verdict:
    if got.shape != want.shape and got.size == want.size and got.squeeze().shape == want.squeeze().shape:
        want = want.reshape(got.shape)
    if got.shape != want.shape:
        return Verdict(f"output {k}: must have the reference's shape {want.shape}, got {got.shape}")
    rtol = rtol_of(got.dtype) if rtol is None else rtol
    a, b = wide(got), wide(want)
    finite = b[np.isfinite(b)]
    if atol is None:
        atol = rtol * float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(a - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
        bad = ~same & ~(off <= atol + rtol * np.abs(np.where(np.isfinite(b), b, 0.0)))
    error = float(off.max(initial=0.0))
    relative = error / (float(np.abs(finite).max(initial=0.0)) or 1.0)
    if not bad.any():
        return Verdict("", error, relative)
    first, worst = int(np.argmax(bad)), int(np.argmax(np.where(bad, off, -1.0)))
    text = (
        f"output {k}: {int(bad.sum()):,} of {bad.size:,} elements beyond rtol {rtol:g}, atol {atol:.3g}; "
        + f"first {_element(first, a, b)}; worst {_element(worst, a, b)}"
    )
    return Verdict(text, error, relative, (k, first))


def _element(flat: int, got: np.ndarray, want: np.ndarray) -> str:
    index = [int(i) for i in np.unravel_index(flat, got.shape)]
    return f"{index}: got {got.reshape(-1)[flat]:.6g}, want {want.reshape(-1)[flat]:.6g}"


def wide(x: np.ndarray) -> np.ndarray:
    """Values in float64, which holds every number of every NKI dtype."""
    return x.astype(np.float64)
