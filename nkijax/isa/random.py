"""Random numbers: raw bits, uniform floats, dropout, and the state of the generators of VectorE and GpSimdE.

Each engine has one generator, whose state outlives instructions: a row of uint32 words for each of the 128 lanes.  All
words but the last are a lane's key; the last counts the numbers drawn.  A number is a threefry hash of key, lane and
count, so that a stream does not depend on how many numbers are drawn at once, and a state that is stored and set again
resumes it.  This is not the device's stream, which AWS has not published.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.isa import operators, rates, rules
from nkijax.machine import Engine, Generation, Memory, Target, Work
from nkijax.program import In, InOut, Instruction, Number, Out, Read
from nkijax.view import View

STATE_WORDS = {Engine.vector: 24, Engine.gpsimd: 6}  # documented: four XORWOW states a lane of VectorE, one of GpSimdE

_BITS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_UNIFORM = (*_BITS, "float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32")
_WORDS = ("int32", "uint32", "float32")
_WORD_BYTES = 4
_FRACTION_BITS = 24  # of a uniform number: what a float32 holds
_RATE = 4  # words of VectorE of NeuronCore-v4, a lane and cycle
_MATRIX = 2


# ---- the generator


def _keys(state: jax.Array) -> jax.Array:
    """A threefry key for each lane, (P, 2): hashes of the lane's number and of its words, each of which counts."""
    words = state[:, :-1]
    odd = 2 * np.arange(words.shape[1], dtype=np.uint32).reshape(1, -1) + np.uint32(1)
    first = jnp.sum(words * (odd * np.uint32(0x9E3779B1)), axis=1, dtype=np.uint32)
    second = jnp.sum((words ^ (words >> 16)) * (odd * np.uint32(0x85EBCA6B)), axis=1, dtype=np.uint32)
    lanes = jnp.arange(state.shape[0], dtype=np.uint32) * np.uint32(0xC2B2AE35)
    return jnp.stack([first ^ lanes, second], axis=1)


@partial(jax.jit, static_argnums=1)
def _draw(state: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """The next `n` words of each lane, (P, n), and the state after them."""

    def word(key: jax.Array, count: jax.Array) -> jax.Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), count))[0]

    counts = state[:, -1:] + jnp.arange(n, dtype=np.uint32).reshape(1, -1)
    words = jax.vmap(jax.vmap(word, in_axes=(None, 0)))(_keys(state), counts)
    return words, jnp.concatenate([state[:, :-1], state[:, -1:] + np.uint32(n)], axis=1)


def _uniform(words: jax.Array) -> jax.Array:
    """Words as float32 in [0, 1)."""
    fraction = (words >> (8 * _WORD_BYTES - _FRACTION_BITS)).astype(np.float32)
    return fraction * np.float32(2.0**-_FRACTION_BITS)


def _check_state(inst: Rng | Rand2 | Dropout | SetRngSeed | RandSetState | RandGetState, lanes: int) -> None:
    """The state is that of the instruction's engine, for `lanes` lanes."""
    state, words = inst.state, STATE_WORDS[inst.queue]
    legal = isinstance(state, View) and state.memory is Memory.state and state.dtype == "uint32"
    if state is None or not legal or (state.partitions, state.free) != (lanes, words):
        raise rules.fail(inst, "state", f"must be ({lanes}, {words}) of uint32 state", repr(state))


# ---- drawing


@dataclass(frozen=True)
class Rng(Instruction):
    """dst = the low bits of random 32-bit words

    Memory: dst in SBUF or PSUM (GpSimd: SBUF); `state` is the engine's generator, (P, 24) or, of GpSimd, (P, 6).
    Data types: dst int8, int16, int32, uint8, uint16 or uint32; state uint32.
    Layout: dst (P, F), P at most 128; partition p is lane p of the generator.
    Engine: Vector, or from gen3 on GpSimd; Vector when unknown.
    Cost: max(64, F), assumed; twice that with a stride above 16 bytes.
    Not emulated: the device's stream, which is unpublished.
    Source: nki.isa.rng
    """

    dst: Out
    engine: Engine = Engine.vector
    state: InOut | None = None

    api: ClassVar[str] = "nki.isa.rng"

    @property
    def queue(self) -> Engine:
        return Engine.gpsimd if self.engine is Engine.gpsimd else Engine.vector

    def check(self, target: Target) -> None:
        rules.engine_is(self, Engine.vector, Engine.gpsimd)
        rules.in_memory(self, "dst")
        rules.partitions(self, target, "dst")
        if self.engine is Engine.gpsimd:
            rules.since(self, target, Generation.gen3, "engine.gpsimd")
            rules.no_psum_on_gpsimd(self, "dst")
        if self.dst.dtype not in _BITS:
            raise rules.fail(self, "dst", f"must have one of the dtypes {_BITS}", self.dst.dtype)
        _check_state(self, self.dst.partitions)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        words, after = _draw(read(self.state), self.dst.free)
        return operators.from_bits(words, self.dst.dtype), after

    def cycles(self, target: Target) -> Work:
        return rates.work(target, self.queue, self.dst.free, self.dst)


