"""Executes one instruction on NumPy arrays, with no stage of nkijax in between: what the tests of the shelf stand on.

`store` makes a tile with values and a memory that holds it; `execute(instruction, memory)` runs the instruction and
writes its results into the memory; `load` reads a view.  `rule` gives the rule that an instruction breaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nkijax import dtypes
from nkijax.errors import KernelError
from nkijax.machine import TRN2, Memory, Target
from nkijax.program import Instruction, Masked
from nkijax.view import Buffer, View

_indices = itertools.count()


def buffer(shape: tuple[int, ...], dtype: str = "float32", memory: Memory = Memory.sbuf, name: str = "") -> Buffer:
    """A new buffer."""
    return Buffer(next(_indices), tuple(shape), dtype, memory, name)


def tile(shape: tuple[int, ...], dtype: str = "float32", memory: Memory = Memory.sbuf, name: str = "") -> View:
    """The whole of a new buffer, as a view."""
    return View.whole(buffer(shape, dtype, memory, name))


def whole(b: Buffer) -> View:
    return View.whole(b)


def fresh(b: Buffer) -> np.ndarray:
    """What unwritten memory holds."""
    return np.full(b.shape, dtypes.poison(b.dtype))


def store(values: Any, dtype: str = "float32", memory: Memory = Memory.sbuf) -> tuple[View, dict[Buffer, np.ndarray]]:
    """A new tile that holds `values` (converted as NumPy does), and the memory with it alone."""
    array = np.array(values).astype(dtypes.storage(dtype))
    view = tile(array.shape, dtype, memory)
    return view, {view.buffer: array}


def random(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Modest values of a dtype: multiples of 1/4 in -16 to 16, integers within their range, both truth values."""
    values = np.random.default_rng(seed).integers(-64, 65, shape)
    storage = dtypes.storage(dtype)
    if dtypes.is_float(dtype):
        return (values / 4).astype(storage)
    return (values % 2).astype(bool) if dtype == "bool" else values.astype(storage)


def reference_cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """What storing float32 values as `dtype` gives: to nearest even, integers saturated, NaN as 0 there."""
    x = np.asarray(x, np.float32)
    storage = dtypes.storage(dtype)
    if dtype == "bool":
        return x != 0
    if dtypes.is_float(dtype):
        with np.errstate(over="ignore"):
            return x.astype(storage)
    info = np.iinfo(storage)
    return np.clip(np.rint(np.nan_to_num(x.astype(np.float64), nan=0.0)), info.min, info.max).astype(storage)


def _storage(view: View, memory: dict[Buffer, np.ndarray]) -> np.ndarray:
    """The flat storage of a view's buffer, bit-cast to the view's dtype; shares memory with the array."""
    array = memory[view.buffer]
    assert array.flags.c_contiguous and array.dtype == dtypes.storage(view.buffer.dtype), view
    return array.reshape(-1).view(dtypes.storage(view.dtype))


