"""How many cycles the engines take to stream tiles, for every instruction that goes element by element.

N is the free size.  Everywhere an innermost stride above 16 bytes halves the rate of SBUF and PSUM: documented for
NeuronCore-v2, measured on trn2, assumed for later ones.

Source: nki/guides/architecture (Performance Consideration; Vector Engine Performance Mode), the formulas of nki.isa
@v2.26.1, and measurements on trn2 (see nkijax.machine).
"""

from __future__ import annotations

from typing import Any

from nkijax import dtypes
from nkijax.machine import Engine, Generation, Memory, Target, Work
from nkijax.view import View

NARROW = ("bfloat16", "float16")
CAST_RATE = 1.3  # measured on trn2: a copy of bf16 to fp32 within SBUF takes 0.77 cycles an element
_FULL_RATE_STRIDE_BYTES = 16
_PREDICATED_PASSES = 1.065  # measured on trn2


def narrow(target: Target, *views: View) -> bool:
    """Whether all tiles have a dtype of the Vector engine's fast modes: 2-byte floats, from gen4 on fp8 too."""
    fp8 = target.generation >= Generation.gen4
    return all(v.dtype in NARROW or (fp8 and dtypes.is_fp8(v.dtype)) for v in views)


def in_psum(*views: Any) -> int:
    """How many of the operands are tiles in PSUM."""
    return sum(isinstance(v, View) and v.memory is Memory.psum for v in views)


def _inner_stride(view: View) -> int:
    """Elements from one to the next along the innermost free dimension that has more than one."""
    dims = zip(reversed(view.strides[1:]), reversed(view.shape[1:]), strict=True)
    return next((stride for stride, n in dims if n != 1), 1)


def stride_penalty(*operands: Any) -> int:
    """2 if any tile's innermost stride is above 16 bytes, else 1."""
    tiles = (v for v in operands if isinstance(v, View) and v.memory.on_chip)
    return 2 if any(_inner_stride(v) * dtypes.size(v.dtype) > _FULL_RATE_STRIDE_BYTES for v in tiles) else 1


def one_input_cycles(target: Target, dst: View, data: View, cast_rate: float = 2) -> float:
    """Vector engine: N on gen2.  Later N/4 for narrow dtypes within SBUF, N/2 where an innermost dimension is strided
    or one of the two tiles is in PSUM; N/2 for other dtypes within SBUF, or what `cast_rate` says where they differ.
    """
    n, psum = dst.free, in_psum(dst, data)
    if target.generation is Generation.gen2:
        return n
    fast, dense = narrow(target, dst, data), all(_inner_stride(v) == 1 for v in (dst, data))
    if psum:
        return n / 2 if fast and dense and psum == 1 else n
    if fast:
        return n / 4 if dense else n / 2
    return n / (2 if dst.dtype == data.dtype else cast_rate)


def predicated_cycles(target: Target, dst: View, first: Any, predicate: View) -> float:
    """Vector engine, a tile and its predicate: gen2 2N, N with one of them in PSUM, assumed also with a number;
    1.065N on gen3, assumed for gen4.
    """
    if target.generation is not Generation.gen2:
        return _PREDICATED_PASSES * dst.free
    return dst.free if in_psum(first, predicate) or not isinstance(first, View) else 2 * dst.free


def work(target: Target, engine: Engine, cycles: float, *operands: Any, copy: bool = False) -> Work:
    """`cycles` of streaming `operands`, with the penalty of their strides and the engine's minimum.

    `copy`: the Scalar engine's latency is that of a plain copy.
    """
    issue = max(target.min_issue_cycles, cycles * stride_penalty(*operands))
    return Work(issue, target.latency_cycles(engine, copy=copy))
