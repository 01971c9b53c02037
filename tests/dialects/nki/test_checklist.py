"""Traps of NKI 0.6, fixes of its releases, cases of its users: those that no other test pins, and that none is missed.

`trap_N`, `8_8` and `case_N` in the name of a test say what it is for, in whichever file it stands.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError, api
from nkijax.dialects.nki.jit import jit
from nkijax.errors import OutOfRange
from nkijax.program import Repeat, instructions
from tests.dialects.nki.test_control import loaded
from tests.dialects.nki.tiles import COLUMN, X, Y, ran, refused

TESTS = Path(__file__).parents[2]
OTHERS = {
    "trap 25": "a file of a public library that Python itself refuses",
    "case 8": "masks: tests/dialects/neuronxcc",
    "case 9": "masks: tests/dialects/neuronxcc",
}
WIDE = np.random.default_rng(3).standard_normal((512, 64)).astype(np.float32)


def test_every_trap_and_every_case_has_a_test():
    names = [name for p in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", p.read_text())]
    found = {f"{kind} {n}" for name in names for kind, n in re.findall(r"(trap|case)_(\d+)", name)}
    wanted = {f"trap {n}" for n in range(1, 30)} | {f"case {n}" for n in range(1, 34)}
    assert wanted - found - set(OTHERS) == set()
    assert sum("8_8" in name for name in names) >= 14


# ---- traps


@pytest.mark.parametrize("index", [-1, 2**31, 16])
def test_trap_6_a_negative_index_is_outside_and_never_wraps(index):
    def kernel(x, row, mode):
        out = nl.full((1, 64), 7.0, nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x.ap([[64, 1], [1, 64]], scalar_offset=nl.load(row)), oob_mode=mode)
        return out

    row = np.array([[index]]).astype(np.uint32)
    np.testing.assert_array_equal(nkijax.run(kernel, WIDE[:16], row, nisa.oob_mode.skip), np.full((1, 64), 7))
    with pytest.raises(OutOfRange, match=r"must be in \[0, 16\)"):
        nkijax.run(kernel, WIDE[:16], row, nisa.oob_mode.error)


def test_trap_10_float32_to_an_integer_rounds_to_even_and_saturates():
    x = np.array([[0.5, 1.5, 2.5, -0.5, -2.5, 127.5, 300, -300]], np.float32)
    np.testing.assert_array_equal(ran(lambda t: nl.copy(t, dtype=nl.int8), x), [[0, 2, 2, 0, -2, 127, 127, -128]])


@pytest.mark.parametrize(
    ("position", "size"), [((), ()), ((0, 0), (64, 32)), ((0, 96), (64, 32)), ((64, 64), (64, 64))]
)
def test_trap_15_tiles_of_the_tensor_engine_change_no_value(position, size):
    """Docs say that columns start at 0 or 128 only, and use others."""

    def kernel(a, b):
        dst = nl.ndarray((32, 6), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst, nl.load(a), nl.load(b), tile_position=position, tile_size=size)
        return dst_in_hbm(dst)

    a, b = WIDE[:64, :32], WIDE[64:128, :6]
    np.testing.assert_allclose(nkijax.run(kernel, a, b), a.T @ b, rtol=1e-5, atol=1e-5)


def dst_in_hbm(tile):
    """A tile's values in HBM."""
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.copy(tile))
    return out


def test_trap_17_dma_copy_never_touches_psum():
    message = refused(lambda x: nisa.dma_copy(nl.ndarray((4, 6), nl.float32, buffer=nl.psum), x), X)
    assert message.endswith("dma_copy requires HBM or SBUF tensors, got dst=MemoryRegion.psum")


def test_trap_28_dma_transpose_needs_the_rank_of_its_result():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    moved = ran(lambda t: nisa.dma_transpose(d := nl.ndarray((6, 4), nl.float32), t) and d, x)
    np.testing.assert_array_equal(moved, x.T)
    message = refused(lambda t: nisa.dma_transpose(nl.ndarray((6, 1, 4), nl.float32), t), x)
    assert "dma_transpose dst" in message and "(6, 1, 4)" in message


def test_trap_29_side_effects_of_a_body_happen_once():
    """As on hardware; a body is executed turn by turn only by the machine."""
    seen = []

    def kernel(x):
        total = nl.zeros((4, 6), nl.float32)

        def body(i):
            seen.append(i)
            nisa.tensor_tensor(total, total, nl.load(x), nl.add)

        nl.fori_loop(0, 5, body)
        return dst_in_hbm(total)

    np.testing.assert_allclose(nkijax.run(kernel, X), 5 * X, rtol=1e-6)
    assert len(seen) == 1


# ---- fixes of releases


def test_8_8_logical_and_is_of_truth_not_of_bits():
    x, y = (np.array([v], np.float32) for v in ([1, 2, 0, -3], [2, 4, 5, 0]))
    np.testing.assert_array_equal(ran(nl.logical_and, x, y), [[1, 1, 0, 0]])
    got = ran(lambda a, b: nisa.tensor_tensor(d := nl.ndarray((1, 4), nl.int32), a, b, nl.logical_and) and d, x, y)
    np.testing.assert_array_equal(got, [[1, 1, 0, 0]])


