"""all_reduce, all_gather, reduce_scatter, all_to_all on the ranks of a vmapped axis."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkijax import dtypes
from nkijax.isa.collectives import AllGather, AllReduce, AllToAll, ReduceScatter
from nkijax.isa.operators import ALU
from nkijax.machine import TRN2, TRN3, Engine, Memory, Transfer
from nkijax.program import EVERY_CORE
from tests.isa.across import AXIS, across
from tests.isa.harness import Reader, buffer, random, rule, tile, whole

HBM, SBUF, PSUM = Memory.shared_hbm, Memory.sbuf, Memory.psum
N = 6
GROUPS = {
    "all": (tuple(range(N)),),
    "shuffled": ((3, 1, 5, 0, 2, 4),),
    "pairs": ((4, 1), (0, 5), (2, 3)),
    "some": ((5, 2, 0),),
}
FOLDS = {"add": np.add, "minimum": np.minimum, "maximum": np.maximum}
DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "int8", "uint8", "int16", "int32", "uint32"]


def values(shape, dtype="float32", seed=0):
    return np.stack([random(shape, dtype, seed + r) for r in range(N)])


def group_of(groups, rank):
    return next((list(g) for g in groups if rank in g), None)


def pair(shape, out, dtype="float32", memory=HBM):
    """A source with values on every rank, and a destination of sevens."""
    src, dst = tile(shape, dtype, memory), tile(out, dtype, memory)
    x = values(shape, dtype)
    return src, dst, x, {src: x, dst: np.full((N, *out), 7, dtypes.storage(dtype))}


def expect(x, groups, out, want):
    """`want(the group's tensors, position)` on ranks of a group, sevens elsewhere."""
    rows = []
    for rank in range(N):
        group = group_of(groups, rank)
        rows.append(np.full(out, 7, x.dtype) if group is None else want(x[group], group.index(rank)))
    return np.stack(rows)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("op", FOLDS)
def test_all_reduce(groups, op):
    src, dst, x, memory = pair((4, 3), (4, 3))
    (out,) = across(AllReduce((src,), (dst,), groups, ALU[op], axis=AXIS), memory)
    want = expect(x, groups, (4, 3), lambda xs, p: FOLDS[op].reduce(xs))
    np.testing.assert_allclose(out, want, rtol=1e-6)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize(("dim", "memory"), [(0, HBM), (0, SBUF), (1, SBUF)])
def test_all_gather(groups, dim, memory):
    n = len(groups[0])
    out_shape = (4 * n, 3) if dim == 0 else (4, 3 * n)
    src, dst, x, tensors = pair((4, 3), out_shape, memory=memory)
    (out,) = across(AllGather((src,), (dst,), groups, dim, axis=AXIS), tensors)
    np.testing.assert_array_equal(out, expect(x, groups, out_shape, lambda xs, p: np.concatenate(xs, axis=dim)))


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("op", FOLDS)
def test_reduce_scatter(groups, op):
    n = len(groups[0])
    rows = 12 // n
    src, dst, x, memory = pair((12, 3), (rows, 3))
    (out,) = across(ReduceScatter((src,), (dst,), groups, 0, ALU[op], axis=AXIS), memory)
    want = expect(x, groups, (rows, 3), lambda xs, p: FOLDS[op].reduce(xs)[p * rows : (p + 1) * rows])
    np.testing.assert_allclose(out, want, rtol=1e-6)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_all_to_all(groups):
    n = len(groups[0])
    rows = 12 // n
    src, dst, x, memory = pair((12, 2, 2), (12, 2, 2))
    (out,) = across(AllToAll((src,), (dst,), groups, 0, axis=AXIS), memory)
    want = expect(x, groups, (12, 2, 2), lambda xs, p: np.concatenate([t[p * rows : (p + 1) * rows] for t in xs]))
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_reductions(dtype):
    """Floats are summed in float32 and rounded once; integers exactly, modulo their width."""
    src, dst, x, memory = pair((2, 4), (2, 4), dtype)
    for groups in (GROUPS["all"], GROUPS["shuffled"]):
        (out,) = across(AllReduce((src,), (dst,), groups, ALU["add"], axis=AXIS), memory)
        if dtypes.is_float(dtype):
            with np.errstate(over="ignore"):
                want = x.astype(np.float32).sum(0).astype(x.dtype)
        else:
            want = x.sum(0, dtype=x.dtype)
        np.testing.assert_array_equal(out, np.broadcast_to(want, out.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_scattered_reductions(dtype):
    src, dst, x, memory = pair((N, 4), (1, 4), dtype)
    (out,) = across(ReduceScatter((src,), (dst,), GROUPS["all"], 0, ALU["maximum"], axis=AXIS), memory)
    np.testing.assert_array_equal(out[:, 0], x.max(axis=0))


@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_dtypes_are_moved_bit_for_bit(dtype):
    src, dst, x, memory = pair((2, 4), (2 * N, 4), dtype)
    (out,) = across(AllGather((src,), (dst,), GROUPS["all"], 0, axis=AXIS), memory)
    np.testing.assert_array_equal(out, np.broadcast_to(x.reshape(2 * N, 4), out.shape))
    src, dst, x, memory = pair((N, 4), (N, 4), dtype)
    (out,) = across(AllToAll((src,), (dst,), GROUPS["all"], 0, axis=AXIS), memory)
    np.testing.assert_array_equal(out, x.transpose(1, 0, 2))


def test_several_tensors_and_views():
    big = tile((4, 8), memory=HBM)
    srcs = (big.slice(1, 2, 4), tile((3, 2), memory=HBM))
    dsts = tuple(tile(v.shape, memory=HBM) for v in srcs)
    xs = [values(v.shape, seed=k) for k, v in enumerate(srcs)]
    inst = AllReduce(srcs, dsts, GROUPS["all"], ALU["add"], axis=AXIS)
    assert rule(inst) == ""
    for out, x in zip(across(inst, dict(zip(srcs, xs, strict=True))), xs, strict=True):
        np.testing.assert_allclose(out, np.broadcast_to(x.sum(0), out.shape), rtol=1e-6)


def test_views_of_tensors():
    """Every second column of a source, the first rows of a destination."""
    src, x = tile((N, 8), memory=HBM).slice(1, 0, 8, 2), values((N, 4))
    for entry, rows, want in (
        (lambda dst: AllGather((src,), (dst,), GROUPS["all"], 0, axis=AXIS), N * N, lambda r: x.reshape(N * N, 4)),
        (lambda dst: AllToAll((src,), (dst,), GROUPS["all"], 0, axis=AXIS), N, lambda r: x[:, r]),
        (
            lambda dst: ReduceScatter((src,), (dst,), GROUPS["all"], 0, ADD, axis=AXIS),
            1,
            lambda r: x[:, r : r + 1].sum(0),
        ),
    ):
        dst = tile((2 * rows, 4), memory=HBM).slice(0, 0, rows)
        assert rule(entry(dst)) == ""
        (out,) = across(entry(dst), {src: x, dst: np.zeros((N, rows, 4), np.float32)})
        np.testing.assert_allclose(out, np.stack([want(r) for r in range(N)]), rtol=1e-6)


def test_gradients():
    src, dst = tile((4, 3), memory=HBM), tile((4, 3), memory=HBM)
    x, weights = values((4, 3)), jnp.asarray(values((4, 3), seed=9))
    for groups in (GROUPS["all"], GROUPS["pairs"]):
        inst = AllReduce((src,), (dst,), groups, ALU["add"], axis=AXIS)

        def total(x, inst=inst):
            out: Any = jax.vmap(lambda v: inst.run(Reader({src: v}, {}))[0], axis_name=AXIS)(x)
            return jnp.sum(out * weights)

        want = np.stack([np.asarray(weights)[group_of(groups, r)].sum(0) for r in range(N)])
        np.testing.assert_allclose(jax.jit(jax.grad(total))(x), want, rtol=1e-5)


# ---- rules, cost, two cores

A, B, WIDE, BIG = (tile(s, memory=HBM) for s in ((4, 4), (4, 4), (4, 5), (8, 4)))
C, D, ONE = tile((4, 4)), tile((4, 4)), tile((1, 1), "int32")
TWO = ((0, 1),)
ADD = ALU["add"]
RULES = [
    (AllReduce((A,), (B,), (), ADD), TRN2, r"replica_group: must have lists of ranks, got \[\]"),
    (AllReduce((A,), (B,), ((0, -1),), ADD), TRN2, r"must have lists of ranks, got \[\[0, -1\]\]"),
    (AllReduce((A,), (B,), ((0, 1), (1, 2)), ADD), TRN2, r"must have each rank once, got \[\[0, 1\], \[1, 2\]\]"),
    (AllReduce((A,), (B,), ((0, 1), (2,)), ADD), TRN2, "must have lists of equal length"),
    (AllReduce((A, A), (B,), TWO, ADD), TRN2, "dsts: must have as many tensors as srcs, at least one, got 1"),
    (AllReduce((), (), TWO, ADD), TRN2, "srcs: must have as many tensors as srcs, at least one, got 0"),
    (AllReduce((A,), (C,), TWO, ADD), TRN2, "srcs, dsts: must all be in HBM or all in sbuf, got both"),
    (AllReduce((C, D), (D, C), TWO, ADD), TRN2, "srcs: several tensors must be in HBM, got sbuf"),
    (AllReduce((tile((4, 4), memory=PSUM),), (B,), TWO, ADD), TRN2, "srcs: must be in HBM or sbuf, got psum"),
    (
        AllReduce((tile((200, 4)),), (tile((200, 4)),), TWO, ADD),
        TRN2,
        "srcs partition dimension 200 exceeds maximum 128",
    ),
    (AllReduce((A,), (tile((4, 4), "bfloat16", HBM),), TWO, ADD), TRN2, "srcs: must have the dtype bfloat16 of dsts"),
    (AllReduce((A,), (WIDE,), TWO, ADD), TRN2, r"dsts: must have the shape \(4, 4\): that of srcs, got \(4, 5\)"),
    (AllReduce((A,), (B,), TWO, ALU["multiply"]), TRN2, "op: must be nl.add, nl.minimum or nl.maximum, got multiply"),
    (AllReduce((A,), (B,), TWO, ADD, 1), TRN2, "priority: needs gen4 or later, got trn2"),
    (AllReduce((A,), (B,), TWO, ADD, 4), TRN3, "priority: must be an integer from 0 to 3, got 4"),
    (AllReduce(*((tile((4, 4), "float8_e5m2_x4", HBM),),) * 2, TWO, ADD), TRN2, "packed x4 types take no arithmetic"),
    (AllReduce((A.shifted(0, ONE, 4),), (B,), TWO, ADD), TRN2, "srcs: must have an address known at compile time, got"),
    (AllGather((A,), (BIG,), (), 0), TRN2, r"replica_group: must have lists of ranks, got \[\]"),
    (AllGather((A, A), (BIG,), TWO, 0), TRN2, "dsts: must have as many tensors as srcs, at least one, got 1"),
    (AllGather((A,), (BIG,), TWO, 1), TRN2, "collective_dim: must be 0, got 1"),
    (AllGather((C,), (tile((4, 8)),), TWO, 2), TRN2, "collective_dim: must be 0 or 1, got 2"),
    (AllGather((tile((4, 2, 2)),), (tile((8, 2, 2)),), TWO, 0), TRN2, "srcs: must have 2 dimensions in sbuf"),
    (
        AllGather((A,), (B,), TWO, 0),
        TRN2,
        r"dsts: must have the shape \(8, 4\): 2 times srcs in dimension 0, got \(4, 4\)",
    ),
    (
        ReduceScatter((A,), (B,), ((0, 1, 2),), 0, ADD),
        TRN2,
        r"srcs: must have a multiple of 3 in dimension 0, got \(4, 4\)",
    ),
    (ReduceScatter((A,), (B,), TWO, 0, ADD), TRN2, r"must have the shape \(2, 4\): 1/2 of srcs in dimension 0"),
    (ReduceScatter((A,), (B,), TWO, 1, ADD), TRN2, "collective_dim: must be 0, got 1"),
    (ReduceScatter((A,), (B,), ((0, 0),), 0, ADD), TRN2, "replica_group: must have each rank once"),
    (ReduceScatter((A,), (C,), TWO, 0, ADD), TRN2, "srcs, dsts: must all be in HBM or all in sbuf, got both"),
    (ReduceScatter((A,), (B,), TWO, 0, ALU["multiply"]), TRN2, "op: must be nl.add, nl.minimum or nl.maximum, got mul"),
    (AllToAll((A,), (B,), ((0,), (1, 2)), 0), TRN2, "replica_group: must have lists of equal length"),
    (AllToAll((C,), (D,), TWO, 0), TRN2, "srcs: must be in HBM, got sbuf"),
    (AllToAll((A,), (B,), ((0, 1, 2),), 0), TRN2, "srcs: must have a multiple of 3 in dimension 0"),
    (AllToAll((A,), (WIDE,), TWO, 0), TRN2, r"dsts: must have the shape \(4, 4\): that of srcs"),
    (AllToAll((A,), (B,), TWO, 1), TRN2, "collective_dim: must be 0, got 1"),
]


@pytest.mark.parametrize(("inst", "target", "words"), RULES, ids=[r[2][:40] for r in RULES])
def test_rules(inst, target, words):
    message = rule(inst, target)
    assert message.startswith(inst.api) and re.search(words, message), message


def test_legal():
    for inst in (AllReduce((A,), (B,), TWO, ADD), AllGather((A,), (BIG,), TWO, 0), AllToAll((A,), (B,), TWO, 0)):
        assert rule(inst) == "" and inst.queue is Engine.dma
    assert rule(AllReduce((C,), (D,), TWO, ADD, 3), TRN3) == ""


def test_cost():
    """A ring of n ranks: each sends (n - 1) / n of the bytes, twice for an all_reduce."""
    four = ((0, 1, 2, 3),)
    small, large = tile((128, 512), memory=HBM), tile((512, 512), memory=HBM)
    size = 128 * 512 * 4
    assert AllReduce((small,), (small,), four, ADD).cycles(TRN2) == Transfer(2 * size * 3 // 4)
    assert AllGather((small,), (large,), four, 0).cycles(TRN2) == Transfer(4 * size * 3 // 4)
    assert ReduceScatter((large,), (small,), four, 0, ADD).cycles(TRN2) == Transfer(4 * size * 3 // 4)
    assert AllToAll((small,), (small,), four, 0).cycles(TRN2) == Transfer(size * 3 // 4)


def test_two_cores_meet():
    shared, own = buffer((4, 4), memory=HBM), [buffer((4, 4)) for _ in range(4)]
    once = [AllReduce((whole(shared),), (B,), TWO, ADD, core=k) for k in range(2)]
    assert once[0].meets() == once[1].meets() != AllReduce((A,), (B,), ((1, 0),), ADD).meets()
    (joined,) = once[0].join(once[1:])
    assert joined.core == EVERY_CORE and joined.writes() == (B,)
    each = [AllReduce((whole(own[k]),), (whole(own[2 + k]),), TWO, ADD, core=k) for k in range(2)]
    assert each[0].join(each[1:]) == tuple(each)
