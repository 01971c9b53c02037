"""What kernels of the old dialect rely on: one small kernel for each row of a checklist (S1 …, L1 …).

Rows that are also traps (T1 …) say so; the other traps are in test_traps.
"""

import importlib
import sys
import time

import jax
import numpy as np
import pytest

import nkijax
from nkijax.dialects.neuronxcc import baremetal, jit, simulate_kernel, typing
from nkijax.dialects.neuronxcc import compiler as ncc
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.typing import scalar
from nkijax.imports import installed

from .test_emit import X, ran, text

RNG = np.random.default_rng(7)


def wide(*shape):
    """Random float32s."""
    return RNG.standard_normal(shape).astype(np.float32)


def test_s1_where_and_equal():
    a, b = (RNG.integers(0, 3, (6, 8)).astype(np.float32) for _ in range(2))

    def body(a, b):
        x, y = nl.load(a), nl.load(b)
        same = nl.equal(x, y, dtype=nl.uint8)
        assert same.dtype == nl.uint8
        return nl.where(same, x, -1)

    assert (ran(body, a, b) == np.where(a == b, a, -1)).all()


def test_s2_loop_reduce_into_a_column():
    keep = [True, False, True, True]

    def body(x):
        i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
        total, column = nl.zeros((6, 8), dtype=nl.float32), nl.zeros((6, 4), dtype=nl.float32)
        vector = column[:, 2]
        for k in nl.affine_range(4):
            part = nl.load(x[i, j]) * float(k)
            total[i, j] = nl.loop_reduce(part, op=np.add, loop_indices=[k])
            vector[...] = nl.loop_reduce(part[:, 0:1], op=np.add, loop_indices=[k], mask=keep[k])
        total[:, 0:1] = vector
        return total

    want = 6 * X
    want[:, 0] = 5 * X[:, 0]
    assert (ran(body) == want).all()


def test_s3_dropout_does_not_rescale():
    ones = np.ones((64, 32), np.float32)

    def body(x):
        nl.random_seed(3)
        return nl.dropout(nl.load(x), rate=0.5)

    got = ran(body, ones)
    assert set(np.unique(got)) == {0, 1} and abs(got.mean() - 0.5) < 0.05
    assert (ran(lambda x: nl.dropout(nl.load(x), rate=0.0)) == X).all()


