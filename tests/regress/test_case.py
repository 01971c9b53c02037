"""What a case takes, and the inputs it makes."""

import random

import jax
import numpy as np
import pytest

import nkijax
from nkijax import KernelError
from nkijax.regress.case import Arguments
from tests.kernels import add_into, double, softmax

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_inputs_are_the_same_each_time_and_the_case_s_own():
    case = nkijax.Case(double, lambda rng: rng.standard_normal((2, 4), np.float32))
    (first,), (again,) = case.arguments().args, case.arguments().args
    assert np.array_equal(first, again) and first is not again
    fixed = nkijax.Case(double, X)
    fixed.arguments().args[0][:] = 7
    assert fixed.arguments().args[0][0, 1] == 1
    other = nkijax.Case(double, lambda rng: rng.standard_normal((2, 4), np.float32), seed=1)
    assert not np.array_equal(first, other.arguments().args[0])


def test_forms_of_inputs():
    assert len(nkijax.Case(add_into, [X, X]).arguments().args) == 2
    named = nkijax.Case(add_into, {"x": X, "y": X}).arguments()
    assert named.args == () and list(named.kwargs) == ["x", "y"]
    swept = nkijax.Case(double, lambda rng, rows: np.ones((rows, 4), np.float32), params={"rows": 3})
    assert swept.arguments().args[0].shape == (3, 4) and swept.name == "double-3"
    of_nothing = nkijax.Case(double, lambda n: np.float32(np.random.rand(2, n)), params={"n": random.randint(4, 4)})
    assert np.array_equal(*(of_nothing.arguments().args[0] for _ in range(2))), "NumPy's own generator is seeded"
    with pytest.raises(TypeError, match="params: need `inputs` to be a function"):
        nkijax.Case(double, X, params={"n": 1})


def test_arrays_of_a_kind():
    """Kernels get NumPy, references what is asked for, or what the inputs were."""
    asked = nkijax.Case(double, X, arrays="jax").arguments()
    assert isinstance(asked.args[0], np.ndarray) and isinstance(asked.of_kind(asked.kind).args[0], jax.Array)
    made = nkijax.Case(double, lambda rng: jax.numpy.asarray(X)).arguments()
    assert made.kind == "jax" and isinstance(made.args[0], np.ndarray) and made.args[0].flags.writeable
    assert nkijax.Case(double, X).arguments().kind == "numpy"
    torch = pytest.importorskip("torch")
    asked = nkijax.Case(double, X, arrays="torch").arguments()
    assert isinstance(asked.of_kind(asked.kind).args[0], torch.Tensor)
    assert nkijax.Case(double, [torch.ones(2, 4, dtype=torch.bfloat16)]).arguments().args[0].dtype == "bfloat16"


def test_a_case_that_is_made_later():
    case = nkijax.Case(double, X)
    later = nkijax.Case.later("slow", lambda: case, "gen3")
    assert later.made() is case and case.made() is case
    assert later.name == "slow" and later.on() == ("trn2",) and later.on(["trn1"]) == ()
    assert nkijax.Case.later("slow", lambda: case).on() == ("trn3",)


def test_nested_arrays_are_mapped_in_order():
    given = Arguments(([X, (2, X + 1)],), {"k": {"v": X + 2}, "s": "text"})
    assert [x[0, 0] for x in given.leaves()] == [0, 1, 2]
    values = iter("abc")
    mapped = given.map(lambda _: next(values))
    assert mapped.args == (["a", (2, "b")],) and mapped.kwargs == {"k": {"v": "c"}, "s": "text"}


def test_targets(monkeypatch):
    case = nkijax.Case(double, X, targets=("trn1", "gen4"))
    assert case.on() == ("trn1", "trn3")
    assert case.on(["trn3", "trn2"]) == ("trn3",) and case.on(["trn2"]) == ()
    free = nkijax.Case(double, X)
    assert free.on() == ("trn3",) and free.on(["trn1", "trn2"]) == ("trn1", "trn2")
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert free.on() == ("trn2",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"targets": "trn9"}, "must be one of trn1"),
        ({"arrays": "cupy"}, "Case double arrays: must be numpy, jax or torch, got 'cupy'"),
        ({"host": True, "grid": 2}, "Case double grid: is the function's own to choose, with host"),
        ({"grad": True}, "Case double grad: needs a kernel, and a reference that is a JAX function"),
    ],
)
def test_wrong_fields(fields, words):
    with pytest.raises((TypeError, ValueError), match=words):
        nkijax.Case(double, X, **fields)


def test_the_grid_and_the_name():
    case = nkijax.Case(softmax, X, grid=2, raises=KernelError)
    assert case.runnable().grid == (2,) and case.name == "softmax"
    assert nkijax.Case(softmax, X, name="mine").name == "mine"
