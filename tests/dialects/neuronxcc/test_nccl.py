"""Collectives are names only."""

import pytest

from nkijax import Unsupported
from nkijax.dialects.neuronxcc import nccl


def test_they_say_what_they_are():
    with pytest.raises(Unsupported, match="nccl.all_gather"):
        nccl.all_gather(op=None)