def test_s4_all_reduce():
    """One program: the tile itself; several, whose number is known here: their sum."""

    def kernel(x):
        out = nl.ndarray((2, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        row = nl.load(x[nl.ds(nl.program_id(0), 1), :])
        nl.store(out[nl.ds(nl.program_id(0), 1), :], nl.all_reduce(row, op=np.add, program_axes=[0]))
        return out

    assert (jit(kernel)[1](X)[0] == X[0]).all()
    assert (jit(kernel)[2](X) == X[0] + X[1]).all()


def test_s5_statistics_leave_masked_columns_out():
    x = wide(6, 100)

    def body(x):
        return nisa.bn_aggr(nisa.bn_stats(nl.load(x), mask=nl.arange(100)[None, :] < 77))

    got = ran(body, x)
    np.testing.assert_allclose(got, np.stack([x[:, :77].mean(1), x[:, :77].var(1)], 1), atol=1e-5)


def test_s6_tensor_partition_reduce():
    assert (ran(lambda x: nisa.tensor_partition_reduce(np.add, nl.load(x))) == X.sum(0, keepdims=True)).all()


def test_s7_select_reduce_carries_its_maximum():
    p = (RNG.random((6, 8)) < 0.5).astype(np.uint8)

    def body(x, p):
        data, flags = nl.load(x), nl.load(p)
        out, top = nl.zeros((6, 8), dtype=nl.float32), nl.zeros((6, 2), dtype=nl.float32)
        for k, command in enumerate((nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce)):
            half = slice(4 * k, 4 * k + 4)
            nisa.select_reduce(
                dst=out[:, half], predicate=flags[:, half], on_true=data[:, half], on_false=-5.0,
                reduce_res=top[:, k], reduce_cmd=command, reduce_op=nl.max,
            )  # fmt: skip
        out[:, 0:2] = top
        return out

    want = np.where(p, X, -5)
    want[:, :2] = np.stack([want[:, :4].max(1), want.max(1)], 1)
    assert (ran(body, X, p) == want).all()


def test_s8_tensor_copy_predicated():
    p = (RNG.random((6, 8)) < 0.5).astype(np.uint8)

    def body(x, p):
        out = nl.full((6, 8), 7, dtype=nl.float32)
        nisa.tensor_copy_predicated(src=nl.load(x), dst=out, predicate=nl.load(p))
        return out

    assert (ran(body, X, p) == np.where(p, X, 7)).all()


def test_s9_offloaded_copies_and_sums_are_loads_and_stores():
    def body(x):
        scratch = nl.ndarray((6, 8), dtype=nl.float32, buffer=nl.private_hbm)
        nisa._tiled_offloaded_memcpy(src=x, dst=scratch)
        nisa._tiled_offloaded_fma(x[0:3, 0:4], scratch[3:6, 4:8], scales=[2.0, 0.5], dst=scratch[0:3, 4:8])
        return nl.load(scratch)

    want = X.copy()
    want[:3, 4:] = 2 * X[:3, :4] + 0.5 * X[3:, 4:]
    assert (ran(body) == want).all()
    assert text(body).count("DmaCopy") == 1 + 2 + 1 + 1  # the copy; two loads and a store; the load


def test_s10_double_row():
    a, b = (RNG.integers(-3, 4, s).astype(np.float32) for s in ((128, 2, 64), (128, 2, 96)))

    def body(a, b):
        x, y = (nl.copy(nl.load(t), dtype=nl.float8_e4m3) for t in (a, b))
        return nisa.nc_matmul(x, y, perf_mode="double_row_gen3")

    def kernel(a, b):
        out = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, body(a, b))
        return out

    assert (jit(kernel, platform_target="trn2")(a, b) == np.einsum("krm,krn->mn", a, b)).all()


def test_s11_abs_as_an_operator_ignores_its_operand():
    got = ran(lambda x: nisa.tensor_scalar(nl.load(x), op0=nl.abs, operand0=99.0, op1=np.multiply, operand1=2.0), -X)
    assert (got == 2 * X).all()


def test_s12_get_nc_version_follows_the_environment(monkeypatch):
    @jit
    def kernel(x):
        return nl.load(x) + (3.0 if nisa.get_nc_version() == nisa.nc_version.gen3 else 2.0)

    assert (kernel(X) == X + 2).all()
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert (kernel(X) == X + 3).all()


def test_s13_wrapped_kernels_are_called_with_numpy():
    def kernel(x):
        return nl.load(x)

    assert (baremetal(jit(kernel))(X) == X).all()


_MODULES = {
    "one": """
        import neuronxcc.nki.language as nl
        from neuronxcc import nki
        import two

        def put(t, k, v):
            nl.store(t[k], v)

        def scaled(t, *, by):
            return two.times(t, by)

        @nki.jit
        def kernel(x):
            out = nl.ndarray((2, 6, 8), dtype=x.dtype, buffer=nl.shared_hbm)
            tile = nl.ndarray((nl.par_dim(6), 8), dtype=x.dtype)
            two.into(x, dst=tile)
            put(out, 0, tile)
            put(out, 1, scaled(tile, by=3.0))
            return out
        """,
    "two": """
        import neuronxcc.nki.language as nl
        from neuronxcc import nki

        def times(t, by):
            import one
            return t * by + 0.0 * one.nl.program_ndim()

        @nki.jit(mode="trace")
        def into(src, *, dst):
            limit = 2
            for k in nl.affine_range(2):
                dst[3 * k : 3 * k + 3, :] = nl.load(src[3 * k : 3 * k + 3], mask=k < limit)
                limit = 0
        """,
}


def test_s14_s27_helpers_kernels_and_globals_of_other_modules(tmp_path, monkeypatch):
    """Two modules that call each other; a kernel with a keyword-only operand; plain helpers."""
    for name, source in _MODULES.items():
        (tmp_path / f"{name}.py").write_text("\n".join(line[8:] for line in source.splitlines()))
    monkeypatch.syspath_prepend(str(tmp_path))
    with installed():
        one = importlib.import_module("one")
        try:
            got = one.kernel(X)
        finally:
            for name in _MODULES:
                sys.modules.pop(name, None)
    assert (got == np.stack([X, 3 * X])).all()


def test_s15_t6_an_access_pattern_is_a_value():
    """A subscript of an HBM tensor moves nothing; its load does, under the load's mask."""

    def body(x):
        i, j = nl.arange(8)[:, None], nl.arange(8)[None, :]
        pattern = x[100000 * i, j]
        static = x[4:12, 0:8]
        t = nl.load(pattern, mask=i < 1)
        t[nl.arange(1, 3)[:, None], j] = nl.load(static, mask=i < 2)[0:2]
        return t

    got = ran(body)
    assert (got[0] == X[0]).all() and (got[1:3] == X[4:6]).all() and not got[3:].any()


def test_s16_reshapes_and_bit_views():
    x = np.arange(64, dtype=np.float32).reshape(8, 2, 4)
    got = ran(lambda x: nl.load(x).reshape(shape=(8, 8)).view(nl.uint8), x)
    assert (got == x.reshape(8, 8).view(np.uint8)).all()


def test_s17_t3_a_vector_is_a_column():
    def body(x):
        t = nl.load(x)
        v = t[:, 0]
        bias = nisa.activation(op=nl.square, data=t, bias=v)  # (P, 8) + (P,), not (P, P)
        v[...] = nl.add(v, v[:, 0])
        return nl.add(bias, t[:, 0])

    assert (ran(body) == (X + X[:, :1]) ** 2 + 2 * X[:, :1]).all()


def test_s18_a_predicate_subscript_leaves_rows_out_of_a_contraction():
    a, b = wide(6, 5), wide(6, 8)
    a[4:] = b[4:] = np.nan

    def body(a, b):
        i = nl.arange(6)[:, None]
        return nisa.nc_matmul(nl.load(a)[i < 4], nl.load(b)[i < 4])

    np.testing.assert_allclose(ran(body, a, b), a[:4].T @ b[:4], atol=1e-5)


def test_s19_keyword_only_kernels_and_an_array_given_twice():
    @jit
    def kernel(*, one, two, scale=1.0):
        out = nl.ndarray(one.shape, dtype=one.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(one) + nl.load(two) * scale)
        return out

    assert (baremetal(kernel)(one=X, two=X, scale=2.0) == 3 * X).all()


def test_s20_directives_of_loops():
    def body(x):
        t = nl.load(x)
        for _ in nl.sequential_range(4, directives=ncc.multi_buffer(factor=2)):
            t[...] = t + 1.0
        return t

    assert (ran(body) == X + 4).all()


def test_s21_results_into_columns():
    def body(x):
        t, sums, copy = nl.load(x), nl.zeros((6, 4), dtype=nl.float32), nl.zeros((6, 8), dtype=nl.float32)
        ip = nl.arange(6)[:, None]
        for i in nl.affine_range(4):
            copy[...] = nisa.activation_reduce(
                np.copy, t, reduce_op=np.add, reduce_res=sums[ip, i], scale=float(i), mask=i != 2
            )
        copy[:, 4:8] = sums
        return copy

    want = np.concatenate([3 * X[:, :4], X.sum(1, keepdims=True) * np.array([0, 1, 0, 3])], 1)
    assert (ran(body) == want).all()


def test_s22_logical_tiles_wrap_and_share_addresses():
    calls = []

    def place(idx, pdim_size, fdim_size):
        calls.append((idx, pdim_size, fdim_size))
        return 0, idx[0] % 2 * fdim_size

    def body(x):
        tiles = nl.ndarray((4, nl.par_dim(6), 8), dtype=nl.float32, buffer=ncc.sbuf.alloc(place))
        second = nl.ndarray((nl.par_dim(6), 8), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=32))
        for k in nl.affine_range(4):
            tiles[k] = nl.load(x) + float(k)
        return tiles[0] * second  # tile 2 is at the place of tile 0, tile 3 at that of tile 1 and of `second`

    assert (ran(body) == (X + 2) * (X + 3)).all()
    assert calls[:4] == [((k,), 6, 32) for k in range(4)]


