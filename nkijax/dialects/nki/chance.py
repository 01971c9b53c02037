"""Chance in `nki.language`: uniform numbers, the seed of the Vector engine's generator, dropout."""

from __future__ import annotations

import math
from typing import Any

from nkijax.dialects.nki import isa_random
from nkijax.dialects.nki.math import emit_for, new, tile
from nkijax.dialects.nki.tensor import NkiTensor, allocate, copy_instruction, sbuf
from nkijax.errors import KernelError
from nkijax.isa.elementwise import TensorScalar
from nkijax.isa.operators import ALU
from nkijax.machine import Generation
from nkijax.trace import current, dtype_of

_WORD_BITS, _FRACTION_BITS = 32, 24  # a float32 holds 24


def rand(shape, dtype, buffer=sbuf, name="") -> NkiTensor:
    """A new tensor of uniform random numbers in [0, 1): those of rand2 on NeuronCore-v4, of rng before it."""
    api = "nki.language.rand"
    out = allocate(api, shape, dtype, buffer, name)
    view = out._view
    made = out
    if view.memory.is_hbm:
        rows = view.shape[0] if view.ndim > 1 else 1
        made = allocate(api, (rows, view.size // rows), dtype, sbuf)
    _fill(api, made)
    if made is not out:
        emit_for(api, copy_instruction(view, made._view))
    return out


def _fill(api: str, made: NkiTensor) -> None:
    if current(api).target.generation >= Generation.gen4:
        isa_random.rand2(made, 0.0, 1.0)
        return
    bits = allocate(api, made.shape, "uint32", sbuf)
    isa_random.rng(bits)
    shift = ALU["right_shift"]
    emit_for(api, TensorScalar(bits._view, bits._view, shift, _WORD_BITS - _FRACTION_BITS))
    emit_for(api, TensorScalar(made._view, bits._view, ALU["multiply"], math.ldexp(1.0, -_FRACTION_BITS)))


def random_seed(seed) -> None:
    """Start random numbers again: equal seeds, (1, 1) tiles of 32 bits, are followed by equal numbers."""
    api = "nki.language.random_seed"
    view = tile(f"{api} seed", seed)
    if view.shape != (1, 1):
        raise KernelError(f"{api} seed: must be a (1, 1) tile of 32 bits, got {view.shape}")
    isa_random.set_rng_seed(seed)


def dropout(x, rate, dtype=None) -> NkiTensor:
    """A new SBUF tile: x with each element zeroed with probability `rate`, a number or (P, 1); not scaled."""
    api = "nki.language.dropout"
    src: Any = tile(f"{api} x", x)
    kind = src.dtype if dtype is None else dtype_of(dtype, api)
    if kind != src.dtype:
        cast = new(api, src.shape, kind, src)
        emit_for(api, copy_instruction(cast._view, src))
        x = cast
    out = new(api, src.shape, kind, src)
    isa_random.dropout(out, x, rate)
    return out
