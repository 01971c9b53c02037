"""The doors: what goes in and comes out, the cache, transformations, errors of runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
from nkijax import api
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl
from tests import kernels


def rand(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- in and out


def test_numpy_in_numpy_out():
    x = rand(256, 8)
    out = nkijax.run(kernels.double, x)
    assert type(out) is np.ndarray and out.flags.writeable
    np.testing.assert_array_equal(out, 2 * x)
    np.testing.assert_array_equal(kernels.double(x), out)


def test_jax_in_jax_out():
    out = kernels.double(jnp.ones((4, 8)))
    assert isinstance(out, jax.Array)


def test_a_plain_function_is_a_kernel():
    np.testing.assert_array_equal(nkijax.run(kernels.double.function, rand(4, 4)), 2 * rand(4, 4))


def test_arguments_that_the_kernel_wrote_change_in_place():
    x, y = rand(4, 8), rand(4, 8, seed=1)
    want = x + y
    assert nkijax.run(kernels.add_into, x, y) is None
    np.testing.assert_array_equal(y, want)


def test_with_jax_arrays_the_written_ones_come_back():
    x, y = jnp.asarray(rand(4, 8)), jnp.asarray(rand(4, 8, seed=1))
    np.testing.assert_array_equal(kernels.add_into(x, y), x + y)
    np.testing.assert_array_equal(nkijax.function(kernels.add_into)(x, y), x + y)


def test_structures_and_static_arguments():
    def kernel(pair, scale, names):
        assert names == {"a": (1, None)} and scale == 3
        outs = []
        for x in pair:
            t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x)
            nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=float(scale))
            out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=out, src=t)
            outs.append(out)
        return outs[0], (outs[1], "done")

    a, b = rand(4, 4), rand(4, 4, seed=1)
    first, (second, word) = nkijax.run(kernel, (a, b), scale=3, names={"a": (1, None)})
    np.testing.assert_array_equal(first, 3 * a)
    np.testing.assert_array_equal(second, 3 * b)
    assert word == "done"


def test_bool_and_low_precision_round_trip():
    def same(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    for x in (np.array([[True, False]]), rand(2, 3, dtype=ml_dtypes.float8_e5m2), np.array([[2**31 + 1]], np.uint32)):
        out = nkijax.run(same, x)
        assert out.dtype == x.dtype
        np.testing.assert_array_equal(out, x)


def test_float64_is_refused():
    with pytest.raises(TypeError, match="float64 is not an NKI dtype"):
        nkijax.run(kernels.double, np.ones((4, 4)))


def test_no_arguments():
    with pytest.raises(TypeError, match="called without arguments"):
        nkijax.run(kernels.double)


# ---- the cache


def test_a_second_call_records_and_traces_nothing():
    kernels.double(rand(128, 5))
    before = dict(api.counters)
    for _ in range(3):
        kernels.double(rand(128, 5))
    assert api.counters == before
    np.testing.assert_array_equal(kernels.double(rand(256, 5)), 2 * rand(256, 5))  # other shapes record again
    assert api.counters["traces"] == before["traces"] + 1


def test_the_pure_function_is_traced_once():
    f = nkijax.function(kernels.double)
    once = chex.assert_max_traces(lambda x: f(x) + 1, n=1)
    jitted = jax.jit(once)
    for k in range(3):
        jitted(jnp.full((4, 4), float(k)))
    chex.clear_trace_counter()


def test_equal_static_arguments_of_other_types_differ():
    def kernel(x, flag):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=t, value=2.0 if flag is True else 1.0)
        nisa.dma_copy(dst=out, src=t)
        return out

    x = rand(2, 2)
    assert nkijax.run(kernel, x, True)[0, 0] == 2 and nkijax.run(kernel, x, 1)[0, 0] == 1


def test_threads_agree():
    xs = [rand(128 * (1 + k % 3), 7, seed=k) for k in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for x, out in zip(xs, pool.map(kernels.softmax, xs), strict=True):
            np.testing.assert_allclose(out, jax.nn.softmax(x, axis=-1), rtol=1e-5, atol=1e-7)


# ---- transformations


CASES = [
    (kernels.matmul, lambda a, b: jnp.matmul(a.T, b, precision="highest"), [(256, 128), (256, 64)]),
    (kernels.softmax, lambda x: jax.nn.softmax(x, axis=-1), [(256, 32)]),
    (kernels.double, lambda x: 2 * x, [(256, 16)]),
]


@pytest.mark.parametrize("kernel, plain, shapes", CASES, ids=lambda c: getattr(c, "__name__", ""))
def test_grad_vmap_jit_are_those_of_plain_jax(kernel, plain, shapes):
    f = nkijax.function(kernel)
    args = [jnp.asarray(rand(*s, seed=k)) for k, s in enumerate(shapes)]
    weights = jnp.asarray(rand(*plain(*args).shape, seed=9))
    which = tuple(range(len(args)))
    got = jax.jit(jax.grad(lambda *a: jnp.sum(f(*a) * weights), which))(*args)
    want = jax.grad(lambda *a: jnp.sum(plain(*a) * weights), which)(*args)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
    stacked = [jnp.stack([a, a + 1]) for a in args]
    np.testing.assert_allclose(jax.vmap(f)(*stacked), jax.vmap(plain)(*stacked), rtol=1e-4, atol=1e-4)
    _, tangent = jax.jvp(f, args, args)
    np.testing.assert_allclose(tangent, jax.jvp(plain, args, args)[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loops", ["auto", "scan", "vmap", "unroll"])
def test_every_way_to_run_repeats_agrees(loops):
    a, b = rand(256, 256), rand(256, 64, seed=1)
    np.testing.assert_allclose(nkijax.run(kernels.matmul, a, b, loops=loops), a.T @ b, rtol=1e-4, atol=1e-4)


def test_a_way_to_run_repeats_that_is_none():
    with pytest.raises(ValueError, match="loops: must be one of auto, scan, vmap, unroll, got 'batch'"):
        nkijax.run(kernels.double, rand(4, 8), loops="batch")


def test_a_kernel_inside_scan_and_checkpoint():
    f = nkijax.function(kernels.softmax)
    x = jnp.asarray(rand(4, 8))

    def net(g, x):
        return jax.lax.scan(lambda c, _: (jax.checkpoint(g)(c) * 3, None), x, None, length=4)[0].sum()

    plain = lambda x: jax.nn.softmax(x, axis=-1)  # noqa: E731
    np.testing.assert_allclose(
        jax.grad(lambda x: net(f, x) ** 2)(x), jax.grad(lambda x: net(plain, x) ** 2)(x), atol=1e-4
    )


def test_donated_arrays_are_updated_in_place():
    x, y = jnp.asarray(rand(128, 64)), jnp.asarray(rand(128, 64, seed=1))
    want, pointer = x + y, y.unsafe_buffer_pointer()
    out = jax.jit(nkijax.function(kernels.add_into), donate_argnums=1)(x, y)
    np.testing.assert_array_equal(out, want)
    assert y.is_deleted() and not x.is_deleted() and out.unsafe_buffer_pointer() == pointer


# ---- dynamic loops and run-time addresses


def test_data_decide_the_trip_count():
    x = rand(6, 4)
    for rows in ([5, 0, 2], [1, 1, 0], [0, 0, 3]):
        n = np.array(rows, np.int32).reshape(-1, 1)
        out = nkijax.run(kernels.pick_rows, x, n)
        turns = rows[-1]
        np.testing.assert_array_equal(out[:turns], x[rows[:turns]])
        assert np.isnan(out[turns:]).all()  # never written: poison


@pytest.mark.parametrize("loops", ["vmap", "scan"])
def test_vmap_over_gathered_rows(loops):
    """Each example has its own rows, in range or not; or its own tensor; along any axis."""
    x, rows = rand(3, 6, 4), np.array([[5, -1, 6, 0], [1, 1, 2, 9], [0, 3, 3, 5]], np.int32)[:, :, None]
    inside = (rows >= 0) & (rows < 6)
    want = lambda x: np.where(inside, np.take_along_axis(x, rows.clip(0, 5), 1), np.float32(7))  # noqa: E731
    f = nkijax.function(kernels.gather, loops=loops)
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(x, rows), want(x))
    first = np.broadcast_to(x[0], x.shape)
    got = jax.vmap(f, in_axes=(1, None), out_axes=2)(np.moveaxis(x, 0, 1), rows[1])
    np.testing.assert_array_equal(jax.vmap(f, in_axes=(None, 0))(x[0], rows), want(first))
    np.testing.assert_array_equal(np.moveaxis(got, 2, 0), jax.vmap(f)(x, np.broadcast_to(rows[1], rows.shape)))
    grad = jax.jit(jax.vmap(jax.grad(lambda x, r: jnp.sum(f(x, r) ** 2))))(x, rows)
    times = np.stack([np.bincount(r[ok], minlength=6) for r, ok in zip(rows, inside, strict=True)])
    np.testing.assert_allclose(grad, 2 * x * times[:, :, None], rtol=1e-6)


@pytest.mark.parametrize("max_trips", [None, 3])
def test_vmap_over_trip_counts(max_trips):
    """Each example turns as often as its own data say."""
    x, n = rand(3, 6, 4), np.array([[5, 0, 2], [1, 3, 1], [2, 2, 0]], np.int32)[:, :, None]
    f = nkijax.function(kernels.pick_rows, max_trips=max_trips)
    got = np.asarray(jax.jit(jax.vmap(f))(x, n))
    for k, turns in enumerate(n[:, -1, 0]):
        np.testing.assert_array_equal(got[k, :turns], x[k, n[k, :turns, 0]])
        assert np.isnan(got[k, turns:]).all()


def test_max_trips_gives_a_gradient_and_is_a_bound():
    x, n = jnp.asarray(rand(6, 4)), jnp.array([[5], [0], [2]], jnp.int32)
    f = nkijax.function(kernels.pick_rows, max_trips=3)
    grad = jax.grad(lambda x: jnp.sum(f(x, n)[:2]))(x)
    np.testing.assert_array_equal(grad, jnp.zeros((6, 4)).at[jnp.array([5, 0])].set(1))
    with pytest.raises(nkijax.KernelError, match="dynamic loop max_trips: must bound its turns, got 1 and more turns"):
        nkijax.run(kernels.pick_rows, np.asarray(x), np.asarray(n), max_trips=1)


def test_profile_counts_the_turns():
    x, n = rand(6, 4), np.array([[1], [2], [2]], np.int32)
    prof = nkijax.profile(kernels.pick_rows, x, n, target="trn2")
    assert prof.trips == (2,) and prof.cost.loops[0].trips == 2
    np.testing.assert_array_equal(prof.outputs[:2], x[[1, 2]])


def test_a_run_time_index_out_of_bounds_names_index_bound_and_line():
    x, n = rand(6, 4), np.array([[6], [0], [2]], np.int32)
    with pytest.raises(
        nkijax.KernelError, match=r"dma_copy src: run-time index out of bounds: must be in \[0, 6\), got 6"
    ) as e:
        nkijax.run(kernels.pick_rows, x, n)
    assert "kernels.py:" in e.value.site
    with pytest.raises(nkijax.KernelError, match=r"must be in \[0, 6\), got 6"):
        nkijax.run(kernels.pick_rows, x, n, eager=True)
    rows = np.array([[1], [-1], [9]], np.int32)
    with pytest.raises(nkijax.KernelError, match=r"must be in \[0, 6\), got -1"):
        nkijax.run(kernels.gather, x, rows, skip=False)


@pytest.mark.parametrize("eager", [False, True])
def test_skipped_rows_keep_their_bits(eager):
    x = np.arange(2**24, 2**24 + 24, dtype=np.int32).reshape(6, 4)
    rows = np.array([[5], [-1], [6], [0]], np.int32)
    out = nkijax.run(kernels.gather, x, rows, eager=eager)
    np.testing.assert_array_equal(out, [x[5], [7] * 4, [7] * 4, x[0]])


# ---- memory and numbers


def test_unwritten_memory_is_poison():
    def kernel(x):
        outs = []
        for dtype in (nl.float32, nl.bfloat16, nl.int32, nl.uint8):
            out = nl.ndarray((2, 3), dtype=dtype, buffer=nl.shared_hbm)
            t = nl.ndarray((2, 3), dtype=dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=out, src=t)
            outs.append(out)
        return tuple(outs)

    for eager in (False, True):
        f32, bf16, i32, u8 = nkijax.run(kernel, rand(2, 2), eager=eager)
        assert np.isnan(f32).all() and np.isnan(bf16.astype(np.float32)).all()
        assert (i32 == 4).all() and (u8 == 4).all()


def chain(x):
    """((x + 1) · 3) − 0.1 with a bfloat16 write after every step."""
    t = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=3.0)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.subtract, operand0=0.1)
    out = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
    return out


def test_bf16_chains_round_at_every_write_bit_for_bit():
    x = rand(128, 64)
    bf16 = ml_dtypes.bfloat16
    want = x.astype(bf16)
    for step in (lambda v: v + np.float32(1), lambda v: v * np.float32(3), lambda v: v - np.float32(0.1)):
        want = step(want.astype(np.float32)).astype(bf16)
    bits = want.view(np.uint16)
    np.testing.assert_array_equal(nkijax.run(chain, x).view(np.uint16), bits)
    np.testing.assert_array_equal(nkijax.run(chain, x, eager=True).view(np.uint16), bits)
    inside = jax.jit(lambda v: nkijax.function(chain)(v * 1.0))(x)
    np.testing.assert_array_equal(np.asarray(inside).view(np.uint16), bits)


def test_bf16_chains_stay_exact_under_any_transformation():
    """XLA may keep excess precision where a user's own jit fuses a chain; the casts of a kernel are explicit."""
    x, f = rand(3, 128, 64), lambda v: nkijax.function(chain)(v * 1.0)
    want = np.stack([nkijax.run(chain, v) for v in x]).view(np.uint16)
    ones = jnp.ones((128, 64), jnp.bfloat16)

    def value_and_vjp(v):
        value, pull = jax.vjp(f, v)
        return value, pull(ones)[0]

    primal, slope = jax.jit(jax.vmap(value_and_vjp))(x)
    assert (slope == 3).all()
    for value in (
        primal,
        jax.jit(jax.vmap(f))(x),
        jax.jit(jax.vmap(lambda v: jax.jvp(f, (v,), (v,))[0]))(x),
        jax.jit(lambda x: jax.lax.map(jax.checkpoint(f), x))(x),
    ):
        np.testing.assert_array_equal(np.asarray(value).view(np.uint16), want)
    later = jax.jit(lambda x: jax.vmap(f)(x).astype(np.float32) * 3)(x)  # what follows sees the rounded values too
    np.testing.assert_array_equal(later, want.view(ml_dtypes.bfloat16).astype(np.float32) * 3)


