"""Names that public kernels import, and `do_while`."""

import numpy as np
import pytest

import nkijax
from nkijax import Unsupported
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc import private_api
from nkijax.dialects.neuronxcc.private_api import do_while


def halving(x):
    """Counts how often the value can be decremented before it is zero."""
    out = nl.zeros((1, 1), dtype=np.int32, buffer=nl.shared_hbm)
    left = nl.ndarray((1, 1), dtype=np.int32, buffer=nl.hbm)
    nl.store(left, nl.load(x))
    with do_while(left):
        nl.store(out, nl.add(nl.load(out), 1))
        nl.store(left[0, 0], nl.add(nl.load(left), -1))
    return out


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_do_while(n, eager):
    assert nkijax.run(halving, np.array([[n]], np.int32), eager=eager).item() == n


def test_do_while_without_source():
    with pytest.raises(Unsupported, match="source"):
        do_while(None).__enter__()


def test_closed_kernels():
    with pytest.raises(Unsupported, match="private_api.mlp_kernel"):
        private_api.mlp_kernel(1, x=2)
