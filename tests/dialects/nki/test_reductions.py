"""Reductions along trailing free axes, softmax, rms_norm."""

import jax
import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.language as nl
from tests.dialects.nki.tiles import COLUMN, X, Y, close, ran, refused

BOX = np.random.default_rng(4).standard_normal((4, 3, 2, 5)).astype(np.float32)
REFERENCE = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "prod": np.prod,
    "var": np.var,
    "all": lambda x, axis, keepdims: np.all(x, axis=axis, keepdims=keepdims).astype(x.dtype),
}


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("axis", [3, -1, (2, 3), [1, 2, 3]], ids=str)
def test_against_numpy(name, axis):
    """keepdims=False drops the axes, but (P, 1) is the least on chip; var always keeps them, `all` never does."""
    axes = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
    f = getattr(nl, name)
    keeps = (False,) if name == "all" else (False, True)
    arguments = [{} if name == "all" else {"keepdims": k} for k in keeps]
    x = BOX.copy()
    x[0, 0, 0, 0] = 0
    got = ran(lambda t: tuple(f(t, axis, **a) for a in arguments), x, both=axis == -1)
    for result, keep in zip(got if isinstance(got, tuple) else (got,), keeps, strict=True):
        want = REFERENCE[name](x, axis=axes, keepdims=keep or name == "var")
        want = want[:, None] if want.ndim == 1 else want
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)


def test_dtypes():
    """Sums are taken in float32 and rounded once; the result has the tile's dtype unless another is asked for."""
    x = np.full((2, 512), 1.125, ml_dtypes.bfloat16)
    i = np.full((2, 300), 100, np.int32)
    got = ran(
        lambda t, i: (nl.sum(t, 1), nl.sum(t, 1, dtype=nl.float32), nl.mean(t, 1), nl.max(i, 1), nl.mean(i, 1)), x, i
    )
    assert [g.dtype.name for g in got] == ["bfloat16", "float32", "bfloat16", "int32", "int32"]
    assert [float(g[0, 0]) for g in got] == [576, 576, 1.125, 100, 100]


def test_variance_of_a_large_mean():
    """From distances, not from squares: 1e4 ± 1 in float32."""
    x = np.array([[1e4 - 1, 1e4 + 1] * 8], np.float32)
    assert ran(lambda t: nl.var(t, 1), x).tolist() == [[1.0]]


def test_psum():
    got = ran(lambda x, y: nl.sum(nl.matmul(x, y, transpose_x=True), 1), X, Y)
    np.testing.assert_allclose(got, (X.T @ Y).sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("axis", [1, -1, [1]])
def test_softmax(axis):
    close(ran(lambda t: nl.softmax(t, axis), 30 * X, both=True), jax.nn.softmax(30 * X, axis=1))


def test_softmax_over_some_axes():
    got, low = ran(lambda t: (nl.softmax(t, (2, 3)), nl.softmax(t, dtype=nl.bfloat16)), BOX)
    close(got, jax.nn.softmax(BOX, axis=(2, 3)))
    assert low.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(low.astype(np.float32), jax.nn.softmax(BOX, axis=3), rtol=1e-2)


def test_softmax_of_large_numbers_is_finite():
    x = np.array([[1e4, 1e4, -1e4]], np.float32)
    close(ran(nl.softmax, x), [[0.5, 0.5, 0]])


def rms(x, w, axis, n, epsilon=1e-6):
    return x / np.sqrt((x * x).sum(axis, keepdims=True) / n + epsilon) * w


@pytest.mark.parametrize("w", [Y, COLUMN, Y[:1]], ids=["whole", "column", "row"])
def test_rms_norm(w):
    got = ran(lambda x, w: nl.rms_norm(x, w, axis=1, n=6, epsilon=0.5), X, w, both=True)
    np.testing.assert_allclose(got, rms(X, w, 1, 6, 0.5), rtol=1e-5, atol=1e-6)


def test_rms_norm_over_some_axes_and_dtypes():
    w = np.ones_like(BOX)
    half = {"dtype": nl.bfloat16, "compute_dtype": nl.bfloat16}
    got, low = ran(lambda x, w: (nl.rms_norm(x, w, (2, 3), 10), nl.rms_norm(x, w, 3, 5, **half)), BOX, w)
    np.testing.assert_allclose(got, rms(BOX, w, (2, 3), 10), rtol=1e-5, atol=1e-6)
    assert low.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(low.astype(np.float32), rms(BOX, w, 3, 5), rtol=3e-2, atol=1e-2)


def test_rules():
    for axis in (0, (0, 1), 2, (1, 3), ()):
        words = "axis: must be the last contiguous dim(s) of the tile, not its partitions, got "
        for f in (nl.sum, nl.mean, nl.var, nl.all, nl.softmax):
            assert words in refused(lambda x, f=f, axis=axis: f(x, axis), BOX)
    assert "sum axis: must be an int or a sequence of ints, got 1.5" in refused(lambda x: nl.sum(x, 1.5), X)
    assert refused(lambda x: nl.sum(3.0, 1), X) == "nki.language.sum x: must be a tile, got 3.0"
    assert "rms_norm w: must have the shape (4, 6) of x, or sizes of 1 in it, got (4, 5)" in refused(
        lambda x, w: nl.rms_norm(x, w, 1, 6), X, Y[:, :5]
    )
    assert "softmax x: must be in sbuf or psum" in str(
        pytest.raises(nkijax.KernelError, nkijax.run, nl.softmax, X).value
    )


def test_gradients():
    def kernel(x, w):
        x, w = nl.load(x), nl.load(w)
        y = nl.rms_norm(nl.softmax(x), w, axis=1, n=6)
        total = nl.add(y, nl.subtract(nl.mean(x, 1), nl.var(x, 1)))
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    def plain(x, w):
        s = jax.nn.softmax(x, axis=1)
        y = s / jax.numpy.sqrt((s * s).mean(1, keepdims=True) + 1e-6) * w
        return y + x.mean(1, keepdims=True) - x.var(1, keepdims=True)

    f = nkijax.function(kernel)
    got = jax.jit(jax.grad(lambda x, w: (f(x, w) * Y).sum(), (0, 1)))(X, Y)
    want = jax.grad(lambda x, w: (plain(x, w) * Y).sum(), (0, 1))(X, Y)
    for g, v in zip(got, want, strict=True):
        np.testing.assert_allclose(g, v, rtol=1e-4, atol=1e-5)
