"""A paged gather whose trip count is data: blocks of 128 page numbers, read in the kernel, name rows of a cache.

How many blocks are in use stands in a tensor; a page number of -1 is padding, and its row stays zero.

    nkijax run examples/paged_gather.py        (or: python examples/paged_gather.py)
"""

import jax
import jax.numpy as jnp
import numpy as np

import nkijax

nkijax.install()  # from here on `import nki` is nkijax

import nki
import nki.isa as nisa
import nki.language as nl

P = 128  # page numbers in a block


@nki.jit
def gather_pages(cache, table, used):
    """Rows table[i] of cache (pages, W), for the blocks i < used[0, 0] of table (blocks, 128): (blocks, 128 W)."""
    width = cache.shape[1]
    blocks = table.shape[0]
    out = nl.ndarray((blocks, P * width), dtype=cache.dtype, buffer=nl.shared_hbm)
    bound = nisa.register_alloc()
    nisa.register_load(bound, used)

    def one_block(i):
        pages = nl.ndarray((P, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=pages, src=table.ap(pattern=[[1, P], [1, 1]], scalar_offset=i, indirect_dim=0))
        rows = nl.ndarray((P, width), dtype=cache.dtype, buffer=nl.sbuf)
        nisa.memset(dst=rows, value=0.0)
        picked = cache.ap(pattern=[[width, P], [1, width]], vector_offset=pages, indirect_dim=0)
        nisa.dma_copy(dst=rows, src=picked, oob_mode=nisa.oob_mode.skip)
        nisa.dma_copy(dst=out.ap(pattern=[[width, P], [1, width]], scalar_offset=i, indirect_dim=0), src=rows)

    nl.fori_loop(0, bound, one_block)
    return out


def reference(cache: np.ndarray, table: np.ndarray, used: np.ndarray) -> np.ndarray:
    """The same by its definition; blocks that no turn wrote are poison."""
    rows = np.where(table[:, :, None] >= 0, cache[table], np.float32(0))
    rows[used[0, 0] :] = np.nan
    return rows.reshape(len(table), -1)


def pages(rng: np.random.Generator) -> list[np.ndarray]:
    table = rng.integers(-6, 64, (4, P), np.int32)
    return [rng.standard_normal((64, 32), np.float32), np.maximum(table, -1), np.array([[3]], np.int32)]


case = nkijax.Case(gather_pages, pages, reference, targets="trn2")  # for `nkijax regress examples`


def main(pages: int = 4096, width: int = 1024, blocks: int = 32, used: int = 21, target: str = "trn2") -> None:
    """Run it and its gradient, compare both with NumPy, print the cost."""
    random = np.random.default_rng(0)
    cache = random.standard_normal((pages, width), dtype=np.float32)
    table = random.integers(0, pages, (blocks, P), dtype=np.int32)
    table[random.random(table.shape) < 0.1] = -1
    count = np.array([[used]], np.int32)

    run = nkijax.profile(gather_pages, cache, table, count, target=target)
    rows = run.outputs.reshape(blocks, P, width)
    want = np.where(table[:used, :, None] >= 0, cache[table[:used]], np.float32(0))
    assert np.array_equal(rows[:used], want)
    assert np.isnan(rows[used:]).all(), "blocks that no turn wrote are poison"
    print(f"{used} of {blocks} blocks of {P} pages gathered, bit for bit; {run.trips[0]} turns")

    kernel = nkijax.function(gather_pages, target=target)
    grad = jax.grad(lambda cache: jnp.sum(kernel(cache, table, count)[:used]))(cache)
    named = table[:used][table[:used] >= 0]
    assert np.array_equal(grad, np.broadcast_to(np.bincount(named, minlength=pages)[:, None], grad.shape))
    print("gradient by the cache: how often each page was named, exactly")
    print(run.cost)


if __name__ == "__main__":
    main()
