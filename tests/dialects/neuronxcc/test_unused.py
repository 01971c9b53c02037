"""Fills of tiles that nothing else uses."""

import numpy as np

import nkijax
from nkijax.dialects.neuronxcc import language as nl
from nkijax.program import Repeat, instructions

X = np.ones((128, 32), np.float32)


def skipping(x):
    """Tiles are declared in every turn, and used in a few."""
    out = nl.ndarray((8, 128, 32), dtype=np.float32, buffer=nl.shared_hbm)
    for k in nl.affine_range(4):
        for i in nl.affine_range(8):
            tile = nl.zeros((128, 32), dtype=np.float32)
            if i in (k, k + 1):
                tile += nl.load(x)
                nl.store(out[i], tile)
    return out


def recorded(kernel, *args, rolled=False):
    program = nkijax.trace(kernel, *args, rolled=rolled)
    return program, [type(i).__name__ for i in instructions(program.body)]


def test_they_are_left_out():
    _, names = recorded(skipping, X)
    assert names == ["Memset", "DmaCopy", "TensorTensor", "DmaCopy"] * 8


def test_turns_that_are_alike_then_roll():
    program, names = recorded(skipping, X, rolled=True)
    assert len(names) == 4 and any(isinstance(node, Repeat) for node in program.body)


def reading(n, x):
    """A fill that something reads stays, inside of a dynamic loop too."""
    out = nl.ndarray((128, 32), dtype=np.float32, buffer=nl.shared_hbm)
    for _ in range(nl.load(n)):
        tile, other = nl.full((128, 32), 2.0, dtype=np.float32), nl.ones((128, 32), dtype=np.float32)
        del other
        nl.store(out, tile)
    return out


def test_fills_that_are_read_stay():
    n = np.array([[2]], np.int32)
    assert recorded(reading, n, X)[1].count("Memset") == 1
    np.testing.assert_array_equal(nkijax.run(reading, n, X), 2 * X)
