"""Random numbers as kernels spell them; numbers of the entries are tested beside them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.program import instructions

EAGER = pytest.mark.parametrize("eager", [False, True])
X = np.arange(1, 129, dtype=np.float32).reshape(8, 16)
SEED = np.array([[42]], np.uint32)


def both(kernel, *args, **options):
    """What a kernel gives, compiled; eagerly the same."""
    result = nkijax.run(kernel, *args, **options)
    np.testing.assert_array_equal(nkijax.run(kernel, *args, eager=True, **options), result)
    return result


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def drawn(seed, turns=3):
    """`turns` draws of (8, 16) after seeding, one below the other."""
    nisa.set_rng_seed(nl.load(seed))
    out = nl.ndarray((turns, 8, 16), nl.uint32, buffer=nl.shared_hbm)
    for i in range(turns):
        tile = nl.ndarray((8, 16), nl.uint32)
        nisa.rng(tile)
        nisa.dma_copy(out[i], tile)
    return out


def test_same_seed_same_sequence():
    result = both(drawn, SEED)
    assert len(np.unique(result)) == result.size
    np.testing.assert_array_equal(nkijax.run(drawn, SEED), result)
    assert (nkijax.run(drawn, SEED + 1) != result).all()
    assert len(list(instructions(nkijax.trace(drawn, SEED, turns=50).body))) == 4, "seed, load, and one turn's two"


@EAGER
def test_the_sequence_continues_through_a_dynamic_loop(eager):
    def kernel(seed, n):
        nisa.set_rng_seed(src_seeds=nl.load(seed))
        out = nl.zeros((4, 8, 16), nl.uint32, buffer=nl.shared_hbm)

        def body(i):
            tile = nl.ndarray((8, 16), nl.uint32)
            nisa.rng(tile, engine=nisa.engine.vector)
            nisa.dma_copy(out[i], tile)

        register = nisa.register_alloc()
        nisa.register_load(register, n)
        nl.fori_loop(0, register, body)
        return out

    want = nkijax.run(drawn, SEED, turns=4)
    np.testing.assert_array_equal(nkijax.run(kernel, SEED, np.array([4], np.int32), eager=eager), want)
    want[2:] = 0
    np.testing.assert_array_equal(nkijax.run(kernel, SEED, np.array([2], np.int32), eager=eager), want)


def test_states_are_saved_and_set():
    """The generator of each engine has a state of its own."""

    def kernel(seeds, engine, words):
        nisa.rand_set_state(nl.load(seeds), engine)
        first, again, state = (nl.ndarray((8, n), nl.uint32) for n in (16, 16, words))
        other = nl.ndarray((8, 16), nl.uint32)
        nisa.rand_get_state(dst=state, engine=engine)
        nisa.rng(first, engine)
        nisa.rng(other, nisa.engine.vector if engine is nisa.engine.gpsimd else nisa.engine.gpsimd)
        nisa.rand_set_state(state, engine=engine)
        nisa.rng(again, engine)
        return stored(first), stored(again), stored(other), stored(state)

    for engine, words in ((nisa.engine.gpsimd, 6), (nisa.engine.vector, 24)):
        seeds = np.random.default_rng(0).integers(0, 2**32, (8, words), np.uint32)
        first, again, other, state = nkijax.run(kernel, seeds, engine, words, target="trn3", eager=True)
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(state, seeds)
        assert (other != first).all()


def test_rand2():
    def kernel(seed, low):
        nisa.set_rng_seed(nl.load(seed))
        a, b = nl.ndarray((8, 16), nl.float32), nl.ndarray((8, 16), nl.bfloat16)
        nisa.rand2(a, min=0.0, max=1)
        nisa.rand2(b, nl.load(low), 10.0)
        return stored(a), stored(b)

    low = np.arange(8, dtype=np.float32).reshape(8, 1)
    a, b = nkijax.run(kernel, SEED, low, target="trn3")
    assert (0 <= a).all() and (a < 1).all() and a.std() > 0.2
    assert (b.astype(np.float32) >= low).all() and (b.astype(np.float32) <= 10).all()


def dropped(x, seed, prob):
    nisa.set_rng_seed(nl.load(seed))
    tile, out = nl.load(x), nl.ndarray(x.shape, x.dtype)
    nisa.dropout(out, data=tile, prob=prob if isinstance(prob, float) else nl.load(prob))
    return stored(out)


def test_dropout():
    np.testing.assert_array_equal(nkijax.run(dropped, X, SEED, 0.0, eager=True), X)
    np.testing.assert_array_equal(nkijax.run(dropped, X, SEED, 1.0, eager=True), 0 * X)
    half = both(dropped, X, SEED, 0.5)
    assert set(np.unique(half[half != 0])) <= set(X.ravel()) and 40 < (half == 0).sum() < 90
    rows = np.array([[0], [1]] * 4, np.float32)
    np.testing.assert_array_equal(nkijax.run(dropped, X, SEED, rows, eager=True), X * (1 - rows))


def test_case_7_gradient_of_dropout_is_its_mask():
    function = nkijax.function(dropped)
    half = jnp.asarray(0.5 * np.ones((8, 1), np.float32))
    mask = np.asarray(function(X, SEED, half)) != 0
    grad = jax.jit(jax.grad(lambda x: (3 * function(x, SEED, half)).sum()))(jnp.asarray(X))
    np.testing.assert_array_equal(grad, 3.0 * mask)


def test_refusals():
    def refused(kernel, target="trn2"):
        with pytest.raises(KernelError) as error:
            nkijax.trace(lambda x: kernel(nl.load(x)), X, target=target)
        assert error.value.site.startswith(__file__)
        return error.value.message

    bits = lambda *shape: nl.ndarray(shape, nl.uint32)  # noqa: E731
    assert "rng dst: must have one of the dtypes" in refused(lambda t: nisa.rng(t))
    assert "rng engine: must be a member of nki.isa.engine, got 5" in refused(lambda t: nisa.rng(bits(4, 4), 5))
    assert "rng engine.gpsimd: needs gen3" in refused(lambda t: nisa.rng(bits(4, 4), nisa.engine.gpsimd), "trn1")
    assert "rng dst partition dimension 256 exceeds maximum 128" in refused(lambda t: nisa.rng(bits(256, 4)))
    assert "rand2: needs gen4 or later, got trn2" in refused(lambda t: nisa.rand2(t, 0, 1))
    assert "dropout prob: must be a number or a (8, 1) tile" in refused(lambda t: nisa.dropout(t, t, t))
    assert "src_seeds: must be (1, 1), got (8, 16)" in refused(lambda t: nisa.set_rng_seed(t))
    assert "src_seeds: must be a tensor, got 42" in refused(lambda t: nisa.set_rng_seed(42))
    assert "engine.vector: needs gen4" in refused(lambda t: nisa.rand_get_state(bits(4, 24), nisa.engine.vector))