def test_8_8_activation_leaves_its_accumulator_alone_by_default():
    def emit(x, y):
        spare, sums = nl.ndarray((4, 6), nl.float32), nl.ndarray((4, 1), nl.float32)
        nisa.activation_reduce(spare, nl.square, x, nl.add, None)
        nisa.activation(spare, nl.exp, y, reduce_op=nl.add, reduce_res=sums)
        return sums

    np.testing.assert_allclose(ran(emit, X, Y), (X**2).sum(1, keepdims=True), rtol=1e-6)


def test_8_8_and_case_24_a_bias_has_one_element_a_partition():
    message = refused(lambda x, b: nisa.activation(x, nl.exp, x, bias=b), WIDE[:128], WIDE[128:256])
    assert message == "nki.isa.activation bias: must be a number or a (128, 1) tile, got (128, 64)"


# ---- cases of users


def test_case_2_what_does_not_fit_is_named():
    def kernel(x):
        tiles = [nl.ndarray((128, 24_753), nl.float32, name=f"tile{k}") for k in range(2)]
        for tile in tiles:
            nisa.memset(tile, 1.0)
        nisa.tensor_tensor(tiles[0], tiles[0], tiles[1], nl.add)
        return dst_in_hbm(tiles[0][:, 0:1])

    report = str(nkijax.profile(kernel, X, target="trn1").cost)
    assert re.search(r"SBUF: .*tile0.*tile1.*DOES NOT FIT", report), report


def test_case_3_an_accumulator_that_no_loop_indexes_holds_the_sum():
    def kernel(x):
        total = nl.zeros((128, 64), nl.float32)
        for k in nl.affine_range(4):
            nisa.tensor_tensor(total, total, nl.load(x[128 * k : 128 * k + 128]), nl.add)
        return dst_in_hbm(total)

    np.testing.assert_allclose(nkijax.run(kernel, WIDE), WIDE.reshape(4, 128, 64).sum(0), rtol=1e-5, atol=1e-5)


def test_case_4_results_by_argument_and_by_return():
    def kernel(x, y, sums, returned):
        a, b = nl.load(x), nl.load(y)
        nl.store(sums, nl.add(a, b))
        if returned:
            return sums, dst_in_hbm(nl.subtract(a, b))

    out = np.zeros_like(X)
    assert nkijax.run(kernel, X, Y, out, False) is None
    np.testing.assert_array_equal(out, X + Y)
    first, second = nkijax.run(kernel, X, Y, np.zeros_like(X), True)
    np.testing.assert_array_equal(first, X + Y)
    np.testing.assert_array_equal(second, X - Y)


def test_case_5_where_a_buffer_is_allocated_changes_nothing():
    """Inside the loop, before it, and two in turns, filled one turn ahead."""

    def inside(x, out, rows):
        for r in rows:
            tile = nl.load(x[r])
            nl.store(out[r], nl.multiply(tile, 2.0))

    def before(x, out, rows):
        tile, twice = (nl.ndarray((4, 64), nl.float32) for _ in range(2))
        for r in rows:
            nisa.dma_copy(tile, x[r])
            nisa.tensor_scalar(twice, tile, nl.multiply, 2.0)
            nisa.dma_copy(out[r], twice)

    def in_turns(x, out, rows):
        tiles = [nl.ndarray((4, 64), nl.float32) for _ in range(2)]
        nisa.dma_copy(tiles[0], x[rows[0]])
        for k, r in enumerate(rows):
            if k + 1 < len(rows):
                nisa.dma_copy(tiles[(k + 1) % 2], x[rows[k + 1]])
            nl.store(out[r], nl.multiply(tiles[k % 2], 2.0))

    leaves = []
    for body in (inside, before, in_turns):

        def kernel(x, body=body):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            body(x, out, [slice(4 * k, 4 * k + 4) for k in range(64)])
            return out

        np.testing.assert_array_equal(nkijax.run(kernel, WIDE[:256]), 2 * WIDE[:256])
        rolled = nkijax.trace(kernel, WIDE[:256])
        assert any(isinstance(node, Repeat) for node in rolled.body)
        leaves.append(len(list(instructions(rolled.body))))
    assert leaves[0] == leaves[1] and max(leaves) <= 16, leaves


@pytest.mark.parametrize("flag", [0, 1])
def test_case_13_a_loop_of_no_turn_or_one_is_an_if(flag):
    def kernel(x, n):
        out = nl.full((4, 6), 7.0, nl.float32, buffer=nl.shared_hbm)
        nl.fori_loop(0, loaded(n), lambda i: nisa.dma_copy(out, x) and None)
        return out

    want = X if flag else np.full((4, 6), 7)
    np.testing.assert_array_equal(nkijax.run(kernel, X, np.array([[flag]], np.int32)), want)


