"""Direct allocation: where logical tiles are, what they share, and what is beyond the memory."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.dialects.neuronxcc import compiler as ncc
from nkijax.dialects.neuronxcc import isa as nisa
from nkijax.dialects.neuronxcc import jit
from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.compiler import Place
from nkijax.machine import Memory

X = np.random.default_rng(0).standard_normal((128, 4)).astype(np.float32)
EYE = np.eye(128, dtype=np.float32)


def places(allocation, *indices, partitions=32, size=64):
    return [allocation.place(i, partitions, size) for i in indices]


def test_modulo_allocation_of_sbuf():
    wrapped = ncc.sbuf.mod_alloc(base_addr=100, num_free_tiles=(2,))
    assert places(wrapped, (0,), (1,), (2,)) == [Place(0, 0, 100), Place(0, 0, 164), Place(0, 0, 100)]
    both = ncc.sbuf.mod_alloc(base_addr=8, base_partition=32, num_par_tiles=(2, 1), num_free_tiles=(1, 3))
    assert places(both, (1, 2), (3, 4)) == [Place(0, 64, 8 + 128), Place(0, 64, 8 + 64)]
    assert places(ncc.sbuf.mod_alloc(base_addr=8), (), (5,)) == [Place(0, 0, 8)] * 2
    assert places(ncc.sbuf.mod_alloc(base_addr=8, num_free_tiles=(4,)), ()) == [Place(0, 0, 8)]


def test_modulo_allocation_of_psum():
    banks = ncc.psum.mod_alloc(base_bank=1, num_bank_tiles=(2, 3))
    assert places(banks, (1, 2), (2, 4)) == [Place(6, 0, 0), Place(2, 0, 0)]
    within = ncc.psum.mod_alloc(base_bank=0, base_addr=16, num_free_tiles=(2,))
    assert places(within, (1,)) == [Place(0, 0, 80)]


def test_allocation_by_a_function_of_the_kernel():
    def address(bank_map, idx, pdim_size, fdim_size):
        assert (pdim_size, fdim_size) == (32, 64)
        return bank_map[idx], 0, 0

    by_map = ncc.psum.alloc(functools.partial(address, bank_map={(0,): 1, (1,): 5}))
    assert places(by_map, (0,), (1,)) == [Place(1, 0, 0), Place(5, 0, 0)]
    assert places(ncc.sbuf.alloc(lambda idx, pdim_size, fdim_size: (32, 8)), ()) == [Place(0, 32, 8)]


def test_counts_are_positive():
    with pytest.raises(KernelError, match="num_free_tiles"):
        ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(0,))


# ---- storage


def ran(kernel, *args, **options):
    """The result, which the eager mode agrees with."""
    results = [nkijax.run(kernel, *args, eager=eager, **options) for eager in (False, True)]
    np.testing.assert_array_equal(*results)
    return results[0]


def wrapping(x):
    """Four logical tiles on two physical ones; a second tensor at the second one's address."""
    out = nl.ndarray((5, 128, 4), dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = nl.ndarray(
        (4, nl.par_dim(128), 4), dtype=x.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2,))
    )
    other = nl.ndarray((nl.par_dim(128), 4), dtype=x.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=16))
    for i in nl.affine_range(4):
        tiles[i] = nl.load(x) + float(i)
    for i in nl.affine_range(4):
        nl.store(out[i], tiles[i])
    nl.store(out[4], other)
    return out


def test_logical_tiles_wrap_and_share_with_what_is_at_their_address():
    np.testing.assert_allclose(ran(wrapping, X), np.stack([X + 2, X + 3, X + 2, X + 3, X + 3]))


def keeping(x):
    for _ in range(3):
        total = nl.ndarray((nl.par_dim(128), 4), dtype=np.float32, buffer=ncc.sbuf.mod_alloc(base_addr=64))
        total[...] = total + nl.load(x)
    out = nl.ndarray((128, 4), dtype=np.float32, buffer=nl.shared_hbm)
    nl.store(out, total)
    return out


