"""nki.isa.constants; the members are facts of test_isa."""

import pytest

from nkijax.dialects.nki import constants


def test_members_are_one_and_the_same():
    assert constants.engine["vector"] is constants.vector_engine
    assert constants.dma_engine(2) is constants.dma_engine.gpsimd_dma
    with pytest.raises(AttributeError):
        _ = constants.engine.pool
