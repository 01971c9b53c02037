"""Eager execution: each instruction runs as it is recorded, on concrete arrays, by its own `run`."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from nkijax import access, dtypes
from nkijax.address import Address, valid
from nkijax.errors import OutOfRange
from nkijax.machine import Memory, Target
from nkijax.program import Instruction, Masked
from nkijax.view import GROUP, Buffer, View


class Eager:
    """The memory of a kernel that runs eagerly, by buffer; an `Executor` of the recorder."""

    def __init__(self, target: Target):
        self.precise = target.precise
        self.arrays: dict[Buffer, jax.Array] = {}
        self.zeros: set[Buffer] = set()  # shared with the recorder, as the next one
        self.constants: dict[int, np.ndarray] = {}
        self._valid: dict[int, tuple[jax.Array, bool]] = {}

    def array(self, buffer: Buffer) -> jax.Array:
        """A buffer's array; when nothing was written yet a constant's data, poison, or zero."""
        if buffer not in self.arrays:
            kind = dtypes.storage(buffer.dtype, self.precise)
            if buffer.index in self.constants:
                self.arrays[buffer] = jnp.asarray(self.constants[buffer.index], kind)
                return self.arrays[buffer]
            fill = np.zeros((), kind) if buffer in self.zeros else dtypes.poison(buffer.dtype, self.precise)
            self.arrays[buffer] = jnp.full(buffer.shape, fill, kind)
        return self.arrays[buffer]

    def load(self, view: View, group: int = GROUP) -> jax.Array:
        """The elements of a view, in its shape; partitions share the columns of an indirect one in groups."""
        return access.read(self.array(view.buffer), self.address(view, group))

    def value(self, view: View) -> np.ndarray:
        """The same, as NumPy."""
        return np.asarray(self.load(view))

    def poke(self, register: View, value: int) -> None:
        """Set a register."""
        self.arrays[register.buffer] = jnp.full(register.buffer.shape, np.int64(value).astype(np.int32), np.int32)

    def execute(self, instruction: Instruction) -> None:
        """Execute one instruction."""
        read, group = _Read(self, instruction), instruction.index_group
        results = instruction.run(read)
        for view, value in zip(instruction.writes(), results, strict=True):
            mask = None
            if isinstance(value, Masked):
                value, mask = value.value, jnp.broadcast_to(value.mask, jnp.shape(value.value)).reshape(view.shape)
            x = dtypes.cast(jnp.asarray(value), view.dtype, self.precise).reshape(view.shape)
            if mask is not None:
                x = jnp.where(mask, x, self.load(view, group))
            if view.dynamic:
                read.valid(view)
            self.arrays[view.buffer] = access.write(self.array(view.buffer), self.address(view, group), x)

    def address(self, view: View, group: int) -> Address:
        """Where a view is in its buffer's array."""
        buffer = view.buffer
        ratio = view.storage_size / buffer.size
        natural = (*buffer.shape[:-1], int(buffer.shape[-1] * ratio))
        address = Address(
            view.storage_size, natural, view.dtype, view.strides, view.shape, np.asarray(view.offset, np.int64)
        )
        d = view.dynamic
        if d is None:
            return address
        index = self.load(d.index).astype(np.int32)
        address = replace(address, stride=d.stride, limit=d.limit)
        if d.vector:
            return replace(address, rows=index.T.reshape(-1)[: view.shape[0]])
        if d.columns:
            return replace(address, columns=access.columns_of(index, group, view.shape[1]))
        return replace(address, scalar=index.reshape(()))


class _Read:
    """The `read` of one instruction."""

    def __init__(self, memory: Eager, instruction: Instruction):
        self._memory, self._instruction, self._group = memory, instruction, instruction.index_group

    def __call__(self, operand, dtype=None) -> jax.Array:
        if isinstance(operand, View):
            x = self._memory.load(operand, self._group)
            x = x.reshape(()) if operand.memory is Memory.register else x.reshape(operand.shape[0], -1)
            if operand.dynamic:
                self.valid(operand)
        else:
            x = jnp.asarray(operand)
        return x if dtype is None else x.astype(dtype)

    def valid(self, operand: View) -> jax.Array:
        """Which run-time indices are inside; an error for those that are not, unless the instruction skips them."""
        address = self._memory.address(operand, self._group)
        ok = valid(address)
        if not self._instruction.skips() and not bool(ok.all()):
            bad = int(np.asarray(address.index).reshape(-1)[int(np.argmin(np.asarray(ok)))])
            raise OutOfRange(f"{self._instruction.api} operand", bad, int(address.limit or 0), None, operand)
        return ok
