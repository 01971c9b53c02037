"""Digests of arrays: a hash that tells whether values changed, and a sketch that tells by about how much.

A sketch is the array times random signs, summed into a few buckets: the norm of the difference of two sketches is, on
average, the norm of the difference of the arrays (a count sketch; see Charikar, Chen and Farach-Colton, 2002).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nkijax.regress.compare import wide

BUCKETS = 32
SIGNIFICANT = 10  # decimal digits that a sketch is stored with


@dataclass(frozen=True)
class Digest:
    """One array in short: `hash` of its bytes, how many elements are not finite, and of the rest the 2-norm, the
    largest magnitude and the sketch."""

    dtype: str
    shape: tuple[int, ...]
    hash: str
    not_finite: int
    norm: float
    largest: float
    sketch: tuple[float, ...]

    @staticmethod
    def of(x: np.ndarray, buckets: int = BUCKETS) -> Digest:
        flat = wide(x).reshape(-1)
        finite = np.isfinite(flat)
        missing = int(flat.size - finite.sum())
        if missing:
            flat = np.where(finite, flat, 0.0)
        norm, largest = float(np.linalg.norm(flat)), float(np.abs(flat).max(initial=0.0))
        return Digest(str(x.dtype), x.shape, hash_of([x]), missing, norm, largest, sketch(flat, buckets))

    def change(self, old: Digest) -> float:
        """About how far this is from `old`, in units of the larger norm: 0 if equal, inf if not comparable."""
        if self.hash == old.hash and self.dtype == old.dtype:
            return 0.0
        if (self.dtype, self.shape, self.not_finite) != (old.dtype, old.shape, old.not_finite):
            return math.inf
        return distance(self.sketch, old.sketch) / (max(self.norm, old.norm) or 1.0)

    def to_json(self) -> dict:
        numbers = {k: float(f"{getattr(self, k):.{SIGNIFICANT}g}") for k in ("norm", "largest")}
        drawn = " ".join(f"{v:.{SIGNIFICANT}g}" for v in self.sketch)
        return {**vars(self), "shape": list(self.shape), **numbers, "sketch": drawn}

    @staticmethod
    def from_json(data: dict) -> Digest:
        drawn = tuple(float(v) for v in data["sketch"].split())
        return Digest(**{**data, "shape": tuple(data["shape"]), "sketch": drawn})


def hash_of(parts: Sequence[np.ndarray]) -> str:
    """16 hexadecimal digits of the bytes of some arrays."""
    state = hashlib.blake2b(digest_size=8)
    for x in parts:
        state.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def sketch(flat: np.ndarray, buckets: int) -> tuple[float, ...]:
    """The sketch of a flat float64 array without NaN and infinity."""
    short = -flat.size % buckets
    signs = np.unpackbits(np.frombuffer(_signs(flat.size), np.uint8), count=flat.size)
    signed = np.pad(np.where(signs, flat, -flat), (0, short))
    return tuple(float(v) for v in signed.reshape(-1, buckets).sum(axis=0))


def distance(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    return float(np.linalg.norm(np.subtract(a, b)))


_stream = b""


def _signs(count: int) -> bytes:
    """Bits of a fixed pseudo-random stream: the same on every machine and with every version of NumPy."""
    global _stream
    length = -(-count // 8)
    if len(_stream) < length:
        _stream = hashlib.shake_128(b"nkijax regress").digest(length)
    return _stream[:length]
