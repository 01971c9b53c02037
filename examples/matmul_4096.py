"""A blocked matmul: tiles of a block are kept in lists, and each is used for every tile of the other side.

nkijax run examples/matmul_4096.py        (or: python examples/matmul_4096.py)
"""

import numpy as np

import nkijax

nkijax.install()  # from here on `import nki` is nkijax

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def matmul(a, b, rows=2, columns=2):
    """a.T @ b for a (K, M) and b (K, N), in blocks of `rows` by `columns` tiles of [128, 512], K as a whole."""
    k_size, m_size = a.shape
    _, n_size = b.shape
    tile_m, tile_k, tile_n = nl.tile_size.gemm_stationary_fmax, nl.tile_size.pmax, nl.tile_size.gemm_moving_fmax
    rows, columns = min(rows, m_size // tile_m), min(columns, n_size // tile_n)
    out = nl.ndarray((m_size, n_size), dtype=a.dtype, buffer=nl.shared_hbm)

    def load(src, width, start):
        """The tiles [128, width] of one column of `src`, down K."""
        tiles = []
        for k in nl.affine_range(k_size // tile_k):
            tile = nl.ndarray((tile_k, width), dtype=src.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=src[k * tile_k : (k + 1) * tile_k, start : start + width])
            tiles.append(tile)
        return tiles

    for m in nl.affine_range(m_size // (tile_m * rows)):
        left = [load(a, tile_m, (m * rows + i) * tile_m) for i in range(rows)]
        for n in nl.affine_range(n_size // (tile_n * columns)):
            right = [load(b, tile_n, (n * columns + j) * tile_n) for j in range(columns)]
            for i in nl.affine_range(rows):
                for j in nl.affine_range(columns):
                    total = nl.ndarray((tile_m, tile_n), dtype=nl.float32, buffer=nl.psum)
                    for k in nl.affine_range(k_size // tile_k):
                        nisa.nc_matmul(dst=total, stationary=left[i][k], moving=right[j][k])
                    result = nl.ndarray((tile_m, tile_n), dtype=a.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=result, src=total)
                    r, c = (m * rows + i) * tile_m, (n * columns + j) * tile_n
                    nisa.dma_copy(dst=out[r : r + tile_m, c : c + tile_n], src=result)
    return out


def blocks(rng: np.random.Generator, k: int, m: int, n: int) -> list[np.ndarray]:
    return [rng.standard_normal(shape, np.float32) for shape in ((k, m), (k, n))]


cases = [  # for `nkijax regress examples`
    nkijax.Case(matmul, blocks, lambda a, b: a.T @ b, params={"k": k, "m": m, "n": n}, targets="trn2")
    for k, m, n in ((256, 256, 1024), (512, 128, 512))
]


def main(size: int = 4096, target: str = "trn2") -> None:
    """Run it, compare with NumPy, print the cost."""
    random = np.random.default_rng(0)
    a = random.standard_normal((size, size), dtype=np.float32)
    b = random.standard_normal((size, size), dtype=np.float32)
    run = nkijax.profile(matmul, a, b, target=target)
    want = a.T @ b
    error = np.abs(run.outputs - want).max() / np.abs(want).max()
    print(f"matmul {size} x {size} x {size}: largest error {error:.1e} of the largest value")
    print(run.cost)
    assert error < 1e-4, error


if __name__ == "__main__":
    main()
