"""Files with cases, as users write them."""

from __future__ import annotations

from pathlib import Path

KERNEL = """
import numpy as np
import nkijax
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def affine(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(t, x)
    nisa.tensor_scalar(t, t, nl.multiply, 2.0)
    nisa.tensor_scalar(t, t, nl.add, 1.0)
    nisa.dma_copy(out, t)
    return out


def inputs(rng, rows=4):
    return rng.standard_normal((rows, 8), np.float32)

"""
GOOD = KERNEL + "case = nkijax.Case(affine, inputs, lambda x: 2 * x + 1, targets='trn2')\n"
BROKEN = GOOD.replace("nl.multiply, 2.0", "nl.multiply, 3.0")
LINE = KERNEL.splitlines().index("    nisa.tensor_scalar(t, t, nl.multiply, 2.0)") + 1  # of the broken instruction


def write(folder: Path, text: str, name: str = "regress_affine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path