@dataclass(frozen=True)
class Rand2(Instruction):
    """dst = cast(min + (max - min) * u), u uniform in [0, 1)

    Memory: dst in SBUF or PSUM; `state` is the Vector engine's generator, (P, 24).
    Data types: dst fp8 (not e4m3fn), fp16, bf16, tf32, fp32 or an integer; min and max float32.
    Layout: dst (P, F), P at most 128; min and max numbers or (P, 1), min below max.
    Engine: Vector, from gen4 on.
    Cost: max(64, F / 4); twice that with a stride above 16 bytes.
    Not emulated: the device's stream, which is unpublished; u has 24 bits.
    Source: nki.isa.rand2
    """

    dst: Out
    min: In | Number
    max: In | Number
    state: InOut | None = None

    api: ClassVar[str] = "nki.isa.rand2"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.since(self, target, Generation.gen4, "rand2")
        rules.in_memory(self, "dst", "min", "max")
        rules.partitions(self, target, "dst")
        if self.dst.dtype not in _UNIFORM:
            raise rules.fail(self, "dst", f"must have one of the dtypes {_UNIFORM}", self.dst.dtype)
        for name in ("min", "max"):
            bound = getattr(self, name)
            if not isinstance(bound, View | int | float):
                raise rules.fail(self, name, "must be a number or a (P, 1) tile", repr(bound))
            rules.per_partition(self, name, "dst", kinds=("float32",))
        if not isinstance(self.min, View) and not isinstance(self.max, View) and not self.min < self.max:
            raise rules.fail(self, "min, max", "min must be less than max", f"{self.min} and {self.max}")
        _check_state(self, self.dst.partitions)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        words, after = _draw(read(self.state), self.dst.free)
        low, high = read(self.min, np.float32), read(self.max, np.float32)
        return jnp.minimum(low + (high - low) * _uniform(words), high), after

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, self.dst.free / _RATE, self.dst)


@dataclass(frozen=True)
class Dropout(Instruction):
    """dst = 0 with probability prob, else data, bit for bit: it is not scaled by 1 / (1 - prob)

    Memory: dst, data, prob in SBUF or PSUM; `state` is the Vector engine's generator, (P, 24).
    Data types: dst and data equal, any but x4; a tile of prob float32, or with float data any float.
    Layout: dst, data (P, F), P at most 128; prob a number in [0, 1] or (P, 1).
    Engine: Vector.
    Cost: max(64, F), twice that with a stride above 16 bytes; published for gen2, assumed for later ones.
    Not emulated: the device's stream, which is unpublished.
    Source: nki.isa.dropout
    """

    dst: Out
    data: In
    prob: In | Number
    state: InOut | None = None

    api: ClassVar[str] = "nki.isa.dropout"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data", "prob")
        rules.partitions(self, target, "dst", "data")
        rules.same_free(self, "dst", "data")
        rules.same_dtype(self, "dst", "data")
        operators.not_packed(self, "data")
        if isinstance(self.prob, View):
            kinds = [k for k in dtypes.KINDS if dtypes.is_float(k)] if dtypes.is_float(self.data.dtype) else ["float32"]
            rules.per_partition(self, "prob", "data", kinds=kinds)
        elif not isinstance(self.prob, int | float) or not 0 <= self.prob <= 1:
            raise rules.fail(self, "prob", "must be a (P, 1) tile or a number from 0 to 1", repr(self.prob))
        _check_state(self, self.dst.partitions)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        words, after = _draw(read(self.state), self.dst.free)
        data = read(self.data)
        return jnp.where(_uniform(words) >= read(self.prob, np.float32), data, jnp.zeros_like(data)), after

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, self.data.free, self.dst, self.data)


# ---- the state


def _work(inst: SetRngSeed | RandSetState | RandGetState, target: Target) -> Work:
    return Work(target.min_issue_cycles, target.latency_cycles(inst.queue))


