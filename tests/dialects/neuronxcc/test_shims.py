"""Modules below `neuronxcc` that public code imports."""

import numpy as np
import pytest

from nkijax import Unsupported
from nkijax.dialects.neuronxcc import shims
from nkijax.dialects.neuronxcc.index import Index


def test_packages():
    made = shims.package("p", {"x": 1})
    assert made.__name__ == "p" and made.x == 1 and made.__path__ == []
    assert shims.indexing.TileIndex is Index and shims.util.allclose(np.ones(2), 1, verbose=1)
    with pytest.raises(Unsupported, match="local_tile"):
        shims.tensor.local_tile(1)