def _index(view: View, memory: dict[Buffer, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The run-time index of each row, (P,), and whether it is in range; zeros for a static view."""
    if view.dynamic is None:
        return np.zeros(view.shape[0], np.int64), np.ones(view.shape[0], bool)
    values = load(view.dynamic.index, memory).astype(np.int64).reshape(-1)
    rows = np.broadcast_to(values, (view.shape[0],)) if not view.dynamic.vector else values[: view.shape[0]]
    return rows, (rows >= 0) & (rows < view.dynamic.limit)


def _addresses(view: View, memory: dict[Buffer, np.ndarray]) -> np.ndarray:
    """The address of each element, (P, F); those of rows with an index out of range are taken at index 0."""
    address = np.full((), view.offset, np.int64)
    for stride, n in zip(view.strides, view.shape, strict=True):
        address = address[..., None] + stride * np.arange(n)
    address = address.reshape(view.shape[0], -1)
    rows, valid = _index(view, memory)
    return address + np.where(valid, rows, 0)[:, None] * (view.dynamic.stride if view.dynamic else 0)


def load(view: View, memory: dict[Buffer, np.ndarray]) -> np.ndarray:
    """The elements of a view, flat: (P, F); a register as a scalar."""
    values = _storage(view, memory)[_addresses(view, memory)]
    return values.reshape(()) if view.memory is Memory.register else values


class Reader:
    """`read` of `Instruction.run`, on tiles that were loaded before."""

    def __init__(self, tiles: dict[View, Any], valid: dict[View, np.ndarray]):
        self.tiles, self.rows = tiles, valid

    def __call__(self, operand: Any, dtype: Any = None) -> jax.Array:
        value = self.tiles[operand] if isinstance(operand, View) else operand
        if isinstance(value, int | float):  # an immediate: wrap to the dtype, as NumPy arrays do
            value = np.asarray(value)
            value = value.astype(dtype or (np.float32 if value.dtype.kind == "f" else np.int32))
        array = jnp.asarray(value)
        return array if dtype is None else array.astype(dtype)

    def valid(self, operand: View) -> jax.Array:
        """Which rows of a run-time indexed operand are inside its tensor: (P,) of bool."""
        return jnp.asarray(self.rows[operand])


def _loaded(instruction: Instruction, memory: dict[Buffer, np.ndarray]) -> tuple[dict[View, Any], dict[View, Any]]:
    views = {*instruction.reads(), *instruction.writes()}
    return {v: load(v, memory) for v in views}, {v: _index(v, memory)[1] for v in views}


def results(instruction: Instruction, memory: dict[Buffer, np.ndarray]) -> tuple[jax.Array | Masked, ...]:
    """What `run` returns: one result for each written view, not yet cast."""
    return instruction.run(Reader(*_loaded(instruction, memory)))


def traced_results(instruction: Instruction, memory: dict[Buffer, np.ndarray]) -> tuple[jax.Array | Masked, ...]:
    """As `results`, but under `jax.jit`, with every tile and every immediate a tracer: as in a lowered repeat."""
    tiles, valid = _loaded(instruction, memory)
    numbers: list[Any] = []
    instruction.rebind(lambda v: v, lambda n: numbers.append(n))
    masks: list[bool] = []

    @jax.jit
    def run(arrays: list[Any], immediates: list[Any]) -> list[Any]:
        source: Iterator[Any] = iter(immediates)
        bound = instruction.rebind(lambda v: v, lambda n: next(source))
        out = bound.run(Reader(dict(zip(tiles, arrays, strict=True)), valid))
        masks[:] = [isinstance(r, Masked) for r in out]
        return [(r.value, r.mask) if isinstance(r, Masked) else r for r in out]

    out = run(list(tiles.values()), [_immediate(n) for n in numbers])
    return tuple(Masked(*r) if m else r for r, m in zip(out, masks, strict=True))


def _immediate(number: float) -> np.ndarray:
    if isinstance(number, float):
        return np.asarray(number, np.float32)
    return np.asarray(number, np.int32 if number < 2**31 else np.uint32)


def execute(instruction: Instruction, memory: dict[Buffer, np.ndarray], traced: bool = False) -> None:
    """Run one instruction and write its results into `memory`, cast to the dtypes of the written views."""
    out = (traced_results if traced else results)(instruction, memory)
    views = instruction.writes()
    assert len(out) == len(views), (len(out), views)
    for view, result in zip(views, out, strict=True):
        value, mask = (result.value, result.mask) if isinstance(result, Masked) else (result, True)
        assert value.size == view.size, (value.shape, view.shape)
        flat = np.asarray(dtypes.cast(value, view.dtype)).reshape(view.shape[0], -1)
        keep = np.broadcast_to(np.asarray(mask), np.shape(value)).reshape(flat.shape)
        keep = keep & _index(view, memory)[1][:, None]
        _storage(view, memory)[_addresses(view, memory)[keep]] = flat[keep]


def rule(instruction: Instruction, target: Target = TRN2) -> str:
    """The message of the rule that `check` finds broken on `target`, or an empty string when it is legal."""
    try:
        instruction.check(target)
    except KernelError as error:
        return error.message
    return ""
