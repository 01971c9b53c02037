"""What loads and copies with oob_mode.skip leave out, against NumPy."""

import numpy as np
import pytest

import nkijax
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl

X = np.arange(1, 49, dtype=np.float32).reshape(6, 8)
AT = np.array([[3, -1], [9, 5], [4, 4], [2, 77]], np.int32)
SKIP = nisa.oob_mode.skip
THERE = (AT >= 0) & (AT < 6)
PICKED = np.where(THERE[..., None], X[np.clip(AT, 0, 5)], -1)  # (4, 2, 8)
P, F = np.arange(4)[:, None], np.arange(8)
MASKS = {
    "none": (lambda i, j: None, True),
    "box": (lambda i, j: j < 4, F < 4),
    "diagonal": (lambda i, j: i > j, P > F),
}


def grid():
    return nl.arange(4)[:, None], nl.arange(8)[None, :]


@pytest.mark.parametrize("kind", MASKS)
def test_an_assignment_keeps_what_a_load_left_out(kind):
    """At once, cast, after the indices have changed, and beside a use of the tile, which reads 0."""
    mask, m = MASKS[kind]

    def kernel(x, at):
        a, (i, j) = nl.load(at), grid()
        t = nl.full((4, 4, 8), -1, dtype=nl.float32)
        half = nl.full((4, 8), -1, dtype=nl.bfloat16)
        t[:, 0] = nl.load(x[a[:, 0:1], j], mask=mask(i, j), mode=SKIP)
        half[...] = nl.load(x[a[:, 0:1], j], mask=mask(i, j), mode=SKIP)
        y = nl.load(x[a[:, 0:1], j], mask=mask(i, j), mode=SKIP)
        a[...] = 0
        t[:, 1] = y
        t[:, 2] = nl.add(y, 1.0)
        t[:, 3] = half
        return t

    got = jit(kernel)(X, AT)
    want = np.where(m, PICKED[:, 0], -1)
    used = np.where(m, np.where(THERE[:, :1], PICKED[:, 0], 0) + 1, 1)
    assert (got == np.stack([want, want, used, want], 1)).all()


@pytest.mark.parametrize("kind", ["none", "diagonal"])
def test_copies_by_dma(kind):
    """A gather to SBUF and one to HBM, and a scatter by `dma_copy` and one by `nl.store`."""
    mask, m = MASKS[kind]

    def kernel(x, at):
        a, (i, j) = nl.load(at), grid()
        tile = nl.full((4, 8), -1, dtype=nl.float32)
        nisa.dma_copy(dst=tile, src=x[a[:, 0:1], j], mask=mask(i, j), oob_mode=SKIP)
        out, one, two = (nl.full((n, 8), -1, dtype=nl.float32, buffer=nl.shared_hbm) for n in (4, 6, 6))
        nisa.dma_copy(dst=out, src=x[a[:, 0:1], j], mask=mask(i, j), oob_mode=SKIP)
        nisa.dma_copy(dst=one[a[:, 0:1], j], src=nl.load(x[0:4]), mask=mask(i, j), oob_mode=SKIP)
        nl.store(two[a[:, 0:1], j], nl.load(x[0:4]), mask=mask(i, j), mode=SKIP)
        return tile, out, one, two

    gathered = np.where(m, PICKED[:, 0], -1)
    scattered = np.full_like(X, -1)
    for p in np.flatnonzero(THERE[:, 0]):
        scattered[AT[p, 0]] = np.where(np.broadcast_to(m, (4, 8))[p], X[p], -1)
    for got, want in zip(jit(kernel)(X, AT), (gathered, gathered, scattered, scattered), strict=True):
        assert (got == want).all()


def test_an_index_tile_of_several_columns():
    def kernel(x, at):
        a = nl.load(at)
        tiles = [nl.full((4, 2, 8), -1, dtype=nl.float32) for _ in range(2)]
        tiles[0][...] = nl.load(x[a], mode=SKIP)
        k, f = nl.arange(2)[None, :, None], nl.arange(8)[None, None, :]
        tiles[1][...] = nl.load(x[a[:, 0:2], f], mode=SKIP, mask=f > 3 * k)
        return tuple(tiles)

    whole, some = jit(kernel)(X, AT)
    assert (whole == PICKED).all() and (some == np.where(F > 3 * np.arange(2)[:, None], PICKED, -1)).all()


def test_a_load_of_one_row():
    """A scalar index that is outside leaves out everything."""

    def kernel(x, at):
        a, out = nl.load(at), nl.full((2, 8), -1, dtype=nl.float32)
        rows = [nl.full((1, 8), -1, dtype=nl.float32) for _ in range(2)]
        for row, k in zip(rows, (0, 1), strict=True):
            y = nl.load(x[a[0, k]].reshape((1, 8)), mode=SKIP)
            out[0, 0] = 0  # y is not the last result now
            row[...] = y
        return tuple(rows)

    got = jit(kernel)(X, AT)
    assert (got[0] == X[3]).all() and (got[1] == -1).all()


def test_eagerly():
    def kernel(x, at):
        a, t = nl.load(at), nl.full((4, 8), -1, dtype=nl.float32)
        t[...] = nl.load(x[a[:, 0:1], nl.arange(8)[None, :]], mode=SKIP)
        return t

    assert (nkijax.run(jit(kernel), X, AT, eager=True) == PICKED[:, 0]).all()
