"""Names that a module lacks."""

import pytest

from nkijax import Unsupported
from nkijax.dialects.nki import later


def test_a_documented_name_can_be_imported_and_not_called():
    stub = later.attribute("nki.isa", "topk", ["topk"], ["iota"])
    assert stub.__name__ == "topk"
    with pytest.raises(Unsupported, match="nki.isa.topk: is not emulated yet"):
        stub(1, n=2)


def test_any_other_name_is_an_attribute_error_with_the_nearest():
    with pytest.raises(AttributeError, match="module 'nki.isa' has no attribute 'iotta'; did you mean iota?"):
        later.attribute("nki.isa", "iotta", ["topk"], ["iota", "_iotta"])
    with pytest.raises(AttributeError, match="has no attribute 'zzz'$"):
        later.attribute("nki.isa", "zzz", ["topk"], ["iota"])
    with pytest.raises(AttributeError, match="has no attribute '__path__'$"):
        later.attribute("nki.isa", "__path__", [], ["__path__"])
