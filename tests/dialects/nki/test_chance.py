"""rand, random_seed, dropout."""

import jax
import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.language as nl
from tests.dialects.nki.tiles import X, ran, refused

TARGETS = ["trn1", "trn2", "trn3"]


@pytest.mark.parametrize("target", TARGETS)
def test_rand_is_uniform(target):
    got = ran(lambda x: (nl.rand((64, 64), nl.float32), nl.rand((64, 64), nl.float32)), X, target=target)
    for draw in got:
        assert 0 <= draw.min() and draw.max() < 1 and abs(draw.mean() - 0.5) < 0.03 and abs(draw.var() - 1 / 12) < 0.01
    assert (got[0] != got[1]).mean() > 0.99


@pytest.mark.parametrize("target", TARGETS)
def test_equal_seeds_give_equal_numbers(target):
    def kernel(x):
        draws = []
        for seed in (7, 7, 8):
            nl.random_seed(nl.full((1, 1), seed, nl.int32))
            draws.append(nl.rand((4, 6), nl.float32))
        return tuple(draws)

    first, again, other = ran(kernel, X, both=True, target=target)
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_dtypes_and_memories():
    def kernel(x):
        hbm = nl.rand((2, 3, 4), nl.float32, buffer=nl.shared_hbm, name="noise")
        assert hbm.name == "noise" and hbm.shape == (2, 3, 4)
        return nl.rand((4, 8), nl.bfloat16), nl.load(hbm), nl.rand((4, 8), nl.float32, buffer=nl.psum)

    for target in ("trn2", "trn3"):
        low, hbm, psum = ran(kernel, X, target=target)
        assert low.dtype == ml_dtypes.bfloat16 and all(0 <= d.min() <= d.max() <= 1 for d in (low, hbm, psum))
        assert len(np.unique(hbm)) == 24


@pytest.mark.parametrize("rate", [0, 1, 0.25, "column"])
def test_dropout(rate):
    """Zeroed with a probability, and not scaled: fixed seed, both ends exact."""
    x = np.random.default_rng(0).standard_normal((64, 100)).astype(np.float32)
    column = np.repeat(np.array([[0.0], [1.0]], np.float32), 32, 0)
    got = ran(lambda t, c: nl.dropout(t, c if rate == "column" else rate), x, column)
    kept = got != 0
    np.testing.assert_array_equal(got[kept], x[kept])
    if rate == "column":
        assert kept[:32].all() and not kept[32:].any()
    else:
        assert abs(kept.mean() - (1 - rate)) < 0.02 and (rate not in (0, 1) or kept.mean() == 1 - rate)


def test_dropout_casts_first():
    got = ran(lambda t: nl.dropout(t, 0.0, dtype=nl.bfloat16), X)
    np.testing.assert_array_equal(got, X.astype(ml_dtypes.bfloat16))


def test_dropout_after_softmax():
    """Case 6: a row that is dropped whole is zero, with finite gradients."""

    def kernel(x, rate):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.dropout(nl.softmax(nl.load(x)), nl.load(rate)))
        return out

    f = nkijax.function(kernel)
    rate = np.array([[1.0], [0.5], [0.5], [0.0]], np.float32)
    out = f(X, rate)
    assert (np.asarray(out)[0] == 0).all() and np.asarray(out)[3].sum() == pytest.approx(1, rel=1e-5)
    slope = np.asarray(jax.grad(lambda x: (f(x, rate) ** 2).sum())(X))
    assert np.isfinite(slope).all() and (slope[0] == 0).all() and (slope[3] != 0).any()


def test_rules():
    assert refused(lambda x: nl.random_seed(3), X) == "nki.language.random_seed seed: must be a tile, got 3"
    assert "random_seed seed: must be a (1, 1) tile of 32 bits, got (4, 6)" in refused(nl.random_seed, X)
    assert "dropout x: must be a tile, got 1" in refused(lambda x: nl.dropout(1, 0.5), X)
    assert "prob: must be a (P, 1) tile or a number from 0 to 1, got 2" in refused(lambda x: nl.dropout(x, 2), X)
    assert "exceeds maximum 128" in refused(lambda x: nl.rand((200, 4), nl.float32), X)
