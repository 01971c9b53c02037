"""device_print."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from nkijax.isa.debug import DevicePrint
from nkijax.machine import TRN2, Engine, Memory, Transfer
from tests.isa.harness import Reader, execute, rule, store, tile

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_concrete_values_are_printed_at_once(capsys):
    view, memory = store(X)
    execute(DevicePrint("x is", view), memory)
    assert capsys.readouterr().out == "x is [[0. 1. 2.]\n [3. 4. 5.]]\n"


def test_traced_values_are_printed_when_the_function_runs(capsys):
    view = tile((2, 3))
    inst = DevicePrint("x", view.slice(1, 0, 2))

    @jax.jit
    def run(x):
        assert inst.run(Reader({inst.tensor: x[:, :2]}, {})) == ()
        return x

    compiled = run.lower(X).compile()
    assert capsys.readouterr().out == ""
    for _ in range(2):
        compiled(X)
    jax.effects_barrier()
    assert capsys.readouterr().out == 2 * "x [[0. 1.]\n [3. 4.]]\n"


def test_shapes_and_dtypes(capsys):
    for dtype, values, want in (
        ("int32", [[[1], [2]]], "x [[[1]\n  [2]]]\n"),
        ("bfloat16", [[1.5]], "x [[1.5]]\n"),
        ("bool", [[True]], "x [[ True]]\n"),
    ):
        view, memory = store(values, dtype, Memory.shared_hbm)
        execute(DevicePrint("x", view), memory)
        assert capsys.readouterr().out == want


def test_gradients_pass_it_by():
    view = tile((2, 3))

    def total(x):
        DevicePrint("x", view).run(Reader({view: x}, {}))
        return (x * x).sum()

    np.testing.assert_allclose(jax.grad(total)(X), 2 * X)


def test_rules():
    words = "nki.language.device_print tensor: tensor must be in ['sbuf', 'private_hbm', 'shared_hbm'], got psum"
    assert rule(DevicePrint("x", tile((2, 3), memory=Memory.psum))) == words
    assert rule(DevicePrint(3, tile((2, 3)))) == "nki.language.device_print print_prefix: must be a string, got 3"
    assert rule(DevicePrint("x", tile((2, 3)))) == ""


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_cost(dtype, size):
    inst = DevicePrint("x", tile((128, 512), dtype))
    assert inst.cycles(TRN2) == Transfer(128 * 512 * size) and inst.queue is Engine.dma
