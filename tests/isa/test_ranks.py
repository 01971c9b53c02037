"""Groups of ranks, and where ranks come from."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from nkijax import KernelError, Unsupported
from nkijax.isa import ranks
from nkijax.isa.collectives import AllGather
from nkijax.isa.ranks import Ranks
from nkijax.machine import Memory
from tests.isa.harness import tile

MESH = Ranks(("x",), 6, False)
HBM = Memory.shared_hbm


def gather(groups, axis=None):
    inst = AllGather((tile((2, 3), memory=HBM),), (tile((4, 3), memory=HBM),), groups, 0, axis=axis)
    object.__setattr__(inst, "site", "kernel.py:7")
    return inst


def test_tables():
    groups = ((4, 1), (0, 5))
    assert ranks.members(MESH, groups).tolist() == [[0, 5], [4, 1], [2, 2], [3, 3], [4, 1], [0, 5]]
    assert ranks.positions(MESH, groups).tolist() == [0, 1, 0, 0, 0, 1]
    assert ranks.whole(MESH, (tuple(range(6)),)) and not ranks.whole(MESH, (tuple(range(5, -1, -1)),))


def test_outside_of_a_mesh():
    words = (
        r"nki.collectives.all_gather: needs the ranks of a mesh; call nkijax.function\(kernel\) inside jax.shard_map"
    )
    with pytest.raises(Unsupported, match=words + "\n  at kernel.py:7"):
        ranks.ranks(gather(((0, 1),)))
    with pytest.raises(Unsupported, match="needs the ranks of a mesh with the axis 'tp'"):
        ranks.ranks(gather(((0, 1),), axis="tp"))


def test_a_named_axis():
    def run(x):
        mesh = ranks.ranks(gather(((0, 1),), axis="r"))
        assert (mesh.axes, mesh.size, mesh.manual) == (("r",), 4, False)
        return mesh.me

    assert jax.vmap(run, axis_name="r")(np.zeros(4)).tolist() == [0, 1, 2, 3]


def test_axes_count_as_one_from_the_first_on():
    def run(x):
        return ranks.ranks(gather(((0, 1),), axis=("a", "b"))).me

    out = jax.vmap(jax.vmap(run, axis_name="b"), axis_name="a")(np.zeros((2, 3)))
    assert out.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_ranks_beyond_the_mesh():
    words = r"replica_group: must have ranks below 4, the devices of mesh axes \('r',\), got 5"
    with pytest.raises(KernelError, match=words) as error:
        jax.vmap(lambda x: ranks.ranks(gather(((0, 5),), axis="r")).me, axis_name="r")(np.zeros(4))
    assert error.value.site == "kernel.py:7"


def test_ring_bytes():
    inst = gather(((0, 1, 2),))
    assert ranks.ring_bytes(inst, inst.dsts) == 2 / 3 * 48 and ranks.ring_bytes(inst, inst.dsts, passes=2) == 64


def test_widened():
    for dtype, want in (("int8", "int32"), ("uint16", "int32"), ("uint32", "uint32"), ("float16", "float32")):
        assert ranks.widened(np.zeros(2, dtype)).dtype == want
    assert ranks.stored(jax.numpy.asarray([300, -1]), "uint8").tolist() == [44, 255]
