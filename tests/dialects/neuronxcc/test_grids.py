"""Grids of indices."""

import numpy as np
import pytest

from nkijax import KernelError
from nkijax.dialects.neuronxcc import language as nl

from .test_index import values


def test_arange():
    assert nl.arange(4).shape == (4,) and (values(nl.arange(2, 6)) == np.arange(2, 6)).all()
    assert nl.arange(4)[:, None].shape == (4, 1) and nl.arange(4)[None, :, None].shape == (1, 4, 1)
    assert (values(nl.arange(8)[None, 2:8:3]) == [[2, 5]]).all() and nl.arange(4)[...].shape == (4,)
    with pytest.raises(KernelError, match="empty"):
        nl.arange(3, 3)


def test_mgrid():
    grid = nl.mgrid[0:4, 1:3, :5]
    p, x, y = grid
    assert (p.shape, x.shape, y.shape) == ((4, 1, 1), (1, 2, 1), (1, 1, 5))
    assert grid.p is p and grid.x is x and grid.y is y and x.constant == 1
