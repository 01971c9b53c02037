"""Runs a function of tiles as a kernel, compiled, and eager too: what tests of `nki.language` stand on."""

from __future__ import annotations

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.language as nl
from nkijax import KernelError

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
COLUMN = np.random.default_rng(2).standard_normal((4, 1)).astype(np.float32)


def ran(function, *arrays, both=False, **options):
    """What `function(*tiles)` returns, a tile or several, as NumPy; compiled, and if `both` eager as well."""

    def kernel(*tensors):
        results = function(*(nl.load(t) for t in tensors))
        outs = []
        for tile in results if isinstance(results, tuple) else (results,):
            outs.append(nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm))
            nl.store(outs[-1], nl.copy(tile))
        return outs[0] if len(outs) == 1 else tuple(outs)

    compiled = nkijax.run(kernel, *arrays, **options)
    eager = nkijax.run(kernel, *arrays, eager=True, **options) if both else compiled
    for a, b in zip(*((r,) if isinstance(r, np.ndarray) else r for r in (compiled, eager)), strict=True):
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2e-6, atol=2e-6)
    return compiled


def refused(function, *arrays, **options):
    """The message of the rule that `function(*tiles)` breaks, at its line."""
    with pytest.raises(KernelError) as error:
        nkijax.trace(lambda *ts: function(*(nl.load(t) for t in ts)), *arrays, **options)
    assert "nkijax/dialects" not in error.value.site, error.value
    return error.value.message


def close(got, want):
    np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=2e-6, atol=2e-6)
