"""Two matmuls split over the devices of a mesh: one sums over ranks at its end, one passes its operand around a ring.

nkijax run examples/tensor_parallel.py        (or: python examples/tensor_parallel.py; either on 8 forced CPU devices)
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import nkijax
from nkijax.cost import cost

nkijax.install()  # from here on `import nki` is nkijax

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl

P = 128


def product(a, b):
    """a.T @ b in SBUF for a (K, M) and b (K, N) in HBM, K in steps of 128, M at most 128 and N at most 512."""
    total = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for k in nl.affine_range(a.shape[0] // P):
        left = nl.ndarray((P, a.shape[1]), dtype=a.dtype, buffer=nl.sbuf)
        right = nl.ndarray((P, b.shape[1]), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[k * P : (k + 1) * P, :])
        nisa.dma_copy(dst=right, src=b[k * P : (k + 1) * P, :])
        nisa.nc_matmul(dst=total, stationary=left, moving=right)
    result = nl.ndarray(total.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=total)
    return result


@nki.jit
def row_parallel(a, b, ranks):
    """a.T @ b, of which each rank has the rows a (K / ranks, M) and b (K / ranks, N): a sum of partial products."""
    part, out = (nl.ndarray((a.shape[1], b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm) for _ in range(2))
    nisa.dma_copy(dst=part, src=product(a, b))
    ncc.all_reduce([part], [out], ncc.ReplicaGroup([list(range(ranks))]), nl.add)
    return out


@nki.jit
def ring(a, b, ranks):
    """a.T @ b for b (K, N / ranks) of this rank, while the parts a (K, M / ranks) travel around the ring."""
    k_size, rows = a.shape
    out = nl.ndarray((ranks, rows, b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    group = ncc.ReplicaGroup([list(range(ranks))])
    here = a
    for step in range(ranks):
        owner = ncc.collective_permute_implicit_current_processing_rank_id(step, group)
        nisa.dma_copy(dst=out.select(0, owner), src=product(here, b))
        if step < ranks - 1:
            there = nl.ndarray((k_size, rows), dtype=a.dtype, buffer=nl.shared_hbm)
            ncc.collective_permute([here], [there], [(r, (r + 1) % ranks) for r in range(ranks)])
            here = there
    return out.reshape((ranks * rows, b.shape[1]))


SPLITS = {  # how a (K, M), b (K, N) and the result (M, N) lie on the mesh
    row_parallel: (PartitionSpec("x"), PartitionSpec("x"), PartitionSpec()),
    ring: (PartitionSpec(None, "x"), PartitionSpec(None, "x"), PartitionSpec(None, "x")),
}


def split(kernel, target="trn2"):
    """The kernel's whole product over all devices, and how its operands and result lie on them."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    left, right, result = SPLITS[kernel]
    part = nkijax.function(kernel, target=target, ranks=jax.device_count())
    whole = jax.shard_map(part, mesh=mesh, in_specs=(left, right), out_specs=result)
    return whole, [NamedSharding(mesh, s) for s in (left, right, result)]


def operands(kernel, random: np.random.Generator, k: int, m: int, n: int):
    """a (k, m) and b (k, n); `ring` has as many times m columns as there are devices."""
    rows = m if kernel is row_parallel else m * jax.device_count()
    return [random.standard_normal(s, dtype=np.float32) for s in ((k, rows), (k, n))]


def main(k: int = 2048, m: int = 128, n: int = 512, target: str = "trn2") -> None:
    """Run both and their gradients on all devices, compare with NumPy, print what one rank's part costs.

    `row_parallel` multiplies (k, m) and (k, n), `ring` as many times m columns as there are devices.
    """
    random, ranks = np.random.default_rng(0), jax.device_count()
    for kernel in SPLITS:
        whole, shardings = split(kernel, target)
        a, b = operands(kernel, random, k, m, n)
        rows, weights = a.shape[1], random.standard_normal((a.shape[1], n), dtype=np.float32)
        place = [jax.device_put(x, s) for x, s in zip((a, b, weights), shardings, strict=True)]
        got = [jax.jit(whole)(*place[:2])]
        got += jax.jit(jax.grad(lambda a, b, w, whole=whole: jnp.sum(whole(a, b) * w), argnums=(0, 1)))(*place)
        wants = (a.T @ b, b @ weights.T, a @ weights)
        errors = [float(np.abs(x - want).max() / np.abs(want).max()) for x, want in zip(got, wants, strict=True)]
        print(f"{kernel.__name__} {k} x {rows} x {n} on {ranks} ranks: largest error {errors[0]:.1e}, ", end="")
        print(f"of its gradients {max(errors[1:]):.1e}, of the largest value")
        assert max(errors) < 1e-5, (kernel, errors)
        parts = [x.addressable_shards[0].data for x in place[:2]]
        print(cost(nkijax.trace(kernel, *parts, ranks=ranks, target=target, rolled=False), ()))


def on_all(a: np.ndarray, b: np.ndarray, kernel) -> jax.Array:
    whole, shardings = split(kernel)
    return jax.jit(whole)(*jax.device_put((a, b), tuple(shardings[:2])))


cases = [  # for `nkijax regress examples`, on as many devices as there are
    nkijax.Case(
        functools.partial(on_all, kernel=kernel),
        lambda rng, kernel=kernel: operands(kernel, rng, k=1024, m=32, n=256),
        lambda a, b: a.T @ b,
        name=kernel.__name__,
        host=True,
    )
    for kernel in SPLITS
]

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
