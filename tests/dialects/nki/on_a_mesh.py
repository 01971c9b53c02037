"""Kernels with collectives on 8 devices, each equal to its twin in JAX; prints a line for each that is.

A process of its own, because the number of devices is fixed when JAX starts: see test_collectives.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import contextlib
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import nkijax
import nkijax.dialects.nki as nki
import nkijax.dialects.nki.collectives as ncc
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from examples import tensor_parallel as example
from tests import kernels

P = PartitionSpec
MESH = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
GRID = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
ALL = ncc.ReplicaGroup([list(range(8))])
RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def mapped(f, mesh, inputs, outputs, check=True):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=check))


def hbm(shape):
    return nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm)


@nki.jit
def product(a, b):
    """a.T @ b of this rank's rows."""
    out = hbm((a.shape[1], b.shape[1]))
    nl.store(out, nl.copy(nl.matmul(nl.load(a), nl.load(b), transpose_x=True)))
    return out


@nki.jit
def tensor_parallel(a, b, group):
    """The sum over all ranks of their products: a matmul whose contraction is split over the mesh."""
    part, out = product(a, b), hbm((a.shape[1], b.shape[1]))
    ncc.all_reduce([part], [out], group, nl.add)
    return out


def test_tensor_parallel_matmul():
    a, b, weights = random(512, 32), random(512, 48), random(32, 48)
    f = nkijax.function(tensor_parallel, group=ALL)
    plain = lambda a, b: lax.psum(jnp.matmul(a.T, b, precision="highest"), "x")  # noqa: E731
    for check in (True, False):
        ours, jaxs = (mapped(g, MESH, (P("x"), P("x")), P(), check) for g in (f, plain))
        np.testing.assert_allclose(ours(a, b), jaxs(a, b), rtol=1e-4, atol=1e-4)
        got, want = (jax.grad(lambda a, b, g=g: (g(a, b) * weights).sum(), (0, 1))(a, b) for g in (ours, jaxs))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


def test_groups_on_an_axis():
    """Two groups of four on one axis (axis_index_groups), and by a mesh axis of their own."""
    a, b = random(512, 16), random(512, 16)
    rows = P(("dp", "tp"))

    def plain(a, b):
        return lax.psum(jnp.matmul(a.T, b, precision="highest"), "tp")[None]

    want = mapped(plain, GRID, (rows, rows), P("dp"))(a, b)
    groups = ncc.ReplicaGroup([[0, 1, 2, 3], [4, 5, 6, 7]])
    split = nkijax.function(tensor_parallel, group=groups)
    got = mapped(lambda a, b: split(a, b)[None], MESH, (P("x"), P("x")), P("x"))(a, b)
    np.testing.assert_allclose(got[::4], want, rtol=1e-4, atol=1e-4)
    both = mapped(lambda a, b: split(a, b)[None], GRID, (rows, rows), rows)(a, b)
    np.testing.assert_allclose(both, got, rtol=1e-5, atol=1e-5)
    named = nkijax.function(tensor_parallel, group=ncc.ReplicaGroup([[0, 1, 2, 3]]), mesh_axis="tp")
    again = mapped(lambda a, b: named(a, b)[None], GRID, (rows, rows), rows)(a, b)
    np.testing.assert_allclose(again, got, rtol=1e-5, atol=1e-5)


