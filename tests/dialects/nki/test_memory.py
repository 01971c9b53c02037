"""Allocation, filling, loading and storing."""

import inspect
from typing import Optional, Tuple  # noqa: UP035

import jax
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.language as nl
from nkijax import KernelError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
EAGER = pytest.mark.parametrize("eager", [False, True])


def inside(body):
    """What `body()` gives inside a kernel."""
    seen = []
    nkijax.trace(lambda x: seen.append(body()), X)
    return seen[0]


def refused(body):
    with pytest.raises(KernelError) as error:
        inside(body)
    assert error.value.site.startswith(__file__), error.value
    return error.value.message


def results(*tensors):
    """Copies of tensors in HBM, to be returned."""
    out = []
    for t in tensors:
        out.append(nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm))
        nl.store(out[-1], t)
    return tuple(out)


def test_ndarray():
    t = inside(lambda: nl.ndarray([4, np.int64(6)], "bfloat16", name="tile"))
    assert (t.shape, t.dtype, t.buffer, t.name) == ((4, 6), nl.bfloat16, nl.sbuf, "tile")
    assert inside(lambda: nl.ndarray((3,), np.float32, nl.hbm)).buffer is nl.private_hbm
    assert inside(lambda: nl.ndarray((129, 4), nl.float32, buffer=nl.psum)).shape == (129, 4)


def test_ndarray_serves_as_an_annotation():
    def kernel(x: Optional[nl.ndarray] = None) -> nl.ndarray | Tuple[nl.ndarray, int]:  # noqa: UP006, UP045  # pyright: ignore
        return x

    assert inspect.isfunction(nl.ndarray) and kernel() is None


def test_ndarray_refuses():
    two = "SBUF and PSUM tensors must have at least 2 dimensions (partition-dim and free-dim), got (3,)"
    assert two in refused(lambda: nl.ndarray((3,), nl.float32))
    assert two in refused(lambda: nl.ndarray((3,), nl.float32, buffer=nl.psum))
    assert "buffer: must be nl.sbuf, psum, hbm" in refused(lambda: nl.ndarray((3, 4), nl.float32, buffer="sbuf"))
    assert "dtype: float64 is not an NKI dtype" in refused(lambda: nl.ndarray((3, 4), "float64"))
    assert "dtype" in refused(lambda: nl.ndarray((3, 4), np.int64))
    assert "shape: sizes must be positive" in refused(lambda: nl.ndarray((3, 0), nl.float32))
    assert "shape: must be a sequence of ints" in refused(lambda: nl.ndarray(3, nl.float32))
    with pytest.raises(KernelError, match="runs only inside a kernel"):
        nl.ndarray((3, 4), nl.float32)
    with pytest.raises(TypeError, match="unexpected keyword argument 'bufer'"):
        nl.ndarray((3, 4), nl.float32, bufer=nl.sbuf)


def test_addresses_are_checked_and_have_no_effect():
    inside(lambda: nl.ndarray((3, 4), nl.float32, buffer=nl.psum, address=(0, 3 * 2048)))
    inside(lambda: nl.ndarray((3, 4), nl.float32, address=[32, np.int64(100)]))
    at = lambda address, buffer=nl.sbuf: refused(lambda: nl.ndarray((3, 4), nl.float32, buffer, address=address))  # noqa: E731
    assert "must start at a bank of PSUM, a multiple of 2048 bytes, got (0, 100)" in at((0, 100), nl.psum)
    assert "address: must be (start partition, byte offset in a partition), got 7" in at(7)
    assert "got (1, 2, 3)" in at((1, 2, 3))
    assert "must not be negative" in at((0, -4))


@EAGER
def test_fresh_memory_shows(eager):
    def kernel(x):
        return results(nl.ndarray((2, 2), nl.float32), nl.empty_like(nl.load(x), dtype=nl.int8))

    floats, ints = nkijax.run(kernel, X, eager=eager)
    assert np.isnan(floats).all() and (ints == 4).all() and ints.shape == X.shape


@EAGER
def test_filling(eager):
    def kernel(x):
        made = results(
            nl.zeros((2, 3), nl.float32),
            nl.ones((2, 3), "int16"),
            nl.full((2, 3), 2.5, dtype=nl.bfloat16),
            nl.full((2, 3), np.int64(-7), nl.int32),
            nl.zeros_like(nl.load(x), dtype=nl.uint8),
        )
        in_hbm = nl.ones((5,), nl.float32, buffer=nl.shared_hbm)
        like = nl.zeros_like(x)
        assert (like.buffer, like.shape, like.dtype) == (x.buffer, x.shape, x.dtype)
        assert nl.empty_like(x, buffer=nl.psum, name="e").buffer is nl.psum
        return (*made, in_hbm, like)

    got = nkijax.run(kernel, X, eager=eager)
    want = [np.zeros((2, 3)), np.ones((2, 3)), np.full((2, 3), 2.5), np.full((2, 3), -7), np.zeros((3, 4)), np.ones(5)]
    for a, b in zip(got, [*want, np.zeros_like(X)], strict=True):
        np.testing.assert_array_equal(a.astype(np.float32), b)
    assert [a.dtype.name for a in got[:5]] == ["float32", "int16", "bfloat16", "int32", "uint8"]


def test_filling_refuses():
    assert "must be an integer for a dst of int8, got 0.5" in refused(lambda: nl.full((2, 2), 0.5, nl.int8))
    assert "must be a number" in refused(lambda: nl.full((2, 2), "a", nl.int8))
    assert "partition dimension 129 exceeds maximum 128" in refused(lambda: nl.zeros((129, 2), nl.float32))
    assert "zeros_like x: must be a tensor, got 3" in refused(lambda: nl.zeros_like(3))


