"""The handle that instructions return, and operands that are no tensors."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.dialects.nki.emit import operand
from tests.dialects.nki.faces import register, tensor


def test_instructions_return_a_handle():
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        first = nisa.dma_copy(tile, x, name="load")
        second = nisa.tensor_copy(tile, tile)
        assert isinstance(first, nisa.NkiInstruction)
        assert second.depends_on(first) is second and second.depends_on() is second
        assert first.handle.name == "load" and second.handle.name is None
        with pytest.raises(KernelError, match="depends_on producers: must be instructions, got 'load'"):
            second.depends_on("load")

    nkijax.trace(kernel, np.zeros((2, 2), np.float32))


def test_depends_on_orders_the_schedule():
    """The consumer waits, and is issued after its producer though it is written before it."""

    def kernel(x):
        a, b = (nl.ndarray(x.shape, x.dtype) for _ in range(2))
        first = nisa.memset(a, 1.0)
        second = nisa.memset(b, 2.0)
        first.depends_on(second)

    program = nkijax.trace(kernel, np.zeros((2, 2), np.float32), rolled=False)
    assert [i.value for i in program.body] == [2.0, 1.0]
    assert program.edges == ((program.body[1], program.body[0]),)
    nkijax.run(kernel, np.zeros((2, 2), np.float32), eager=True)


def test_operands():
    t, r = tensor((2, 2)), register()
    assert operand(t) is t._view and operand(r) is r._view and operand(None) is None
    for given, want in ((np.float32(2), 2.0), (np.int64(3), 3), (1, 1), (0.5, 0.5), (np.float64(1.5), 1.5)):
        assert operand(given) == want and type(operand(given)) is type(want)
    assert operand("a") == "a"


def test_outside_of_a_kernel():
    t = tensor((2, 2))
    for call in (lambda: nisa.dma_copy(t, t), lambda: nisa.nc_matmul(t, t, t), nisa.register_alloc):
        with pytest.raises(KernelError, match="runs only inside a kernel"):
            call()
