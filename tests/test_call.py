"""Calls: arrays apart from the static rest, and a key that tells programs apart."""

from __future__ import annotations

import dataclasses
from enum import Enum

import numpy as np
import pytest

from nkijax.call import Call, Output, argument_names, fill, outputs_of, place, slots_in
from nkijax.machine import Memory
from nkijax.view import Buffer, View
from tests import kernels


def call(*args, **kwargs):
    return Call(kernels.double, args, kwargs)


class Mode(Enum):
    a = 1


@dataclasses.dataclass
class Config:
    n: int
    names: list


X = np.ones((2, 3), np.float32)


def test_arrays_are_found_inside_tuples_lists_and_dicts():
    c = call((X, 1), [X], k={"x": X, "y": 2})
    assert len(c.arrays) == 3 and [s.index for s in slots_in((c.args, c.kwargs))] == [0, 1, 2]


STATICS = [1, 1.5, None, "s", Mode.a, (1, 2), [1, [2]], {"k": 1}, Config(1, ["a"]), len, np.float32]


@pytest.mark.parametrize("static", STATICS)
def test_equal_arguments_have_equal_keys(static):
    other = Config(1, ["a"]) if isinstance(static, Config) else static
    assert call(X, static).key() == call(X + 1, other).key() and hash(call(X, static).key())


@pytest.mark.parametrize(
    "one, two",
    [(1, True), (1, 1.0), (0, None), ((1,), [1]), (Config(1, []), Config(2, [])), (X, X[:1]), (X, X.astype(np.int32))],
)
def test_what_differs_has_another_key(one, two):
    assert call(one).key() != call(two).key()


def test_names_of_array_arguments():
    assert argument_names(call(X)) == {0: "x"}


def test_structures_come_back():
    class Tensor:
        view = View.whole(Buffer(0, (1, 1), "float32", Memory.shared_hbm))

    dialect = dataclasses.replace(kernels.double.dialect, view=lambda x: x.view if isinstance(x, Tensor) else None)
    outputs: list[View] = []
    tree = outputs_of((Tensor(), {"a": Tensor(), "b": 3}), dialect, outputs)
    assert tree == (Output(0), {"a": Output(1), "b": 3}) and len(outputs) == 2
    assert place(tree, ["x", "y"]) == ("x", {"a": "y", "b": 3})


def test_fill_puts_tensors_where_arrays_were():
    c = call((X, 1), k=X)
    dialect = dataclasses.replace(kernels.double.dialect, tensor=lambda v: ("tensor", v))
    assert fill(c.args, ["v0", "v1"], dialect) == ((("tensor", "v0"), 1),)
    assert fill(c.kwargs, ["v0", "v1"], dialect) == {"k": ("tensor", "v1")}
