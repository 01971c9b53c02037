"""Sizes of dtypes."""

import numpy as np

from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.sizes import sizeinbytes


def test_sizeinbytes():
    assert [sizeinbytes(d) for d in (nl.float8_e4m3, nl.bfloat16, np.float32, "int8")] == [1, 2, 4, 1]
