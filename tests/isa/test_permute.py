"""Sending to one other rank, on the ranks of a vmapped axis."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.operators import ALU
from nkijax.isa.permute import (
    CollectivePermute,
    CollectivePermuteImplicit,
    CollectivePermuteImplicitReduce,
    CurrentProcessingRankId,
    RankId,
)
from nkijax.machine import TRN2, TRN3, Engine, Memory, Transfer, Work
from nkijax.program import EVERY_CORE
from tests.isa.across import AXIS, across
from tests.isa.harness import Reader, random, rule, tile

HBM, SBUF = Memory.shared_hbm, Memory.sbuf
N = 6
GROUPS = {"all": (tuple(range(N)),), "shuffled": ((3, 1, 5, 0, 2, 4),), "pairs": ((4, 1), (0, 5)), "alone": ((2,),)}


def values(shape, dtype="float32", seed=0):
    return np.stack([random(shape, dtype, seed + r) for r in range(N)])


def sevens(shape, dtype="float32"):
    return np.full((N, *shape), 7, dtypes.storage(dtype))


def predecessor(groups, rank):
    group = next((g for g in groups if rank in g), None)
    return None if group is None else group[group.index(rank) - 1]


@pytest.mark.parametrize(
    "pairs", [((0, 3), (3, 0)), ((1, 2),), ((5, 5), (0, 1), (1, 0)), tuple((k, (k + 2) % N) for k in range(N))]
)
def test_pairs(pairs):
    """Ranks that no pair names as a target keep what they have."""
    src, dst = tile((3, 2), memory=HBM), tile((3, 2), memory=HBM)
    x = values((3, 2))
    (out,) = across(CollectivePermute((src,), (dst,), pairs, axis=AXIS), {src: x, dst: sevens((3, 2))})
    want = sevens((3, 2))
    for source, target in pairs:
        want[target] = x[source]
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("memory", [HBM, SBUF])
def test_ring(groups, memory):
    srcs, dsts = (tuple(tile((3, n), memory=memory) for n in (2, 4)) for _ in range(2))
    xs = [values((3, n), seed=n) for n in (2, 4)]
    inst = CollectivePermuteImplicit(srcs, dsts, groups, (0, 1), axis=AXIS)
    assert rule(inst) == ""
    tensors = {**dict(zip(srcs, xs, strict=True)), **{d: sevens(d.shape) for d in dsts}}
    for out, x in zip(across(inst, tensors), xs, strict=True):
        for rank in range(N):
            source = predecessor(groups, rank)
            np.testing.assert_array_equal(out[rank], 7 if source is None else x[source])


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("op", ["add", "minimum", "maximum"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint32"])
def test_ring_of_reductions(groups, op, dtype):
    a, b, dst = (tile((3, 2), dtype, HBM) for _ in range(3))
    x, y = values((3, 2), dtype), values((3, 2), dtype, seed=9)
    inst = CollectivePermuteImplicitReduce((a,), (b,), (dst,), groups, ALU[op], axis=AXIS)
    assert rule(inst) == ""
    (out,) = across(inst, {a: x, b: y, dst: sevens((3, 2), dtype)})
    function = {"add": np.add, "minimum": np.minimum, "maximum": np.maximum}[op]
    both = function(x.astype(np.float32), y.astype(np.float32)) if dtypes.is_float(dtype) else function(x, y)
    for rank in range(N):
        source = predecessor(groups, rank)
        np.testing.assert_array_equal(out[rank], 7 if source is None else both[source].astype(x.dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int8", "uint16", "int32", "bool"])
def test_dtypes_and_views_are_moved_bit_for_bit(dtype):
    src = tile((3, 4), dtype, HBM).slice(1, 0, 4, 2)
    dst = tile((5, 2), dtype, HBM).slice(0, 2, 5)
    x, tensors = values((3, 2), dtype), {dst: sevens((3, 2), dtype)}
    pairs = tuple((r, (r + 1) % N) for r in range(N))
    ring = CollectivePermuteImplicit((src,), (dst,), GROUPS["all"], axis=AXIS)
    for inst in (CollectivePermute((src,), (dst,), pairs, axis=AXIS), ring):
        assert rule(inst) == ""
        (out,) = across(inst, {src: x, **tensors})
        np.testing.assert_array_equal(out, np.roll(x, 1, axis=0))


def test_rank_ids():
    register = tile((1,), "int32", Memory.register)
    (out,) = across(RankId(register, axis=AXIS), {register: np.zeros((N, 1), np.int32)})
    assert out.reshape(-1).tolist() == list(range(N)) and out.dtype == np.int32


@pytest.mark.parametrize("groups", [GROUPS["all"], GROUPS["shuffled"], GROUPS["pairs"]])
def test_whose_data_is_here(groups):
    """Step i of the ring has the data of the rank i places before; a register may count the steps."""
    register, count = (tile((1,), "int32", Memory.register) for _ in range(2))
    for step in (-1, 0, 1, 7):
        inst = CurrentProcessingRankId(register, step, groups, axis=AXIS)
        (out,) = across(inst, {register: np.zeros((N, 1), np.int32)})
        counted = CurrentProcessingRankId(register, count, groups, axis=AXIS)
        (again,) = across(counted, {count: np.full((N, 1), step, np.int32)})
        for group in groups:
            for position, rank in enumerate(group):
                assert out[rank, 0] == again[rank, 0] == group[(position - step) % len(group)]


def test_gradients_go_back_along_the_ring():
    src, dst = tile((3, 2), memory=HBM), tile((3, 2), memory=HBM)
    inst = CollectivePermuteImplicit((src,), (dst,), GROUPS["all"], axis=AXIS)
    weights = jnp.asarray(values((3, 2), seed=3))

    def total(x):
        out: Any = jax.vmap(lambda v: inst.run(Reader({src: v}, {}))[0], axis_name=AXIS)(x)
        return jnp.sum(weights * out)

    np.testing.assert_array_equal(jax.grad(total)(values((3, 2))), np.roll(weights, -1, axis=0))


A, B, R = tile((4, 4), memory=HBM), tile((4, 4), memory=HBM), tile((1,), "int32", Memory.register)
TWO = ((0, 1),)
ADD = ALU["add"]
Ring, Reduce = CollectivePermuteImplicit, CollectivePermuteImplicitReduce
RULES = [
    (CollectivePermute((A, A), (B, B), ((0, 1),)), TRN2, "srcs: must have exactly one tensor, got 2"),
    (CollectivePermute((tile((4, 4)),), (B,), ((0, 1),)), TRN2, "srcs: must be in HBM, got sbuf"),
    (CollectivePermute((A,), (B,), ()), TRN2, r"source_target_pairs: must have pairs, .* got \[\]"),
    (CollectivePermute((A,), (B,), ((0, 1), (0, 2))), TRN2, "no rank twice as a source or as a target"),
    (CollectivePermute((A,), (B,), ((0, 2), (1, 2))), TRN2, "no rank twice as a source or as a target"),
    (CollectivePermute((A,), (tile((4, 5), memory=HBM),), ((0, 1),)), TRN2, r"dsts: must have the shape \(4, 4\)"),
    (CollectivePermute((A,), (B,), ((0, 1),), 2), TRN2, "priority: needs gen4 or later"),
    (Ring((A,), (B,), ((0, 0),)), TRN2, "replica_group: must have each rank once"),
    (Ring((A,), (B,), TWO, (1,)), TRN2, r"channel_ids: must be the ints from 0 to 0, a channel each, got \(1,\)"),
    (Ring((A, A), (B, B), TWO), TRN2, r"channel_ids: must be the ints from 0 to 1, a channel each, got \(0,\)"),
    (Ring((A,) * 5, (B,) * 5, TWO, tuple(range(5))), TRN2, "channel_ids: must be at most 4 channels, got 5"),
    (Ring((A,), (tile((8, 2), memory=HBM),), TWO), TRN2, r"dsts: must have the shape \(4, 4\): that of its source"),
    (Ring((A,), (tile((4, 4), "int8", HBM),), TWO), TRN2, "srcs_by_channel: must have the dtype int8"),
    (Reduce((A,), (A,), (B,), (), ADD), TRN2, "replica_group: must have lists of ranks"),
    (Reduce((A,), (A,), (B,), TWO, ADD, (1,)), TRN2, r"channel_ids: must be the ints from 0 to 0, a channel each"),
    (
        Reduce((A,), (A,), (B,), TWO, ALU["multiply"]),
        TRN2,
        "op: must be nl.add, nl.minimum or nl.maximum, got multiply",
    ),
    (Reduce((A,), (tile((4, 4), "int8", HBM),), (B,), TWO, ADD), TRN2, "srcs1_by_channel: must have the dtype float32"),
    (Reduce((A,), (tile((4, 2), memory=HBM),), (B,), TWO, ADD), TRN2, r"dsts: must have the shape \(4, 2\)"),
    (RankId(A), TRN2, "dst: must be a register, got shared_hbm"),
    (CurrentProcessingRankId(A, 0, TWO), TRN2, "dst: must be a register, got shared_hbm"),
    (CurrentProcessingRankId(R, 1.5, TWO), TRN2, "iteration_id: must be an int or a register, got 1.5"),
    (CurrentProcessingRankId(R, A, TWO), TRN2, "iteration_id: must be an int or a register"),
    (CurrentProcessingRankId(R, 0, TWO, 4), TRN2, "channel_id: must be from 0 to 3, got 4"),
    (CurrentProcessingRankId(R, 0, ()), TRN2, "replica_group: must have lists of ranks"),
]


@pytest.mark.parametrize(("inst", "target", "words"), RULES, ids=[r[2][:40] for r in RULES])
def test_rules(inst, target, words):
    message = rule(inst, target)
    assert message.startswith(inst.api) and re.search(words, message), message


def test_cost():
    x = tile((128, 512), memory=HBM)
    assert CollectivePermute((x,), (x,), ((0, 1),)).cycles(TRN2) == Transfer(128 * 512 * 4)
    assert Ring((x, x), (x, x), TWO, (0, 1)).cycles(TRN2) == Transfer(2 * 128 * 512 * 4)
    assert Reduce((x,), (x,), (x,), TWO, ADD).cycles(TRN2) == Transfer(128 * 512 * 4)
    for inst in (RankId(R), CurrentProcessingRankId(R, 0, TWO)):
        assert inst.cycles(TRN3) == Work(0.068e3 * TRN3.ghz(Engine.sync), 0) and inst.queue is Engine.sync


def test_two_cores_meet():
    for inst in (CollectivePermute((A,), (B,), ((0, 1),)), Ring((A,), (B,), TWO), Reduce((A,), (A,), (B,), TWO, ADD)):
        assert inst.meets() is not None and inst.join((inst,))[0].core == EVERY_CORE and inst.queue is Engine.dma
    assert RankId(R).meets() is None
