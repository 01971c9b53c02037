"""Enums and facts."""

import numpy as np

from nkijax.dialects.neuronxcc import constants


def test_names():
    assert constants.vector_engine is constants.engine.vector and constants.oob_mode.skip.name == "skip"
    assert constants.nc_version.gen2 < constants.nc_version.gen3
    assert constants.bfp16.min == np.uint32(0xFF80 << 16).view(np.float32)
    assert constants.fp32.min == np.finfo(np.float32).min and constants.fp32.max == np.finfo(np.float32).max
