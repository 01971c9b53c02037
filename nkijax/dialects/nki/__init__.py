"""The current dialect, `nki` 0.6: what `import nki` gives after `nkijax.install()`."""

from __future__ import annotations

from typing import NoReturn

from nkijax.api import Kernel as Kernel
from nkijax.dialects.nki import collectives as collectives
from nkijax.dialects.nki import dtype as dtype
from nkijax.dialects.nki import isa as isa
from nkijax.dialects.nki import language as language
from nkijax.dialects.nki import typing as typing
from nkijax.dialects.nki.absent import attribute
from nkijax.dialects.nki.jit import jit as jit
from nkijax.dialects.nki.jit import simulate as simulate
from nkijax.dialects.nki.shims import compiler as compiler
from nkijax.dialects.nki.shims import experimental as experimental
from nkijax.dialects.nki.shims import meta as meta
from nkijax.dialects.nki.shims import simulator as simulator

# Removed from NKI itself, with what serves instead.
_REMOVED = {
    "benchmark": "nkijax.profile(kernel, …)",
    "profile": "nkijax.profile(kernel, …)",
    "baremetal": "nki.jit",
    "simulate_kernel": "nki.simulate(kernel)(…)",
}


def __getattr__(name: str) -> NoReturn:
    if name in _REMOVED:
        raise NotImplementedError(f"nki.{name}: was removed from NKI; use {_REMOVED[name]}")
    attribute("nki", name, globals())
