"""Running small kernels of the old dialect, compiled and eager."""

import numpy as np

import nkijax
from nkijax.dialects.neuronxcc import language as nl


def ran(kernel, *args, eager=True, **options):
    """What a kernel returns; eager mode agrees with it."""
    out = nkijax.run(kernel, *args, **options)
    if eager:
        again = nkijax.run(kernel, *args, eager=True, **options)
        for a, b in zip(parts(out), parts(again), strict=True):
            np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-6, atol=1e-6)
    return out


def parts(x):
    return x if isinstance(x, tuple) else (x,)


def computed(emit, *inputs, shape=None, dtype=None, **options):
    """The tile that `emit(*tiles)` makes of loaded inputs."""

    def kernel(*arrays):
        tile = emit(*(nl.load(a) for a in arrays))
        out = nl.zeros(shape or tile.shape, dtype=dtype or tile.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    return ran(kernel, *inputs, **options)


def close(got, want, tolerance=2e-6):
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance
    )
