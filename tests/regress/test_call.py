"""Calls of kernels and references, and what is compared with what."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nkijax
from nkijax.regress.call import Outputs, arrays_of, gradients, ran, reference_of, verdict_of
from tests.kernels import add_into, double, matmul

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_what_a_kernel_wrote_are_outputs():
    case = nkijax.Case(add_into, [X, X + 1], lambda x, y: x + y, targets="trn2")
    given = case.arguments()
    found = ran(case, given, "trn2")
    outputs, ((program, trips),) = found.outputs, found.programs
    assert program.written == (1,) and trips == () and outputs.returned is None
    np.testing.assert_array_equal(outputs.leaves()[0], 2 * X + 1)
    np.testing.assert_array_equal(given.args[1], X + 1)  # the inputs are kept
    assert verdict_of(case, outputs.beside(X), reference_of(case, given)).text == ""


def test_a_function_that_calls_kernels():
    def twice(x, y):
        add_into(double(x), y)

    case = nkijax.Case(twice, [X, X + 1], lambda x, y: 2 * x + y, host=True)
    found = ran(case, case.arguments(), "trn1")
    assert [(p.name, p.target.name) for p, _ in found.programs] == [("double", "trn1"), ("add_into", "trn1")]
    assert verdict_of(case, found.outputs.beside(X), reference_of(case, case.arguments())).text == ""
    assert len(found.outputs.written) == 1 and case.name == "twice" and case.on() == ("trn3",)


def test_as_many_outputs_as_the_reference_has():
    outputs = Outputs({"a": X}, (X + 1, X + 2))
    assert outputs.beside({"a": X}) == {"a": X}
    assert [int(x[0, 0]) for x in outputs.beside((X, X))] == [0, 1]
    assert len(outputs.beside([X] * 3)) == 3 and len(outputs.beside([X] * 9)) == 3


def test_static_arguments_may_be_arrays():
    case = nkijax.Case(matmul, {"a": X}, lambda a: a.T @ a, static={"b": X})
    given = case.arguments()
    assert len(arrays_of(case, given)) == 2
    assert verdict_of(case, ran(case, given, "trn2").outputs.returned, reference_of(case, given)).text == ""


def test_a_reference_gets_the_kind_of_arrays_that_it_wants():
    seen = []
    case = nkijax.Case(double, X, lambda x: seen.append(x) or 2 * x, arrays="jax")
    reference_of(case, case.arguments())
    assert isinstance(seen[0], jnp.ndarray)
    assert reference_of(nkijax.Case(double, X, 3 * X), case.arguments()).sum() == 84


@pytest.mark.parametrize(
    ("said", "text"),
    [(None, ""), (True, ""), (np.bool_(False), "compare returned False"), ("too far", "too far")],
)
def test_a_comparison_of_the_user_s_own(said, text):
    case = nkijax.Case(double, X, X, compare=lambda got, want: said)
    verdict = verdict_of(case, X, X + 1)
    assert verdict.text == text and verdict.error == 1 and (verdict.first is None) == (not text)


def test_values_that_only_the_comparison_knows():
    class Validator:
        largest = 9

    case = nkijax.Case(double, X, {"y": Validator()}, compare=lambda got, want: got.max() < want["y"].largest)
    assert verdict_of(case, X, case.reference).text == ""


def test_gradients():
    """By both inputs of a matmul; a reference that is wrong in one of them only."""
    case = nkijax.Case(matmul, [X, X + 1], lambda a, b: a.T @ b, grad=True)
    assert gradients(case, case.arguments(), "trn2") == ""
    wrong = nkijax.Case(matmul, [X, X + 1], lambda a, b: a.T @ (2 * b - lax.stop_gradient(b)), grad=True)
    assert gradients(wrong, wrong.arguments(), "trn2").startswith("gradient: input 1: 8 of 8 elements")
