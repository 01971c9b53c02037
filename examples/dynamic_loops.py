"""One loop, six forms: what a dynamic loop costs, and what unrolling inside its body gives back.

Every turn loads a tile [128, F], takes exp on the scalar engine, multiplies and adds, and stores it.

    nkijax run examples/dynamic_loops.py        (or: python examples/dynamic_loops.py)
"""

import sys
import warnings

import numpy as np

import nkijax

nkijax.install()  # from here on `import nki` is nkijax

import nki
import nki.isa as nisa
import nki.language as nl

P = 128  # partitions
FORMS = (
    "range, unrolled",
    "fori_loop, int bound",
    "fori_loop, register bound",
    "fori_loop, four tiles a turn",
    "dynamic_range",
    "while_loop",
)
RANGE, FORI, FORI_REGISTER, FORI_FOUR, DYNAMIC_RANGE, WHILE = range(len(FORMS))
# What a user measured on a trn1.2xlarge for tiles [128, 2048]: aws-neuron-sdk, issue 1411.
MEASURED_US = {RANGE: 483, FORI: 1147, FORI_FOUR: 653, DYNAMIC_RANGE: 1147}  # 64 tiles
MEASURED_TILE_US = {RANGE: 7.5, FORI: 17.9, FORI_REGISTER: 17.92, FORI_FOUR: 10.2, DYNAMIC_RANGE: 17.9, WHILE: 18.27}


def one_tile(dst, src):
    """dst = 2 exp(src) + 1, for tiles [128, F] in HBM."""
    x = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    e = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    y = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=src)
    nisa.activation(dst=e, op=nl.exp, data=x)
    nisa.tensor_scalar(dst=y, data=e, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=1.0)
    nisa.dma_copy(dst=dst, src=y)


def tile_at(tensor, free, i, offset=0):
    """The tile at `offset` of row i, a register."""
    return tensor.ap(pattern=[[free, P], [1, free]], offset=offset, scalar_offset=i, indirect_dim=0)


@nki.jit
def exp_tiles(src, count, mode):
    """2 exp(src) + 1; src is (N, 128 F) in HBM, a tile a row; count holds N for the loop that reads its bound."""
    n, size = src.shape
    free = size // P
    out = nl.ndarray((n, size), dtype=src.dtype, buffer=nl.shared_hbm)

    def turn(i):
        one_tile(tile_at(out, free, i), tile_at(src, free, i))

    if mode == RANGE:
        for i in range(n):
            one_tile(out[i].reshape((P, free)), src[i].reshape((P, free)))

    if mode == FORI:
        nl.fori_loop(0, n, turn)

    if mode == FORI_REGISTER:
        bound = nisa.register_alloc()
        nisa.register_load(bound, count)
        nl.fori_loop(0, bound, turn)

    if mode == FORI_FOUR:
        wide_src, wide_out = src.reshape((n // 4, 4 * size)), out.reshape((n // 4, 4 * size))

        def four_tiles(i):
            for k in range(4):
                one_tile(tile_at(wide_out, free, i, k * size), tile_at(wide_src, free, i, k * size))

        nl.fori_loop(0, n // 4, four_tiles)

    if mode == DYNAMIC_RANGE:
        for i in nl.dynamic_range(n):
            turn(i)

    if mode == WHILE:
        tile = nl.zeros((1, 1), dtype=nl.int32, buffer=nl.sbuf)  # registers cannot count: counters live in SBUF
        left = nl.full((1, 1), n, dtype=nl.int32, buffer=nl.sbuf)
        i, more = nisa.register_alloc(), nisa.register_alloc()
        nisa.register_load(more, left)

        def until_none_left(more):
            nisa.register_load(i, tile)
            turn(i)
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
            nisa.register_load(more, left)
            return more

        nl.while_loop(more, until_none_left)

    return out


cases = [  # for `nkijax regress examples`
    nkijax.Case(
        exp_tiles,
        lambda rng: [rng.standard_normal((8, P * 128), np.float32), np.array([[8]], np.int32)],
        lambda src, count: 2 * np.exp(src) + 1,
        static={"mode": mode},
        name=form.replace(", ", "-").replace(" ", "-"),
        targets="trn1",
    )
    for mode, form in enumerate(FORMS)
]


def main(tiles: int = 64, free: int = 2048, target: str = "trn1") -> list[float]:
    """Print the table, and return the modelled us of each form."""
    src = np.random.default_rng(0).standard_normal((tiles, P * free), dtype=np.float32)
    want = 2 * np.exp(src) + 1
    count = np.array([[tiles]], np.int32)
    same = (tiles, free, target) == (64, 2048, "trn1")
    measured, measured_tile = (MEASURED_US, MEASURED_TILE_US) if same else ({}, {})

    warnings.filterwarnings("ignore", "nki.language.dynamic_range is deprecated", DeprecationWarning)

    print(f"{tiles} tiles [{P}, {free}] float32 on {target}: load, exp, multiply-add, store")
    columns = ("form", "turns", "instructions", "max error", "model us", "measured", "us a tile", "measured")
    line = "{:<30}{:>6}{:>14}{:>11}{:>9}{:>10}{:>11}{:>10}".format
    print(line(*columns))
    modelled = []
    for mode, form in enumerate(FORMS):
        run = nkijax.profile(exp_tiles, src, count, mode, target=target)
        error = np.abs(run.outputs / want - 1).max()
        us, recorded = run.cost.total_us, len(list(nkijax.instructions(run.program.body)))
        found = (form, sum(run.trips) or "-", recorded, f"{error:.1e}", f"{us:.1f}", measured.get(mode, ""))
        print(line(*found, f"{us / tiles:.2f}", measured_tile.get(mode, "")))
        assert error < 1e-4, f"{form}: relative error {error}"
        modelled.append(us)
    return modelled


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 64)
