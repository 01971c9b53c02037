"""Masks as property tests: what a random mask leaves of loads, stores and instructions, against NumPy."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nkijax
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl

SHAPE = (5, 6)
X = np.arange(1, 31, dtype=np.float32).reshape(SHAPE)
ROW, COLUMN = np.indices(SHAPE)
FILL = -1.0
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


def grid():
    return nl.arange(SHAPE[0])[:, None], nl.arange(SHAPE[1])[None, :]


@st.composite
def masks(draw, depth=2):
    """A function of two index grids, of NKI or of NumPy, that gives a mask."""
    if depth and draw(st.integers(0, 2)):
        one, two = draw(masks(depth=depth - 1)), draw(masks(depth=depth - 1))
        join = draw(st.sampled_from([operator.and_, operator.or_, None]))
        return (lambda i, j: ~one(i, j)) if join is None else (lambda i, j: join(one(i, j), two(i, j)))
    a, b = draw(st.sampled_from([(1, 0), (0, 1), (1, 1), (1, -1), (2, -1), (-1, 3), (0, 2)]))
    c, compare, swapped = draw(st.integers(-6, 8)), draw(st.sampled_from(COMPARISONS)), draw(st.booleans())
    return (lambda i, j: compare(c, a * i + b * j)) if swapped else (lambda i, j: compare(a * i + b * j, c))


def holds(mask):
    return np.broadcast_to(mask(ROW, COLUMN), SHAPE)


@settings(max_examples=6, deadline=None)
@given(st.lists(masks(), min_size=3, max_size=3))
def test_loads_stores_and_instructions(chosen):
    """Hidden lanes of a fresh tile read zero; hidden lanes of a destination keep what they hold."""

    def kernel(x):
        out = nl.full((len(chosen), 4, *SHAPE), FILL, dtype=x.dtype, buffer=nl.shared_hbm)
        for n, mask in enumerate(chosen):
            m = mask(*grid())
            nl.store(out[n, 0], nl.load(x, mask=m) + 0.0)
            nl.store(out[n, 1], nl.load(x), mask=m)
            t = nl.full(SHAPE, FILL, dtype=nl.float32)
            t[...] = nl.square(nl.load(x), mask=m)
            nl.store(out[n, 2], t)
            nl.store(out[n, 3], nl.multiply(nl.load(x), 2.0, mask=m))  # the value's own mask
        return out

    got = nkijax.run(jit(kernel), X, eager=True)
    for n, mask in enumerate(chosen):
        m = holds(mask)
        want = [np.where(m, X, 0), np.where(m, X, FILL), np.where(m, X * X, FILL), np.where(m, 2 * X, FILL)]
        np.testing.assert_array_equal(got[n], want)


def assigned(values, m, shape=SHAPE):
    """What a tile of FILL holds after a masked result was assigned to it."""
    return np.where(m, np.broadcast_to(values, shape), FILL)


def reduced(function, m, axis):
    """A reduction of the lanes that a mask leaves; FILL where it leaves none."""
    kept = np.ma.array(X, mask=~m)
    return np.ma.filled(getattr(kept, function)(axis, keepdims=True).astype(np.float32), FILL)


def by_columns(m, function):
    return np.array([[function(x[k]) if k.any() else FILL] for x, k in zip(X, m, strict=True)], np.float32)


def statistics(m):
    """Count, mean and variance * count of each row's even columns, then of its odd ones."""
    out = np.full((SHAPE[0], 6), FILL)
    for row in np.flatnonzero(m.any(1)):
        for parity in range(2):
            x = X[row, parity::2][m[row, parity::2]]
            out[row, 3 * parity : 3 * parity + 3] = (len(x), x.mean(), x.var() * len(x)) if len(x) else 0
    return out


