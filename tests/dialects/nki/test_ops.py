"""Operators: function objects that instructions take."""

import inspect

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.dialects.nki import ops
from nkijax.isa.operators import ACTIVATIONS, ALU

UNARY = """abs square sqrt rsqrt exp log sin cos tan arctan tanh sigmoid relu gelu gelu_dx gelu_apprx_tanh
gelu_apprx_sigmoid gelu_apprx_sigmoid_dx silu silu_dx softplus mish erf erf_dx reciprocal ceil floor trunc negative sign
invert logical_not copy""".split()
BINARY = """add subtract multiply divide maximum minimum abs_max abs_min power fmod mod equal not_equal less less_equal
greater greater_equal bitwise_and bitwise_or bitwise_xor left_shift right_shift logical_and logical_or
logical_xor""".split()
REDUCTIONS = "sum max min mean prod var".split()  # `all` has no keepdims
TOKENS = "average prelu bypass".split()


@pytest.mark.parametrize("name", [*UNARY, *BINARY, *REDUCTIONS, "all", *TOKENS])
def test_trap_1_an_operator_is_a_function_of_its_name(name):
    op = getattr(nl, name)
    assert inspect.isfunction(op) and op.__name__ == name and name in str(op) and op.__doc__
    assert op == getattr(nl, name) and {op: 1}[op] == 1 and op != nl.bypass or name == "bypass"
    assert op in [op] and op is not None


def test_arguments():
    def names(op):
        return str(inspect.signature(op)).rpartition(" ->")[0]

    assert all(names(getattr(nl, n)) == "(x, dtype=None)" for n in UNARY if n != "copy")
    assert all(names(getattr(nl, n)) == "(x, y, dtype=None)" for n in BINARY)
    assert all(names(getattr(nl, n)) == "(x, axis, dtype=None, keepdims=False)" for n in REDUCTIONS)
    assert names(nl.all) == "(x, axis, dtype=None)"


def test_rows():
    assert all(ops.alu(getattr(nl, name)) is ALU[name] for name in ALU)
    assert all(ops.activation_function(getattr(nl, name)) is ACTIVATIONS[name] for name in ACTIVATIONS)
    assert ops.alu(nl.max) is ALU["maximum"] and ops.alu(nl.min) is ALU["minimum"]
    assert ops.alu(None) is None
    assert ops.alu(nl.exp) == "exp" and ops.activation_function(nl.add) == "add", (
        "a name, for the instruction to refuse"
    )
    assert ops.alu("add") == "add" and ops.alu([1]) == [1] and ops.alu(3) == 3


def test_calls():
    for call in (lambda: nl.exp(1, dtype=nl.float32), lambda: nl.max(1, axis=1, keepdims=True)):
        with pytest.raises(KernelError, match="x: must be a tile, got 1"):
            call()
    with pytest.raises(TypeError, match="nki.language.bypass: is an operator of instructions"):
        nl.bypass()
    with pytest.raises(TypeError, match="unexpected keyword"):
        nl.exp(1, mask=None)


@pytest.mark.parametrize("eager", [False, True])
def test_copy(eager):
    def kernel(x):
        out = nl.ndarray(x.shape, nl.int32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(nl.copy(nl.load(x)), dtype=nl.int32))
        return out

    x = np.array([[0.5, 1.5, -2.5]], np.float32)
    np.testing.assert_array_equal(nkijax.run(kernel, x, eager=eager), [[0, 2, -2]])
    with pytest.raises(KernelError, match="copy x: must be a tensor, got 1"):
        nl.copy(1)
