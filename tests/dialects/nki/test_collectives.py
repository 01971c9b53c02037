"""The surface of `nki.collectives`."""

import pytest

import nkijax.dialects.nki as nki
from nkijax import Unsupported


@pytest.mark.parametrize("name", nki.collectives.NOT_YET)
def test_what_is_missing(name):
    with pytest.raises(Unsupported, match=f"nki.collectives.{name}: is not emulated yet"):
        getattr(nki.collectives, name)([[0, 1]])


def test_did_you_mean():
    with pytest.raises(AttributeError, match="did you mean all_reduce"):
        _ = nki.collectives.all_reduc
