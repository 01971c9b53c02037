"""Mean and variance along the free axis, in two steps (Vector engine)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from nkijax.isa import operators, rates, rules
from nkijax.machine import Engine, Target, Work
from nkijax.program import In, Instruction, Out, Read

STATS_FMAX = 512  # nki.language.tile_size.bn_stats_fmax
_GROUP = 3  # count, mean, variance * count
_STATS = 2 * _GROUP  # of the even and of the odd elements
_AGGREGATES = 2  # mean, variance
_AGGREGATE_CYCLES = 13  # for each group


def _statistics(x: jax.Array) -> jax.Array:
    """(count, mean, variance * count) of elements (P, n), zeros if there are none: (P, 3)."""
    count = jnp.full((x.shape[0],), x.shape[1], jnp.float32)
    if not x.shape[1]:
        return jnp.stack([count, count, count], axis=1)
    mean = jnp.mean(x, axis=1)
    return jnp.stack([count, mean, jnp.sum((x - mean[:, None]) ** 2, axis=1)], axis=1)


@dataclass(frozen=True)
class BnStats(Instruction):
    """dst = cast(count, mean and variance * count of data[0::2], then of data[1::2]), the population's variance

    Memory: dst, data in SBUF or PSUM.
    Data types: any; float32 arithmetic.
    Layout: data (P, F), P at most 128, F at most 512; dst (P, 6).  No odd elements, of F = 1, give three zeros.
    Engine: Vector.
    Cost: max(64, F), 2F with a stride above 16 bytes; gen4 assumed.
    Not emulated: nothing.
    Source: nki.isa.bn_stats
    """

    dst: Out
    data: In

    api: ClassVar[str] = "nki.isa.bn_stats"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data")
        rules.partitions(self, target, "dst", "data")
        operators.not_packed(self, "dst", "data")
        if self.data.free > STATS_FMAX:
            raise rules.fail(self, "data", f"must have at most {STATS_FMAX} free elements", self.data.shape)
        if self.dst.free != _STATS:
            raise rules.fail(self, "dst", f"must have {_STATS} free elements", self.dst.shape)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        x = read(self.data, jnp.float32)
        return (jnp.concatenate([_statistics(x[:, 0::2]), _statistics(x[:, 1::2])], axis=1),)

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, self.data.free, self.data)


@dataclass(frozen=True)
class BnAggr(Instruction):
    """dst = cast(mean, variance), mean = sum of c * m / C, variance = sum of (vc + c * (m - mean)^2) / C, C = sum of c,
    over the groups (c, m, vc) of data, which nki.isa.bn_stats makes

    Memory: dst, data in SBUF or PSUM.
    Data types: any; float32 arithmetic.
    Layout: data (P, 3n), P at most 128; dst (P, 2).
    Engine: Vector.
    Cost: max(64, 13n), 26n with a stride above 16 bytes; gen4 assumed.
    Not emulated: nothing.
    Source: nki.isa.bn_aggr
    """

    dst: Out
    data: In

    api: ClassVar[str] = "nki.isa.bn_aggr"

    @property
    def queue(self) -> Engine:
        return Engine.vector

    def check(self, target: Target) -> None:
        rules.in_memory(self, "dst", "data")
        rules.partitions(self, target, "dst", "data")
        operators.not_packed(self, "dst", "data")
        if self.data.free % _GROUP:
            raise rules.fail(self, "data", f"must have {_GROUP} free elements for each group", self.data.shape)
        if self.dst.free != _AGGREGATES:
            raise rules.fail(self, "dst", f"must have {_AGGREGATES} free elements", self.dst.shape)

    def run(self, read: Read) -> tuple[jax.Array, ...]:
        x = read(self.data, jnp.float32)
        count, mean, spread = jnp.moveaxis(x.reshape(x.shape[0], -1, _GROUP), 2, 0)
        total = jnp.sum(count, axis=1, keepdims=True)
        center = jnp.sum(count * mean, axis=1, keepdims=True) / total
        variance = jnp.sum(spread + count * (mean - center) ** 2, axis=1, keepdims=True) / total
        return (jnp.concatenate([center, variance], axis=1),)

    def cycles(self, target: Target) -> Work:
        return rates.work(target, Engine.vector, _AGGREGATE_CYCLES * self.data.free / _GROUP, self.data)
