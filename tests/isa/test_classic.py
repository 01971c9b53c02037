"""The rows that only the old dialect has."""

import numpy as np
import pytest

from nkijax.isa.classic import CLASSIC_ACTIVATIONS, CLASSIC_ALU
from nkijax.isa.operators import ACTIVATIONS, ALU

X = np.array([-2.5, -1.0, -0.25, 0.0, 0.5, 1.75], np.float32)


@pytest.mark.parametrize("name", ["cos", "tan", "floor", "ceil", "trunc", "negative", "logical_not"])
def test_functions(name):
    np.testing.assert_allclose(CLASSIC_ACTIVATIONS[name].function(X), getattr(np, name)(X), rtol=1e-5)


def test_remainders_have_the_sign_of_the_divisor_or_of_the_dividend():
    np.testing.assert_allclose(CLASSIC_ALU["mod"](X, np.float32(2)), np.mod(X, 2))
    np.testing.assert_allclose(CLASSIC_ALU["fmod"](X, np.float32(2)), np.fmod(X, 2))


def test_the_tables_hold_the_others_too():
    assert ACTIVATIONS.items() <= CLASSIC_ACTIVATIONS.items() and ALU.items() <= CLASSIC_ALU.items()
