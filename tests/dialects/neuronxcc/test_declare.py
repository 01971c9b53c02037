"""Declarations: what they hold, block tensors, constants."""

import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl

from .test_emit import X, ran


def test_everything_declared_reads_zero():
    for make in (
        lambda: nl.ndarray((3, 4), dtype=nl.int32),
        lambda: nl.zeros((3, 4), dtype=nl.int32),
        lambda: nl.copy(nl.ndarray((nl.par_dim(3), 4), buffer=nl.psum)),
        lambda: nl.load(nl.ndarray((3, 4), buffer=nl.private_hbm)),
    ):
        assert (ran(lambda x, make=make: make()) == np.zeros((3, 4))).all()


def test_values():
    assert (ran(lambda x: nl.ones((3, 4), dtype=nl.bfloat16)) == 1).all()
    assert (ran(lambda x: nl.full((3, 4), 2.5, dtype=nl.float32)) == 2.5).all()
    assert (ran(lambda x: nl.load(nl.full((3, 4), 7, dtype=nl.int8, buffer=nl.hbm))) == 7).all()
    like = ran(lambda x: nl.zeros_like(nl.load(x), dtype=nl.int8))
    assert like.shape == X.shape and like.dtype == np.int8 and not like.any()
    assert ran(lambda x: nl.empty_like(nl.load(x))).shape == X.shape


def test_memsets_are_those_of_the_machine():
    def kernel(x):
        nl.zeros((4, 4), buffer=nl.psum, dtype=nl.float32)
        blocks = nl.zeros((2, nl.par_dim(4), 4), dtype=nl.float32)
        for k in range(2):
            nl.copy(blocks[k])  # a fill that nothing reads is left out

    names = [type(i).__name__ for i in nkijax.trace(jit(kernel), X, rolled=False).body]
    assert sorted(names) == ["Memset"] * 2 + ["TensorCopy"] * 2


def test_constants():
    assert (
        ran(lambda x: nl.load(nl.shared_constant(np.arange(12).reshape(3, 4), dtype=nl.int8)))[2] == [8, 9, 10, 11]
    ).all()
    assert (ran(lambda x: nl.load(nl.shared_identity_matrix(5))) == np.eye(5)).all()


def test_refused():
    with pytest.raises(KernelError, match="buffer: must be"):
        ran(lambda x: nl.ndarray((3, 4), buffer="sbuf"))
    with pytest.raises(KernelError, match="shape"):
        ran(lambda x: nl.ndarray((0, 4)))
