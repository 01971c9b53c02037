"""The surface of `nki.language`."""

import pytest

import nkijax.dialects.nki as nki
import nkijax.dialects.nki.language as nl


def test_names():
    assert nl.DType is str and nl.float32 == "float32" and nl.range(3) == range(3)
    assert nl.NkiTensor.__name__ == "NkiTensor" and isinstance(nl.sbuf, nl.MemoryRegion)
    with pytest.raises(TypeError, match="'str' object is not callable"):
        nl.float32(0.5)
    assert nki.language is nl


@pytest.mark.parametrize("name", ["arange", "mgrid", "par_dim", "nc", "spmd_dim", "static_cast", "fp32"])
def test_names_of_the_past(name):
    with pytest.raises(AttributeError, match=f"module 'nki.language' has no attribute '{name}'"):
        getattr(nl, name)


def test_did_you_mean():
    with pytest.raises(AttributeError, match=r"did you mean affine_range\?|did you mean affine_range or"):
        _ = nl.afine_range
