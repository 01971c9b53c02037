"""Declarations: what they hold, block tensors, constants."""

import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import compiler as ncc
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


def test_block_dimensions():
    def body(x):
        t = nl.ndarray((2, 3, nl.par_dim(6), 8), dtype=nl.float32)
        assert t.shape == (2, 3, 6, 8) and t[1].shape == (3, 6, 8) and t[1][2].shape == (6, 8)
        for i in nl.affine_range(2):
            for j in nl.affine_range(3):
                t[i, j] = nl.load(x)
                t[i][j][:, 0] = 10 * i + j
        assert t[0].partition == 1
        with pytest.raises(KernelError, match="indexed down to one tile"):
            nl.exp(t[0])
        u = nl.ndarray((nl.par_dim(6), 6), dtype=nl.float32)
        for i in range(2):
            for j in range(3):
                u[:, 3 * i + j] = t[i, j, :, 0]
        return u

    assert (ran(body) == [0, 1, 2, 10, 11, 12]).all()


def test_placed_block_tensors():
    def body(x):
        t = nl.ndarray(
            (4, nl.par_dim(6), 8), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2,))
        )
        assert t.shape == (4, 6, 8) and t.dtype == np.float32 and t.ndim == 3 and t.buffer is nl.sbuf
        for i in range(4):
            t[i] = nl.load(x)
            t[i, :, 0] = i
        with pytest.raises(KernelError, match="exceeds the block dimensions"):
            t[4]
        with pytest.raises(KernelError, match="take ints"):
            t[0:2]
        return t[0]  # tile 2 came to the same place

    assert (ran(body)[:, 0] == 2).all()


def test_memsets_are_those_of_the_machine():
    def kernel(x):
        nl.zeros((4, 4), buffer=nl.psum, dtype=nl.float32)
        nl.zeros((2, nl.par_dim(4), 4), dtype=nl.float32)

    assert [type(i).__name__ for i in nkijax.trace(jit(kernel), X).body] == ["Memset"]


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