def with_sum(instruction):
    """An instruction that also reduces: its result, and its `reduce_res` in an eighth column."""

    def emit(x, m):
        sums = nl.full((SHAPE[0], 1), FILL, dtype=nl.float32)
        both = nl.full((SHAPE[0], SHAPE[1] + 1), FILL, dtype=nl.float32)
        both[:, 0 : SHAPE[1]] = instruction(x, m, sums)
        both[:, SHAPE[1] : SHAPE[1] + 1] = sums
        return both

    return emit


def copy_predicated(x, m):
    t = nl.full(SHAPE, FILL, dtype=nl.float32)
    nisa.tensor_copy_predicated(src=x, dst=t, predicate=nl.greater(x, 9.0, dtype=nl.uint8), mask=m)
    return t


def copied_by_dma(x, m):
    t = nl.full(SHAPE, FILL, dtype=nl.float32)
    nisa.dma_copy(dst=t, src=x, mask=m)
    return t


def selected(x, m):
    t, flags = nl.full(SHAPE, FILL, dtype=nl.float32), nl.greater(x, 9.0, dtype=nl.uint8)
    nisa.select_reduce(dst=t, predicate=flags, on_true=x, on_false=0.5, mask=m)
    return t


def merging(x, m):
    """The tile with two free dimensions, and the mask so."""
    i, j, k = nl.mgrid[0:5, 0:2, 0:3]
    return x.reshape((5, 2, 3)), m.mapped(lambda form: form.compose([i, 3 * j + k], 3, (5, 2, 3)))


def transposed_merged(x, m):
    tile, mask = merging(x, m)
    return nisa.nc_transpose(tile, mask=mask)


def product_merged(x, m):
    tile, mask = merging(x, m)
    return nisa.nc_matmul(tile[mask], x)


def square_sum(x, m, sums):
    return nisa.activation_reduce(np.square, x, reduce_op=np.add, reduce_res=sums, scale=0.5, mask=m)


def accumulated(x, m, sums):
    nisa.activation(np.square, x, reduce_op=np.add, reduce_cmd=nisa.reduce_cmd.reset_reduce)
    reduce = nisa.reduce_cmd.reduce
    return nisa.activation(np.copy, x, reduce_op=np.add, reduce_res=sums, reduce_cmd=reduce, mask=m)


def selected_top(x, m, top):
    t, flags = nl.full(SHAPE, FILL, dtype=nl.float32), nl.greater(x, 9.0, dtype=nl.uint8)
    reset = nisa.reduce_cmd.reset_reduce
    nisa.select_reduce(t, flags, x, -7.0, reduce_res=top, reduce_cmd=reset, reduce_op=nl.max, mask=m)
    return t


def beside(values, m, column):
    return np.concatenate([assigned(values, m), column], 1)