def test_imprecise_runs_keep_float32(monkeypatch):
    x = rand(128, 64)
    exact = (x + np.float32(1)) * np.float32(3) - np.float32(0.1)
    out = nkijax.run(chain, x, precise=False)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, exact, rtol=1e-6)
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    np.testing.assert_array_equal(nkijax.run(chain, x), out)


def test_the_environment_names_the_target(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen2")
    assert nkijax.trace(kernels.double, rand(4, 4)).target.name == "trn1"
    assert nkijax.trace(kernels.double, rand(4, 4), target="trn2").target.name == "trn2"


def test_eager_agrees_with_jitted():
    x = rand(4, 8)
    np.testing.assert_allclose(nkijax.run(kernels.softmax, x, eager=True), kernels.softmax(x), rtol=1e-6)


def test_a_kernel_called_by_a_kernel_runs_inline():
    def outer(x):
        return kernels.double(kernels.double(x))

    np.testing.assert_array_equal(nkijax.run(outer, rand(4, 4)), 4 * rand(4, 4))


def test_programs_of_two_cores_share_their_outputs():
    def kernel(x):
        i, n = nl.program_id(0), nl.num_programs(0)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rows = x.shape[0] // n
        t = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * rows : (i + 1) * rows])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=float(i))
        nisa.dma_copy(dst=out[i * rows : (i + 1) * rows], src=t)
        return out

    x = rand(4, 4)
    want = x + np.repeat([[0], [1]], 2, axis=0).astype(np.float32)
    np.testing.assert_array_equal(api.as_kernel(kernel)[2](x), want)
    np.testing.assert_array_equal(nkijax.run(kernel, x), x)


# ---- arguments of other formats


def test_fp8_arguments_follow_the_generation():
    """float8_e4m3fn has its values as float8_e4m3 on trn1 and trn2: what is above 240 becomes infinite."""
    x = np.array([[1.5, -240, 448, 2**-9, 0]], ml_dtypes.float8_e4m3fn)

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        nisa.dma_copy(x[0:1, 4:5], x[0:1, 0:1])
        return out

    for target, dtype in (("trn1", "float8_e4m3"), ("trn2", "float8_e4m3"), ("trn3", "float8_e4m3fn")):
        for eager in (False, True):
            given = x.copy()
            out = nkijax.run(kernel, given, target=target, eager=eager)
            assert out.dtype.name == dtype
            np.testing.assert_array_equal(out.astype(np.float32), x.astype(out.dtype).astype(np.float32))
            assert given[0, 4] == 1.5 and given.dtype == x.dtype, "updated in place, in the caller's format"
