"""nki.typing: annotations without effect."""

import numpy as np

import nkijax
import nkijax.dialects.nki as nki

nt = nki.typing


def test_annotations():
    def kernel(x: nt.tensor, y: nt.tensor[128, 512], z: nt.mutable_tensor[4] | None = None) -> nt.tensor[4, 4]:
        return x

    assert issubclass(nt.mutable_tensor, nt.tensor)
    x = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(nkijax.run(kernel, x, x), x)
