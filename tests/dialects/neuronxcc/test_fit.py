"""Shapes of assignments."""

import pytest

from nkijax import KernelError
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.fit import broadcasts, fitted, rows_only
from nkijax.dialects.neuronxcc.predicate import region

from .test_emit import X
from .test_subscript import inside


def test_broadcasts_are_from_the_left():
    assert broadcasts((6, 1), (6, 8)) and broadcasts((6,), (6, 8)) and broadcasts((6, 8, 1), (6, 8))
    assert not broadcasts((8,), (6, 8)) and not broadcasts((6, 8, 2), (6, 8))


def test_a_value_with_another_factoring_of_its_free_size():
    def body(x):
        t, value = nl.ndarray((6, 2, 4), dtype=nl.float32), nl.load(x)
        dst, fit, where = fitted(t, value, region(nl.arange(6)[:, None] > 2, X.shape))
        assert dst.shape == (6, 2, 4) and fit(value.raw).shape == (6, 2, 4)
        assert where is not None and where.box == ((3, 6), (0, 2), (0, 4)) and rows_only(where)
        masked = region(nl.arange(8)[None, :] > 2, X.shape)
        dst, fit, where = fitted(t, value, masked)  # the mask keeps its shape, so the destination takes it
        assert dst.shape == fit(value.raw).shape == X.shape and where is masked
        with pytest.raises(KernelError, match=r"shape \(6, 8\) does not fit \(6, 4, 2\)"):
            fitted(nl.ndarray((6, 4, 4), dtype=nl.float32)[:, :, 0:2], value, masked)

    inside(body, X)
