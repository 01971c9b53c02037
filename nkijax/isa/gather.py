"""Moving elements to computed or permuted places: across the partitions of a quadrant (Vector engine), by indices
(GpSimd engine)."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import rates, rules
from nkijax.machine import Engine, Memory, Target, Work
from nkijax.program import In, Instruction, Out, Read
from nkijax.view import View

CORE_PARTITIONS = 16  # of one of the eight GpSimd cores

_QUADRANT = 32
_KEEP = 255  # in a shuffle mask: this partition of dst stays as it is

_RUNS = (1, 2, 4, 8, 16, 32)  # elements that one index of local_gather may stand for
_MOST_INDICES = 4096  # of one core
_START_CYCLES = 150  # documented for gen2, assumed for later generations
_GROUP = 512  # elements a partition that one pass of nc_n_gather takes
_GROUP_CYCLES = 600  # what nki-library plans with for a pass


def first_partition(view: View) -> int:
    """Which partition of its buffer a tile starts at."""
    return view.offset // view.partition_stride


def check_cores(inst: Instruction, *operands: str) -> None:
    """Tiles of whole GpSimd cores: 16 partitions each, from the first partition of a core on."""
    for name in operands:
        view: View = getattr(inst, name)
        if view.partitions % CORE_PARTITIONS:
            raise rules.fail(inst, name, f"must have a multiple of {CORE_PARTITIONS} partitions", view.shape)
        check_core_start(inst, name)


def check_core_start(inst: Instruction, operand: str) -> None:
    """A tile that starts at the first partition of a GpSimd core."""
    start = first_partition(getattr(inst, operand))
    if start % CORE_PARTITIONS:
        raise rules.fail(inst, operand, f"must start at a multiple of {CORE_PARTITIONS} partitions", start)


# ---- moving bits

Move = Callable[..., jax.Array]
"""`move(at, *tiles)`: elements of the tiles, chosen by `at`, an array of indices or None."""


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moved_as_bits(move: Move, at: jax.Array | None, *tiles: jax.Array) -> jax.Array:
    """`move` on the raw bits of floats.  It is linear in the tiles: its derivative is itself."""
    kind = tiles[0].dtype
    unsigned = np.uint8 if kind.itemsize == 1 else np.uint16
    return lax.bitcast_convert_type(move(at, *(lax.bitcast_convert_type(t, unsigned) for t in tiles)), kind)


@_moved_as_bits.defjvp
def _moved_as_bits_jvp(move, primals, tangents):
    return _moved_as_bits(move, *primals), move(primals[0], *tangents[1:])


def _moved(move: Move, at: jax.Array | None, *tiles: jax.Array) -> jax.Array:
    """`move`, bit for bit: XLA on a CPU changes the bits of NaNs when it selects floats narrower than float32."""
    kind = tiles[0].dtype
    narrow = jnp.issubdtype(kind, jnp.floating) and kind.itemsize < np.dtype(np.float32).itemsize
    return _moved_as_bits(move, at, *tiles) if narrow else move(at, *tiles)


# ---- within a quadrant


@dataclass(frozen=True)
class NcStreamShuffle(Instruction):
    """dst[32q + i] = src[32q + shuffle_mask[i]] for each quadrant q, bit for bit

    Partitions whose mask is 255, or whose source is not one of src's, keep their bits.
    Memory: dst, src in SBUF or PSUM; dst may be src.
    Data types: any, equal.
    Layout: dst, src (P, F), whose P may differ, each at most 128; shuffle_mask 32 ints of 0 to 31, or 255.  32 active
        partitions start at 0, 32, 64 or 96, 64 at 0 or 64, more at 0; active is the larger P, in whole quadrants.
    Engine: Vector.
    Cost: max(64, F), 2F with a stride above 16 bytes; gen4 assumed.
    Not emulated: nothing.
    Source: nki.isa.nc_stream_shuffle
    """

    dst: Out
    src: In
    shuffle_mask: Sequence[int]
    before: In | None = field(default=None, init=False)  # dst, where some of its partitions stay as they are

    api: ClassVar[str] = "nki.isa.nc_stream_shuffle"

    def __post_init__(self):
        given = self.shuffle_mask if isinstance(self.shuffle_mask, Iterable) else (self.shuffle_mask,)
        mask = tuple(int(m) if isinstance(m, numbers.Integral) else m for m in given)
        object.__setattr__(self, "shuffle_mask", mask)
        if self._legal() and (self._sources() < 0).any():
            object.__setattr__(self, "before", self.dst)

    def _legal(self) -> bool:
        mask = self.shuffle_mask
        return len(mask) == _QUADRANT and all(type(m) is int and (0 <= m < _QUADRANT or m == _KEEP) for m in mask)

    def _sources(self) -> np.ndarray:
        """The partition of src that each partition of dst gets, -1 for those that stay."""
        partition = np.arange(self.dst.partitions)
        lane = np.array(self.shuffle_mask)[partition % _QUADRANT]
        source = partition // _QUADRANT * _QUADRANT + lane
        return np.where((lane == _KEEP) | (source >= self.src.partitions), -1, source)

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "src")
        rules.partitions(self, target, "dst", "src", equal=False)
        rules.same_dtype(self, "dst", "src")
        rules.same_free(self, "dst", "src")
        if not self._legal():
            rule = f"must be {_QUADRANT} ints, each 0 to {_QUADRANT - 1} or {_KEEP}"
            raise rules.fail(self, "shuffle_mask", rule, self.shuffle_mask)
        quadrants = -(-max(self.dst.partitions, self.src.partitions) // _QUADRANT)
        step = _QUADRANT * (quadrants if quadrants <= 2 else target.pmax // _QUADRANT)  # noqa: PLR2004
        for name in ("dst", "src"):
            start = first_partition(getattr(self, name))
            if start % step:
                rule = f"{quadrants * _QUADRANT} active partitions must start at {list(range(0, target.pmax, step))}"
                raise rules.fail(self, name, rule, start)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        source = self._sources()
        kept = source < 0
        rows = np.where(kept, source.max(initial=0), source)

        def shuffle(_: None, x: jax.Array, before: jax.Array | None = None) -> jax.Array:
            one = (rows == rows[0]).all()
            out = jnp.broadcast_to(x[rows[0]], (len(rows), x.shape[1])) if one else x[rows]
            return out if before is None else jnp.where(kept[:, None], before, out)

        tiles = (self.src,) if self.before is None else (self.src, self.before)
        return (_moved(shuffle, None, *map(read, tiles)),)

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, self.src.free, self.dst, self.src)


# ---- by indices


def _chosen(at: jax.Array, x: jax.Array, poison: jax.Array) -> jax.Array:
    last = x.shape[-1] - 1
    near = jnp.minimum(at, np.array(last, at.dtype)).astype(jnp.int32)
    return jnp.where(at <= last, jnp.take_along_axis(x, near, axis=-1, mode="clip"), poison)


def _gathered(x: jax.Array, at: jax.Array, dtype: str) -> jax.Array:
    """Elements `at` of the last axis of `x`, poison where there are none."""
    poison = dtypes.poison(dtype, precise=x.dtype == dtypes.storage(dtype))
    return _moved(_chosen, at, x, jnp.asarray(poison, x.dtype))


@dataclass(frozen=True)
class LocalGather(Instruction):
    """dst[p, iE + e] = src_buffer[p, ids[i] + e], where ids[i] = index[16c + i % 16, i / 16] is of p's core c

    A core is 16 partitions; E = num_elem_per_idx; i < N = num_valid_indices, by default all 16 I.  To gather rows of E
    elements, pass E times the row as an index.
    Memory: all in SBUF.
    Data types: src_buffer any, dst equal, copied bit for bit; index uint16.
    Layout: src_buffer (P, F), index (P, I), dst (P, N E); P a multiple of 16, at most 128; E 1, 2, 4, 8, 16 or 32;
        N at most 4096.
    Engine: GpSimd.
    Cost: 150 + N E / C with C = (28 + 4E) / (4E) / min(4 / bytes of an element, E), documented for gen2, assumed for
        later generations.
    Not emulated: what hardware finds outside of src_buffer; here NaN, or 4 as an integer.
    Source: nki.isa.local_gather
    """

    dst: Out
    src_buffer: In
    index: In
    num_elem_per_idx: int = 1
    num_valid_indices: int | None = None

    api: ClassVar[str] = "nki.isa.local_gather"

    @property
    def _indices(self) -> int:
        """N: indices of one core."""
        return CORE_PARTITIONS * self.index.free if self.num_valid_indices is None else self.num_valid_indices

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        tiles = ("src_buffer", "index", "dst")
        rules.in_memory(self, *tiles, memories=(Memory.sbuf,))
        rules.partitions(self, target, *tiles)
        check_cores(self, *tiles)
        rules.same_dtype(self, "dst", "src_buffer")
        if self.index.dtype != "uint16":
            raise rules.fail(self, "index", "must have dtype uint16", self.index.dtype)
        run, count = self.num_elem_per_idx, self._indices
        if not isinstance(run, numbers.Integral) or run not in _RUNS:
            raise rules.fail(self, "num_elem_per_idx", f"must be one of {list(_RUNS)}", run)
        most = min(_MOST_INDICES, CORE_PARTITIONS * self.index.free)
        if not isinstance(count, numbers.Integral) or not 1 <= count <= most:
            rule = f"must be an int of 1 to {most}, and by default the {CORE_PARTITIONS * self.index.free} of a core"
            raise rules.fail(self, "num_valid_indices", rule, count)
        if self.dst.free != count * run:
            rule = f"must have {count} * {run} elements a partition: num_valid_indices * num_elem_per_idx"
            raise rules.fail(self, "dst", rule, self.dst.shape)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        x, index = read(self.src_buffer), read(self.index)
        cores = x.shape[0] // CORE_PARTITIONS
        ids = index.reshape(cores, CORE_PARTITIONS, -1).transpose(0, 2, 1).reshape(cores, -1, 1)
        ids = ids[:, : self._indices].astype(jnp.int32)
        at = ids + jnp.arange(self.num_elem_per_idx, dtype=jnp.int32).reshape(1, 1, -1)
        x = x.reshape(cores, CORE_PARTITIONS, -1)
        return (_gathered(x, at.reshape(cores, 1, -1), self.dst.dtype),)

    def cycles(self, target: Target) -> Work:
        run = self.num_elem_per_idx
        speed = (28 + 4 * run) / (4 * run) / min(4 / dtypes.size(self.src_buffer.dtype), run)
        return Work(_START_CYCLES + self._indices * run / speed, target.latency_cycles(Engine.gpsimd))


@dataclass(frozen=True)
class NcNGather(Instruction):
    """dst[p, i] = data[p, indices[p, i]]

    Memory: all in SBUF.
    Data types: data any, dst equal, copied bit for bit; indices uint32.
    Layout: data (P, F), indices, dst (P, N); P at most 128.
    Engine: GpSimd.
    Cost: 600 for each 512 elements of N or part of them, assumed (nki-library's plan for a pass; unpublished).
    Not emulated: what hardware finds outside of data; here NaN, or 4 as an integer.
    Source: nki.isa.nc_n_gather
    """

    dst: Out
    data: In
    indices: In

    api: ClassVar[str] = "nki.isa.nc_n_gather"

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd

    def check(self, target: Target) -> None:
        tiles = ("dst", "data", "indices")
        rules.in_memory(self, *tiles, memories=(Memory.sbuf,))
        rules.partitions(self, target, *tiles)
        rules.same_free(self, "dst", "indices")
        rules.same_dtype(self, "dst", "data")
        if self.indices.dtype != "uint32":
            raise rules.fail(self, "indices", "must have dtype uint32", self.indices.dtype)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return (_gathered(read(self.data), read(self.indices), self.dst.dtype),)

    def cycles(self, target: Target) -> Work:
        passes = math.ceil(self.dst.free / _GROUP)
        return Work(_GROUP_CYCLES * passes, target.latency_cycles(Engine.gpsimd))
