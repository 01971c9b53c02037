"""Views made by `.indirect`: compiled, eager and NumPy agree; who takes them, and what is refused."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.dialects.nki.tensor import NkiTensor
from nkijax.hazards import Regions
from nkijax.machine import Memory
from nkijax.view import Buffer, Dynamic, View

P, F, K, N = 32, 40, 2, 24
RNG = np.random.default_rng(0)
X = RNG.integers(-64, 64, (P, F)).astype(np.float32)
Y = RNG.integers(-64, 64, (P, N)).astype(np.float32)
INDEX = np.stack([RNG.permutation(F)[:K] for _ in range(P)]).astype(np.uint16)


def distinct():
    """(P, K) of offsets, no two of a group of 16 equal: what a scatter needs."""
    lists = [RNG.permutation(F)[: 16 * K].reshape(K, 16).T for _ in range(P // 16)]
    return np.concatenate(lists).astype(np.uint16)


def columns(index, group, n=N):
    """(P, n): offset number i of partition p, from the specification."""
    return np.array([[index[p // group * group + i % group, i // group] for i in range(n)] for p in range(P)]).astype(
        int
    )


def gathered(x, index, group=16, n=N):
    return np.take_along_axis(x, columns(index, group, n), axis=1)


def scattered(into, values, index, group=16):
    out = into.copy()
    np.put_along_axis(out, columns(index, group, values.shape[1]), values, axis=1)
    return out


def both(kernel, *args, **options):
    """What a kernel gives on trn3, compiled; eagerly the same."""
    result = nkijax.run(kernel, *args, target="trn3", **options)
    eager = nkijax.run(kernel, *args, target="trn3", eager=True, **options)
    jax.tree.map(np.testing.assert_array_equal, eager, result)
    return result


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile if tile.buffer is not nl.psum else nl.copy(tile))
    return out


# ---- who takes them


@pytest.mark.parametrize("engine", [nisa.engine.vector, nisa.engine.scalar])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32])
def test_gather(engine, dtype):
    def kernel(x, index):
        out = nl.ndarray((P, N), nl.float32)
        nisa.tensor_copy(out, nl.load(x).indirect(nl.load(index), N), engine=engine)
        return stored(out)

    got = nkijax.run(kernel, X, INDEX.astype(dtype), target="trn3")
    np.testing.assert_array_equal(got, gathered(X, INDEX))


def test_gather_of_part_of_a_tile_in_psum():
    def kernel(x, index):
        tile, out = nl.ndarray((64, 2, F), nl.float32, buffer=nl.psum), nl.zeros((P, 2 * N), nl.bfloat16)
        nisa.memset(tile, 0.0)
        nisa.tensor_copy(tile[32:64, 1], nl.load(x))
        nisa.tensor_copy(out[:, ::2], tile[32:, 1, 8:].indirect(index=nl.load(index), num_elem=N))
        return stored(out)

    got = nkijax.run(kernel, X, INDEX % 32, target="trn3").astype(np.float32)
    np.testing.assert_array_equal(got[:, ::2], gathered(X[:, 8:], INDEX % 32))
    assert not got[:, 1::2].any()


def test_scatter():
    def kernel(x, y, index):
        tile = nl.load(x)
        nisa.tensor_copy(tile.indirect(nl.load(index), N), nl.load(y))
        return stored(tile)

    index = distinct()
    np.testing.assert_array_equal(both(kernel, X, Y, index), scattered(X, Y, index))


def test_gather_and_scatter_at_once():
    def kernel(x, y, index, to):
        tile, a, b = nl.load(x), nl.load(index), nl.load(to)
        nisa.tensor_tensor(tile.indirect(b, N), tile.indirect(a, N), nl.load(y), op=nl.subtract)
        nisa.tensor_scalar(tile.indirect(a, 5), tile.indirect(b, 5), op0=nl.multiply, operand0=2.0)
        return stored(tile)

    index, to = distinct(), distinct()
    want = scattered(X, gathered(X, index) - Y, to)
    want = scattered(want, 2 * gathered(want, to, n=5), index)
    np.testing.assert_array_equal(nkijax.run(kernel, X, Y, index, to, target="trn3"), want)


def test_predicated_copy():
    def kernel(x, y, mask, index, to):
        tile = nl.load(x)
        nisa.tensor_copy_predicated(
            tile.indirect(nl.load(to), N), nl.load(y), nl.load(mask).indirect(nl.load(index), N)
        )
        return stored(tile)

    to, mask = distinct(), (X > 0).astype(np.uint8)
    want = scattered(X, np.where(gathered(mask, INDEX), Y, gathered(X, to)), to)
    np.testing.assert_array_equal(both(kernel, X, Y, mask, INDEX, to), want)


def test_reduction_and_activation():
    def kernel(x, index):
        view = nl.load(x).indirect(nl.load(index), N)
        total, total2, double = (nl.ndarray((P, n), nl.float32) for n in (1, 1, N))
        nisa.tensor_reduce(total, nl.add, view, axis=1)
        nisa.activation_reduce(double, nl.copy, view, nl.add, total2, scale=2.0)
        wide = nl.zeros((P, F), nl.float32)
        nisa.activation(wide.indirect(nl.load(index), 3), nl.square, double[:, 0:3])
        return stored(total), stored(double), stored(total2), stored(wide)

    index = distinct()
    total, double, total2, wide = nkijax.run(kernel, X, index, target="trn3")
    want = gathered(X, index)
    np.testing.assert_array_equal(total, want.sum(1, keepdims=True))
    np.testing.assert_array_equal(double, 2 * want)
    np.testing.assert_array_equal(total2, 2 * want.sum(1, keepdims=True))
    np.testing.assert_array_equal(wide, scattered(np.zeros((P, F), np.float32), 4 * want[:, :3] ** 2, index))


def test_the_other_engines_of_gen4():
    def kernel(x, index):
        view, out = nl.load(x).indirect(nl.load(index), N), nl.ndarray((4, P, N), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((P, N), nl.float32)
        nisa.exponential(tile, view, max_value=70.0)
        nisa.dma_copy(out[0], tile)
        nisa.activate2(tile, nl.copy, view, 2.0, 1.0, nl.multiply, nl.add)
        nisa.dma_copy(out[1], tile)
        nisa.tensor_scalar_reduce(tile, view, nl.add, 3.0, nl.add)
        nisa.dma_copy(out[2], tile)
        nisa.tensor_scalar_cumulative(tile, view, nl.add, nl.maximum, 0.0)
        nisa.dma_copy(out[3], tile)
        return out

    x = gathered(X, INDEX)
    got = nkijax.run(kernel, X, INDEX, target="trn3")
    np.testing.assert_allclose(got[0], np.exp(x - 70), rtol=1e-5, atol=1e-37)
    np.testing.assert_array_equal(got[1:], [2 * x + 1, x + 3, np.maximum.accumulate(x, axis=1)])


# ---- the tensor engine: groups of 32 partitions


def test_matmul_gathers_in_groups_of_32():
    def kernel(x, y, index, other):
        psum = nl.ndarray((8, N), nl.float32, buffer=nl.psum)
        left = nl.load(x).indirect(nl.load(other), 8)
        nisa.nc_matmul(psum, left, nl.load(y).indirect(nl.load(index), N))
        return stored(psum)

    x, other = X.astype(ml_dtypes.bfloat16), (INDEX + 7) % F
    got = both(kernel, x, x, INDEX, other)
    np.testing.assert_array_equal(got, gathered(X, other, 32, 8).T @ gathered(X, INDEX, 32))


@pytest.mark.parametrize("loops", ["auto", "scan"])
def test_steps_of_a_contraction_gather_by_one_index(loops):
    def kernel(x, y, index):
        psum, by = nl.ndarray((8, N), nl.float32, buffer=nl.psum), nl.load(index)
        for step in range(3):
            nisa.nc_matmul(psum, nl.load(y[step]), nl.load(x[step]).indirect(by, N))
        return stored(psum)

    x, y = (RNG.integers(-4, 5, (3, P, n)).astype(np.float32) for n in (F, 8))
    got = nkijax.run(kernel, *(v.astype(ml_dtypes.bfloat16) for v in (x, y)), INDEX, target="trn3", loops=loops)
    np.testing.assert_array_equal(got, sum(y[t].T @ gathered(x[t], INDEX, 32) for t in range(3)))


def test_matmul_scatters_and_adds_where_it_has_written():
    """The accumulation state is scattered too."""

    def kernel(x, y, first, second):
        psum = nl.ndarray((P, F), nl.float32, buffer=nl.psum)
        nisa.memset(psum, 0.5)
        a, b = nl.load(x), nl.load(y)
        for index in (first, second):
            nisa.nc_matmul(psum.indirect(nl.load(index), N), a, b)
        return stored(psum)

    x, y = X[:, :32].astype(ml_dtypes.bfloat16), Y.astype(ml_dtypes.bfloat16)
    first, second = (np.roll(np.arange(64).reshape(2, 32).T % F, shift, axis=0).astype(np.uint16) for shift in (0, 5))
    product = X[:, :32].T @ Y
    want, seen = np.full((P, F), 0.5, np.float32), np.zeros((P, F), bool)
    for index in (first, second):
        at = columns(index, 32)
        for p in range(P):
            for i, c in enumerate(at[p]):
                want[p, c] = product[p, i] + (want[p, c] if seen[p, c] else 0)
                seen[p, c] = True
    np.testing.assert_array_equal(both(kernel, x, y, first, second), want)


def test_mx_matmul_gathers_data_and_scales_by_one_index():
    def kernel(data, scale, index):
        x4 = nl.ndarray((P, F), nl.float8_e5m2_x4)
        nisa.dma_copy(x4, data.ap([[F, P], [1, F]], dtype=nl.float8_e5m2_x4))
        scales, by, psum = nl.load(scale), nl.load(index), nl.ndarray((8, F), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(psum, x4.indirect(by, 8), x4, scales.indirect(by, 8), scales)
        return stored(psum)

    data = RNG.choice([-2, -1, 0.5, 1, 3], (P, F, 4)).astype(ml_dtypes.float8_e5m2)
    scale = RNG.integers(125, 129, (P, F)).astype(np.uint8)
    values = data.astype(np.float32) * 2.0 ** (scale[np.arange(P) // 8].astype(np.float32) - 127)[:, :, None]
    left = np.stack([gathered(values[..., q], INDEX, 32, 8) for q in range(4)], axis=-1)
    got = nkijax.run(kernel, data.view(np.uint8).reshape(P, 4 * F), scale, INDEX, target="trn3")
    np.testing.assert_allclose(got, np.einsum("pmq,pnq->mn", left, values), rtol=1e-5, atol=1e-4)


# ---- loops, and gradients


def test_in_unrolled_and_dynamic_loops():
    def kernel(x, index, n):
        tile, indices = nl.load(x), nl.load(index)
        out = nl.zeros((4, P, N), nl.float32, buffer=nl.shared_hbm)
        for i in range(3):
            part = nl.ndarray((P, N), nl.float32)
            nisa.tensor_copy(part, tile.indirect(indices[:, K * i : K * i + K], N))
            nisa.dma_copy(out[i], part)

        def body(i):
            part = nl.ndarray((P, N), nl.float32)
            nisa.tensor_copy(part, tile.indirect(indices[:, K * 3 :], N))
            nisa.tensor_copy(tile.indirect(indices[:, K * 3 :], N), part)
            nisa.tensor_scalar(part, part, nl.add, 1.0)
            nisa.dma_copy(out[3], part)

        register = nisa.register_alloc()
        nisa.register_load(register, n)
        nl.fori_loop(0, register, body)
        return out

    lists = [distinct() for _ in range(4)]
    got = both(kernel, X, np.concatenate(lists, axis=1), np.array([2], np.int32))
    want = [gathered(X, index) for index in lists]
    np.testing.assert_array_equal(got, [*want[:3], want[3] + 1])


def test_gradients():
    def kernel(x, y, index, to):
        tile, part = nl.load(x), nl.ndarray((P, N), nl.float32)
        nisa.tensor_copy(part, tile.indirect(nl.load(index), N))
        nisa.tensor_tensor(part, part, nl.load(y), nl.multiply)
        nisa.tensor_copy(tile.indirect(nl.load(to), N), part)
        return stored(tile)

    def plain(x, y, index, to):
        rows = np.arange(P)[:, None]
        part = x[rows, columns(index, 16)] * y
        return x.at[rows, columns(to, 16)].set(part)

    to = distinct()
    weight = jnp.asarray(RNG.standard_normal((P, F)), jnp.float32)
    function = nkijax.function(kernel, target="trn3")
    loss = lambda f: lambda x, y: (weight * f(x, y, INDEX, to)).sum()  # noqa: E731
    got = jax.jit(jax.grad(loss(function), (0, 1)))(jnp.asarray(X), jnp.asarray(Y))
    want = jax.grad(loss(plain), (0, 1))(jnp.asarray(X), jnp.asarray(Y))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)


# ---- refusals


@pytest.mark.parametrize("eager", [False, True])
def test_an_offset_outside_of_the_tile_is_an_error_at_run_time(eager):
    def kernel(x, index):
        out = nl.ndarray((P, N), nl.float32)
        nisa.tensor_copy(out, nl.load(x)[:, 0:32].indirect(nl.load(index), N))
        return stored(out)

    index = INDEX % 32
    nkijax.run(kernel, X, index, target="trn3", eager=eager)
    index[17, 1] = 32
    with pytest.raises(KernelError, match=r"tensor_copy .*run-time index out of bounds: must be in \[0, 32\), got 32"):
        nkijax.run(kernel, X, index, target="trn3", eager=eager)


def tile(shape, dtype="float32", memory=Memory.sbuf):
    return NkiTensor(View.whole(Buffer(0, tuple(shape), dtype, memory)))


def refused(emit, target="trn3"):
    """The message for `emit(x, index, y, psum)`."""

    def kernel(x, index, y):
        psum = nl.ndarray((P, N), nl.float32, buffer=nl.psum)
        emit(nl.load(x), nl.load(index), nl.load(y), psum)

    with pytest.raises(KernelError) as error:
        nkijax.trace(kernel, X, INDEX, Y, target=target)
    assert error.value.site.startswith(__file__)
    return error.value.message


def test_only_from_gen4_on():
    assert "tensor_copy src: .indirect needs gen4 or later, got trn2" in refused(
        lambda x, i, y, _: nisa.tensor_copy(y, x.indirect(i, N)), "trn2"
    )


def test_operands_that_do_not_take_them():
    only = "must not be indirect, got a view made by .indirect"
    assert f"tensor_tensor data2: {only}" in refused(
        lambda x, i, y, _: nisa.tensor_tensor(y, y, x.indirect(i, N), nl.add)
    )
    assert f"tensor_copy_predicated src: {only}" in refused(
        lambda x, i, y, _: nisa.tensor_copy_predicated(y, x.indirect(i, N), nl.ndarray((P, N), nl.uint8))
    )
    assert f"memset dst: {only}" in refused(lambda x, i, y, _: nisa.memset(x.indirect(i, N), 0.0))
    assert f"reciprocal data: {only}" in refused(lambda x, i, y, _: nisa.reciprocal(y, x.indirect(i, N)))
    assert f"dma_copy src: {only}" in refused(lambda x, i, y, _: nisa.dma_copy(y, x.indirect(i, N)))
    assert f"activation bias: {only}" in refused(
        lambda x, i, y, _: nisa.activation(y, nl.exp, y, bias=x.indirect(i, 1))
    )


def test_engines_and_memories():
    assert "tensor_copy src: must not be indirect on gpsimd" in refused(
        lambda x, i, y, _: nisa.tensor_copy(y, x.indirect(i, N), engine=nisa.engine.gpsimd)
    )
    assert "activation dst: the scalar engine cannot scatter to psum" in refused(
        lambda x, i, y, psum: nisa.activation(psum.indirect(i, 4), nl.exp, y[:, :4])
    )


def test_matmul_rules():
    half = lambda *shape: nl.ndarray(shape, nl.bfloat16)  # noqa: E731
    assert "nc_matmul moving: must have at most 16 bits when indirect, got float32" in refused(
        lambda x, i, y, psum: nisa.nc_matmul(psum, x[:, :P], x.indirect(i, N))
    )
    assert "nc_matmul stationary: must not be indirect in a PE tile of its own" in refused(
        lambda x, i, y, psum: nisa.nc_matmul(
            psum[:4], half(P, F).indirect(i, 4), half(P, N), tile_position=(32, 0), tile_size=(32, 128)
        )
    )
    assert "nc_matmul moving: must not be indirect with is_transpose" in refused(
        lambda x, i, y, psum: nisa.nc_matmul(
            nl.ndarray((4, P), nl.bfloat16, buffer=nl.psum), half(P, 4), half(P, F).indirect(i, P), is_transpose=True
        )
    )
    x4, scale = (lambda *shape: nl.ndarray(shape, nl.float8_e5m2_x4)), (lambda *shape: nl.ndarray(shape, nl.uint8))
    assert "stationary, stationary_scale: must be indirect by one index, or neither" in refused(
        lambda x, i, y, psum: nisa.nc_matmul_mx(psum[:4], x4(P, F).indirect(i, 4), x4(P, N), scale(P, 4), scale(P, N))
    )
    assert "nc_matmul_mx dst: must not be indirect in a PE tile of its own" in refused(
        lambda x, i, y, psum: nisa.nc_matmul_mx(
            psum.indirect(i, 4), x4(P, P), x4(P, 4), scale(P, P), scale(P, 4), (32, 0), (32, 128)
        )
    )


def test_trap_13_num_elem():
    """A group holds as many offsets as it has partitions, times the columns of the index."""
    assert tile((16, F)).indirect(tile((16, 3), "int32")).shape == (16, 48)
    assert tile((32, F)).indirect(tile((32, 3), "int32")).shape == (32, 96), "the tensor engine's groups"
    assert tile((128, F)).indirect(tile((128, 3), "int32")).shape == (128, 48)
    assert tile((128, F)).indirect(tile((128, 3), "int32"), 96).shape == (128, 96)
    with pytest.raises(
        KernelError, match=r"indirect num_elem: must be at most 32 a column of index, got 97 for \(128,"
    ):
        tile((128, F)).indirect(tile((128, 3), "int32"), 97)
    message = (
        "an indirect view needs partitions in groups of 16, and num_elem at most 16 a column of index, got (32, 64)"
    )
    assert message in refused(lambda x, i, y, _: nisa.tensor_copy(nl.ndarray((P, 64), nl.float32), x.indirect(i)))
    ten = "needs partitions in groups of 16, and num_elem at most 16 a column of index, got (10, 4) by index (10, 2)"
    assert ten in refused(lambda x, i, y, _: nisa.tensor_copy(y[:10, :4], x[:10].indirect(i[:10], 4)))


def test_what_is_no_index():
    x = tile((32, 2, 6))
    rule = "indirect index: must be a tile of 32 rows of integers in sbuf"
    for index in (tile((16, 2), "int32"), tile((32, 2)), tile((32, 2), "int32", Memory.psum)):
        with pytest.raises(KernelError, match=rule):
            x.indirect(index)
    by = tile((32, 2), "int32")
    with pytest.raises(KernelError, match="takes a tile in sbuf or psum that is not yet indirect"):
        tile((32, 4), memory=Memory.private_hbm).indirect(by)
    with pytest.raises(KernelError, match="takes a tile in sbuf or psum that is not yet indirect"):
        x.indirect(by).indirect(by)
    with pytest.raises(KernelError, match="flatten_dims: dimensions 1 to 2 must be contiguous"):
        x[:, :, 0:4].indirect(by)
    with pytest.raises(KernelError, match="index: must be a tensor, got 3"):
        x.indirect(3)


def test_an_indirect_view_is_used_as_it_is():
    view = tile((32, 2, 6)).slice(2, 0, 6).indirect(tile((32, 2), "int32"), 8)
    assert view.is_indirect() and view.shape == (32, 8)
    assert view._view.dynamic == Dynamic(view._view.dynamic.index, 1, 12, columns=True)
    assert tile((32, 12)).slice(1, 0, 12, 3).indirect(tile((32, 2), "int32"))._view.dynamic.stride == 3
    assert view[...].shape == view[:, :].shape == (32, 8)
    for change in (
        lambda: view[:, 0:4],
        lambda: view[0:16],
        lambda: view[:, 1:],
        lambda: view.slice(1, 0, 4),
        lambda: view.select(1, 0),
        lambda: view.reshape((32, 2, 4)),
        lambda: view.expand_dim(1),
    ):
        with pytest.raises(KernelError, match="indirect view.* must be used as it is"):
            change()


def test_the_cost_model_takes_every_column_for_touched():
    x, index = tile((32, 12)), tile((32, 2), "int32")
    regions = Regions()
    first, second = (regions.of(x.indirect(index, 8)._view, write=True) for _ in range(2))
    assert first.region is second.region and first.region.box == ((0, 31), (0, 47))
    assert first.index != second.index, "two such views may meet wherever they are"
