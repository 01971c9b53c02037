"""NkiTensor: facts, views, item assignment, and what Python may not do with it."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.dialects.nki.tensor import view_of
from tests.dialects.nki.faces import addresses, register, tensor, whole_addresses


def test_facts():
    t = tensor((4, 6, 8), "bfloat16", nl.sbuf, "tile")
    assert (t.shape, t.strides, t.offset) == ((4, 6, 8), (48, 8, 1), 0)
    assert (t.dtype, t.buffer, t.name, t.ndim, t.size) == (nl.bfloat16, nl.sbuf, "tile", 3, 192)
    assert t.is_contiguous() and not t.is_indirect()
    assert t.get_pattern() == [[48, 4], [8, 6], [1, 8]]
    part = t[:, 1, 2:4]
    assert (part.strides, part.offset, part.name) == ((48, 1), 10, "tile")
    assert part.is_contiguous() and not t[:, :, 2:4].is_contiguous()
    base = part.view("uint8").base_tensor
    assert (base.shape, base.dtype, base.offset) == (t.shape, t.dtype, 0)
    with pytest.raises(AttributeError):
        t.shape = (1,)


# ---- views, against NumPy on the addresses


def same(x, want):
    assert x.shape == want.shape
    np.testing.assert_array_equal(addresses(x), want)


def test_views():
    t = tensor((4, 6, 8))
    a = whole_addresses(t)
    same(t.slice(1, 1, 6, 2), a[:, 1:6:2])
    same(t.slice(dim=2, start=np.int64(3), end=np.int32(5)), a[:, :, 3:5])
    same(t.select(0, 2), a[2])
    same(t.select(dim=1, index=np.int64(5)), a[:, 5])
    same(t.permute((2, 0, 1)), a.transpose(2, 0, 1))
    same(t.slice(1, 2, 3).broadcast(1, 5), np.broadcast_to(a[:, 2:3], (4, 5, 8)))
    same(t.expand_dim(3), a[..., None])
    same(t.expand_dim(0).squeeze_dim(0), a)
    same(t.reshape_dim(2, (2, -1)), a.reshape(4, 6, 2, 4))
    same(t.flatten_dims(1, 2), a.reshape(4, 48))
    same(t.flatten_dims(start_dim=0, end_dim=1), a.reshape(24, 8))
    same(t.reshape((8, 24)), a.reshape(8, 24))
    same(t.reshape(shape=[2, -1]), a.reshape(2, 96))
    same(t.reshape(new_shape=(192,)), a.reshape(192))
    same(t[1:3].reshape((16, 6)), a[1:3].reshape(16, 6))
    with pytest.raises(TypeError, match="missing argument: 'shape'"):
        t.reshape()


def test_the_partition_dimension_stays():
    t = tensor((4, 1, 6), memory=nl.sbuf)
    for change in (
        lambda: t.permute((1, 0, 2)),
        lambda: t.expand_dim(0),
        lambda: t.reshape_dim(0, (2, 2)),
        lambda: t.flatten_dims(0, 1),
        lambda: t[0:1].broadcast(0, 3),
        lambda: t[0:1].squeeze_dim(0),
        lambda: t.reshape((24, 1)),
        lambda: t.vector_select(0, tensor((4, 1), "int32", nl.sbuf)),
    ):
        with pytest.raises(KernelError):
            change()
    with pytest.raises(KernelError, match="Partition dim size must be preserved, got 1 -> "):
        tensor((1, 3), memory=nl.sbuf).reshape((3, 1))
    assert t.reshape((4, 2, 3)).shape == (4, 2, 3)
    assert t.broadcast(1, 7).strides == (6, 0, 1)


@pytest.mark.parametrize(
    ("src", "dst", "sizes", "want"),
    [
        (("a", "b", "c"), ("c", "a", "b"), None, lambda x: x.transpose(2, 0, 1)),
        (("a", "b", ("c", "d")), ("a", "b", "d", "c"), {"d": 2}, lambda x: x.reshape(4, 6, 4, 2).transpose(0, 1, 3, 2)),
        (
            ("a", ("b", "e"), "c"),
            ("a", "e", "b", "c"),
            {"b": 2, "e": 3},
            lambda x: x.reshape(4, 2, 3, 8).swapaxes(1, 2),
        ),
        (("a", "b", "c"), ("a", ("b", "c")), None, lambda x: x.reshape(4, 48)),
        ((("h", "w"), "b", "c"), ("w", "h", ("b", "c")), {"h": 2}, lambda x: x.reshape(2, 2, 48).swapaxes(0, 1)),
        ((["a", "x"], "b", "c"), (["a", "x", "b"], "c"), {"x": 2}, lambda x: x.reshape(24, 8)),
        (("a", "b", "c"), ("a", "b", "c"), {"b": 6}, lambda x: x),
    ],
)
def test_rearrange(src, dst, sizes, want):
    t = tensor((4, 6, 8))
    same(t.rearrange(src, dst, sizes), want(whole_addresses(t)))


def test_rearrange_refuses():
    t = tensor((4, 6, 8))
    for src, dst, sizes, words in [
        (("a", "b"), ("b", "a"), None, "must name the dimensions of (4, 6, 8)"),
        (("a", "b", "c"), ("a", "b"), None, "must have each name"),
        (("a", "b", "a"), ("a", "b", "a"), None, "must have each name"),
        (("a", "b", "c"), ("a", "b", "c"), {"z": 2}, "must be sizes of names"),
        (("a", "b", ("c", "d")), ("a", "b", "c", "d"), None, "must keep 8 elements"),
        (("a", "b", ("c", "d")), ("a", "b", "c", "d"), {"c": 3}, "must keep 8 elements"),
        (("a", "b", "c"), ("a", "b", "c"), {"b": 5}, "must keep 6 elements"),
        (("a", "b", "c"), ("b", ("a", "c")), None, "must be contiguous"),
    ]:
        with pytest.raises(KernelError) as error:
            t.rearrange(src, dst, sizes)
        assert words in error.value.message


def test_view_of_another_dtype():
    t = tensor((4, 6, 8), "float32")
    assert (t.view(nl.bfloat16).shape, t.view(nl.bfloat16).strides) == ((4, 6, 16), (96, 16, 1))
    x = t[1, 2:4].reinterpret_cast(nl.int8)
    assert (x.shape, x.offset, x.dtype) == ((2, 32), 256, "int8")
    assert t.view(nl.int32).shape == t.shape
    assert tensor((4, 8), "int8").view("float32").shape == (4, 2)
    with pytest.raises(KernelError, match="float64 is not an NKI dtype"):
        t.view("float64")
    with pytest.raises(KernelError, match="does not divide"):
        tensor((4, 6), "int8").view(nl.float32)


# ---- ap


def test_ap():
    t = tensor((4, 48))
    x = t.ap(pattern=[[48, 4], (1, 8)], offset=16)
    assert (x.shape, x.strides, x.offset) == ((4, 8), (48, 1), 16)
    assert t.ap([[0, 3], [1, 48]]).strides == (0, 1)
    assert x.ap([[1, 8]]).offset == 16, "offsets compose"
    assert x.ap([[1, 8]], offset=8).offset == 24
    assert t.ap([[np.int64(48), 4]], offset=np.int32(2)).offset == 2
    assert t.ap([[192, 4], [1, 16]], dtype=nl.int8).dtype == "int8"
    half = t[0, 16:].ap([[1, 8]], dtype=nl.bfloat16)
    assert (half.offset, half.dtype) == (32, "bfloat16")


def test_ap_outside_of_its_tensor_is_an_error_only_when_used():
    """A pattern for a tile that is not there may be formed; its use is guarded (nki-library's output projection)."""
    x = tensor((4, 48)).ap([[48, 4], [1, 16]], offset=40)
    for use in (lambda: x.shape, lambda: x[0], lambda: repr(x), lambda: view_of("dma_copy src", x)):
        with pytest.raises(KernelError, match=r"addresses \[40, 199\] exceed its 192 elements\n  at .*test_tensor"):
            use()
    with pytest.raises(AttributeError, match="'NkiTensor' object has no attribute 'sum'"):
        tensor((4, 48)).sum  # noqa: B018


def test_an_empty_slice_is_an_error_only_when_used():
    """A core's share of the rows may be none of them (nki-library's cross entropy)."""

    def kernel(x, rows):
        share = x[nl.ds(0, rows)]
        out = nl.zeros((4, 8), nl.float32, nl.sbuf)
        if rows > 0:
            nisa.dma_copy(out[0:rows], share)
        result = nl.ndarray((4, 8), nl.float32, nl.shared_hbm)
        nisa.dma_copy(result, out)
        return result

    x = np.ones((4, 8), np.float32)
    assert [nkijax.run(kernel, x, rows).sum() for rows in (0, 3)] == [0, 24]
    with pytest.raises(KernelError, match="a slice must not be empty, got 2:2"):
        tensor((4, 8))[2:2].shape  # noqa: B018


def test_ap_on_chip_keeps_partitions():
    t = tensor((128, 32), memory=nl.sbuf)
    assert t.ap([[32, 32], [1, 4]], offset=32 * 32).offset == 1024
    assert t.ap([[1, 1], [1, 1]]).shape == (1, 1)
    assert t.ap([[64, 128], [1, 4]], dtype=nl.bfloat16).shape == (128, 4)
    with pytest.raises(
        KernelError, match=r"Partition step 0 must equal tensor free dimension size 32. Pattern: \[\[16, 2"
    ):
        t.ap([[16, 2], [1, 4]])


def test_trap_6_ap_with_run_time_offsets():
    t, r = tensor((16, 8, 4)), register()
    x = t.ap([[4, 8], [1, 4]], scalar_offset=r, indirect_dim=0)
    assert x.is_indirect() and x._view.dynamic.stride == 32 and x._view.dynamic.limit == 16
    assert t.ap([[1, 4]], scalar_offset=r, indirect_dim=1)._view.dynamic.stride == 4
    index = tensor((8, 1), "int32", nl.sbuf)
    y = t.ap([[1, 8], [1, 32]], vector_offset=index)
    assert y._view.dynamic.vector and y.strides == (0, 1) and y._view.dynamic.stride == 32
    assert y.ap([[1, 4]]).is_indirect() is False
    column = tensor((8, 3), "int32", nl.sbuf).ap([[3, 8], [1, 1], [1, 1]], offset=2)
    z = t.ap([[1, 8], [1, 32]], vector_offset=column)._view.dynamic.index
    assert (z.shape, z.strides, z.offset) == ((8, 1), (3, 1), 2)
    for wrong, words in [
        (lambda: t.ap([[1, 4]], scalar_offset=r, vector_offset=index), "exclude each other"),
        (lambda: t.ap([[1, 4]], scalar_offset=3), "scalar_offset: must be a tensor, got 3"),
        (lambda: t.ap([[1, 4]], vector_offset=[1, 2]), "vector_offset: must be a tensor"),
        (lambda: t.ap([[1, 8], [1, 4]], vector_offset=index, indirect_dim=1), "must be 0 with vector_offset"),
        (lambda: t.ap([[1, 16], [1, 4]], vector_offset=index), "needs an index a row, got 8 for 16"),
        (lambda: t.ap([[4, 512]]).shape, "Out-of-bound access"),
        (lambda: t.ap([[1, 4]], offset=-1).shape, "Out-of-bound access"),
    ]:
        with pytest.raises(KernelError) as error:
            wrong()
        assert words in error.value.message


def test_indirect():
    """More of it in tests/test_indirect.py."""
    t, index = tensor((128, 2, 4), memory=nl.psum), tensor((128, 1), "uint16", nl.sbuf)
    x = t.indirect(index, num_elem=5)
    assert (x.shape, x.buffer, x.is_indirect()) == ((128, 5), nl.psum, True)
    assert t.indirect(index).shape == (128, 16)
    with pytest.raises(KernelError, match="takes a tile in sbuf or psum"):
        tensor((128, 8)).indirect(index)


# ---- Python's protocols


def test_trap_19_equality_is_identity_and_tensors_are_true():
    t, u = tensor((2, 2)), tensor((2, 2))
    assert t == t and t != u and t != None and not t == None  # noqa: E711
    assert t in [u, t] and t not in [u] and {t: 1}[t] == 1
    assert bool(t) and t[0] != t[0]


def test_no_operators():
    t, u = tensor((2, 2), name="t"), tensor((2, 2))
    for operate in (
        lambda: t + u,
        lambda: 1.0 - t,
        lambda: t * 2,
        lambda: t @ u,
        lambda: t / 2,
        lambda: t < u,
        lambda: -t,
        lambda: t & 1,
        lambda: t**2,
        lambda: abs(t),
    ):
        with pytest.raises(TypeError, match="use nki.isa.tensor_tensor"):
            operate()
    with pytest.raises(TypeError, match="is not iterable"):
        list(t)
    with pytest.raises(TypeError, match="`in` looks at values"):
        _ = 3 in t


def test_repr():
    shown = []

    def kernel(x):
        t = nl.load(x)
        shown.append((repr(t), str(t[0:1, 0:2])))
        return x

    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    nkijax.run(kernel, x)
    nkijax.run(kernel, x, eager=True)
    traced, eager = shown
    assert traced[0] == "NkiTensor(float32[2, 2] in sbuf; eager=True shows data)"
    assert eager == (
        "NkiTensor(float32[2, 2] in sbuf)\n[[0. 1.]\n [2. 3.]]",
        "NkiTensor(float32[1, 2] in sbuf)\n[[0. 1.]]",
    )
    assert repr(tensor((3,), "int8", name="x")) == "NkiTensor(x: int8[3] in private_hbm; eager=True shows data)"


# ---- item assignment


@pytest.mark.parametrize("eager", [False, True])
def test_assignment(eager):
    def kernel(x):
        out = nl.zeros((4, 6), nl.float32, buffer=nl.shared_hbm)
        tile = nl.load(x)
        out[1:3, 0:4] = tile[0:2]
        out[3] = 7
        tile[:, 1] = tile[:, 0]
        out[0, 4:] = np.array([5, 6])
        out[0, 0:4] = tile[2]
        return out

    x = np.arange(12, dtype=np.float32).reshape(3, 4) + 1
    want = np.zeros((4, 6), np.float32)
    want[1:3, 0:4] = x[0:2]
    want[3], want[0, 4:] = 7, [5, 6]
    want[0, 0:4] = [x[2, 0], x[2, 0], x[2, 2], x[2, 3]]
    np.testing.assert_array_equal(nkijax.run(kernel, x, eager=eager), want)


def test_assignment_that_is_refused():
    def wrong_size(x):
        x[0] = np.zeros(3)

    def to_psum(x):
        nl.ndarray((2, 2), nl.float32, buffer=nl.psum)[...] = x

    def text(x):
        x[0] = "a"

    for kernel, words in [
        (wrong_size, "the same number of elements, got src=3, dst=2"),
        (to_psum, "dma_copy requires HBM or SBUF tensors"),
        (text, "must be a number"),
    ]:
        with pytest.raises(KernelError) as error:
            nkijax.trace(kernel, np.zeros((2, 2), np.float32))
        assert words in error.value.message and "test_tensor.py" in error.value.site


def test_operands_must_be_tensors():
    def kernel(x):
        nisa.dma_copy(x, np.zeros((2, 2), np.float32))

    with pytest.raises(KernelError, match="nki.isa.dma_copy src: must be a tensor, got array"):
        nkijax.trace(kernel, np.zeros((2, 2), np.float32))
