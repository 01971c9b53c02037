"""What an emulator of the old dialect easily gets wrong without a word: a test a trap (some: test_checklist)."""

import enum
import importlib
import typing
import warnings

import ml_dtypes
import numpy as np
import pytest

from nkijax.dialects.neuronxcc import compiler as ncc
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import jit, simulate_kernel
from nkijax.dialects.neuronxcc import language as nl
from nkijax.imports import installed

from .test_emit import COLUMN, ROW, X, grid, ran


def test_t4_a_masked_result_remembers_its_mask():
    """Through a name, a helper and a copy, until it is assigned; used directly, its hidden lanes read zero."""

    def put(t, value):
        t[...] = value

    def body(x):
        i, j = grid()
        t, u = nl.full((6, 8), -1, dtype=nl.float32), nl.full((6, 8), -1, dtype=nl.float32)
        value = nl.multiply(nl.load(x), 2.0, mask=i > j)
        put(t, value)
        u[...] = value + 1.0  # an operation of its own, under no mask
        t[...] = nl.square(t, mask=False)
        return nl.add(t, u)

    hidden = ROW <= COLUMN
    assert (ran(body) == np.where(hidden, -1, 2 * X) + np.where(hidden, 0, 2 * X) + 1).all()


def test_t5_masks_of_transposes_and_matmuls():
    """A transpose's mask is on its input, a matmul's on the result or on the stationary's free dimension."""

    def body(x):
        i, j = grid()
        t = nl.full((8, 6), -1, dtype=nl.float32)
        t[...] = nisa.nc_transpose(nl.load(x), mask=(i < 4) & (j < 3))
        p = nl.full((8, 8), -1, dtype=nl.float32)
        p[...] = nisa.nc_matmul(nl.load(x), nl.load(x), mask=nl.arange(8)[None, :] < 5)  # columns of the result
        both = nl.full((8, 14), -2, dtype=nl.float32)
        both[:, 0:6], both[:, 6:14] = t, p
        return both

    turned, product = np.full((8, 6), -1.0), np.full((8, 8), -1.0)
    turned[:3, :4], product[:, :5] = X[:4, :3].T, (X.T @ X)[:, :5]
    assert (ran(body) == np.concatenate([turned, product], 1)).all()

    def rows(x):
        p = nl.full((8, 3), -1, dtype=nl.float32)
        p[...] = nisa.nc_matmul(nl.load(x), nl.load(x)[:, 0:3], mask=nl.arange(8)[None, :] < 5)  # M, as only that fits
        return p

    product = np.full((8, 3), -1.0)
    product[:5] = (X.T @ X[:, :3])[:5]
    assert (ran(rows) == product).all()


def test_t6_a_whole_false_mask_hides_a_static_index():
    def body(x):
        t = nl.ndarray((2, nl.par_dim(6), 8), dtype=nl.float32)
        for k in range(3):
            if k < 2:
                t[k] = nl.load(x)
            nl.load(x[6 + k], mask=k > 5)
        return t[1]

    assert (ran(body) == X).all()


def test_t7_every_subscript_writes_through():
    def touch(view):
        view[...] = view + 100.0

    def body(x):
        t = nl.ndarray((2, nl.par_dim(6), 2, 4), dtype=nl.float32)
        i, k = nl.arange(6)[:, None], nl.arange(2)[None, :]
        for b in nl.affine_range(2):
            t[b] = nl.load(x).reshape((6, 2, 4))
        touch(t[0][:, 0])
        touch(t[1, i, 1, 2 * k])
        touch(t[1][:, 0, :][:, 1:2])
        t[0].reshape((6, 8))[0:2, 7:8] = 0
        t[0].view(nl.uint32)[5, 1, 2] = 0
        v = t[0][:, 1, 1]
        v[...] = nl.add(v, 1000.0)
        out = nl.zeros((6, 16), dtype=nl.float32)
        for b in nl.affine_range(2):
            out[:, nl.ds(8 * b, 8)] = t[b].reshape((6, 8))
        return out

    first, second = X.copy(), X.copy()
    first[:, :4] += 100
    second[:, [4, 6]] += 100
    second[:, 1] += 100
    first[:2, 7], first[5, 6] = 0, 0
    first[:, 5] += 1000
    assert (ran(body) == np.concatenate([first, second], 1)).all()


@pytest.mark.parametrize("names", ["sum add", "max amax maximum", "min amin minimum", "prod multiply"])
def test_t9_operators_count_by_their_names(names):
    name = names.split()[0]
    x = (X % 3 + 1).astype(np.float32)
    want = getattr(np, name)(x, 1, keepdims=True)
    for op in [getattr(m, n) for m in (np, nl) for n in names.split() if hasattr(m, n)]:
        got = ran(lambda x, op=op: nisa.tensor_reduce(op, nl.load(x), axis=[1]), x)
        assert (got == want).all(), op


def test_t10_float8_e4m3_has_infinities_and_ends_at_240():
    x = np.array([[1.0, 239, 240, 100, -240, 0.1, 17, 3]], np.float32)
    got = ran(lambda x: nl.copy(nl.load(x), dtype=nl.float8_e4m3), x)
    assert got.dtype == ml_dtypes.float8_e4m3 and (got == x.astype(ml_dtypes.float8_e4m3)).all()
    assert nl.finfo(nl.float8_e4m3).max == 240

    def widths(x):
        t = nl.load(x)
        assert t.view(nl.float8_e4m3).shape == (1, 32) and t.view(nl.float16).view(nl.int8).shape == (1, 32)
        return t

    ran(widths, x)


BITS = np.array([[0x00000001, 0x7F800001, 0xFFC12345, 0x80000000, 0x007FFFFF, 0xDEADBEEF]], np.uint32)


