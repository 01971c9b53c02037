"""The caller's arrays in and out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import nkijax
from nkijax import arrays
from tests import kernels


def test_what_is_an_array():
    assert (
        arrays.is_array(np.ones(3))
        and arrays.is_array(jnp.ones(3))
        and arrays.is_array(jax.ShapeDtypeStruct((2,), "f4"))
    )
    assert not any(arrays.is_array(x) for x in (1, 1.0, None, "x", (np.ones(3),), np.float32(1)))


def test_describe():
    assert arrays.describe(np.ones((2, 3), ml_dtypes.bfloat16)) == ((2, 3), "bfloat16")
    with pytest.raises(TypeError, match="float64 is not an NKI dtype"):
        arrays.describe(np.ones(3))


def test_static_arguments_become_pythons_or_nkis():
    assert type(arrays.static(np.int64(3))) is int and arrays.static("x") == "x"
    assert arrays.static(jnp.bfloat16) == "bfloat16" and arrays.static(np.dtype("f4")) == "float32"
    with pytest.raises(TypeError):
        arrays.static(np.dtype("f8"))


def test_numpy_results_are_the_callers_own():
    out = arrays.from_jax(jnp.ones(3), "numpy")
    out[0] = 2
    assert arrays.kind_of([np.ones(2)]) == "numpy" and arrays.kind_of([np.ones(2), jnp.ones(2)]) == "jax"


def test_update_writes_in_place():
    x = np.zeros(3, np.float32)
    arrays.update(x, jnp.arange(3.0))
    np.testing.assert_array_equal(x, [0, 1, 2])


@pytest.mark.parametrize(("name", "word"), [("float8_e4m3fn_x4", np.uint32), ("float4_e2m1fn_x4", np.uint16)])
def test_x4_types_are_named_by_their_field_and_travel_as_words(name, word):
    x = np.arange(6).astype(word).reshape(2, 3).view(np.dtype([(name, word)]))
    assert arrays.describe(x) == ((2, 3), name)
    np.testing.assert_array_equal(arrays.to_jax(x), np.arange(6).reshape(2, 3))
    arrays.update(x, jnp.ones((2, 3), word))
    np.testing.assert_array_equal(x[name], np.ones((2, 3)))
    for wrong in (np.dtype([(name, np.uint8)]), np.dtype([("other", word)]), np.dtype([(name, word), ("more", word)])):
        with pytest.raises(TypeError, match="is not an NKI dtype"):
            arrays.describe(np.zeros(2, wrong))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
def test_torch_round_trip(dtype):
    torch = pytest.importorskip("torch", reason="torch is optional")
    x = torch.ones((2, 3)).to(getattr(torch, dtype))
    assert arrays.describe(x) == ((2, 3), dtype) and arrays.kind_of([x]) == "torch"
    back = arrays.from_jax(arrays.to_jax(x), "torch")
    assert back.dtype == x.dtype and bool((back == x).all())
    assert arrays.device_of([1.0, x]) == x.device and arrays.device_of([np.ones(2)]) is None
    assert arrays.from_jax(arrays.to_jax(x), "torch", "meta").device.type == "meta"
    arrays.update(x, jnp.zeros((2, 3), arrays.to_jax(x).dtype))
    assert not bool(x.any())


# ---- meshes


def test_arrays_sharded_over_explicit_axes():
    """What `jax.make_mesh` makes: the split is in the arrays' type, even on one device."""
    mesh = jax.make_mesh((1,), ("x",))
    x = np.arange(256 * 3, dtype=np.float32).reshape(256, 3)
    split = jax.device_put(x, NamedSharding(mesh, PartitionSpec("x")))
    flat = arrays.auto_axes(lambda x, y: (x.reshape(2, -1) + y, y))
    with pytest.raises(Exception, match="reshape is not supported"):
        jax.jit(flat.__wrapped__)(split.T, 1.0)
    for y in jax.jit(flat)(split.T, 1.0):
        assert not any(jax.typeof(y).sharding.spec)
    kernel = nkijax.function(kernels.double)
    for loops in ("vmap", "scan"):
        np.testing.assert_array_equal(nkijax.run(kernels.double, split, loops=loops), 2 * x)
    turns = np.array([[5], [0], [2]], np.int32)
    for spec in (PartitionSpec("x"), PartitionSpec()):  # as what a loop carries, too
        rows = nkijax.run(kernels.pick_rows, jax.device_put(x, NamedSharding(mesh, spec)), turns)
        np.testing.assert_array_equal(rows[:2], x[[5, 0]])
    slope = jax.grad(lambda x: kernel(x).sum())(split)
    assert jax.typeof(slope) == jax.typeof(split) and (slope == 2).all()
    with jax.set_mesh(mesh):
        out = jax.sharding.auto_axes(kernel, out_sharding=PartitionSpec("x"))(split)
    assert jax.typeof(out) == jax.typeof(split)
    assert type(arrays.local(split)) is np.ndarray and arrays.local(x) is x
    np.testing.assert_array_equal(nkijax.run(kernels.double, split, eager=True), 2 * x)
