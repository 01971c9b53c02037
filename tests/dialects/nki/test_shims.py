"""Modules below `nki` beside the documented ones."""

import ml_dtypes
import numpy as np
import pytest

import nkijax.dialects.nki as nki
import nkijax.dialects.nki.language as nl
from nkijax import KernelError, Unsupported
from nkijax.dialects.nki import shims
from tests import kernels


def test_trap_20_modules():
    assert {
        "nki.compiler",
        "nki.compiler.kernel_builder",
        "nki.compiler.frontend",
        "nki.compiler.ncc_driver",
        "nki.meta",
        "nki.meta.tensor",
        "nki.experimental",
        "nki.simulator",
    } == set(shims.MODULES)
    assert all(module.__name__ == name for name, module in shims.MODULES.items())
    assert nki.experimental.while_loop is nl.while_loop


def test_tensors_of_the_host():
    host = nki.meta.tensor
    np.testing.assert_array_equal(host.zeros((2, 3), nl.bfloat16), np.zeros((2, 3), ml_dtypes.bfloat16))
    assert (
        host.identity(3, nl.uint8).tolist() == np.eye(3).tolist()
        and host.identity(2, nl.float8_e4m3).dtype.itemsize == 1
    )
    assert host.arange(4, nl.int16).tolist() == [0, 1, 2, 3] and host.arange(4, nl.int16).dtype == np.int16
    with pytest.raises(KernelError, match="nki.meta.tensor.zeros dtype: int64 is not an NKI dtype"):
        host.zeros((2,), "int64")


def test_simulate_kernel():
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    simulate_kernel = nki.simulator.simulate_kernel
    np.testing.assert_array_equal(simulate_kernel(kernels.double, (x,)), 2 * x)
    np.testing.assert_array_equal(simulate_kernel(kernels.double, (), {"x": x}, _lnc=2), 2 * x)


def test_the_compiler_is_not_here():
    driver, frontend = nki.compiler.ncc_driver, nki.compiler.frontend
    for call in (
        lambda: nki.compiler.kernel_builder.compile_kernel(kernels.double, inputs={}, outputs={}, compile_opts=None),
        lambda: driver.CompiledKernel.from_frontend(None, None),
        driver.CompiledKernel,
        driver.CompileOptions,
        frontend.NKIFrontend,
        lambda: frontend.ParserFrontend(kernels.double),
    ):
        with pytest.raises(Unsupported, match="nki.compiler.*is a part of the vendor's compiler; nkijax.trace"):
            call()
    assert driver.CompileOptions.__name__ == "CompileOptions"
