"""The store cast, against ml_dtypes, and the traps of excess precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from nkijax import dtypes

LOW = ["float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"]


def floats(dtype):
    """Every finite value of a small float, the midpoints between them, their neighbours, and what overflows."""
    kind = dtypes.storage(dtype)
    bits = np.arange(2 ** (8 * kind.itemsize), dtype=np.uint32).astype(f"u{kind.itemsize}")
    values = np.unique(bits.view(kind).astype(np.float32))
    values = values[np.isfinite(values)]
    middle = (values[1:].astype(np.float64) + values[:-1]) / 2
    middle = middle.astype(np.float32)
    some = np.concatenate([values, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
    return np.concatenate([some, np.float32([np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 449, 464, 465, 248, 247])])


@pytest.mark.parametrize("dtype", LOW)
def test_floats_round_to_nearest_even(dtype):
    x = floats(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(dtypes.storage(dtype)).astype(np.float32)
    got = np.asarray(jax.jit(lambda v: dtypes.cast(v, dtype))(x)).astype(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_integers_round_to_even_and_saturate(dtype):
    info = np.iinfo(dtype)
    x = np.float32([0.5, 1.5, 2.5, -0.5, -2.5, 3.7, info.max, info.min, 1e20, -1e20, np.inf, -np.inf, np.nan])
    want = np.clip(np.rint(np.nan_to_num(x.astype(np.float64), nan=0)), info.min, info.max).astype(dtype)
    np.testing.assert_array_equal(dtypes.cast(jnp.asarray(x), dtype), want)


def test_case_11_fp32_to_int8():
    x = jnp.array([0.5, 1.5, 2.5, -0.5, -2.5, 127.5, 300, -300], jnp.float32)
    np.testing.assert_array_equal(dtypes.cast(x, "int8"), [0, 2, 2, 0, -2, 127, 127, -128])


def test_equal_dtypes_keep_every_bit():
    nan = np.array([0x7FC12345, 0xFF800001], np.uint32).view(np.float32)
    np.testing.assert_array_equal(
        np.asarray(dtypes.cast(jnp.asarray(nan), "float32")).view(np.uint32), nan.view(np.uint32)
    )
    ints = jnp.array([2**24 + 1, -(2**31)], jnp.int32)
    assert dtypes.cast(ints, "int32") is ints


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3", "float8_e5m2", "float16"])
def test_no_excess_precision_survives_in_a_fused_chain(dtype):
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    kind = dtypes.storage(dtype)

    def chain(v):
        v = dtypes.cast(v, dtype)
        v = dtypes.cast(v.astype(jnp.float32) + 1, dtype)
        return dtypes.cast(v.astype(jnp.float32) * 3, dtype)

    step = (x.astype(kind).astype(np.float32) + 1).astype(kind)
    want = (step.astype(np.float32) * 3).astype(kind)
    np.testing.assert_array_equal(jax.jit(chain)(x).astype(jnp.float32), want.astype(np.float32))


@pytest.mark.parametrize("dtype", LOW)
def test_casts_to_floats_have_derivative_one(dtype):
    grad = jax.grad(lambda v: dtypes.cast(v, dtype).astype(jnp.float32).sum())(jnp.array([0.3, -7.0], jnp.float32))
    np.testing.assert_array_equal(grad, [1, 1])


def test_poison_is_nan_or_four():
    assert np.isnan(dtypes.poison("float32")) and np.isnan(float(dtypes.poison("bfloat16")))
    assert dtypes.poison("int32") == 4 and dtypes.poison("uint8") == 4


def test_imprecise_storage_is_float32():
    assert dtypes.storage("bfloat16", precise=False) == np.float32
    assert dtypes.storage("int8", precise=False) == np.int8
    x = jnp.array([1.001], jnp.float32)
    assert dtypes.cast(x, "bfloat16", precise=False) is x


@pytest.mark.parametrize(
    "given, name", [(np.float32, "float32"), (jnp.bfloat16, "bfloat16"), ("bool_", "bool"), (np.dtype("u4"), "uint32")]
)
def test_names(given, name):
    assert dtypes.of(given) == name


@pytest.mark.parametrize("given", [np.float64, np.int64, np.complex64, "float31", object()])
def test_what_nki_lacks_is_a_type_error(given):
    with pytest.raises(TypeError, match="is not an NKI dtype"):
        dtypes.of(given)


def test_ml_dtypes_names():
    assert dtypes.of(ml_dtypes.float8_e4m3fn) == "float8_e4m3fn" and dtypes.size("float8_e4m3fn_x4") == 4


def test_arguments_without_the_ocp_format():
    assert dtypes.argument("float8_e4m3fn", False) == "float8_e4m3"
    assert dtypes.argument("float8_e5m2", False) == "float8_e5m2"
    assert dtypes.argument("float8_e4m3fn", True) == "float8_e4m3fn"


def test_tfloat32_keeps_ten_bits():
    x = np.float32([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-12, -3.4e38, np.inf])
    got = np.asarray(dtypes.cast(jnp.asarray(x), "tfloat32"))
    assert got.tolist() == [1 + 2**-10, 1.0, 1 + 2**-9, 1.0, got[4], np.inf]


@pytest.mark.parametrize(("part", "want"), [("uint8", "int32"), ("uint16", "float32"), ("float8_e4m3", "uint32")])
def test_a_transposed_constant_is_widened_as_any_array(part, want):
    """XLA would fold `bitcast_convert_type` of it in its layout's order: an index made of bytes was wrong."""
    part, want = dtypes.storage(part), dtypes.storage(want)
    parts = np.arange(16 * want.itemsize, dtype=np.uint8).view(part).reshape(-1, 16)  # none of them is NaN

    def widened(x):
        zero = jnp.zeros((), part)
        x = jnp.where(x == x, x, zero).reshape(*x.shape, 1)  # noqa: PLR0124 - keeps the layout from XLA's first look
        x = jnp.where(x == x, x, zero).reshape(parts.shape)  # noqa: PLR0124
        return dtypes.widened(x.T, want)

    expected = parts.T.copy().view(want)[:, 0]
    for got in (jax.jit(widened)(parts), jax.jit(lambda: widened(jnp.asarray(parts)))()):
        np.testing.assert_array_equal(np.asarray(got), expected)
