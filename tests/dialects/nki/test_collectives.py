"""Collectives as kernels spell them; on devices in a process of its own (on_a_mesh.py), here on a vmapped axis."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
import nkijax.dialects.nki.collectives as ncc
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError, Unsupported

ROOT = Path(__file__).parents[3]
N = 4
X = np.random.default_rng(0).standard_normal((N, 4, 3)).astype(np.float32)
ALL = ncc.ReplicaGroup([list(range(N))])


def across(kernel, *arrays, **static):
    """The kernel on N ranks at once."""
    return jax.vmap(nkijax.function(kernel, mesh_axis="r", **static), axis_name="r")(*arrays)


def hbm(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def test_on_a_mesh():
    """Kernels on 8 forced host devices equal their JAX twins."""
    script = Path(__file__).with_name("on_a_mesh.py")
    names = re.findall(r"^def (test_\w+)", script.read_text(), re.MULTILINE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == names and len(names) > 5


def test_every_function():
    """Each through the dialect, with names and keywords, on one kernel."""

    def kernel(x, meta):
        group = ncc.ReplicaGroup([[0, 1], [3, 2]])
        src, outs = hbm(x.shape), []
        nisa.dma_copy(src, x)

        def new(shape):
            outs.append(hbm(shape))
            return [outs[-1]]

        ncc.all_reduce(srcs=[src], dsts=new((4, 3)), replica_group=group, op=nl.maximum, priority=2, name="reduce")
        ncc.all_gather(srcs=[src], dsts=new((8, 3)), replica_group=group, collective_dim=0)
        ncc.reduce_scatter([src], new((2, 3)), group, 0, nl.add)
        ncc.all_to_all([src], new((4, 3)), group, 0)
        ncc.collective_permute([src], new((4, 3)), source_target_pairs=[(0, 1), (1, 0), (2, 3), (3, 2)])
        ncc.collective_permute_implicit([[src]], [new((4, 3))], group, channel_ids=[0])
        ncc.collective_permute_implicit_reduce([[src]], [[src]], [new((4, 3))], group, nl.add)
        table = hbm((3, 2), nl.uint32)
        nisa.dma_copy(table, meta)
        ncc.all_gather_v([src], new((8, 3)), group, metadata_tensor=table, recv_counts_known=True)
        ncc.all_to_all_v([src], new((8, 3)), group, table)
        ids = hbm((1, 2), nl.int32)
        nisa.register_store(ids[0, 0:1], ncc.rank_id())
        step = ncc.collective_permute_implicit_current_processing_rank_id(iteration_id=1, replica_group=group)
        nisa.register_store(ids[0, 1:2], step)
        return tuple(outs), ids, table

    meta = np.broadcast_to(np.array([[12, 6], [0, 6], [0, 0]], np.uint32), (N, 3, 2))
    outs, ids, table = across(kernel, X, meta)
    other = [1, 0, 3, 2]
    pair = [(0, 1), (0, 1), (3, 2), (3, 2)]
    both = X[pair]  # (rank, position, 4, 3)
    position = [0, 1, 1, 0]
    pieces = [
        both.max(1),
        both.reshape(N, 8, 3),
        np.stack([both[r].sum(0)[2 * p : 2 * p + 2] for r, p in enumerate(position)]),
        np.stack([both[r][:, 2 * p : 2 * p + 2].reshape(4, 3) for r, p in enumerate(position)]),
        X[other],
        X[other],
        2 * X[other],
        both.reshape(N, 8, 3),
    ]
    for got, want in zip(outs, pieces, strict=False):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    sent = np.asarray(outs[-1]).reshape(N, 2, 12)  # 12 elements to the first of a group, the last 6 to the second
    for rank, place in enumerate(position):
        flat = both[rank].reshape(2, 12)
        np.testing.assert_array_equal(sent[rank][:, : 6 if place else 12], flat[:, 6 if place else 0 :])
    assert ids[:, 0].tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]
    assert table[:, 2].tolist() == [[12, 12], [6, 6], [6, 6], [12, 12]], "what arrived"


def test_outside_of_a_mesh():
    @nki.jit
    def kernel(x):
        dst = hbm(x.shape)
        ncc.all_reduce([x], [dst], ALL, nl.add)
        return dst

    words = (
        r"nki.collectives.all_reduce: needs the ranks of a mesh; call nkijax.function\(kernel\) inside jax.shard_map"
    )
    with pytest.raises(Unsupported, match=rf"{words}\n  at .*test_collectives.py:\d+"):
        kernel(X[0])
    with pytest.raises(Unsupported, match="with the axis 'rows'"):
        nkijax.function(kernel, mesh_axis="rows")(X[0])
    assert "AllReduce" in str(nkijax.trace(kernel, X[0])), "tracing needs no mesh"
    with pytest.raises(KernelError, match="replica_group: must have ranks below 2"):
        jax.vmap(nkijax.function(kernel, mesh_axis="r"), axis_name="r")(X[:2])


def test_a_replica_group_is_an_argument():
    @nki.jit
    def kernel(x, group):
        dst = hbm(x.shape)
        ncc.all_reduce([x], [dst], group, nl.add)
        return dst

    for lists in ([[0, 1, 2, 3]], [[0, 1], [2, 3]], ((3, 0), (1, 2))):
        got = np.asarray(across(kernel, X, group=ncc.ReplicaGroup(lists)))
        for group in lists:
            np.testing.assert_allclose(got[list(group)], np.stack([X[list(group)].sum(0)] * len(group)), rtol=1e-6)
    assert ncc.ReplicaGroup([[0, 1]]) == ncc.ReplicaGroup(replica_groups=[[0, 1]]) != ncc.ReplicaGroup([[1, 0]])


def test_two_cores_must_both_reach_it():
    """Case 33: an error, never a hang."""

    def kernel(x):
        dst = hbm(x.shape)
        if nl.program_id(0) == 0:
            ncc.all_reduce([x], [dst], ALL, nl.add)
        return dst

    with pytest.raises(KernelError, match="every core must reach it at the same point, core 1 reaches nothing"):
        nkijax.trace(nki.jit(kernel)[2], X[0])


def test_arguments():
    def message(call):
        with pytest.raises(KernelError) as error:
            nkijax.trace(lambda x: call(x, hbm(x.shape)) and None, X[0])
        return error.value.message

    assert message(lambda x, y: ncc.all_reduce(x, [y], ALL, nl.add)).startswith(
        "nki.collectives.all_reduce srcs: must be a list of tensors, got NkiTensor("
    )
    assert "srcs: must be a tensor, got 3" in message(lambda x, y: ncc.all_gather([3], [y], ALL, 0))
    assert "replica_group: must be a ReplicaGroup, got [[0, 1]]" in message(
        lambda x, y: ncc.all_to_all([x], [y], [[0, 1]], 0)
    )
    assert "op: must be nl.add, nl.minimum or nl.maximum, got exp" in message(
        lambda x, y: ncc.all_reduce([x], [y], ALL, nl.exp)
    )
    assert "srcs_by_channel: must be a list of channels, each a list of one tensor" in message(
        lambda x, y: ncc.collective_permute_implicit([x], [[y]], ALL)
    )
    assert "source_target_pairs: must be a list of pairs of ranks, got [0, 1]" in message(
        lambda x, y: ncc.collective_permute([x], [y], [0, 1])
    )
    with pytest.raises(KernelError, match="ReplicaGroup: must be lists of ranks, got 3"):
        ncc.ReplicaGroup(3)
    with pytest.raises(KernelError, match="runs only inside a kernel"):
        ncc.rank_id()


def test_did_you_mean():
    with pytest.raises(AttributeError, match="did you mean all_reduce"):
        _ = ncc.all_reduc
