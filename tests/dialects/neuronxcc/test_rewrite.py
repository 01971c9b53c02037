"""The source rewrite: each rule on a small function."""

import functools
import traceback

import pytest

from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.loops import Repeated
from nkijax.dialects.neuronxcc.predicate import Predicate
from nkijax.dialects.neuronxcc.rewrite import of_dialect, rewrite


def rewritten(function):
    rewrite(function)
    return function


# ---- names rebound in a body


@rewritten
def rebinding():
    mask, seen, a = None, [], 5
    for i in nl.affine_range(3):
        mask = (i,) if mask is None else (*mask, i)
        seen.append((a, mask))
        a = 7
        late = i
    return seen, a, mask, late


def test_names_start_every_turn_at_their_binding_before_the_loop():
    assert rebinding() == ([(5, (0,)), (5, (1,)), (5, (2,))], 7, (2,), 2)


@rewritten
def plain_loops():
    a = 0
    for _ in range(3):
        a += 1
    for _ in nl.static_range(3):
        a += 10
    return a


def test_other_loops_are_pythons_own():
    assert plain_loops() == 33


@rewritten
def alias(sequential):
    loop = nl.sequential_range if sequential else nl.affine_range
    address = 0
    for _ in loop(4):
        address += 8
        while address < 5:
            address += 1
    return address


def test_a_loop_is_known_when_it_runs():
    assert alias(True) == alias(False) == 8


@rewritten
def nested():
    x = 0
    for _ in nl.affine_range(2):
        for _ in nl.affine_range(2):
            x += 1
        x += 10
    return x


def test_nested_loops():
    assert nested() == 11


@rewritten
def closure(n):
    count = [0]

    def inner(y):
        for _ in nl.affine_range(n):
            y += 1
            count[0] += 1
        return y

    return inner(3), count


def test_functions_in_functions_and_their_closures():
    assert closure(3) == (4, [3])


class Counter:
    total = 0

    def run(self):
        a = 0
        for _ in nl.affine_range(2):
            a += 1
            self.total += 1
        return a, self.total


@rewritten
def reaches():
    return helper(), Counter().run(), partial(), stepper()


def helper():
    a = 0
    for _ in nl.sequential_range(3):
        a += 1
    return a


def offset(step):
    a = 0
    for _ in nl.affine_range(3):
        a += step
    return a


partial = functools.partial(offset, 5)
stepper = (lambda f: lambda: f(2))(offset)


def test_helpers_classes_and_partials_of_the_module_are_rewritten_too():
    assert reaches() == (1, (1, 2), 5, 2)


# ---- a return that ends a body


@rewritten
def returns(seen):
    for i in nl.affine_range(3):
        seen.append(i)
        return i, len(seen)


@rewritten
def returns_from_two(seen):
    for i in nl.affine_range(2):
        for j in nl.sequential_range(2):
            seen.append((i, j))
            return seen


@rewritten
def returns_from_plain(seen):
    for i in range(3):
        for j in nl.affine_range(2):
            seen.append((i, j))
            return seen


def test_a_return_that_ends_a_body_comes_after_the_loop():
    assert returns([]) == (2, 3)
    assert len(returns_from_two([])) == 4
    assert returns_from_plain([]) == [(0, 0), (0, 1)]


@rewritten
def early(n):
    for i in nl.affine_range(n):
        if i == 1:
            return i
    return None


def test_a_return_elsewhere_is_pythons_own():
    assert early(3) == 1 and early(1) is None


# ---- do_while


class Twice(Repeated):
    def turns(self):
        yield None
        yield None


def do_while(condition):
    return condition


@rewritten
def repeated(condition):
    seen, a = [], 0
    with do_while(condition):
        a += 1
        seen.append(a)
        return seen


def test_do_while():
    assert repeated(Twice()) == [1, 1]
    with pytest.raises(TypeError, match="do_while: must be"):
        repeated(open)


# ---- and, or, not


@rewritten
def truths(x, y, fails):
    return (x and y, x or y, not x, x and (y or fails()), None and fails(), 1 or fails(), [k for k in (0 or [1]) if k])


def fails():
    raise AssertionError("evaluated")


def test_truth_of_what_is_no_predicate():
    assert truths(0, 2, fails) == (0, 2, True, 0, None, 1, [1])
    assert truths(1, 2, fails)[:4] == (2, 1, False, 2)


@rewritten
def masks(x, y):
    return x < 3 and y < 4, x < 3 or y < 4, not x < 3, 1 < x <= 3, x < 3 and True, False or y < 4, False and x < 3


def test_truth_of_predicates():
    x, y = nl.mgrid[0:8, 0:8]
    both, either, inverted, chain, same, other, never = masks(x, y)
    assert (both.kind, either.kind, chain.kind) == ("and", "or", "and")
    assert all(isinstance(p, Predicate) for p in (both, either, inverted, chain, same, other)) and never is False
    assert inverted.decided(((3, 8), (0, 8))) is True and inverted.decided(((0, 3), (0, 8))) is False
    assert chain.decided(((2, 4), (0, 8))) is True and chain.decided(((0, 2), (0, 8))) is False


# ---- lines, and what cannot be rewritten


@rewritten
def failing():
    a = 0
    for i in nl.affine_range(2):
        a += 1
        raise ValueError(i and a)


def test_errors_point_at_the_kernel():
    with pytest.raises(ValueError) as error:
        failing()
    frame = traceback.extract_tb(error.value.__traceback__)[-1]
    assert (frame.filename, frame.line) == (__file__, "raise ValueError(i and a)")


@rewritten
def two_lambdas(swapped):
    less = (lambda a, b: a < b) if swapped else (lambda a, b: b < a)
    return rewritten(less)(1, 2)


def test_lambdas_on_one_line_are_not_taken_for_each_other():
    assert two_lambdas(True) is True and two_lambdas(False) is False


def test_code_without_source_stays_as_it_is():
    names = {"nl": nl}
    exec("def f():\n  a = 0\n  for _ in nl.affine_range(3):\n    a += 1\n  return a", names)
    rewrite(names["f"])
    assert names["f"]() == 3
    rewrite(len)


def test_a_function_is_rewritten_once():
    before = rebinding.__code__
    rewrite(rebinding)
    assert rebinding.__code__ is before


def test_what_is_of_the_dialect():
    assert of_dialect(nl) and of_dialect(nl.load) and not of_dialect(pytest) and not of_dialect(3)
