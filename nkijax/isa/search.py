"""The largest values, and where values are (Vector engine); the largest of many partitions (GpSimd engine)."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import operators, rates, rules
from nkijax.isa.gather import CORE_PARTITIONS as _CORE
from nkijax.isa.gather import check_cores
from nkijax.machine import Engine, Generation, Memory, Target, Work
from nkijax.program import In, InOut, Instruction, Masked, Number, Out, Read
from nkijax.view import View

_SLOTS = 8  # values that one instruction finds or looks for
_LONGEST = 16384  # elements a partition that one instruction searches
_PASS_LATENCY_CYCLES = 144  # what nki-library plans with for each pass of N elements on trn2: N + 144
_INDICES = ("uint16", "uint32")

_SNAKE_LEAST, _SNAKE_END, _RESULTS_END = 8, 65536, 32768


# ---- what the vector engine's searches share


def _check_searched(inst: Instruction, operand: str, least: int) -> None:
    """The tile that is searched has a legal number of elements a partition."""
    view: View = getattr(inst, operand)
    if not least <= view.free <= _LONGEST:
        raise rules.fail(inst, operand, f"must have {least} to {_LONGEST} elements a partition", view.shape)


def _check_slots(inst: Instruction, *operands: str) -> None:
    """Tiles of eight elements a partition."""
    for name in operands:
        view = getattr(inst, name)
        if isinstance(view, View) and view.free != _SLOTS:
            raise rules.fail(inst, name, f"must have {_SLOTS} elements a partition", view.shape)


def _check_indices(inst: Instruction, operand: str) -> None:
    view = getattr(inst, operand)
    if isinstance(view, View) and view.dtype not in _INDICES:
        raise rules.fail(inst, operand, f"must have one of the dtypes {_INDICES}", view.dtype)


@partial(jax.jit, static_argnames="last_slot_first")  # else every eager run compiles its loop anew
def _matches(data: jax.Array, vals: jax.Array, last_slot_first: bool) -> jax.Array:
    """Where each of `vals` (P, 8) is in `data` (P, F): int32 (P, 8), F for those that are not there.

    One slot after the other; a slot takes the first position behind those that slots of an equal value took.
    """
    data, vals = lax.stop_gradient(data), lax.stop_gradient(vals)
    size = data.shape[1]
    position = lax.broadcasted_iota(jnp.int32, data.shape, 1)

    def step(turn: jax.Array, taken: jax.Array) -> jax.Array:
        slot = _SLOTS - 1 - turn if last_slot_first else turn
        value = lax.dynamic_slice_in_dim(vals, slot, 1, axis=1)
        last = jnp.max(jnp.where(vals == value, taken, -1), axis=1, keepdims=True)
        here = (data == value) & (position > last)
        found = jnp.min(jnp.where(here, position, size), axis=1, keepdims=True)
        return lax.dynamic_update_slice_in_dim(taken, found, slot, axis=1)

    return lax.fori_loop(0, _SLOTS, step, jnp.full(vals.shape, -1, jnp.int32))


def _as_indices(found: jax.Array, size: int, dtype: str) -> jax.Array:
    """Positions as an unsigned dtype, all ones for those that are missing."""
    storage = dtypes.storage(dtype)
    return jnp.where(found < size, found.astype(storage), np.array(np.iinfo(storage).max, storage))


def _pass(target: Target, searched: View, *written: View) -> Work:
    """One pass over the elements of a partition."""
    work = rates.work(target, Engine.vector, searched.free, searched, *written)
    return work if target.generation is Generation.gen2 else replace(work, latency_cycles=_PASS_LATENCY_CYCLES)


@dataclass(frozen=True)
class Max8(Instruction):
    """dst[p] = cast(the 8 largest of src[p], descending), duplicates kept

    Memory: dst, src in SBUF or PSUM.
    Data types: any; compared in float32.
    Layout: src (P, F), dst (P, 8); P at most 128, F 8 to 16384.
    Engine: Vector.
    Cost: max(64, F), 2F with a stride above 16 bytes; from gen3 on the result 144 cycles later (nki-library plans with
        F + 144 a pass); gen4 assumed.
    Not emulated: what hardware makes of NaN, which here counts as the largest.
    Source: nki.isa.max8
    """

    dst: Out
    src: In

    api: ClassVar[str] = "nki.isa.max8"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "src")
        rules.partitions(self, target, "dst", "src")
        operators.not_packed(self, "dst", "src")
        _check_searched(self, "src", _SLOTS)
        _check_slots(self, "dst")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return (lax.top_k(read(self.src, jnp.float32), _SLOTS)[0],)

    def cycles(self, target: Target) -> Work:
        return _pass(target, self.src)


@dataclass(frozen=True)
class NcFindIndex8(Instruction):
    """dst[p, k] = the position of vals[p, k] in data[p]; all ones where it is not there

    The n-th of equal values, from the left, gets the n-th occurrence: ascending positions.
    Memory: all in SBUF or PSUM.
    Data types: data, vals any, compared in float32; dst uint16 or uint32.
    Layout: data (P, F), vals, dst (P, 8); P at most 128, F 8 to 16384.
    Engine: Vector.
    Cost: max(64, F), 2F with a stride above 16 bytes; from gen3 on the result 144 cycles later (nki-library plans with
        F + 144 a pass); gen4 assumed.
    Not emulated: what hardware makes of NaN, which here is never found.
    Source: nki.isa.nc_find_index8
    """

    dst: Out
    data: In
    vals: In

    api: ClassVar[str] = "nki.isa.nc_find_index8"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data", "vals")
        rules.partitions(self, target, "dst", "data", "vals")
        operators.not_packed(self, "data", "vals")
        _check_searched(self, "data", _SLOTS)
        _check_slots(self, "vals", "dst")
        _check_indices(self, "dst")

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        data = read(self.data, jnp.float32)
        found = _matches(data, read(self.vals, jnp.float32), last_slot_first=False)
        return (_as_indices(found, data.shape[1], self.dst.dtype),)

    def cycles(self, target: Target) -> Work:
        return _pass(target, self.data)


@dataclass(frozen=True)
class NcMatchReplace8(Instruction):
    """dst[p, i] = cast(imm if i = dst_idx[p, k] for some k else data[p, i]); dst_idx[p, k] = the position of vals[p, k]

    Slots are served from the last to the first: of equal values the last one gets the first occurrence, so that
    positions descend, the opposite of nki.isa.nc_find_index8.  A replaced element is not found again, also if imm
    equals a value.  A value that is not there replaces nothing, and its slot of dst_idx is all ones.
    Memory: all in SBUF or PSUM; dst may be data.
    Data types: dst, data, vals any; float32 arithmetic; imm a float32 number; dst_idx uint16 or uint32.
    Layout: dst, data (P, F), vals, dst_idx (P, 8); P at most 128, F at most 16384.
    Engine: Vector.
    Cost: max(64, F), 2F with a stride above 16 bytes; from gen3 on the result 144 cycles later (nki-library plans with
        F + 144 a pass); gen4 assumed.
    Not emulated: what hardware makes of NaN, which here is never found.
    Source: nki.isa.nc_match_replace8
    """

    dst: Out
    data: In
    vals: In
    imm: Number
    dst_idx: Out | None = None

    api: ClassVar[str] = "nki.isa.nc_match_replace8"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data", "vals", "dst_idx")
        rules.partitions(self, target, "dst", "data", "vals", "dst_idx")
        rules.same_free(self, "dst", "data")
        operators.not_packed(self, "dst", "data", "vals")
        _check_searched(self, "data", 1)
        _check_slots(self, "vals", "dst_idx")
        _check_indices(self, "dst_idx")
        if not isinstance(self.imm, numbers.Real):
            raise rules.fail(self, "imm", "must be a number", self.imm)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        data = read(self.data, jnp.float32)
        found = _matches(data, read(self.vals, jnp.float32), last_slot_first=True)
        position = lax.broadcasted_iota(jnp.int32, (*data.shape, _SLOTS), 1)
        replaced = jnp.any(position == found[:, None, :], axis=2)
        out = jnp.where(replaced, read(self.imm, jnp.float32), data)
        if self.dst_idx is None:
            return (out,)
        return out, _as_indices(found, data.shape[1], self.dst_idx.dtype)

    def cycles(self, target: Target) -> Work:
        return _pass(target, self.data, self.dst)


# ---- topk


@dataclass(frozen=True)
class Topk(Instruction):
    """val_dst = the K largest of each group's n elements, ascending; idx_dst = which elements these are

    A group is 16 partitions; its element s is at partition s % 16, column s // 16 (a snake), and so is its result j
    for j < K.  The other elements of val_dst and idx_dst keep their bits.
    Memory: all in SBUF.
    Data types: src, val_dst bfloat16, idx_dst uint32.
    Layout: src (P, X), val_dst, idx_dst (P, K); P a multiple of 16, at most 128; n a static int, 8 to 65535, at most
        16 X; K 1 to 32767, at most n.
    Engine: GpSimd.
    Cost: 4n + K cycles, all groups at once.
    Not emulated: the hardware's order of results, which kernels should not rely on; of equal elements the one with the
        lower index is the later result here.  NaN counts as the largest.
    Source: nki.isa.topk
    """

    val_dst: InOut
    idx_dst: InOut
    src: In
    n: int

    api: ClassVar[str] = "nki.isa.topk"

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        tiles = ("val_dst", "idx_dst", "src")
        rules.in_memory(self, *tiles, memories=(Memory.sbuf,))
        rules.partitions(self, target, *tiles)
        for name, dtype in zip(tiles, ("bfloat16", "uint32", "bfloat16"), strict=True):
            if getattr(self, name).dtype != dtype:
                raise rules.fail(self, name, f"must have dtype {dtype}", getattr(self, name).dtype)
        check_cores(self, *tiles)
        rules.same_free(self, "val_dst", "idx_dst")
        if not isinstance(self.n, numbers.Integral) or not _SNAKE_LEAST <= self.n < _SNAKE_END:
            raise rules.fail(self, "n", f"must be an int, at least {_SNAKE_LEAST} and below {_SNAKE_END}", self.n)
        if self.n > _CORE * self.src.free:
            raise rules.fail(self, "src", f"must have {-(-self.n // _CORE)} columns for n {self.n}", self.src.shape)
        if self.val_dst.free > min(self.n, _RESULTS_END - 1):
            rule = f"must have at most {min(self.n, _RESULTS_END - 1)} columns"
            raise rules.fail(self, "val_dst", rule, self.val_dst.shape)

    def _results(self, x: jax.Array) -> jax.Array:
        """(groups, K) results to (P, K): result j of a group at partition j % 16, column j // 16."""
        groups, k = x.shape
        columns = -(-k // _CORE)
        x = jnp.pad(x, ((0, 0), (0, _CORE * columns - k)))
        x = x.reshape(groups, columns, _CORE).transpose(0, 2, 1).reshape(groups * _CORE, columns)
        return jnp.pad(x, ((0, 0), (0, k - columns)))

    def run(self, read: Read) -> tuple[Masked, ...]:
        x, k = read(self.src, jnp.float32), self.val_dst.free
        snake = x.reshape(-1, _CORE, x.shape[1]).transpose(0, 2, 1).reshape(x.shape[0] // _CORE, -1)
        values, indices = lax.top_k(snake[:, : self.n], k)
        written = np.arange(k) * _CORE + np.arange(x.shape[0])[:, None] % _CORE < k
        mask = jnp.asarray(written)
        found = self._results(indices[:, ::-1]).astype(dtypes.storage("uint32"))
        return Masked(self._results(values[:, ::-1]), mask), Masked(found, mask)

    def cycles(self, target: Target) -> Work:
        return Work(4 * self.n + self.val_dst.free, target.latency_cycles(Engine.gpsimd))