INSTRUCTIONS = {
    "add": (lambda x, m: nl.add(x, x[:, 0:1], mask=m), lambda m: assigned(X + X[:, :1], m)),
    "reversed": (lambda x, m: nl.subtract(1.0, x, mask=m), lambda m: assigned(1 - X, m)),
    "activation": (
        lambda x, m: nisa.activation(np.square, x, bias=x[:, 1], mask=m),
        lambda m: assigned((X + X[:, 1:2]) ** 2, m),
    ),
    "where": (lambda x, m: nl.where(nl.greater(x, 9.0), x, 2.0, mask=m), lambda m: assigned(np.where(X > 9, X, 2), m)),
    "subscript": (lambda x, m: nl.square(x[m]), lambda m: assigned(X * X, m)),
    "memset": (lambda x, m: nisa.memset(SHAPE, 4.0, nl.float32, mask=m), lambda m: assigned(4, m)),
    "iota": (
        lambda x, m: nisa.iota(10 * grid()[0] + grid()[1], nl.float32, mask=m),
        lambda m: assigned(10 * ROW + COLUMN, m),
    ),
    "affine_select": (
        lambda x, m: nisa.affine_select(grid()[0] >= grid()[1], x, -5.0, mask=m),
        lambda m: assigned(np.where(ROW >= COLUMN, X, -5), m),
    ),
    "affine_select by it": (lambda x, m: nisa.affine_select(m, x, -5.0), lambda m: np.where(m, X, -5)),
    "tensor_copy_predicated": (copy_predicated, lambda m: assigned(X, m & (X > 9))),
    "dma_copy": (copied_by_dma, lambda m: assigned(X, m)),
    "select_reduce": (selected, lambda m: assigned(np.where(X > 9, X, 0.5), m)),
    "transposed": (lambda x, m: nisa.nc_transpose(x, mask=m), lambda m: assigned(X.T, m.T, SHAPE[::-1])),
    "dma_transpose": (lambda x, m: nisa.dma_transpose(x, mask=m), lambda m: assigned(X.T, m.T, SHAPE[::-1])),
    "transposed, merged": (transposed_merged, lambda m: assigned(X.T, m.T, SHAPE[::-1])),
    "matmul, merged": (product_merged, lambda m: np.where(m.any(0)[:, None], (X * m).T @ X, FILL)),
    "sum": (lambda x, m: nl.sum(x, axis=[1], mask=m), lambda m: reduced("sum", m, 1)),
    "max": (lambda x, m: nisa.tensor_reduce(np.max, x, axis=1, keepdims=True, mask=m), lambda m: reduced("max", m, 1)),
    "min": (lambda x, m: nl.min(x[m], axis=-1), lambda m: reduced("min", m, 1)),
    "partitions": (lambda x, m: nisa.tensor_partition_reduce(np.add, x, mask=m), lambda m: reduced("sum", m, 0)),
    "bn_stats": (lambda x, m: nisa.bn_stats(x, mask=m), lambda m: statistics(m)),
    "activation_reduce": (
        with_sum(square_sum),
        lambda m: beside(X * X / 4, m, by_columns(m, lambda x: (x * x / 4).sum())),
    ),
    "accumulator": (
        with_sum(accumulated),
        lambda m: beside(
            X, m, np.where(m.any(1, keepdims=True), (X * X).sum(1, keepdims=True) + (X * m).sum(1, keepdims=True), FILL)
        ),
    ),
    "tensor_scalar_reduce": (
        with_sum(lambda x, m, s: nisa.tensor_scalar_reduce(x, np.multiply, 2.0, np.max, s, mask=m)),
        lambda m: beside(2 * X, m, by_columns(m, lambda x: 2 * x.max())),
    ),
    "select_reduce's maximum": (
        with_sum(selected_top),
        lambda m: np.concatenate(
            [assigned(np.where(X > 9, X, -7), m), by_columns(m, lambda x: np.where(x > 9, x, -7).max())], 1
        ),
    ),
}


@settings(max_examples=2, deadline=None)
@given(masks())
def test_instructions(mask):
    m = holds(mask)
    wants = {name: want(m) for name, (_, want) in INSTRUCTIONS.items()}

    def kernel(x):
        results = []
        for name, (emit, _) in INSTRUCTIONS.items():
            out = nl.ndarray(wants[name].shape, dtype=x.dtype, buffer=nl.shared_hbm)
            t = nl.full(wants[name].shape, FILL, dtype=nl.float32)
            t[...] = emit(nl.load(x), mask(*grid()))
            nl.store(out, t)
            results.append(out)
        return tuple(results)

    got = nkijax.run(jit(kernel), X, eager=True)
    for (name, want), result in zip(wants.items(), got, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-6, err_msg=name)


def diagonal(i, j):
    return (i > j) & (i != 3) | (j == 5) & (i < 2)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_mask_that_is_no_box(name):
    emit, want = INSTRUCTIONS[name]

    def kernel(x):
        shape = want(holds(diagonal)).shape
        out, t = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm), nl.full(shape, FILL, dtype=nl.float32)
        t[...] = emit(nl.load(x), diagonal(*grid()))
        nl.store(out, t)
        return out

    np.testing.assert_allclose(nkijax.run(jit(kernel), X), want(holds(diagonal)), rtol=1e-6)
