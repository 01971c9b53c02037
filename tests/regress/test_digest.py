"""Digests tell whether an array changed, and about how much."""

import json
import math

import ml_dtypes
import numpy as np
import pytest

from nkijax.regress.digest import Digest, distance, sketch

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((64, 50)).astype(np.float32)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.5])
def test_the_size_of_a_change(size):
    noise = RANDOM.standard_normal(X.shape)
    changed = (X + size * noise).astype(np.float32)
    true = np.linalg.norm(changed - X) / np.linalg.norm(X)
    assert Digest.of(changed).change(Digest.of(X)) == pytest.approx(true, rel=0.5)


def test_one_element():
    y = X.copy()
    y[3, 4] += 1
    norm = max(np.linalg.norm(X), np.linalg.norm(y))
    assert Digest.of(y).change(Digest.of(X)) == pytest.approx(1 / norm, rel=1e-4)


def test_no_change_and_no_comparison():
    old = Digest.of(X)
    assert Digest.of(X.copy()).change(old) == 0
    assert Digest.of(X.T).change(old) == math.inf and Digest.of(X.astype(np.float64)).change(old) == math.inf
    poisoned = X.copy()
    poisoned[0, 0] = np.nan
    assert Digest.of(poisoned).not_finite == 1 and Digest.of(poisoned).change(old) == math.inf
    assert Digest.of(np.zeros((0, 3), np.float32)).change(Digest.of(np.zeros((0, 3), np.float32))) == 0


def test_bits_that_are_equal_as_numbers_have_other_hashes():
    zero = np.zeros(4, np.float32)
    assert Digest.of(zero).hash != Digest.of(-zero).hash and Digest.of(zero).change(Digest.of(-zero)) == 0


def test_stored_and_read():
    for x in (X, X.astype(ml_dtypes.bfloat16), np.arange(5, dtype=np.int8), np.float32(2.5)):
        digest = Digest.of(np.asarray(x))
        again = Digest.from_json(json.loads(json.dumps(digest.to_json())))
        assert again.change(digest) == 0 and again.dtype == str(np.asarray(x).dtype)
        assert distance(again.sketch, digest.sketch) <= 1e-8 * (digest.norm or 1)


def test_the_stream_of_signs_is_fixed():
    """Else no stored sketch could be compared with a new one."""
    short = sketch(np.arange(40.0), 4)
    sketch(np.ones(100_000), 4)
    assert sketch(np.arange(40.0), 4) == short
    assert sketch(np.arange(16.0), 2) == (4.0, 0.0)
