"""Instructions on the sequencers' registers: 32 raw bits each, kept as a buffer of one int32 in `Memory.register`."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import rules
from nkijax.machine import Engine, Memory, Target, Work
from nkijax.program import In, Instruction, Number, Out, Read
from nkijax.view import View

_MEMORIES = (Memory.sbuf, Memory.private_hbm, Memory.shared_hbm)
_BITS = 32


def _work(target: Target) -> Work:
    return Work(target.register_move_cycles, target.latency_cycles(Engine.sync))


def _is_register(inst: Instruction, operand: str) -> None:
    view = getattr(inst, operand)
    if not isinstance(view, View) or view.memory is not Memory.register:
        given = view.memory.value if isinstance(view, View) else repr(view)
        raise rules.fail(inst, operand, "must be a register", given)


def _is_immediate(inst: Instruction, operand: str) -> None:
    """An integer that fits in a register, signed or unsigned."""
    value = getattr(inst, operand)
    if not isinstance(value, int | np.integer):
        raise rules.fail(inst, operand, "must be a register or an integer", repr(value))
    if not -(2 ** (_BITS - 1)) <= value < 2**_BITS:
        raise rules.fail(inst, operand, f"must fit in {_BITS} bits", repr(value))


def _is_word(inst: Instruction, operand: str) -> None:
    """A 1-element HBM or SBUF tensor of integers or float32."""
    view: View = getattr(inst, operand)
    rules.in_memory(inst, operand, memories=_MEMORIES)
    if view.size != 1:
        raise rules.fail(inst, operand, "must have exactly one element", view.shape)
    if not dtypes.is_int(view.dtype) and view.dtype != "float32":
        raise rules.fail(inst, operand, "must be an integer or a float32", view.dtype)


def _signed(inst: Instruction, operand: str) -> None:
    """Rewrite an unsigned immediate as the int32 of the same bits, which is what a register holds."""
    value = getattr(inst, operand)
    if isinstance(value, int | np.integer) and 2 ** (_BITS - 1) <= value < 2**_BITS:
        object.__setattr__(inst, operand, int(value) - 2**_BITS)


@dataclass(frozen=True)
class RegisterMove(Instruction):
    """dst = src, 32 bits: a register or an integer.

    Memory: `dst` a register; `src` a register or an immediate.
    Data types: raw bits; an immediate is int32, or uint32 reinterpreted.
    Layout: one element.
    Engine: a sequencer; modelled on sync.
    Cost: 68 ns (measured on trn2, assumed elsewhere).
    Not emulated: which engine's sequencer holds the register.
    Source: nki.isa.register_move
    """

    api = "nki.isa.register_move"

    dst: Out
    src: In | Number

    def __post_init__(self) -> None:
        _signed(self, "src")

    @property
    def queue(self) -> Engine:
        return Engine.sync

    def check(self, target: Target) -> None:
        _is_register(self, "dst")
        if isinstance(self.src, View):
            _is_register(self, "src")
        else:
            _is_immediate(self, "src")

    def run(self, read: Read) -> tuple[jnp.ndarray, ...]:
        return (read(self.src, np.int32),)

    def cycles(self, target: Target) -> Work:
        return _work(target)


@dataclass(frozen=True)
class RegisterLoad(Instruction):
    """dst = the 32 bits of src: integers become int32 (uint32 keeps its bits), a float32 keeps its bits.

    Memory: `dst` a register; `src` in HBM or SBUF.
    Data types: `src` an integer of at most 32 bits, or float32.
    Layout: `src` has one element.
    Engine: a sequencer; modelled on sync.
    Cost: 68 ns (a register move's, assumed: loads are unpublished).
    Not emulated: which engine's sequencer holds the register.
    Source: nki.isa.register_load
    """

    api = "nki.isa.register_load"

    dst: Out
    src: In

    @property
    def queue(self) -> Engine:
        return Engine.sync

    def check(self, target: Target) -> None:
        _is_register(self, "dst")
        _is_word(self, "src")

    def run(self, read: Read) -> tuple[jnp.ndarray, ...]:
        value = read(self.src).reshape(())
        if value.dtype in (np.float32, np.uint32):
            return (lax.bitcast_convert_type(value, np.int32),)
        return (value.astype(np.int32),)

    def cycles(self, target: Target) -> Work:
        return _work(target)


@dataclass(frozen=True)
class RegisterStore(Instruction):
    """dst = the low bits of src: the inverse of a load, for every value that the dtype of dst holds.

    Memory: `src` a register or an integer; `dst` in HBM or SBUF.
    Data types: `dst` an integer of at most 32 bits (it takes the low bits), bool (whether any bit is set), or float32
    (it takes all 32 bits).
    Layout: `dst` has one element.
    Engine: a sequencer; modelled on sync.
    Cost: 68 ns (a register move's, assumed: stores are unpublished).
    Not emulated: which engine's sequencer holds the register.
    Source: nki.isa.register_store
    """

    api = "nki.isa.register_store"

    dst: Out
    src: In | Number

    def __post_init__(self) -> None:
        _signed(self, "src")

    @property
    def queue(self) -> Engine:
        return Engine.sync

    def check(self, target: Target) -> None:
        _is_word(self, "dst")
        if isinstance(self.src, View):
            _is_register(self, "src")
        else:
            _is_immediate(self, "src")

    def run(self, read: Read) -> tuple[jnp.ndarray, ...]:
        value, kind = read(self.src, np.int32), dtypes.storage(self.dst.dtype)
        if kind in (np.float32, np.uint32):
            return (lax.bitcast_convert_type(value, kind),)
        return (value.astype(kind),)

    def cycles(self, target: Target) -> Work:
        return _work(target)
