"""Eager execution: the same values, visible while the kernel's Python runs."""

from __future__ import annotations

import numpy as np
import pytest

import nkijax
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl
from tests import kernels


def test_printing_a_tile_shows_its_data(capsys):
    def kernel(x):
        t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        print(t)
        return x

    nkijax.run(kernel, np.array([[1.5, -2.5]], np.float32), eager=True)
    assert "1.5" in capsys.readouterr().out


def test_dynamic_loops_really_turn():
    x, n = np.arange(24, dtype=np.float32).reshape(6, 4), np.array([[5], [0], [2]], np.int32)
    seen = []

    def kernel(x, n):
        out = kernels.pick_rows(x, n)
        nl.fori_loop(0, 3, lambda i: seen.append(int(i)))
        return out

    out = nkijax.run(kernel, x, n, eager=True)
    np.testing.assert_array_equal(out[:2], x[[5, 0]])
    assert seen == [0, 1, 2]


def test_while_loops():
    def kernel(x):
        t = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=t, value=0)
        left, register = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf), nisa.register_alloc(3)
        nisa.register_store(left, register)

        def body(register):
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=2.0)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1.0)
            again = nisa.register_alloc()
            nisa.register_load(again, left)
            return again

        nl.while_loop(register, body)
        out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=t)
        return out

    for eager in (True, False):
        assert nkijax.run(kernel, np.ones((1, 1), np.float32), eager=eager) == 6


@pytest.mark.parametrize("n", [128, 256])
def test_matmuls_accumulate(n):
    a, b = (np.random.default_rng(k).standard_normal((n, 64), dtype=np.float32) for k in range(2))
    np.testing.assert_allclose(nkijax.run(kernels.matmul, a, b, eager=True), a.T @ b, rtol=1e-4, atol=1e-4)


def test_in_place_arguments():
    x, y = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    nkijax.run(kernels.add_into, x, y, eager=True)
    assert (y == 2).all()