def test_s23_a_tile_that_is_declared_in_a_loop_keeps_its_values():
    def body(x):
        for _ in nl.sequential_range(3):
            t = nl.ndarray((nl.par_dim(6), 8), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=64))
            t[...] = t + nl.load(x)
        return t

    assert (ran(body) == 3 * X).all()


def test_s24_t8_psum_starts_from_zero_on_reuse_of_a_bank():
    def body(x):
        t = nl.zeros((8, 24), dtype=nl.float32)
        for k in nl.affine_range(3):
            product = nl.ndarray((8, 8), dtype=nl.float32, buffer=ncc.psum.mod_alloc(base_bank=0))
            product[...] += nisa.nc_matmul(nl.load(x), nl.load(x))
            t[:, nl.ds(8 * k, 8)] = product
        return t

    assert (ran(body) == np.tile(X.T @ X, 3)).all()


ROWS = np.array([[2], [-1], [64], [0], [5], [7]], np.int32)
THERE = (ROWS >= 0) & (ROWS < 6)


@pytest.mark.parametrize("way", ["load and store", "dma_copy"])
def test_s25_skipped_lanes_keep_what_was_there(way):
    skip = nisa.oob_mode.skip

    def kernel(x, rows):
        out = nl.full((2, 6, 8), 9, dtype=x.dtype, buffer=nl.shared_hbm)
        at, f, t = nl.load(rows), nl.arange(8)[None, :], nl.full((6, 8), -3, dtype=x.dtype)
        if way == "dma_copy":
            nisa.dma_copy(dst=t, src=x[at, f], oob_mode=skip)
            nisa.dma_copy(dst=out[1, at, f], src=t, oob_mode=skip)
        else:
            t[...] = nl.load(x[at, f], mode=skip)
            nl.store(out[1, at, f], t, mode=skip)
        nl.store(out[0], t)
        return out

    got = jit(kernel)(X, ROWS)
    gathered = np.where(THERE, X[ROWS[:, 0] % 6], -3)
    there = THERE[:, 0]
    scattered = np.full_like(X, 9)
    scattered[ROWS[there, 0]] = gathered[there]
    assert (got[1] == scattered).all() and (got[0] == gathered).all()


