"""Operators count by their names."""

import numpy as np

from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.ops import activation_function, alu, op_name
from nkijax.isa.operators import ACTIVATIONS, ALU


def test_operators():
    for op in (np.add, np.sum, nl.add, nl.sum, "add"):
        assert alu(op) is ALU["add"]
    for op in (np.max, np.amax, np.maximum, nl.max, nl.maximum):
        assert alu(op) is ALU["maximum"]
    assert alu(np.abs) is ALU["abs"] and alu(np.divide) is alu(np.true_divide) is ALU["divide"] and alu(None) is None
    assert alu(ALU["add"]) is ALU["add"] and alu("nonsense") == "nonsense" and alu(nl.mod) == "mod"


def test_activations():
    assert activation_function(np.exp) is activation_function(nl.exp) is ACTIVATIONS["exp"]
    assert activation_function(nl.copy) is activation_function(np.copy) is ACTIVATIONS["copy"]
    assert activation_function(None) is None and activation_function(nl.floor) == "floor" and op_name(np.pow) == "power"
