"""What rewritten kernels call; the rewrite's own tests use the rest."""

from nkijax.dialects.neuronxcc import language as nl
from nkijax.dialects.neuronxcc import support
from nkijax.dialects.neuronxcc.loops import TracedOnce


def test_kept_names():
    assert support.kept({"a": 1, "b": 2}, ("b", "c")) == {"b": 2}


def test_what_was_traced_once():
    assert support.traced_once(nl.affine_range(2)) and not support.traced_once(nl.static_range(2))
    assert isinstance(nl.sequential_range(2), TracedOnce)


def test_predicates_with_bools():
    p = nl.arange(4)[:, None] < 2
    assert support.both(p, True) is p and support.both(p, False) is False and support.both(True, p) is p
    assert support.either(p, False) is p and support.either(p, True) is True
    assert support.negated(3) is False