@nki.jit
def moved(x, what, group):
    src = hbm(x.shape)
    nisa.dma_copy(src, x)
    rows, n = x.shape[0], len(group.replica_groups[0])
    shape = {"gather": (n * rows, x.shape[1]), "scatter": (rows // n, x.shape[1])}.get(what, x.shape)
    dst = hbm(shape)
    if what == "gather":
        ncc.all_gather([src], [dst], group, collective_dim=0)
    elif what == "scatter":
        ncc.reduce_scatter([src], [dst], group, 0, nl.add)
    elif what == "all to all":
        ncc.all_to_all([src], [dst], group, 0)
    elif what == "permute":
        ncc.collective_permute([src], [dst], [(k, (k + 3) % 8) for k in range(8)])
    else:
        ncc.collective_permute_implicit([[src]], [[dst]], group)
    return dst


TWINS = {
    "gather": lambda x: lax.all_gather(x, "x", tiled=True),
    "scatter": lambda x: lax.psum_scatter(x, "x", tiled=True),
    "all to all": lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
    "permute": lambda x: lax.ppermute(x, "x", [(k, (k + 3) % 8) for k in range(8)]),
    "ring": lambda x: lax.ppermute(x, "x", [(k, (k + 1) % 8) for k in range(8)]),
}


def test_twins():
    x = random(8 * 16, 4)
    for what, twin in TWINS.items():
        ours, theirs = (mapped(f, MESH, P("x"), P("x")) for f in (nkijax.function(moved, what=what, group=ALL), twin))
        np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
        w = random(*theirs(x).shape)
        got, want = (jax.jit(jax.grad(lambda x, f=f, w=w: (f(x) ** 2 * w).sum()))(x) for f in (ours, theirs))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@nki.jit
def ring_matmul(a, b):
    """Rows of a @ b of all ranks, (K, m) a rank, while the parts of a travel around the ring in a static loop."""
    n, (k, m) = 8, a.shape
    out, here = hbm((n, m, b.shape[1])), nl.load(a)
    right = nl.load(b)
    for step in range(n):
        rank = ncc.collective_permute_implicit_current_processing_rank_id(step, ALL)
        nisa.dma_copy(out.select(0, rank), nl.copy(nl.matmul(here, right, transpose_x=True)))
        there = nl.ndarray((k, m), nl.float32, buffer=nl.sbuf)
        ncc.collective_permute_implicit([[here]], [[there]], ALL)
        here = there
    return out


def test_ring_matmul():
    a, b = random(64, 8 * 16), random(64, 24)
    ring = mapped(nkijax.function(ring_matmul), MESH, (P(None, "x"), P()), P("x"))
    got, want = ring(a, b).reshape(8, 128, 24), a.T @ b
    for rank in range(8):
        np.testing.assert_allclose(got[rank], want, rtol=1e-4, atol=1e-4)

    weights = random(64, 16, 24)  # a (128, 24) for each rank's result
    total = weights.reshape(8, 128, 24).sum(0)
    grads = jax.jit(jax.grad(lambda a, b: (ring(a, b) * weights).sum(), (0, 1)))(a, b)
    for g, w in zip(grads, (b @ total.T, a @ total), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)


@nki.jit
def rounds(x, turns):
    """A dynamic loop around a collective: x goes as many ranks on as `turns` says, and is doubled at each."""
    here = nl.load(x)
    count = nisa.register_alloc()
    nisa.register_load(count, turns)

    def turn(i):
        there = nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
        ncc.collective_permute_implicit([[here]], [[there]], ALL)
        nisa.tensor_scalar(here, there, nl.multiply, 2.0)

    nl.fori_loop(0, count, turn)
    out = hbm(x.shape)
    nl.store(out, here)
    return out


def test_dynamic_loops():
    x = random(8 * 4, 3)
    for turns in (0, 3):
        given = np.array([turns], np.int32)
        for check in (True, False):
            got = mapped(nkijax.function(rounds), MESH, (P("x"), P()), P("x"), check)(x, given)
            np.testing.assert_array_equal(got, 2.0**turns * np.roll(x.reshape(8, 4, 3), turns, 0).reshape(32, 3))


def test_rank_id_picks_a_row():
    @nki.jit
    def pick(x):
        out = hbm((1, x.shape[1]))
        nisa.dma_copy(out, x.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=ncc.rank_id()))
        return out

    x = random(8, 5)
    np.testing.assert_array_equal(mapped(nkijax.function(pick), MESH, P(), P("x"))(x), x)


def test_two_cores_a_rank():
    """kernel[2]: on shared HBM both cores' collective is one; in SBUF each has its own."""

    @nki.jit
    def kernel(x):
        core, rows = nl.program_id(0), x.shape[0] // 2
        mine = slice(core * rows, (core + 1) * rows)
        src, dst = hbm(x.shape), hbm(x.shape)
        tile = nl.load(x[mine])
        nisa.dma_copy(src[mine], tile)
        ncc.all_reduce([src], [dst], ALL, nl.add)
        own = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
        ncc.all_reduce([tile], [own], ALL, nl.add)
        out = hbm(x.shape)
        nl.store(out[mine], nl.subtract(nl.load(dst[mine]), nl.multiply(own, 0.5)))
        return out

    x = random(8 * 4, 3)
    got = mapped(nkijax.function(kernel[2]), MESH, P("x"), P("x"))(x)
    np.testing.assert_allclose(got, np.tile(0.5 * x.reshape(8, 4, 3).sum(0), (8, 1)), rtol=1e-5, atol=1e-5)


def test_meshes_of_other_sizes_and_loops():
    """The same kernel on 8 and on 4 devices; and every way to run repeats, with and without the check of vma."""
    small = jax.make_mesh((4,), ("y",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])

    @nki.jit
    def kernel(x, group):
        out = hbm(x.shape)
        for i in range(0, x.shape[0], 2):
            tile = nl.load(x[i : i + 2])
            total = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
            ncc.all_reduce([tile], [total], group, nl.add)
            nl.store(out[i : i + 2], total)
        return out

    for mesh, axis, n in ((MESH, "x", 8), (small, "y", 4)):
        group, x = ncc.ReplicaGroup([list(range(n))]), random(n * 8, 3)
        want = np.tile(x.reshape(n, 8, 3).sum(0), (n, 1))
        for loops in ("scan", "vmap"):
            got = mapped(nkijax.function(kernel, group=group, loops=loops), mesh, P(axis), P(axis))(x)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_example():
    with contextlib.redirect_stdout(io.StringIO()):
        example.main(k=1024, m=32, n=64)


# ---- kernels without collectives


def layers(layer, weights, h):
    """A scan over layers, each recomputed in the backward pass."""
    return lax.scan(lambda h, w: (jnp.tanh(jax.checkpoint(layer)(w, h)), None), h, weights)[0]


def plain_layer(w, h):
    return jnp.matmul(w.T, h, precision="highest")


def test_a_data_parallel_step():
    """Each device has its part of the batch, and the loss is the sum over devices."""
    weights, batch = 0.2 * random(3, 128, 128), random(128, 8 * 16)
    want = jax.grad(lambda w: (layers(plain_layer, w, batch) ** 2).sum())(weights)
    for loops, check in (("vmap", True), ("scan", True), ("scan", False)):
        layer = nkijax.function(kernels.matmul, loops=loops)
        part = lambda w, h, layer=layer: lax.psum((layers(layer, w, h) ** 2).sum(), "x")  # noqa: E731
        loss = mapped(part, MESH, (P(), P(None, "x")), P(), check)
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(weights, batch), want, rtol=1e-4, atol=1e-4)