@pytest.mark.parametrize("bound", [scalar, typing.scalar, lambda t: t])
def test_s26_dynamic_trip_counts(bound):
    def kernel(x, n):
        t, count = nl.load(x), nl.load(n)
        for _ in range(bound(count)) if bound is scalar else nl.sequential_range(bound(count)):
            t[...] = nl.add(t, 1.0)
        return t

    for n in (0, 3):
        assert (simulate_kernel(kernel, X, np.array([[n]], np.int32)) == X + n).all()


def test_s28_t2_operands_of_lower_rank_align_from_the_left():
    x = np.arange(6 * 4 * 3, dtype=np.float32).reshape(6, 4, 3)

    def body(x):
        i, j = nl.arange(6)[:, None], nl.arange(4)[None, :]
        t = nl.load(x)
        return nl.add(nl.add(t, t[:, 0:1, 0], mask=i >= j), t[:, 0, 0], mask=i >= j)

    a, b, _ = np.indices(x.shape)
    assert (ran(body, x).reshape(x.shape) == np.where(a >= b, x + 2 * x[:, :1, :1], 0)).all()


def test_s29_an_index_tile_gives_a_view():
    def body(x):
        t, at = nl.load(x), nl.full((1, 1), 2, dtype=nl.int32)
        view = t[:, at[0, 0]]
        view[...] = 0
        t[:, at + nl.arange(2)[None, :]] = 5
        return t

    want = X.copy()
    want[:, 2:4] = 5
    assert (ran(body) == want).all()


def test_s30_itemsize():
    def kernel(x):
        tiles = [nl.ndarray((2, 2), dtype=d) for d in (nl.uint8, nl.bfloat16, nl.float32)]
        assert [t.itemsize for t in tiles] == [1, 2, 4] and x.itemsize == 4
        return x

    simulate_kernel(kernel, X)


def test_s32_large_patterns_are_traced_at_once():
    """Masked tiles of a tensor of 10^8 elements: no index grid is made."""

    def kernel(x):
        i, j = nl.arange(128)[:, None], nl.arange(1280)[None, :]
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for b in nl.affine_range(10):
            for k in nl.affine_range(20):
                rows = k * 128 + i
                nl.store(out[b, rows, j], nl.load(x[b, rows, j], mask=rows < 2242), mask=rows < 2242)
        return out

    start = time.perf_counter()
    nkijax.trace(jit(kernel), jax.ShapeDtypeStruct((10, 22420, 1280), np.float32))
    assert time.perf_counter() - start < 5


def test_s34_a_second_launch_records_nothing():
    @jit
    def kernel(x):
        return nl.load(x) + 1.0

    kernel(X)
    before = dict(nkijax.api.counters)
    assert (kernel(-X) == 1 - X).all() and nkijax.api.counters == before


def test_l1_t1_names_rebound_in_a_loop_start_each_turn_as_before_it():
    def body(x):
        t, width, mask = nl.zeros((6, 8), dtype=nl.float32), 4, None
        i = nl.arange(6)[:, None]
        for k in nl.affine_range(2):
            mask = i > k if mask is None else mask & (i > 90)
            part = slice(k * width, k * width + width)
            t[:, part] = nl.load(x[:, part], mask=mask)
            width = 2
        return t

    want = X.copy()
    want[0, :4], want[:2, 4:] = 0, 0
    assert (ran(body) == want).all()


def test_l2_t2_index_ranks_align_from_the_left():
    x = np.arange(6 * 4 * 3, dtype=np.float32).reshape(6, 4, 3)

    def body(x):
        i, j, k = nl.arange(6)[:,], nl.arange(4)[None, :], nl.arange(3)[None, None, :]
        grid = nl.arange(6)[:,] + nl.arange(1)[None, :]
        assert grid.shape == (6, 1) and (i[:, None, None] + j).shape == (6, 4, 1)
        return nl.load(x[grid, j, k])

    assert (ran(body, x).reshape(x.shape) == x).all()


def test_l3_t8_copies_are_snapshots_and_updates_keep_the_object():
    def body(x):
        t = nl.load(x)
        same, old = t, nl.copy(t)
        t += 1
        assert t is same
        t[0, :] += old[0, :]
        return t - old

    want = np.ones_like(X)
    want[0] += X[0]
    assert (ran(body) == want).all()