def test_case_17_blocks_from_run_time_starts():
    def kernel(cache, starts):
        out = nl.ndarray((192, 64), cache.dtype, buffer=nl.shared_hbm)

        def body(i):
            start = nisa.register_alloc()
            nisa.register_load(start, starts[i])
            tile = nl.ndarray((64, 64), cache.dtype)
            nisa.dma_copy(tile, cache[nl.ds(start, 64)])
            nisa.dma_copy(out.reshape((3, 64, 64))[i], tile)

        nl.fori_loop(0, 3, body)
        return out

    got = nkijax.run(kernel, WIDE, np.array([[3 * 64], [0], [7 * 64]], np.int32))
    np.testing.assert_array_equal(got.reshape(3, 64, 64), WIDE.reshape(8, 64, 64)[[3, 0, 7]])


def test_case_18_a_tail_that_sticks_out_is_an_error():
    with pytest.raises(KernelError, match=r"on dimension 0: index range \[192, 206\] exceed dimension size of 200"):
        nkijax.trace(lambda x: nl.load(x[192:207]), WIDE[:200])


def test_case_24_one_clear_error_each():
    wide = "dst partition dimension 129 exceeds maximum 128"
    assert wide in refused(lambda: nisa.memset(nl.ndarray((129, 4), nl.float32), 0.0))
    big = nl.ndarray
    assert "dimension 256 exceeds" in refused(lambda: nisa.iota(big((256, 4), nl.int32), [[1, 4]]))
    assert "dimension 256 exceeds" in refused(lambda x: nisa.activation(t := big((256, 4), nl.float32), nl.exp, t), X)
    assert "dimension 256 exceeds" in refused(lambda x: nisa.dma_copy(big((256, 64), nl.float32), x), WIDE[:128])
    with pytest.raises(TypeError, match="unexpected keyword argument 'opp'\n.*did you mean op"):
        nkijax.trace(lambda x: nisa.tensor_tensor(nl.load(x), nl.load(x), nl.load(x), opp=nl.add), X)
    with pytest.raises(AttributeError, match="did you mean tensor_scalar"):
        _ = nisa.tensor_scalr


def double(x):
    """Twice x, in place."""
    nl.store(x, nl.multiply(nl.load(x), 2.0))


def test_case_25_and_case_27_which_kernel_ran_with_how_many_instructions(monkeypatch):
    told = []
    monkeypatch.setattr(api, "observers", [lambda compiled, _: told.append(compiled.program.name)])
    recorded = []
    for _ in range(2):
        before = api.counters["recorded_instructions"], api.counters["traces"]
        nkijax.run(double, X.copy())
        recorded.append((api.counters["recorded_instructions"] - before[0], api.counters["traces"] - before[1]))
    assert told == ["double", "double"] and recorded[0] in {(3, 1), (0, 0)} and recorded[1] == (0, 0)
    assert len(list(instructions(nkijax.trace(double, X, rolled=False).body))) == 3


def test_case_26_inputs_that_a_kernel_changed():
    x = X.copy()
    nkijax.run(double, x)
    np.testing.assert_array_equal(x, 2 * X)
    assert nkijax.trace(double, X).written == (0,)
    assert nkijax.trace(lambda x: dst_in_hbm(nl.load(x)), X).written == ()


def test_case_28_again_larger_and_from_threads():
    def kernel(x):
        return dst_in_hbm(nl.exp(nl.load(x)))

    inputs = [X, X, WIDE[:128], *(np.full((4, 6), k, np.float32) for k in range(6))]
    with ThreadPoolExecutor(4) as pool:
        for x, y in zip(inputs, pool.map(lambda x: nkijax.run(kernel, x), inputs), strict=True):
            np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)


def test_case_29_numpy_integers_index_and_size():
    def kernel(x):
        out = nl.ndarray((np.int32(2), np.int64(3)), x.dtype, buffer=nl.shared_hbm)
        rows = x[np.int64(1) : np.int32(3), nl.ds(np.int8(2), np.uint16(3))]
        nl.store(out, nl.load(rows))
        nisa.dma_copy(out[np.uint8(0)], x[np.int32(-1), np.int64(0) : np.int64(3)])
        return out

    np.testing.assert_array_equal(nkijax.run(kernel, X), [X[3, 0:3], X[2, 2:5]])


def test_case_30_inside_a_larger_graph():
    def kernel(x, scale):
        tile = nl.load(x)
        nisa.tensor_scalar(tile, tile, nl.multiply, nl.load(scale))
        return dst_in_hbm(nl.tanh(tile))

    @jit
    def jitted(x, scale):
        return kernel(x, scale)

    layers = jnp.asarray(np.linspace(0.5, 1, 4)[:, None, None] * COLUMN, jnp.float32)
    f = jax.checkpoint(nkijax.function(jitted))
    for one in (f, lambda x, s: jnp.tanh(x * s)):
        deep = jax.jit(lambda x, one=one: jax.lax.scan(lambda c, s: (one(c, s) + 1, None), x, layers)[0].sum())
        value, slope = jax.value_and_grad(deep)(jnp.asarray(X))
        if one is f:
            want = value, slope
    np.testing.assert_allclose(want[0], value, rtol=1e-5)
    np.testing.assert_allclose(want[1], slope, rtol=1e-4, atol=1e-6)