def test_each_device_has_its_own_trip_counts():
    x, rows = random(8 * 6, 4), np.stack([np.arange(8) % 6, np.arange(8)[::-1] % 6, np.arange(8) % 3], 1)
    n, turns = rows.reshape(-1, 1).astype(np.int32), rows[:, 2]
    picked = np.arange(3) < turns[:, None]
    times = np.stack([np.bincount(r[p], minlength=6) for r, p in zip(rows, picked, strict=True)]).reshape(-1, 1)
    want = np.where(picked[:, :, None], x.reshape(8, 6, 4)[np.arange(8)[:, None], rows], np.nan).reshape(24, 4)
    for max_trips in (None, 3):
        pick = mapped(nkijax.function(kernels.pick_rows, max_trips=max_trips), MESH, P("x"), P("x"))
        np.testing.assert_array_equal(pick(x, n), want)
        loss = lambda x, pick=pick: (jnp.where(picked.reshape(-1, 1), pick(x, n), 0) ** 2).sum()  # noqa: E731
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), 2 * x * times, rtol=1e-5)


@nki.jit
def staircase(x):
    """Row i: x, halved and increased by one i + 2 times more than the row before."""
    out, here = hbm((5, x.shape[1])), nl.load(x)
    for i in range(5):
        for _ in range(i + 2):
            nisa.tensor_scalar(here, here, nl.multiply, 0.5, op1=nl.add, operand1=1.0)
        nl.store(out[i : i + 1], here)
    return out


