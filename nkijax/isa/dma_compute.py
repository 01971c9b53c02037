"""dma_compute: sums on the way, by the compute logic of the DMA engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nkijax import dtypes
from nkijax.isa import rules
from nkijax.isa.move import OobMode, dma_operand, is_member, run_bytes
from nkijax.isa.operators import ALU, AluOp
from nkijax.machine import Engine, Generation, Memory, Target, Transfer
from nkijax.program import In, Instruction, Masked, Out, Read
from nkijax.view import View

_SOURCES = 16
_PAIR = 2  # the sources of a read-modify-write
_NEAR_MEMORY = ("bfloat16", "float32")  # what SBUF of NeuronCore-v4 adds by itself


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) else value


@dataclass(frozen=True)
class DmaCompute(Instruction):
    """dst = cast(srcs[0] + srcs[1] + ...), element by element in row-major order of each view's full shape.

    With a vector_offset it is a read-modify-write of two sources.  Gather: an indirect source in HBM is added to `dst`
    in SBUF, which is the other source.  Scatter: a source in SBUF is added to an indirect `dst` in HBM, which is the
    other source.  Rows with an index outside the tensor raise, or with `oob_mode.skip` leave the bits of `dst`.

    Memory: all in HBM or SBUF; run-time indices in SBUF.
    Data types: any but x4; each source becomes float32, the sum is float32.
    Layout: shapes may differ, the element counts not.  At most 16 sources.  Tile size: P <= 128 on chip, F free.
    Engine: DMA.
    Cost: a `Transfer` of the bytes of all sources together, or of `dst` if those are more: two sources at half the rate
    of a copy (documented); NeuronCore-v4 adds to bf16 or fp32 of one dtype in SBUF at the full rate (documented).
    More than two sources are assumed to take the time of their bytes.
    Not emulated: rows of `dst` that are named twice, which `unique_indices` excludes, get one of their sums.
    Source: nki.isa.dma_compute
    """

    api = "nki.isa.dma_compute"

    dst: Out
    srcs: tuple[In, ...]
    reduce_op: AluOp
    scales: tuple[float, ...] | None = None
    unique_indices: bool = True
    oob_mode: OobMode = OobMode.error

    def __post_init__(self) -> None:
        object.__setattr__(self, "srcs", _as_tuple(self.srcs))
        object.__setattr__(self, "scales", _as_tuple(self.scales))

    @property
    def queue(self) -> Engine:
        return Engine.dma

    def _indirect(self) -> list[View]:
        """The sources with a run-time address."""
        return [src for src in self.srcs if src.dynamic is not None]

    def check(self, target: Target) -> None:
        self._check_sources(target)
        is_member(self, "oob_mode", OobMode, "nki.isa.oob_mode")
        if self.reduce_op != ALU["add"]:
            raise rules.fail(self, "reduce_op", "must be nl.add", getattr(self.reduce_op, "name", self.reduce_op))
        scales = self.scales
        if scales is not None and (not isinstance(scales, tuple) or scales != (1.0,) * len(self.srcs)):
            raise rules.fail(self, "scales", f"must be None or {len(self.srcs)} times 1.0", scales)
        if self.dst.dynamic is not None or self._indirect():
            self._check_indirect()
        elif self.oob_mode is OobMode.skip:
            raise rules.fail(self, "oob_mode", "skip needs a vector_offset", "static views")

    def _check_sources(self, target: Target) -> None:
        srcs = self.srcs
        if not isinstance(srcs, tuple) or not all(isinstance(src, View) for src in srcs):
            raise rules.fail(self, "srcs", "must be a sequence of tensors", srcs)
        if not 1 <= len(srcs) <= _SOURCES:
            raise rules.fail(self, "srcs", f"must be 1 to {_SOURCES} tensors", len(srcs))
        for name, view in (("dst", self.dst), *((f"srcs[{i}]", src) for i, src in enumerate(srcs))):
            dma_operand(self, target, name, view)
            if dtypes.KINDS[view.dtype].family == "packed":
                raise rules.fail(self, name, "packed x4 types take no arithmetic", view.dtype)
            if view.size != self.dst.size:
                raise rules.fail(self, name, f"must have the {self.dst.size} elements of dst", view.shape)

    def _check_indirect(self) -> None:
        dst, indirect = self.dst, self._indirect()
        for name, view in (("dst", dst), *(("srcs", src) for src in indirect)):
            if view.dynamic and not view.dynamic.vector:
                rule = "must have an address known at compile time, or a vector_offset"
                raise rules.fail(self, name, rule, "a scalar run-time offset")
            if view.dynamic and view.dynamic.index.free != 1:
                raise rules.fail(self, name, "its vector_offset must be an (n, 1) tile", view.dynamic.index.shape)
        if self.unique_indices is not True:
            raise rules.fail(self, "unique_indices", "must be True with a vector_offset", self.unique_indices)
        if len(self.srcs) != _PAIR or len(indirect) != 1:
            rule = "a vector_offset takes exactly two sources, one of them indirect"
            raise rules.fail(self, "srcs", rule, f"{len(self.srcs)} sources, {len(indirect)} of them indirect")
        other = next(src for src in self.srcs if src.dynamic is None)
        twin, what = (other, "other source") if dst.dynamic is None else (indirect[0], "indirect source")
        if twin != dst:
            raise rules.fail(self, "srcs", f"the {what} must be dst itself", repr(twin))
        if other.memory is not Memory.sbuf:
            rule = "what a vector_offset leaves, the source of a scatter or dst of a gather, must be in sbuf"
            raise rules.fail(self, "srcs", rule, other.memory.value)

    def skips(self) -> bool:
        return self.oob_mode is OobMode.skip

    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        total = read(self.srcs[0], np.float32).reshape(-1)
        for src in self.srcs[1:]:
            total = total + read(src, np.float32).reshape(-1)
        if self.oob_mode is OobMode.error or self.dst.dynamic is not None:
            return (total,)
        rows = read.valid(self._indirect()[0]).reshape(-1, 1)
        return (Masked(total, jnp.broadcast_to(rows, (rows.shape[0], total.size // rows.shape[0])).reshape(-1)),)

    def cycles(self, target: Target) -> Transfer:
        near = target.generation >= Generation.gen4 and self.dst.memory is Memory.sbuf
        near = near and self.dst.dtype in _NEAR_MEMORY and all(src.dtype == self.dst.dtype for src in self.srcs)
        moved = [src for src in self.srcs if not (near and src == self.dst)]
        rows = [run_bytes(v) for v in (self.dst, *self.srcs) if v.memory.is_hbm]
        return Transfer(max(sum(map(_bytes, moved)), _bytes(self.dst)), min(rows, default=0))


def _bytes(view: View) -> int:
    return view.size * dtypes.size(view.dtype)
