"""Tiles that share addresses: one buffer where values flow between them, buffers of their own where none do."""

import numpy as np

import nkijax
from nkijax.dialects.neuronxcc import compiler as ncc
from nkijax.dialects.neuronxcc import language as nl
from nkijax.program import instructions

X = np.random.default_rng(0).standard_normal((128, 8)).astype(np.float32)


def at(address, shape, dtype, partition=0):
    place = ncc.sbuf.mod_alloc(base_addr=address, base_partition=partition)
    return nl.ndarray((nl.par_dim(shape[0]), *shape[1:]), dtype=dtype, buffer=place)


def sbuf_sizes(kernel, *args):
    """The shapes of the SBUF buffers that instructions touch."""
    program = nkijax.trace(kernel, *args, rolled=False)
    views = [v for i in instructions(program.body) for v in (*i.reads(), *i.writes())]
    return sorted({v.buffer.shape for v in views if v.memory.on_chip})


def words(x):
    """The bits of floats, read through a tile of integers; and half of them."""
    out = nl.ndarray((128, 8), dtype=np.uint32, buffer=nl.shared_hbm)
    half = nl.ndarray((64, 2), dtype=np.uint32, buffer=nl.shared_hbm)
    at(32, (128, 8), np.float32)[...] = nl.load(x)
    nl.store(out, at(32, (128, 8), np.uint32))
    nl.store(half, at(40, (64, 2), np.uint32, 64))
    return out, half


def test_another_dtype_and_a_part():
    out, half = nkijax.run(words, X)
    np.testing.assert_array_equal(out, X.view(np.uint32))
    np.testing.assert_array_equal(half, X.view(np.uint32)[64:, 2:4])
    assert (128, 8) in sbuf_sizes(words, X)


def narrow(x):
    """The high halves of floats, as bfloat16."""
    out = nl.ndarray((128, 16), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    at(0, (128, 8), np.float32)[...] = nl.load(x)
    nl.store(out, at(0, (128, 16), nl.bfloat16))
    return out


def test_another_size():
    np.testing.assert_array_equal(nkijax.run(narrow, X).view(np.uint16), X.view(np.uint16))


def reusing(x):
    """One address after another's last use: nothing flows."""
    out = nl.ndarray((128, 4), dtype=np.float32, buffer=nl.shared_hbm)
    first = at(0, (128, 8), np.float32)
    first[...] = nl.load(x)
    total = nl.sum(first, axis=1)
    second = at(0, (128, 4), np.float32)
    second[...] = nl.load(x[:, 0:4]) * total
    nl.store(out, second)
    return out


def test_reuse_alone_keeps_buffers_apart():
    want = X[:, :4] * X.sum(1, keepdims=True)
    np.testing.assert_allclose(nkijax.run(reusing, X), want, rtol=1e-5)
    assert {(128, 8), (128, 4)} <= set(sbuf_sizes(reusing, X))


def carried(n, x):
    """A dynamic loop whose turn reads what the last one left at the address."""
    out = nl.ndarray((128, 8), dtype=np.float32, buffer=nl.shared_hbm)
    at(0, (128, 8), np.float32)[...] = nl.load(x)
    for _ in range(nl.load(n)):
        low = at(0, (128, 4), np.float32)
        low[...] = low * 2.0
    nl.store(out, at(0, (128, 8), np.float32))
    return out


def test_dynamic_loops():
    want = np.concatenate([X[:, :4] * 8, X[:, 4:]], axis=1)
    np.testing.assert_array_equal(nkijax.run(carried, np.array([[3]], np.int32), X), want)
