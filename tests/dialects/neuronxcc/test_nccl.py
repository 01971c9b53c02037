"""Collectives of one member are copies, and others are refused."""

import numpy as np
import pytest

from nkijax import Unsupported
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc import nccl

from .test_emit import X, ran

GROUPED = [nccl.all_gather, nccl.all_reduce, nccl.reduce_scatter]


def test_one_member_copies():
    def body(x):
        out = nl.ndarray((5, 6, 8), dtype=x.dtype, buffer=nl.hbm)
        for k, collective in enumerate(GROUPED):
            collective(op=np.add, srcs=[x], dsts=[out[k]], replica_groups=[[0], [1]], dtype=x.dtype)
        nccl.collective_permute(dst=out[3], src=x, source_target_pairs=[[0, 0]])
        nccl.collective_permute_implicit(dst=out[4], src=x, replica_groups=[[0]], channel_id=0, num_channels=1)
        return nl.load(out[0]) + nl.load(out[1]) + nl.load(out[2]) + nl.load(out[3]) + nl.load(out[4])

    assert (ran(body) == 5 * X).all()


def test_several_members_are_refused():
    for collective in (*GROUPED, nccl.collective_permute_implicit):
        with pytest.raises(Unsupported, match=rf"nccl.{collective.__name__}: .* got \[\[0, 1\]\]"):
            collective(replica_groups=[[0, 1]])
    with pytest.raises(Unsupported, match="nccl.collective_permute: "):
        nccl.collective_permute(source_target_pairs=[[0, 1], [1, 0]])
