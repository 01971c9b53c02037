"""A recorded program, executed step by step, gives what the jitted one gives, and knows who wrote what."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl
from nkijax.program import EVERY_CORE
from nkijax.regress.watch import NOBODY, Provenance, Watch
from nkijax.view import View
from tests import kernels

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


@nki.jit
def looped(x, count):
    """Rows below count doubled by a counting loop, then halved one by one by a `while` loop."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    bound = nisa.register_alloc()
    nisa.register_load(bound, count)

    def turn(i):
        t = nl.ndarray((1, x.shape[1]), x.dtype)
        nisa.dma_copy(t, x[i])
        nisa.tensor_scalar(t, t, nl.multiply, 2.0)
        nisa.dma_copy(out[i], t)

    nl.fori_loop(0, bound, turn)
    left = nl.full((1, 1), 2, nl.int32)
    more = nisa.register_alloc()
    nisa.register_load(more, left)

    def halve(more):
        t = nl.ndarray((1, x.shape[1]), x.dtype)
        nisa.dma_copy(t, out[0])
        nisa.tensor_scalar(t, t, nl.multiply, 0.5)
        nisa.dma_copy(out[0], t)
        nisa.tensor_scalar(left, left, nl.subtract, 1)
        nisa.register_load(more, left)
        return more

    nl.while_loop(more, halve)
    return out


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (kernels.softmax, (X,)),
        (kernels.matmul, (X, X)),
        (looped, (X, np.array([[3]], np.int32))),
    ],
    ids=["softmax", "matmul", "loops"],
)
def test_the_values_are_those_of_a_run(kernel, args):
    run = nkijax.profile(kernel, *args, target="trn2")
    watch = Provenance(run.program, args)
    steps = list(watch.steps())
    assert [s.number for s in steps] == list(range(run.cost.instructions))
    np.testing.assert_array_equal(watch.value(run.program.outputs[0]), run.outputs)
    last = next(s for s in reversed(steps) if s.instruction.writes()[0].buffer is run.program.outputs[0].buffer)
    assert last.wrote[0].size and not np.isnan(last.wrote[0]).any()


def test_two_cores_that_wait_for_each_other():
    @nki.jit
    def swap(x):
        me = nl.program_id(0)
        out = nl.ndarray((2, 8, 16), x.dtype, buffer=nl.shared_hbm)
        mine, other = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(mine, x)
        nisa.tensor_scalar(mine, mine, nl.add, float(me))
        nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nisa.dma_copy(out[me], other)
        return out

    run = nkijax.profile(swap[2], X, target="trn2")
    watch = Watch(run.program, (X,))
    assert len(list(watch.steps())) == 7  # those in which cores meet are two
    np.testing.assert_array_equal(watch.value(run.program.outputs[0]), run.outputs)
    np.testing.assert_array_equal(run.outputs, np.stack([X + 1, X]))


@pytest.mark.parametrize("conditional", [False, True])
def test_two_cores_that_wait_for_each_other_in_a_loop(conditional):
    """Each core adds, in each of three turns, its own counter to what it sends."""

    @nki.jit
    def swaps(x):
        me = nl.program_id(0)
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        mine, other, count = (nl.ndarray(s, x.dtype) for s in (x.shape, x.shape, (1, 16)))
        left = nl.full((1, 1), 3, nl.int32)
        nisa.dma_copy(mine, x)

        def turn(i):
            nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
            nisa.iota(count, [[0, 16]], offset=i)
            nisa.tensor_tensor(mine[0:1], other[0:1], count, nl.add)

        def again(more):
            turn(more)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(more, left)
            return more

        if conditional:
            more = nisa.register_alloc()
            nisa.register_load(more, left)
            nl.while_loop(more, again)
        else:
            nl.fori_loop(10 * me, 10 * me + 3, turn)
        nisa.dma_copy(out[me], mine)
        return out

    run = nkijax.profile(swaps[2], X, target="trn2")
    watch = Watch(run.program, (X,))
    assert [step.instruction.core for step in watch.steps()].count(EVERY_CORE) == 3
    np.testing.assert_array_equal(watch.value(run.program.outputs[0]), run.outputs)
    added = (3 + 2 + 1, 3 + 2 + 1) if conditional else (10 + 1 + 2, 0 + 11 + 12)
    np.testing.assert_allclose(run.outputs[:, 0], X[0] + np.array(added)[:, None], rtol=1e-6)


def test_writers_and_sources():
    program = nkijax.trace(looped, X, np.array([[3]], np.int32), target="trn2", rolled=False)
    watch = Provenance(program, (X, np.array([[3]], np.int32)))
    steps = list(watch.steps())
    writers = watch.writers(program.outputs[0], 1)
    assert (writers[3:] == NOBODY).all(), "rows that no turn reached"
    for row in writers[:3]:
        (step,) = {steps[n].number for n in row}
        assert steps[step].instruction.api == "nki.isa.dma_copy"
        (scaled,) = watch.sources[step]
        assert steps[scaled].instruction.api == "nki.isa.tensor_scalar"
        np.testing.assert_array_equal(steps[scaled].wrote[0][0], steps[step].wrote[0])
    assert writers[0, 0] > writers[2, 0] > writers[1, 0], "the second loop wrote row 0 again"
    assert (watch.writers(View.whole(program.arguments[0]), 1) == NOBODY).all()


def test_part_of_an_element_counts_as_the_whole_buffer():
    @nki.jit
    def halves(x):
        out = nl.ndarray(x.shape, nl.uint32, buffer=nl.shared_hbm)
        t = nl.ndarray(x.shape, nl.uint32)
        nisa.dma_copy(t, x)
        nisa.memset(t.view(nl.uint16)[:, 0:2], 0)
        nisa.dma_copy(out, t)
        return out

    x = np.full((2, 4), 2**31 + 5, np.uint32)
    run = nkijax.profile(halves, x, target="trn2")
    watch = Provenance(run.program, (x,))
    list(watch.steps())
    np.testing.assert_array_equal(watch.value(run.program.outputs[0]), run.outputs)
    assert watch.sources == [frozenset(), frozenset(), frozenset({1})]
