"""all_gather_v and all_to_all_v on the ranks of a vmapped axis."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.collectives_v import AllGatherV, AllToAllV
from nkijax.machine import TRN2, TRN3, Engine, Memory, Transfer
from tests.isa.across import AXIS, across
from tests.isa.harness import Reader, random, rule, tile

HBM = Memory.shared_hbm
N = 4
GROUPS = {"all": ((0, 1, 2, 3),), "shuffled": ((2, 0, 3, 1),), "pairs": ((3, 0), (1, 2)), "some": ((3, 1),)}


def setup(groups, size, room, rows=3, dtype="float32", memory=HBM):
    """src, dst, metadata as views; src with values, dst full of sevens."""
    n = len(groups[0])
    shape = (1, rows, n) if memory is Memory.sbuf else (rows, n)
    src, dst = tile((2, size // 2), dtype, HBM), tile((room,), dtype, HBM)
    x = np.stack([random((2, size // 2), dtype, seed=r) for r in range(N)])
    return src, dst, tile(shape, "uint32", memory), x, np.full((N, room), 7, dtypes.storage(dtype))


def metadata(groups, rng, size, room, rows=3):
    """Random counts and displacements that fit, for every rank and column; row 2 is 99."""
    n = len(groups[0])
    table = np.full((N, rows, n), 99, np.uint32)
    table[:, 0] = rng.integers(0, min(size, room // n) + 1, (N, n))
    table[:, 1] = [[rng.integers(0, size - c + 1) for c in row] for row in table[:, 0]]
    if rows == 4:
        table[:, 3] = np.arange(n)[::-1] * (room // n)
    return table


def reference(groups, x, dst, table, gather, known, places):
    """What each rank has afterwards, and its row 2."""
    out, received = dst.copy(), table[:, 2].copy()
    n = len(groups[0])
    for group in groups:
        for position, rank in enumerate(group):
            for s, sender in enumerate(group):
                column = 0 if gather else position
                count, start = table[sender, 0, column], table[sender, 1, column]
                at = int(table[rank, 3, s]) if places else s * (dst.shape[1] // n)
                out[rank, at : at + count] = x[sender].reshape(-1)[start : start + count]
                if not known:
                    received[rank, s] = count
    return out, received


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("entry", [AllGatherV, AllToAllV])
@pytest.mark.parametrize("memory", [HBM, Memory.sbuf])
def test_against_reference(groups, entry, memory):
    src, dst, meta, x, before = setup(groups, 8, 12, memory=memory)
    table = metadata(groups, np.random.default_rng(1), 8, 12)
    inst = entry((src,), (dst,), groups, meta, axis=AXIS)
    assert rule(inst, TRN3) == ""
    tensors = {src: x, dst: before, meta: table, inst.received: table[:, 2]}
    out, received = across(inst, tensors)
    want, counts = reference(groups, x, before, table, entry is AllGatherV, False, False)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(received.reshape(N, -1), counts)


def test_known_counts_are_not_written():
    src, dst, meta, x, before = setup(GROUPS["all"], 8, 12)
    inst = AllToAllV((src,), (dst,), GROUPS["all"], meta, recv_counts_known=True, axis=AXIS)
    assert inst.writes() == (dst,)
    table = metadata(GROUPS["all"], np.random.default_rng(2), 8, 12)
    (out,) = across(inst, {src: x, dst: before, meta: table})
    np.testing.assert_array_equal(out, reference(GROUPS["all"], x, before, table, False, True, False)[0])


def test_places_of_the_receiver():
    src, dst, meta, x, before = setup(GROUPS["shuffled"], 8, 12, rows=4)
    inst = AllToAllV((src,), (dst,), GROUPS["shuffled"], meta, has_rdispls=True, axis=AXIS)
    table = metadata(GROUPS["shuffled"], np.random.default_rng(3), 8, 12, rows=4)
    out, _ = across(inst, {src: x, dst: before, meta: table, inst.received: table[:, 2]})
    np.testing.assert_array_equal(out, reference(GROUPS["shuffled"], x, before, table, False, False, True)[0])


@pytest.mark.parametrize("entry", [AllGatherV, AllToAllV])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3", "int8", "uint32", "bool"])
def test_dtypes(entry, dtype):
    src, dst, meta, x, before = setup(GROUPS["all"], 8, 12, dtype=dtype)
    inst = entry((src,), (dst,), GROUPS["all"], meta, True, axis=AXIS)
    table = metadata(GROUPS["all"], np.random.default_rng(4), 8, 12)
    (out,) = across(inst, {src: x, dst: before, meta: table})
    np.testing.assert_array_equal(out, reference(GROUPS["all"], x, before, table, entry is AllGatherV, True, False)[0])


@pytest.mark.parametrize("entry", [AllGatherV, AllToAllV])
def test_views_of_tensors(entry):
    _, _, meta, x, before = setup(GROUPS["all"], 8, 12)
    src, dst = tile((2, 8), memory=HBM).slice(1, 0, 8, 2), tile((20,), memory=HBM).slice(0, 4, 16)
    inst = entry((src,), (dst,), GROUPS["all"], meta, True, axis=AXIS)
    assert rule(inst, TRN3) == ""
    table = metadata(GROUPS["all"], np.random.default_rng(6), 8, 12)
    (out,) = across(inst, {src: x, dst: before, meta: table})
    np.testing.assert_array_equal(out, reference(GROUPS["all"], x, before, table, entry is AllGatherV, True, False)[0])


def test_gradients():
    src, dst, meta, x, _ = setup(GROUPS["all"], 8, 12)
    inst = AllGatherV((src,), (dst,), GROUPS["all"], meta, True, axis=AXIS)
    table = jnp.asarray(metadata(GROUPS["all"], np.random.default_rng(5), 8, 12))

    def total(x):
        run = lambda v, m: inst.run(Reader({src: v, meta: m}, {}))[0].value.sum()  # noqa: E731
        return jax.vmap(run, axis_name=AXIS)(x, table).sum()

    want = np.zeros((N, 8))
    for rank in range(N):
        count, start = table[rank, 0, 0], table[rank, 1, 0]
        want[rank, start : start + count] = N
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.asarray(x)).reshape(N, 8), want)


A, B = tile((4, 4), memory=HBM), tile((6,), memory=HBM)
META = tile((3, 2), "uint32", HBM)
TWO = ((0, 1),)
RULES = [
    (
        AllGatherV((A,), (B,), TWO, META, has_rdispls=True),
        "has_rdispls: must be False: NKI does not support it, got True",
    ),
    (AllGatherV((A, A), (B, B), TWO, META), "srcs: must have exactly one tensor, got 2"),
    (AllGatherV((tile((4, 4)),), (B,), TWO, META), "srcs: must be in HBM, got sbuf"),
    (
        AllGatherV((A,), (B,), TWO, tile((3, 2), "int32", HBM)),
        r"metadata_tensor: must be uint32 \(3, 2\) in HBM or sbuf",
    ),
    (
        AllGatherV((A,), (B,), TWO, tile((3, 2), "uint32")),
        r"must be uint32 \(1, 3, 2\) in HBM or sbuf, got uint32 \(3, 2\)",
    ),
    (AllToAllV((A,), (B,), TWO, META, has_rdispls=True), r"metadata_tensor: must be uint32 \(4, 2\)"),
    (AllToAllV((A,), (tile((5,), memory=HBM),), TWO, META), r"dsts: must have a multiple of 2 elements, got \(5,\)"),
    (AllToAllV((A,), (B,), ((0, 1), (1, 2)), META), "replica_group: must have each rank once"),
    (AllToAllV((A,), (tile((6,), "int32", HBM),), TWO, META), "srcs: must have the dtype int32 of dsts, got float32"),
    (AllToAllV((A,), (B,), TWO, META, priority=0), "priority: needs gen4 or later"),
]


@pytest.mark.parametrize(("inst", "words"), RULES, ids=[r[1][:40] for r in RULES])
def test_rules(inst, words):
    message = rule(inst, TRN2)
    assert message.startswith(inst.api) and re.search(words, message), message


def test_cost_and_cores():
    inst = AllToAllV((A,), (B,), TWO, META)
    assert inst.cycles(TRN2) == Transfer(12) and inst.queue is Engine.dma
    assert AllGatherV((A,), (B,), TWO, META).cycles(TRN2) == Transfer(12)
    assert inst.meets() == (inst.api, TWO) and len(inst.join((inst,))) == 1