def test_a_tile_that_is_declared_again_keeps_its_values():
    np.testing.assert_allclose(ran(keeping, X), X + X + X)


def banks(x, eye):
    out = nl.ndarray((3, 128, 4), dtype=np.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(3):
        acc = nl.ndarray((128, 4), dtype=np.float32, buffer=ncc.psum.mod_alloc(base_bank=0))
        acc += nisa.nc_matmul(nl.load(eye), nl.load(x))
        nl.store(out[i], acc)
    return out


def test_psum_starts_from_zero_each_time():
    np.testing.assert_array_equal(nkijax.run(banks, X, EYE), np.stack([X, X, X]))


def test_the_compilers_choice():
    def kernel(x):
        out = nl.ndarray((128, 4), dtype=np.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((nl.par_dim(128), 4), dtype=np.float32, buffer=ncc.sbuf.auto_alloc())
        tile[...] = nl.load(x)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(ran(kernel, X), X)
    assert ncc.psum.auto_alloc().memory is Memory.psum


# ---- beyond the memory


def placed(where):
    def kernel(x):
        for _ in range(2):
            tile = nl.ndarray((nl.par_dim(128), 4), dtype=np.float32, buffer=where(), name="t")
        out = nl.ndarray((128, 4), dtype=np.float32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    return kernel


def test_a_place_beyond_the_memory_is_a_warning():
    with pytest.warns(ncc.AllocationWarning, match="`t` is at bytes 400000 to 400015 .* trn1 has 196608") as caught:
        nkijax.trace(placed(lambda: ncc.sbuf.mod_alloc(base_addr=400000)), X)
    assert len(caught) == 1
    with pytest.warns(ncc.AllocationWarning, match="bank 9; trn1 has 8"):
        nkijax.trace(placed(lambda: ncc.psum.mod_alloc(base_bank=9)), X)
    with pytest.warns(ncc.AllocationWarning, match="PSUM bank of trn1 has 2048"):
        nkijax.trace(placed(lambda: ncc.psum.mod_alloc(base_bank=0, base_addr=2040)), X)


def as_function(kernel, x, strict):
    return nkijax.function(kernel, strict=strict)(jnp.asarray(x))


def in_an_environment(kernel, x, strict):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NKIJAX_STRICT", str(int(strict)))
        return jit(kernel)(x)


@pytest.mark.parametrize(
    "door",
    [
        nkijax.trace,
        nkijax.run,
        lambda *a, **k: nkijax.run(*a, eager=True, **k),
        nkijax.profile,
        as_function,
        in_an_environment,
    ],
)
def test_a_place_beyond_the_memory_is_an_error_where_that_is_asked_for(door):
    """The message names the tensor, its address and the limit."""
    for where, message in (
        (lambda: ncc.sbuf.mod_alloc(base_addr=400000), "`t` is at bytes 400000 to 400015 .* trn1 has 196608"),
        (lambda: ncc.psum.mod_alloc(base_bank=9), "`t` is in PSUM bank 9; trn1 has 8"),
        (lambda: ncc.sbuf.alloc(lambda idx, pdim_size, fdim_size: (0, -4)), "`t` is at bytes -4 to 11"),
    ):
        with pytest.raises(KernelError, match=message):
            door(placed(where), X, strict=True)
    within = placed(lambda: ncc.sbuf.mod_alloc(base_addr=196608 - 16))
    door(within, X, strict=True)


def test_partitions_that_are_not_there_are_an_error():
    with pytest.raises(KernelError, match="partitions 64 to 191 of 128"):
        nkijax.trace(placed(lambda: ncc.sbuf.mod_alloc(base_addr=0, base_partition=64)), X)


# ---- directives


def test_directives_change_nothing():
    def f():
        pass

    for decorator in (ncc.skip_middle_end_transformations, ncc.force_auto_alloc, ncc.enable_stack_allocator):
        assert decorator(f) is f and decorator()(f) is f
    assert ncc.enable_stack_allocator(log_level=10)(f) is f
    assert ncc.multi_buffer(factor=2) is None
    with ncc.no_reorder(), ncc.allocation_scope():
        pass
