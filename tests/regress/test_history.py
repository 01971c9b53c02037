"""What a good run wrote, and the first instruction of another run that writes otherwise."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl
from nkijax.regress.history import History, Search
from nkijax.regress.watch import Watch

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
Y = X + 5


def kernel_of(*changes):
    """(2 x + 1, 3 y), with changes: what is done beside that, or otherwise."""

    @nki.jit
    def kernel(x, y):
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
        for tile, source in ((b, y), (a, x)) if "loads reversed" in changes else ((a, x), (b, y)):
            nisa.dma_copy(tile, source)
        factor = 3.0 if "factor" in changes else 2.0000002 if "rounding" in changes else 2.0
        nisa.tensor_scalar(a, a, nl.multiply, factor)
        if "inserted" in changes:
            nisa.tensor_scalar(a, a, nl.add, 10.0)
        if "left out" not in changes:
            nisa.tensor_scalar(a, a, nl.add, 1.0)
        nisa.tensor_scalar(b, b, nl.multiply, 3.0)
        nisa.dma_copy(out[0], a)
        nisa.dma_copy(out[1], b)
        return out

    return kernel


def steps_of(*changes, args=(X, Y)):
    program = nkijax.trace(kernel_of(*changes), *args, target="trn2", rolled=False)
    return Watch(program, args).steps()


GOOD = History.of(steps_of())


def search(*changes, good=GOOD):
    found = Search(good)
    for step in steps_of(*changes):
        if found.see(step):
            break
    return found


@pytest.mark.parametrize("changes", [(), ("loads reversed",)])
def test_the_same_values_in_any_order(changes):
    found = search(*changes)
    assert found.first is None and found.rounded is None


@pytest.mark.parametrize(
    ("change", "number", "operation"),
    [("factor", 2, "multiply"), ("inserted", 3, "add"), ("left out", 4, "copy")],
)
def test_the_first_new_value(change, number, operation):
    first = search(change).first
    assert first is not None and first.step.number == number
    assert operation in str(first.step.instruction) or operation in first.step.instruction.api
    assert first.instead is not None and first.off > 0.01


def test_rounding_is_told_apart():
    found = search("rounding")
    assert found.first is None and found.rounded is not None
    assert found.rounded.step.number == 2 and 0 < found.rounded.off < 1e-6


def test_other_shapes_have_nothing_near():
    found = Search(GOOD)
    (step, *_) = steps_of(args=(X[:2], Y[:2]))
    difference = found.see(step)
    assert difference is not None and difference.instead is None and difference.off == np.inf


def test_stored_and_read():
    again = History.from_arrays(GOOD.to_arrays())
    assert [(e.key, e.site, e.hash) for e in again.entries] == [(e.key, e.site, e.hash) for e in GOOD.entries]
    assert search(good=again).rounded is None and search("factor", good=again).first.step.number == 2
    assert History.from_arrays(History(()).to_arrays()).entries == ()


def test_sites_are_relative_and_poison_counts():
    assert GOOD.entries[0].site.startswith("tests/regress/test_history.py:")
    poisoned = X.copy()
    poisoned[0, 0] = np.nan
    (step, *_) = steps_of(args=(poisoned, Y))
    assert Search(GOOD).see(step).off == np.inf