@pytest.mark.parametrize("dtype", [np.uint32, np.float32, np.int32])
def test_t11_moves_keep_every_bit(dtype):
    """Denormals, signalling NaNs and large integers pass through copies and both transposes."""
    words = np.tile(BITS.T, (1, 4)) + np.arange(4, dtype=np.uint32)

    def body(x):
        t = nl.copy(nl.load(x))
        turned = nisa.nc_transpose(t) if dtype is np.float32 else nisa.dma_transpose(t)
        u = nl.ndarray((4, 6), dtype=turned.dtype)
        u[...] = turned
        return nisa.tensor_copy(u)

    got = ran(body, words.view(dtype))
    assert (got.view(np.uint32) == words.T).all()


def test_t12_shared_tensors_are_the_same_in_every_program():
    def kernel(x):
        first = nl.ndarray((3, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        second = nl.ndarray((3, 8), dtype=x.dtype, buffer=nl.hbm)
        i = nl.program_id(0)
        row = nl.load(x[nl.ds(i, 1), :])
        if i:
            row = row + nl.load(first[nl.ds(i - 1, 1), :])  # what the program before has stored
        nl.store(first[nl.ds(i, 1), :], row)
        nl.store(second[nl.ds(i, 1), :], row * 2.0)
        return first, second

    first, second = jit(kernel)[3](X)
    assert (first == np.cumsum(X[:3], 0)).all() and (second == 2 * first).all()


@pytest.mark.parametrize("bad", [-1, 6, 129])
def test_t13_minus_one_is_out_of_range(bad):
    """The message counts elements of the flat tensor."""
    rows = np.array([[0], [bad], [2]], np.int32)

    def kernel(x, rows):
        return nl.load(x[nl.load(rows), nl.arange(8)[None, :]])

    with pytest.raises(IndexError, match=rf"index {8 * bad} is out of bounds for axis 0 with size 48"):
        simulate_kernel(kernel, X, rows)


def test_t14_loop_variables_are_ints():
    def body(x):
        t = nl.load(x)
        for k in nl.affine_range(4):
            if k % 2 == 1 and k > 1:
                t[...] = t + float(k)
            for j in nl.sequential_range(k):
                t[:, j] = t[:, j] * 2.0
        return t

    want = X.copy()
    for k in range(4):
        want += k if k == 3 else 0
        want[:, :k] *= 2
    assert (ran(body) == want).all()


def test_t15_no_capacity_limits_what_counts_on_and_on():
    class Counter:
        def __init__(self):
            self.at = 0

        def take(self, size):
            self.at += size
            return ncc.sbuf.mod_alloc(base_addr=self.at - size)

    counter = Counter()

    def body(x):
        for _ in range(3):
            t = nl.ndarray((nl.par_dim(6), 8), dtype=nl.float32, buffer=counter.take(150000))
            t[...] = nl.load(x)
        return t

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ncc.AllocationWarning)
        assert (ran(body) == X).all()
    assert len(caught) == 1  # of the statement, not of each turn


def test_t16_bools_as_masks():
    def body(x):
        i, j = grid()
        t = nl.load(x)
        for mask in (False, np.bool_(False), i > 90):
            both = mask & (j < 2)
            t[...] = nl.multiply(t, 5.0, mask=both if both else mask)
        t[True] = nl.multiply(t[True], 2.0, mask=True & (j < 4))
        t[False] = nl.multiply(t, 7.0)
        t[...] = nl.add(t[i < 3][j < 2][True], 1.0)
        return t

    want = np.where(COLUMN < 4, 2 * X, X) + ((ROW < 3) & (COLUMN < 2))
    assert (ran(body) == want).all()


class Skip(typing.NamedTuple):
    rows: bool = False
    scale: float = 1.0


class Level(enum.IntEnum):
    low = 1
    high = 2


def test_t17_arguments_that_are_no_arrays_stay_as_they_are():
    @jit
    def kernel(x, skip, level=Level.low, dtype=nl.float32, names=("a", None)):
        assert isinstance(skip, Skip) and isinstance(level, Level) and names == ("a", None)
        assert dtype in (nl.float32, nl.int32) and {dtype: 1}[x.dtype] == 1
        factor = skip.scale * level
        return nl.load(x) * factor

    assert (kernel(X, Skip(True, 3.0), Level.high) == 6 * X).all()
    assert (kernel(X, Skip(False, 1.0), level=Level.high) == 2 * X).all()


@pytest.mark.parametrize(
    "module, name",
    [
        ("nki.language.constants", "sizeinbytes"),  # of the newer package: a public kernel of the old dialect asks it
        ("neuronxcc.nki.language.constants", "sizeinbytes"),
        ("neuronxcc.nki.language.iterators", "sync_program"),
        ("neuronxcc.nki.isa.constants", "oob_mode"),
        ("neuronxcc.nki.isa.neuron_isa", "dma_copy"),
        ("neuronxcc.nki.compiler.backends.neuron.indexing", "TileIndex"),
        ("neuronxcc.nki.typing", "tensor"),
    ],
)
def test_t18_modules_that_samples_import(module, name):
    with installed():
        assert hasattr(importlib.import_module(module), name)


def test_t19_each_write_rounds():
    x = (X / 7).astype(ml_dtypes.bfloat16)

    def body(x):
        t = nl.load(x)
        return nl.multiply(nl.add(t, 1.0, dtype=nl.bfloat16), 3.0, dtype=nl.bfloat16)

    half = ml_dtypes.bfloat16
    want = ((x.astype(np.float32) + 1).astype(half).astype(np.float32) * 3).astype(half)
    got = ran(body, x)
    assert got.dtype == half and (got == want).all()
