"""nki.isa.constants; the members are facts of test_isa."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.dialects.nki import constants


def test_members_are_one_and_the_same():
    assert constants.engine["vector"] is constants.vector_engine
    assert constants.dma_engine(2) is constants.dma_engine.gpsimd_dma
    with pytest.raises(AttributeError):
        _ = constants.engine.pool


def test_dge_mode_takes_the_value_of_a_member():
    """nki-library passes 3; other enums take no ints, and no other int is a mode."""
    assert constants.dge(3) is constants.dge_mode.none and constants.dge(0) is constants.dge_mode.unknown
    assert constants.dge(constants.dge_mode.hwdge) is constants.dge_mode.hwdge
    assert constants.dge(4) == 4 and constants.dge(True) is True and constants.dge("none") == "none"

    def copies(**keywords):
        def kernel(x):
            tile = nl.ndarray(x.shape, x.dtype)
            nisa.dma_copy(tile, x, **keywords)
            return x

        return nkijax.trace(kernel, np.zeros((2, 3), np.float32)).body[0]

    assert copies(dge_mode=3).dge_mode is constants.dge_mode.none
    for keywords, words in (
        ({"dge_mode": 4}, "dge_mode: must be a member of nki.isa.dge_mode, got 4"),
        ({"oob_mode": 1}, "oob_mode: must be a member of nki.isa.oob_mode, got 1"),
        ({"engine": 5}, "engine: must be a member of nki.isa.engine, got 5"),
    ):
        with pytest.raises(KernelError, match=words):
            copies(**keywords)
