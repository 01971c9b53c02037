"""What the dialect is for: a promise a test (B1 …); names (B4) are in test_names, modules (B7) in test_checklist."""

import numpy as np
import pytest

import nkijax
from nkijax.dialects.neuronxcc import baremetal, benchmark, jit, profile, simulate_kernel, trace
from nkijax.dialects.neuronxcc import compiler as ncc
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.private_api import do_while
from nkijax.program import Loop

from .test_emit import X, ran


def written(x, out, scale=1.0):
    """Program (i, j) writes its block of `out`."""
    i, j = nl.program_id(0), nl.program_id(1)
    p, f = nl.mgrid[0:1, 0:4]
    nl.store(out[i + p, 4 * j + f], nl.load(x[i + p, 4 * j + f]) * scale)


@pytest.mark.parametrize("wrap", [jit, trace, baremetal, benchmark, profile])
def test_b1_grids_with_results_by_argument_and_tensors_by_keyword(wrap):
    for grid in ((6, 2), (nl.spmd_dim(3, nl.nc(2)), 2), (3 * nl.nc(2), 2)):
        out = np.zeros_like(X)
        wrap(written)[grid](out=out, x=X, scale=2.0)
        assert (out == 2 * X).all()
        simulate_kernel(wrap(written)[grid], X, out)
        assert (out == X).all()


def test_b2_every_form_in_place():
    """On names, subscripts and views, in SBUF and in PSUM."""

    def body(x):
        t, two = nl.load(x), nl.full((6, 8), 2, dtype=nl.float32)
        same, view = t, t[0:3, 0:4]
        t += two
        t -= 1.0
        t[...] *= two
        t[:, 2:4] /= 4.0
        view += 1.0
        p = nl.zeros((8, 8), dtype=nl.float32, buffer=nl.psum)
        for k in nl.affine_range(3):
            p += nisa.nc_matmul(nl.load(x), nl.load(x))
            p[0:4, 0:4] += nl.matmul(nl.load(x)[:, 0:4], nl.load(x)[:, 0:4], transpose_x=True)
            p[k, :] -= 1.0
            p[...] *= 0.5
        assert same is t
        both = nl.ndarray((6, 16), dtype=nl.float32)
        both[:, 0:8], both[:, 8:16] = t, p[0:6, :]
        return both

    t = (X + 1) * 2
    t[:, 2:4] /= 4
    t[:3, :4] += 1
    p = np.zeros((8, 8))
    for k in range(3):
        p += X.T @ X
        p[:4, :4] += X[:, :4].T @ X[:, :4]
        p[k] -= 1
        p *= 0.5
    np.testing.assert_allclose(ran(body), np.concatenate([t, p[:6]], 1), rtol=1e-6)


def test_b3_a_dynamic_loop_is_one_node_and_costs_its_turns():
    def kernel(x, n):
        t = nl.load(x)
        for _ in nl.sequential_range(nl.load(n)):
            t[...] = nl.add(t, 1.0)
        return t

    def modelled(turns):
        found = nkijax.profile(jit(kernel), X, np.array([[turns]], np.int32))
        assert (found.outputs == X + turns).all() and found.trips == (turns,)
        assert sum(isinstance(node, Loop) for node in found.program.body) == 1
        return found.cost.total_us

    one, three, five = map(modelled, (1, 3, 5))
    assert one < three < five and (five - three) == pytest.approx(three - one)


def test_b5_logical_tiles_share_what_is_at_their_place_in_another_dtype():
    def body(x):
        for k in nl.affine_range(2):
            t = nl.ndarray((nl.par_dim(6), 8), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=32))
            halves = nl.ndarray((nl.par_dim(6), 16), dtype=nl.uint16, buffer=ncc.sbuf.mod_alloc(base_addr=32))
            if k == 0:
                t[...] = nl.load(x)
            else:
                halves[:, nl.ds(1, 1)] = 0  # the upper half of the first float of each row
        return t

    want = X.copy()
    want.view(np.uint16)[:, 1] = 0
    assert (ran(body) == want).all()


def test_b6_loops_as_the_vendor_traced_them():
    """A return that ends a body, `with do_while`, and `and` between predicates, in one kernel."""

    def add_all(t, x):
        i = nl.arange(6)[:, None]
        for k in nl.affine_range(3):
            t[...] += nl.load(x, mask=i > k and i < 5)
            return t

    def kernel(x, n):
        left = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.private_hbm)
        nl.store(left, nl.load(n))
        t = nl.zeros((6, 8), dtype=nl.float32)
        with do_while(left):
            add_all(t, x)
            nl.store(left, nl.load(left) - 1)
        return t

    times = np.array([0, 1, 2, 3, 3, 0])[:, None]
    assert (jit(kernel)(X, np.array([[2]], np.int32)) == 2 * times * X).all()


def test_b8_latencies_are_modelled_and_say_so():
    bench = benchmark(warmup=2, iters=3)(lambda x: nl.load(x))
    bench(X)
    latency = bench.benchmark_result.nc_latency
    assert latency.get_latency_percentile(99) == latency.modelled_us == bench.benchmark_result.modelled_us > 0
