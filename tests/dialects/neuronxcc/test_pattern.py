"""Dimensions of results of subscripts; what they address is tested with `subscript`."""

from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc.index import Index
from nkijax.dialects.neuronxcc.pattern import Pattern, Span

from .test_subscript import inside


def test_grids_stand_where_the_first_of_them_does():
    def body(x):
        i, j = nl.arange(2)[:, None], nl.arange(3)[None, :]
        spans = [Span(Index((), (), 1), 4), Span(Index((), (), 0), 2, 3)]
        one = Pattern(x, [spans[0], i, j])
        two = Pattern(x, [i, spans[0], j])
        three = Pattern(x, [Index((), (), 2), spans[0], spans[1]])
        return [tuple(p.shape) for p in (one, two, three)], one.axis_of, three.part(2)

    shapes, axes, part = inside(body)
    assert shapes == [(4, 2, 3), (2, 3, 4), (4, 2)]
    assert axes == {("span", 0): 0, ("grid", 0): 1, ("grid", 1): 2}
    assert (part.coefficients, part.constant) == ((0, 3), 0)
