"""Values that change nothing, in the lanes that a mask hides; tests of masks run each instruction on them."""

import numpy as np

from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.hidden import Column, filled, flags_of
from nkijax.dialects.neuronxcc.predicate import region
from nkijax.dialects.neuronxcc.tensor import face, operand

from .test_emit import COLUMN, ROW, X, grid, ran


def test_hidden_lanes_are_filled():
    def body(x):
        i, j = grid()
        where, view = region(i > j, X.shape), operand(nl.load(x))
        assert filled(view, region(i > 2, X.shape), 5.0) is view  # a box hides nothing of what is cut to it
        assert (where.box, where.box_shape) == (((1, 6), (0, 5)), (5, 5))
        part = view.slice(0, 1, 6).slice(1, 0, 5)
        return nl.multiply(face(filled(part, where, 5.0)), face(flags_of(where, "float32")))

    assert (ran(body) == np.where(ROW > COLUMN, X, 0)[1:, :5]).all()


def test_rows_of_which_nothing_is_left_keep_what_they_hold():
    def body(x):
        i, j = grid()
        t = nl.load(x)
        column = Column(operand(t[:, 0:1]), region((i != 2) & (j < i + 8), X.shape))
        face(column.view)[...] = -1.0
        column.settle()
        return t

    want = X.copy()
    want[[0, 1, 3, 4, 5], 0] = -1
    assert (ran(body) == want).all()