def test_static_loops_whose_length_grows():
    x = random(8, 3)
    assert "repeat 2..6:" in str(nkijax.trace(staircase, x[:1]))
    powers = 0.5 ** np.cumsum(np.arange(2, 7))[:, None]
    plain = lambda x: 2 + (x - 2) * jnp.asarray(powers, np.float32)  # noqa: E731
    got, want = (mapped(f, MESH, P("x"), P("x")) for f in (nkijax.function(staircase), plain))
    np.testing.assert_allclose(got(x), want(x), rtol=1e-6)
    for g, w in zip(*(jax.vjp(f, x)[1](want(x)) for f in (got, want)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5)


def test_shared_weights_in_loops_of_own_length():
    """A weight that all devices share gets one gradient, summed after the loops: they turn differently often."""

    @nki.jit
    def grow(x, weight, turns):
        here, count = nl.load(x), nisa.register_alloc()
        nisa.register_load(count, turns)

        def turn(i):
            nisa.tensor_tensor(here, here, nl.load(weight), nl.multiply)

        nl.fori_loop(0, count, turn)
        out = hbm(x.shape)
        nl.store(out, here)
        return out

    x, weight, turns = random(8, 5), random(1, 5), (np.arange(8, dtype=np.int32) % 5).reshape(8, 1)
    f = mapped(nkijax.function(grow), MESH, (P("x"), P(), P("x")), P("x"))
    got = jax.jit(jax.grad(lambda x, w: f(x, w, turns).sum(), (0, 1)))(x, weight)
    want = jax.grad(lambda x, w: (x * w**turns).sum(), (0, 1))(x, weight)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def test_sharded_arguments_of_jit():
    """A kernel in `jax.jit` on arrays that lie on a mesh, split along any of their axes."""
    a, b, weights = random(256, 512), random(256, 64), random(512, 64)
    kernel = nkijax.function(kernels.matmul)
    value_and_grad = jax.jit(jax.value_and_grad(lambda a, b, w: (kernel(a, b) * w).sum(), (0, 1)))
    want = ((a.T @ b * weights).sum(), (b @ weights.T, a @ weights))
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(kind,) * 2)
        for left, right in ((P("dp", "tp"), P("dp")), (P(None, ("dp", "tp")), P())):
            put = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in ((a, left), (b, right), (weights, P()))]
            value, grads = value_and_grad(*put)
            np.testing.assert_allclose(value, want[0], rtol=1e-4)
            for g, w, x in zip(grads, want[1], put, strict=False):
                np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
                assert kind is AxisType.Auto or g.sharding.is_equivalent_to(x.sharding, g.ndim)
            np.testing.assert_allclose(nkijax.run(kernels.matmul, *put[:2]), a.T @ b, rtol=1e-4, atol=1e-4)


def test_a_kernel_runs_where_its_arrays_are():
    """On the device that they were put on, else on jax.default_device."""
    x, put = random(256, 4), jax.device_put
    for index in (0, 5):
        device = jax.devices()[index]
        with jax.default_device(device):
            outs = [kernels.double(jnp.asarray(x)), jax.jit(nkijax.function(kernels.double))(x)]
        outs += [kernels.double(put(x, device)), nkijax.run(kernels.double, put(x, device), eager=True)]
        for out in outs:
            assert out.devices() == {device}
            np.testing.assert_array_equal(out, 2 * x)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_") and isinstance(test, type(functools.wraps)):
            test()
            print(name, flush=True)
