"""`neuronxcc.nki.compiler`: direct allocation, and directives of the compiler, which are accepted without effect.

An *allocation* is what a declaration gets as `buffer=ncc.sbuf.mod_alloc(…)`: it gives each logical tile (a tensor's
tile at one index of its block dimensions) a place.  `storage` makes the buffer of a place:

* SBUF: logical tiles of one place, shape and dtype are one buffer, which is zero at first and lives for the whole
  launch, wherever it is declared.  Where values flow between tiles of different layouts whose addresses overlap,
  `overlay` makes them one buffer at the end of the trace.
* PSUM: each logical tile of each declaration is a buffer of its own, zero at first.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nkijax import dtypes
from nkijax.dialects.neuronxcc import overlay
from nkijax.errors import KernelError
from nkijax.machine import Memory
from nkijax.trace import Recorder
from nkijax.view import Buffer

Index = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where a logical tile is: a PSUM bank (0 in SBUF), its first partition, and a byte address in each partition."""

    bank: int
    partition: int
    address: int


@dataclass(frozen=True, eq=False)
class Allocation:
    """Where the logical tiles of a tensor go; `place` is None for the compiler's choice."""

    memory: Memory
    place: Callable[[Index, int, int], Place] | None = None


def _linear(counts: Sequence[int], index: Sequence[int]) -> int:
    """The row-major number of an index that wraps around; dimensions that only one of the two has count as 0."""
    return sum(i % n * math.prod(counts[k + 1 :]) for k, (i, n) in enumerate(zip(index, counts, strict=False)))


def _modulo(counts: Sequence[int], index: Index) -> int:
    return _linear(tuple(counts) or (1,) * len(index), index)


def _counts(operand: str, counts: Any) -> tuple[int, ...]:
    sizes = tuple(counts) if isinstance(counts, tuple | list) else (counts,)
    if not all(isinstance(n, int) and n > 0 for n in sizes):
        raise KernelError(f"nki.compiler.{operand}: must be a tuple of positive ints, got {counts!r}")
    return sizes


class _Sbuf:
    """`ncc.sbuf`."""

    @staticmethod
    def mod_alloc(base_addr, base_partition=0, num_par_tiles=(), num_free_tiles=()) -> Allocation:
        """Modulo allocation: `num_free_tiles` physical tiles side by side from byte `base_addr` on.

        Logical tiles beyond the physical ones wrap around; `num_par_tiles` do the same along partitions.
        """
        par = _counts("sbuf.mod_alloc num_par_tiles", num_par_tiles)
        free = _counts("sbuf.mod_alloc num_free_tiles", num_free_tiles)

        def place(index: Index, partitions: int, size: int) -> Place:
            first = _modulo(par, index) * partitions + base_partition
            return Place(0, first, _modulo(free, index) * size + base_addr)

        return Allocation(Memory.sbuf, place)

    @staticmethod
    def alloc(func: Callable[..., Any]) -> Allocation:
        """`func(idx=, pdim_size=, fdim_size=)` gives (partition, byte address) of each logical tile."""

        def place(index: Index, partitions: int, size: int) -> Place:
            partition, address = func(idx=index, pdim_size=partitions, fdim_size=size)
            return Place(0, int(partition), int(address))

        return Allocation(Memory.sbuf, place)

    @staticmethod
    def auto_alloc() -> Allocation:
        """The compiler's choice."""
        return Allocation(Memory.sbuf)


class _Psum:
    """`ncc.psum`."""

    @staticmethod
    def mod_alloc(
        base_bank, base_addr=0, base_partition=0, num_bank_tiles=(), num_par_tiles=(), num_free_tiles=()
    ) -> Allocation:
        """Modulo allocation over banks, partitions and bytes of a bank."""
        banks, par, free = (
            _counts(f"psum.mod_alloc {name}", counts)
            for name, counts in (
                ("num_bank_tiles", num_bank_tiles),
                ("num_par_tiles", num_par_tiles),
                ("num_free_tiles", num_free_tiles),
            )
        )

        def place(index: Index, partitions: int, size: int) -> Place:
            first = _modulo(par, index) * partitions + base_partition
            return Place(_modulo(banks, index) + base_bank, first, _modulo(free, index) * size + base_addr)

        return Allocation(Memory.psum, place)

    @staticmethod
    def alloc(func: Callable[..., Any]) -> Allocation:
        """`func(idx=, pdim_size=, fdim_size=)` gives (bank, partition, byte address) of each logical tile."""

        def place(index: Index, partitions: int, size: int) -> Place:
            bank, partition, address = func(idx=index, pdim_size=partitions, fdim_size=size)
            return Place(int(bank), int(partition), int(address))

        return Allocation(Memory.psum, place)

    @staticmethod
    def auto_alloc() -> Allocation:
        """The compiler's choice."""
        return Allocation(Memory.psum)