@EAGER
def test_loading(eager):
    def kernel(x):
        narrow, turned = nl.load(x, dtype=nl.bfloat16), nl.load_transpose2d(x)
        assert (narrow.dtype, narrow.buffer, turned.shape) == (nl.bfloat16, nl.sbuf, (4, 3))
        return results(narrow, turned, nl.load_transpose2d(src=x[1:3], dtype=nl.int32))

    narrow, turned, ints = nkijax.run(kernel, X, eager=eager)
    np.testing.assert_array_equal(narrow.astype(np.float32), X)
    np.testing.assert_array_equal(turned, X.T)
    np.testing.assert_array_equal(ints, X[1:3].T.astype(np.int32))


def test_loading_refuses():
    assert "exceeds maximum 128" in refused(lambda: nl.load(nl.ndarray((200, 4), nl.float32, buffer=nl.hbm)))
    assert "at least 2 dimensions" in refused(lambda: nl.load(nl.ndarray((4,), nl.float32, buffer=nl.hbm)))
    assert "must have 2 dimensions, got (2, 3, 4)" in refused(
        lambda: nl.load_transpose2d(nl.ndarray((2, 3, 4), nl.float32, buffer=nl.hbm))
    )
    assert "requires HBM or SBUF" in refused(
        lambda: nl.store(nl.ndarray((2, 2), nl.float32, buffer=nl.hbm), nl.ndarray((2, 2), nl.float32, buffer=nl.psum))
    )


@EAGER
def test_views_and_broadcasts(eager):
    def kernel(x):
        tile = nl.load(x)
        assert nl.expand_dims(tile, 1).shape == (3, 1, 4)
        assert nl.expand_dims(tile, axis=-1).shape == (3, 4, 1)
        assert nl.broadcast_to(tile, (3, 4)) is tile
        column, row = nl.broadcast_to(tile[:, 1:2], (3, 5)), nl.broadcast_to(tile[1:2], (6, 4), dtype=nl.int32)
        return results(column, row, nl.broadcast_to(x[2:3], shape=(2, 4)))

    column, row, of_hbm = nkijax.run(kernel, X, eager=eager)
    np.testing.assert_array_equal(column, np.broadcast_to(X[:, 1:2], (3, 5)))
    np.testing.assert_array_equal(row, np.broadcast_to(X[1:2], (6, 4)))
    np.testing.assert_array_equal(of_hbm, np.broadcast_to(X[2:3], (2, 4)))
    for shape in ((3, 8), (3,), (1, 3, 4)):
        with pytest.raises(KernelError, match="broadcast_to shape: must repeat dimensions of size 1"):
            nkijax.trace(lambda x, shape=shape: nl.broadcast_to(nl.load(x), shape), X)


def test_ds():
    assert (nl.ds(3, np.int64(4)).start, nl.ds(3, 4).size) == (3, 4)
    with pytest.raises(KernelError, match="ds size: must be an int, got 1.5"):
        nl.ds(0, 1.5)


def test_trap_4_hbm_is_private_hbm():
    regions = (nl.sbuf, nl.psum, nl.hbm, nl.private_hbm, nl.shared_hbm)
    assert [r.value for r in regions] == ["sbuf", "psum", "private_hbm", "private_hbm", "shared_hbm"]
    assert nl.hbm is nl.private_hbm and all(isinstance(r, nl.MemoryRegion) for r in regions)
    assert [nl.is_sbuf(r) for r in regions] == [True, False, False, False, False]
    assert [nl.is_psum(r) for r in regions] == [False, True, False, False, False]
    assert [nl.is_on_chip(r) for r in regions] == [True, True, False, False, False]
    assert [nl.is_hbm(r) for r in regions] == [False, False, True, True, True]
    with pytest.raises(KernelError, match="is_hbm buffer: must be a memory region, got 'hbm'"):
        nl.is_hbm("hbm")


def test_device_print(capsys):
    def kernel(x):
        nl.device_print("x is", nl.load(x)[0:1, 0:2])

    for eager in (True, False):
        nkijax.run(kernel, X, eager=eager)
        jax.effects_barrier()
        assert capsys.readouterr().out == "x is [[0. 1.]]\n"


def test_device_print_in_loops_and_of_hbm(capsys):
    """Each turn prints, of static loops, however they run, and of dynamic ones; under an outer jit too."""

    def kernel(x):
        nl.device_print("all", x[0:1, 0:1])
        for i in range(2):
            nl.device_print("static", nl.load(x[i : i + 1, 0:1]))
        nl.fori_loop(0, 2, lambda i: nl.device_print("dynamic", nl.load(x[i, 0:1].reshape((1, 1)))))
        return x

    want = sorted(["all [[0.0]]", *(f"{n} [[{X[k, 0]}]]" for n in ("static", "dynamic") for k in (0, 1))])
    for run in (
        lambda: nkijax.run(kernel, X, loops="scan"),
        lambda: nkijax.run(kernel, X, loops="vmap"),
        lambda: nkijax.run(kernel, X, eager=True),
        lambda: jax.jit(nkijax.function(kernel))(X),
    ):
        run()
        jax.effects_barrier()
        lines = capsys.readouterr().out.replace(".]", ".0]").splitlines()
        assert sorted(lines) == want
    with pytest.raises(KernelError, match="device_print print_prefix: must be a string, got 3"):
        nkijax.run(lambda x: nl.device_print(3, x), X)
    with pytest.raises(KernelError, match="device_print tensor: must be a tensor, got 3"):
        nkijax.run(lambda x: nl.device_print("x", 3), X)
