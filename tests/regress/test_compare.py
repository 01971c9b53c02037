"""Tolerances, and the words for what is beyond them."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from nkijax.regress.compare import compare, leaves, numpy_tree, rtol_of

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def test_equal_and_near():
    assert compare(X, X, None, None).text == ""
    near = compare(X, X + np.float32(2e-5), None, None)
    assert near.text == "" and near.error == pytest.approx(2e-5, rel=0.1) and near.relative < 1e-5
    assert compare(X, jnp.asarray(X), 0.0, 0.0).text == "", "references of any kind"


def test_the_first_and_the_worst_element_are_told():
    got = X.copy()
    got[0, 1], got[1, 0] = 2.5, 9.0
    verdict = compare((X, got), [X, X], 1e-3, 1e-3)
    assert verdict.text == (
        "output 1: 2 of 4 elements beyond rtol 0.001, atol 0.001; first [0, 1]: got 2.5, want 2; "
        "worst [1, 0]: got 9, want 3"
    )
    assert verdict.first == (1, 1) and verdict.error == 6 and verdict.relative == 1.5


def test_atol_follows_the_reference_s_size():
    """An element near zero may be off by what rounding of the others makes of it."""
    want = np.array([1.0, 0.0])
    assert compare(want + [0, 6e-5], want, 1e-4, None).text == ""
    assert compare(want + [0, 8e-5], want, 1e-4, None).text != ""
    assert compare(want + [0, 6e-5], want, 1e-4, 0.0).text != ""


def test_what_is_not_finite():
    want = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert compare(want, want, None, None).text == ""
    for k, wrong in enumerate((1.0, -np.inf, np.nan, np.nan)):
        got = want.copy()
        got[k] = wrong
        assert compare(got, want, 1.0, None).first == (0, k)


def test_integers_are_exact_and_narrow_floats_are_not():
    assert compare(np.array([5]), np.array([6]), None, None).first == (0, 0)
    assert compare(np.uint32(2**32 - 1), np.int64(2**32 - 1), None, None).text == ""
    narrow = X.astype(ml_dtypes.bfloat16)
    assert compare(narrow, X * 1.005, None, None).text == "" and compare(narrow, X * 1.05, None, None).text
    kinds = (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.int8)
    assert [rtol_of(np.dtype(k)) for k in kinds] == [1e-4, 2e-3, 1e-2, 0.1, 0.0]


def test_structures():
    assert compare({"a": X, "b": 2 * X}, {"b": 2 * X, "a": X}, None, None).text == "", "by name"
    assert compare((X, None, "text"), [X], None, None).text == ""
    assert compare((X, X), X, None, None).text == "the kernel gave 2 outputs, the reference 1"
    assert compare(X, X.T[:1], None, None).text == "output 0: must have the reference's shape (1, 2), got (2, 2)"
    assert compare(X.reshape(1, 2, 2), X, None, None).text == "", "axes of size 1 do not matter"
    assert [int(x.sum()) for x in leaves({"a": (X, [2 * X]), "b": None})] == [10, 20]
    assert isinstance(numpy_tree({"a": [jnp.asarray(X), 3]})["a"][0], np.ndarray)
