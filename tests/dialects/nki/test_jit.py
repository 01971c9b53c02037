"""nki.jit, nki.simulate and the dialect as the doors see it."""

import inspect

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError, api
from nkijax.dialects.nki.jit import DIALECT

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def plus(x, number=1.0):
    """x + number."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.add, number)
    nl.store(out, tile)
    return out


def test_forms():
    forms = [
        nki.jit(plus),
        nki.jit()(plus),
        nki.jit(mode="trace")(plus),
        nki.jit(fn=plus),
        nki.jit(nki.jit(plus)),
        nki.jit(debug_kernel=True, show_compiler_tb=True, experimental_flags="x")(plus),
    ]
    for kernel in forms:
        assert isinstance(kernel, nki.Kernel)
        assert (kernel.__name__, kernel.__doc__, kernel.__wrapped__) == ("plus", "x + number.", plus)
        np.testing.assert_array_equal(kernel(X), X + 1)
    np.testing.assert_array_equal(forms[0](x=X, number=2), X + 2)


def test_keywords():
    with pytest.raises(
        TypeError, match="nki.jit platform_target: was removed.*NEURON_PLATFORM_TARGET_OVERRIDE.*'trn2'"
    ):
        nki.jit(platform_target="trn2")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        nki.jit(colour=1)
    with pytest.raises(TypeError, match="nki.jit fn: must be a function, got 3"):
        nki.jit(3)


def test_wrappers_around_a_kernel():
    def decorator(f):
        def wrapper(*args):
            raise AssertionError("the doors look through wrappers")

        wrapper.__wrapped__ = f
        return wrapper

    np.testing.assert_array_equal(nkijax.run(decorator(decorator(nki.jit(plus))), X), X + 1)


def test_kernels_call_kernels():
    inner = nki.jit(plus)

    @nki.jit
    def outer(x):
        return inner(inner(x), number=10.0)

    np.testing.assert_array_equal(outer(X), X + 11)


@pytest.mark.parametrize("cores", [1, 2, np.int64(2)])
def test_cores(cores):
    kernel = nki.jit(plus)[cores]
    assert kernel.grid == (int(cores),) and isinstance(kernel, nki.Kernel)
    np.testing.assert_array_equal(kernel(X), X + 1)


@pytest.mark.parametrize("cores", [0, 3, (2,), [1], True, 1.0, None, "2"])
def test_cores_that_there_are_not(cores):
    with pytest.raises(KernelError) as error:
        nki.jit(plus)[cores]
    assert error.value.message == f"kernel[n]: NKI only supports LNC 1 or 2, but got {cores!r}"


def test_schedules_change_no_value():
    np.testing.assert_array_equal(nki.jit(plus).with_schedule([])(X), X + 1)
    with pytest.raises(KernelError, match="kernel.with_schedule consumer: must be the name of an instruction, got 'a'"):
        nki.jit(plus).with_schedule([("a", ["b", "c"])])(X)


def test_simulate():
    for kernel in (plus, nki.jit(plus), nki.jit(plus)[2], nki.jit(plus).with_schedule([])):
        result = nki.simulate(kernel)(X, number=3.0)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, X + 3)


def test_simulate_shows_data_when_asked(capsys):
    def kernel(x):
        print(nl.load(x)[0:1])
        return x

    nki.simulate(kernel, eager=True)(X)
    assert "[[0. 1. 2. 3.]]" in capsys.readouterr().out


def test_arguments():
    @nki.jit
    def kernel(x, dtype, flags, none, text="a"):
        assert none is None and flags == (True, {"k": 2.0}) and text == "b" and dtype == "bfloat16"
        assert type(dtype) is str
        out = nl.ndarray(x.shape, dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out, (x, out)

    for dtype in (nl.bfloat16, jnp.bfloat16, np.dtype(ml_dtypes.bfloat16), ml_dtypes.bfloat16):
        first, (second, third) = kernel(X, dtype, (True, {"k": 2.0}), None, text="b")
        assert first.dtype == third.dtype == ml_dtypes.bfloat16 and second.dtype == np.float32
    with pytest.raises(TypeError, match="is not an NKI dtype"):
        kernel(X, jnp.float64, (), None)
    with pytest.raises(TypeError, match="kernel: called without arguments"):
        kernel()


def test_frameworks():
    kernel = nki.jit(plus)
    assert type(kernel(X)) is np.ndarray
    result = kernel(jnp.asarray(X))
    assert isinstance(result, jax.Array)
    np.testing.assert_array_equal(jax.jit(kernel)(X), X + 1)


def test_inputs_that_are_written():
    @nki.jit
    def kernel(x):
        x[0] = 7

    mine = X.copy()
    assert kernel(mine) is None
    np.testing.assert_array_equal(mine, [[7] * 4, X[1]])
    np.testing.assert_array_equal(kernel(jnp.asarray(X)), mine)


def test_results_are_in_hbm():
    with pytest.raises(KernelError, match="kernel result: must be in HBM.*got a tensor in sbuf"):
        nkijax.run(lambda x: nl.load(x), X)
    assert nkijax.run(lambda x: nl.zeros((2,), nl.int8, buffer=nl.private_hbm), X).shape == (2,)


def test_errors_name_the_kernels_line():
    @nki.jit
    def kernel(x):
        nisa.tensor_copy(x, x)

    with pytest.raises(KernelError) as error:
        kernel(X)
    line = inspect.getsourcelines(kernel.__wrapped__)[1] + 2
    assert error.value.site == f"{__file__}:{line}"
    assert "nki.isa.tensor_copy dst: dst must be in ['sbuf', 'psum'], got private_hbm" in str(error.value)


def test_names_that_nki_removed():
    for name, instead in (
        ("benchmark", "nkijax.profile"),
        ("simulate_kernel", "nki.simulate"),
        ("baremetal", "nki.jit"),
    ):
        with pytest.raises(NotImplementedError, match=f"nki.{name}: was removed from NKI; use {instead}"):
            getattr(nki, name)
    with pytest.raises(NotImplementedError, match="nki.profile"):
        _ = nki.profile
    with pytest.raises(AttributeError, match="module 'nki' has no attribute 'jot'"):
        _ = nki.jot


def test_the_dialect_comes_first_and_knows_its_functions():
    assert api.DIALECTS[0] is DIALECT

    def foreign(x):
        return np.add(x, 1)

    assert DIALECT.speaks(plus) and not DIALECT.speaks(foreign)
    assert api.as_kernel(foreign).dialect is DIALECT