@dataclass(frozen=True)
class SetRngSeed(Instruction):
    """state = src_seeds, as the key of every lane; nothing drawn yet

    Memory: src_seeds in SBUF or PSUM; `state` is the Vector engine's generator, (128, 24).
    Data types: src_seeds of 32 bits, taken as they are.
    Layout: src_seeds (1, 1).
    Engine: Vector.
    Cost: 64, assumed.
    Not emulated: the device's stream, which is unpublished: equal seeds give equal sequences here, others there.
    Source: nki.isa.set_rng_seed
    """

    src_seeds: In
    state: Out | None = None

    api: ClassVar[str] = "nki.isa.set_rng_seed"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "src_seeds")
        if self.src_seeds.shape != (1, 1):
            raise rules.fail(self, "src_seeds", "must be (1, 1)", self.src_seeds.shape)
        if self.src_seeds.dtype not in _WORDS:
            raise rules.fail(self, "src_seeds", f"must have one of the dtypes {_WORDS}", self.src_seeds.dtype)
        _check_state(self, target.pmax)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        assert self.state is not None
        seed = lax.bitcast_convert_type(read(self.src_seeds), np.uint32)
        key = jnp.broadcast_to(seed, (self.state.partitions, 1))
        return (jnp.pad(key, ((0, 0), (0, self.state.free - 1))),)

    def cycles(self, target: Target) -> Work:
        return _work(self, target)


def _check_words(inst: RandSetState | RandGetState, target: Target, name: str, memories: tuple[Memory, ...]) -> None:
    """The rules of a tile of states, and of the engine that has them."""
    if inst.engine not in STATE_WORDS:
        given = getattr(inst.engine, "name", repr(inst.engine))
        raise rules.fail(inst, "engine", f"must be one of {[e.name for e in STATE_WORDS]}", given)
    vector = inst.engine is Engine.vector
    rules.since(inst, target, Generation.gen4 if vector else Generation.gen3, f"engine.{inst.engine.name}")
    rules.in_memory(inst, name, memories=memories)
    rules.partitions(inst, target, name)
    view: View = getattr(inst, name)
    words = STATE_WORDS[inst.engine]
    if view.dtype != "uint32" or view.ndim != _MATRIX or view.free != words:
        rule = f"must be (P, {words}) of uint32 for engine.{inst.engine.name}"
        raise rules.fail(inst, name, rule, f"{view.dtype} {view.shape}")
    _check_state(inst, view.partitions)


@dataclass(frozen=True)
class RandSetState(Instruction):
    """state = src_seeds, a row for each lane of the engine's generator

    Memory: src_seeds in SBUF; `state` is the engine's generator, (P, 24) or, of GpSimd, (P, 6).
    Data types: uint32.
    Layout: src_seeds (P, 6) for GpSimd, (P, 24) for Vector; P at most 128.
    Engine: GpSimd, from gen3 on; Vector, from gen4 on.
    Cost: 64, assumed.
    Not emulated: the device's stream, which is unpublished.  Lanes with equal rows draw different numbers.
    Source: nki.isa.rand_set_state
    """

    src_seeds: In
    engine: Engine = Engine.gpsimd
    state: Out | None = None

    api: ClassVar[str] = "nki.isa.rand_set_state"

    @property
    def queue(self) -> Engine:
        return self.engine

    def check(self, target: Target) -> None:
        _check_words(self, target, "src_seeds", (Memory.sbuf,))

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return (read(self.src_seeds),)

    def cycles(self, target: Target) -> Work:
        return _work(self, target)


@dataclass(frozen=True)
class RandGetState(Instruction):
    """dst = state, a row for each lane of the engine's generator; nki.isa.rand_set_state resumes from it

    Memory: dst in SBUF, for Vector also in PSUM; `state` is the engine's generator, (P, 24) or, of GpSimd, (P, 6).
    Data types: uint32.
    Layout: dst (P, 6) for GpSimd, (P, 24) for Vector; P at most 128.
    Engine: GpSimd, from gen3 on; Vector, from gen4 on.
    Cost: 64, assumed.
    Not emulated: the words of the device's generator.
    Source: nki.isa.rand_get_state
    """

    dst: Out
    engine: Engine = Engine.gpsimd
    state: In | None = None

    api: ClassVar[str] = "nki.isa.rand_get_state"

    @property
    def queue(self) -> Engine:
        return self.engine

    def check(self, target: Target) -> None:
        psum = (Memory.psum,) if self.engine is Engine.vector else ()
        _check_words(self, target, "dst", (Memory.sbuf, *psum))

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        return (read(self.state),)

    def cycles(self, target: Target) -> Work:
        return _work(self, target)
