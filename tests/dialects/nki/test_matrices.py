"""matmul, transpose, shared_constant, shared_identity_matrix."""

import jax
import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax.program import instructions
from tests.dialects.nki.tiles import X, Y, ran, refused

A = np.random.default_rng(5).standard_normal((64, 32)).astype(np.float32)
B = np.random.default_rng(6).standard_normal((32, 48)).astype(np.float32)


def test_matmul():
    """A float32 tile in PSUM: x.T @ y as the tensor engine has it, or x @ y through a transpose."""
    got = ran(lambda a, b: nl.matmul(a, b), A, B, both=True)
    np.testing.assert_allclose(got, A @ B, rtol=1e-5, atol=1e-5)
    again = ran(lambda a, b: nl.matmul(a, b, transpose_x=True), A.T.copy(), B)
    np.testing.assert_allclose(again, A @ B, rtol=1e-5, atol=1e-5)

    def kernel(a, b):
        out = nl.matmul(nl.load(a), nl.load(b), transpose_x=True)
        assert out.buffer is nl.psum and out.dtype == nl.float32

    nkijax.trace(kernel, A.astype(ml_dtypes.bfloat16), A.astype(ml_dtypes.bfloat16))


def test_transpose():
    def kernel(x):
        out, cast = nl.transpose(x), nl.transpose(x, dtype=nl.bfloat16)
        assert out.buffer is cast.buffer is nl.psum
        return out, cast

    out, cast = ran(kernel, A, both=True)
    np.testing.assert_array_equal(out, A.T)
    np.testing.assert_array_equal(cast, A.T.astype(ml_dtypes.bfloat16))


def test_rules_of_products():
    assert "matmul x, y: must agree in the size that is summed over, got 4 and 6 of x (6, 4) and y (6, 4)" in refused(
        lambda x, y: nl.matmul(x, y), X.T.copy(), Y.T.copy()
    )
    assert "matmul x: must have 2 dimensions" in refused(lambda x: nl.matmul(x.expand_dim(1), x), X)
    assert "transpose x: must have 2 dimensions" in refused(lambda x: nl.transpose(x.expand_dim(2)), X)
    assert refused(lambda x: nl.transpose(2), X) == "nki.language.transpose x: must be a tile, got 2"
    assert "exceeds" in refused(lambda x, y: nl.matmul(x, y, True), *(np.zeros((64, n), np.float32) for n in (129, 8)))


# ---- constants


def test_shared_constant(tmp_path):
    data = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.save(tmp_path / "data.npy", data)

    def kernel(x):
        loaded = [nl.shared_constant(c) for c in (data, str(tmp_path / "data.npy"), tmp_path / "data.npy")]
        assert all(c.buffer is nl.shared_hbm and (c.shape, c.dtype) == ((2, 3), "int16") for c in loaded)
        assert loaded[0]._view.buffer is loaded[1]._view.buffer, "equal constants are one"
        return nl.load(loaded[1])

    np.testing.assert_array_equal(ran(kernel, X, both=True), data)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint32", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_of_constants(dtype):
    data = np.array([[0, 1, 2]]).astype(getattr(ml_dtypes, dtype, dtype))
    got = ran(lambda x: nl.load(nl.shared_constant(data)), X)
    assert got.dtype == data.dtype and got.tobytes() == data.tobytes()


def test_rules_of_constants(tmp_path):
    assert "shared_constant constant: must be an array or the path of a .npy file, got 3" in refused(
        lambda x: nl.shared_constant(3), X
    )
    assert "shared_constant constant: float64 is not an NKI dtype" in refused(
        lambda x: nl.shared_constant(np.ones(3)), X
    )
    with pytest.raises(FileNotFoundError):
        nkijax.trace(lambda x: nl.shared_constant(str(tmp_path / "none.npy")), X)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16", "float8_e4m3"])
def test_shared_identity_matrix(dtype):
    def kernel(x):
        first = nl.shared_identity_matrix(5, dtype)
        into = nl.ndarray((5, 5), dtype, buffer=nl.sbuf)
        assert nl.shared_identity_matrix(5, dst=into) is into and first.buffer is nl.sbuf
        return first, into

    for got in ran(kernel, X):
        assert got.dtype.name == dtype
        np.testing.assert_array_equal(got.astype(np.float32), np.eye(5))


def test_the_identity_has_dtype_uint8_by_default():
    assert ran(lambda x: nl.shared_identity_matrix(n=3), X).dtype == np.uint8


def test_constants_in_a_loop_fold():
    """One constant for all turns, so that the loop rolls; and one inside a dynamic loop serves outside too."""

    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in range(16):
            one = nl.shared_identity_matrix(1, nl.float32)
            row = nl.load(x[i : i + 1])
            nisa.tensor_scalar(row, row, nl.add, one)
            nl.store(out[i : i + 1], row)
        return out

    x = np.zeros((16, 4), np.float32)
    assert len(list(instructions(nkijax.trace(kernel, x).body))) == 4
    np.testing.assert_array_equal(nkijax.run(kernel, x), x + 1)

    def dynamic(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.fori_loop(0, 2, lambda i: nl.store(out, nl.shared_identity_matrix(4, nl.float32)))
        nl.store(out, nl.add(nl.load(out), nl.shared_identity_matrix(4, nl.float32)))
        return out

    np.testing.assert_array_equal(nkijax.run(dynamic, np.zeros((4, 4), np.float32)), 2 * np.eye(4))


def test_rules_of_the_identity():
    assert "shared_identity_matrix n: must be a positive int, got 0" in refused(
        lambda x: nl.shared_identity_matrix(0), X
    )
    assert "dst: must have 3 * 3 elements, got (4, 6)" in refused(lambda x: nl.shared_identity_matrix(3, dst=x), X)
    assert "exceeds maximum 128" in refused(lambda x: nl.shared_identity_matrix(200), X)


def test_gradients():
    def kernel(a, b):
        out = nl.ndarray((64, 48), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(nl.matmul(nl.load(a), nl.load(b))))
        return out

    f = nkijax.function(kernel)
    got = jax.jit(jax.grad(lambda a, b: (f(a, b) ** 2).sum(), (0, 1)))(A, B)
    want = jax.grad(lambda a, b: (jax.numpy.matmul(a, b, precision="highest") ** 2).sum(), (0, 1))(A, B)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-3)