sbuf, psum = _Sbuf(), _Psum()


# ---- storage of logical tiles


def storage(
    recorder: Recorder, allocation: Allocation, index: Index, shape: Sequence[int], dtype: str, name: str = ""
) -> Buffer:
    """The buffer of the logical tile at `index`, of shape (P, free …)."""
    if allocation.place is None:
        return _fresh(recorder, shape, dtype, allocation.memory, name)
    size = math.prod(shape[1:]) * dtypes.size(dtype)
    place = allocation.place(index, shape[0], size)
    _check(recorder, allocation.memory, place, shape[0], size, name)
    if allocation.memory is Memory.psum:
        return _fresh(recorder, shape, dtype, Memory.psum, name)
    placed: overlay.Placed = recorder.facts(overlay.Placed)
    return placed.buffer(recorder, place.partition, place.address, tuple(shape), dtype, name)


def _fresh(recorder: Recorder, shape: Sequence[int], dtype: str, memory: Memory, name: str) -> Buffer:
    buffer = recorder.allocate(shape, dtype, memory, name)
    recorder.zeros.add(buffer)
    return buffer


def _check(recorder: Recorder, memory: Memory, place: Place, partitions: int, size: int, name: str) -> None:
    """A place beyond the memory is a warning, since allocators of public kernels count on and on; strictly an error."""
    target, what = recorder.target, f"tensor `{name or 'unnamed'}`"
    if place.partition < 0 or place.partition + partitions > target.pmax:
        last = place.partition + partitions - 1
        raise KernelError(f"nki.compiler: {what} has partitions {place.partition} to {last} of {target.pmax}")
    limit = target.psum_bank_bytes if memory is Memory.psum else target.sbuf_partition_bytes
    beyond = place.address + size > limit or place.address < 0
    if memory is Memory.psum and not 0 <= place.bank < target.psum_banks:
        _warn(recorder, f"nki.compiler: {what} is in PSUM bank {place.bank}; {target.name} has {target.psum_banks}")
    elif beyond:
        where = f"bytes {place.address} to {place.address + size - 1} of a partition"
        part = "a PSUM bank" if memory is Memory.psum else "SBUF"
        _warn(recorder, f"nki.compiler: {what} is at {where}; {part} of {target.name} has {limit}")


class AllocationWarning(UserWarning):
    """A tensor is placed beyond the memory; `strict=True` of a door, or NKIJAX_STRICT=1, makes that an error."""


class _Warned(set):
    """The statements that have been warned of: one warning each."""

    def enter_loop(self) -> None: ...

    def exit_loop(self) -> None: ...


def _warn(recorder: Recorder, message: str) -> None:
    if recorder.strict:
        raise KernelError(message)
    warned: _Warned = recorder.facts(_Warned)
    site = recorder.site()
    if site not in warned:
        warned.add(site)
        warnings.warn(f"{message}\n  at {site}", AllocationWarning, stacklevel=2)


# ---- directives


def multi_buffer(factor=None) -> None:
    """A hint to keep several copies of a loop's tiles."""
    del factor


@contextlib.contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions inside keep their order, as they do here anyway."""
    yield


@contextlib.contextmanager
def allocation_scope(name=None) -> Iterator[None]:
    """Tensors declared inside are freed at the end: nothing to do here."""
    del name
    yield


def enable_stack_allocator(func=None, log_level=None) -> Any:
    """A decorator: addresses are the compiler's choice, as they are here anyway."""
    del log_level
    return func if func is not None else _unchanged


def skip_middle_end_transformations(func=None) -> Any:
    """A decorator: the compiler leaves the kernel as it is."""
    return func if func is not None else _unchanged


def force_auto_alloc(func=None) -> Any:
    """A decorator: given addresses do not count.  Without effect, as tiles that share an address are meant to."""
    return func if func is not None else _unchanged


def _unchanged(func: Any) -> Any:
    return func
