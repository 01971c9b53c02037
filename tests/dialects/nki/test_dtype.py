"""nki.dtype: every dtype by name, as a plain string."""

import nkijax.dialects.nki as nki
from nkijax import dtypes


def test_trap_2_a_dtype_is_a_string():
    names = {n: v for n, v in vars(nki.dtype).items() if not n.startswith("__")}
    assert set(names.values()) == set(dtypes.KINDS)
    assert all(n.removesuffix("_") == v and type(v) is str for n, v in names.items())
    assert all(getattr(nki.language, n) == v for n, v in names.items())
    assert nki.language.bool == nki.language.bool_ == "bool"


def test_as_an_annotation():
    def kernel(x, dtype: nki.dtype = nki.language.bfloat16):  # pyright: ignore[reportGeneralTypeIssues]
        return dtype

    assert kernel(0) == "bfloat16"
