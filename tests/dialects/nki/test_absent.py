"""Names that a module lacks, and keywords that a function does not take."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.collectives as ncc
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax.dialects.nki import absent

X = np.zeros((2, 3), np.float32)


def test_an_attribute_error_has_the_nearest_names():
    with pytest.raises(AttributeError, match="module 'nki.isa' has no attribute 'iotta'; did you mean iota?"):
        absent.attribute("nki.isa", "iotta", ["iota", "_iotta"])
    with pytest.raises(AttributeError, match="has no attribute 'zzz'$"):
        absent.attribute("nki.isa", "zzz", ["iota"])
    with pytest.raises(AttributeError, match="has no attribute '__path__'$"):
        absent.attribute("nki.isa", "__path__", ["__path__"])


def test_what_was_removed_names_its_successor():
    for module, name, words in (
        (nl, "arange", r"use slices and .ap\(pattern\), or nki.isa.iota"),
        (nl, "mgrid", "use slices"),
        (nl, "par_dim", "use nothing: dimension 0 of a tensor on chip is its partitions"),
        (nl, "nc", r"use kernel\[n\]"),
        (nl, "spmd_dim", r"use kernel\[n\]"),
        (nl, "static_cast", r"use nl.copy\(x, dtype\)"),
        (nl, "fp32", "use nl.float32"),
        (nisa, "tensor_copy_dynamic_src", "use nki.isa.tensor_copy with a register as an index"),
        (nisa, "tensor_copy_dynamic_dst", "use nki.isa.tensor_copy with a register as an index"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': it was removed from NKI; .*{words}"):
            getattr(module, name)
        assert not hasattr(module, name)


def unexpected(kernel):
    with pytest.raises(TypeError, match="unexpected keyword argument") as error:
        nkijax.run(kernel, X)
    return getattr(error.value, "__notes__", [])


def test_unknown_keywords():
    """Case 24: unknown keyword; removed ones say what serves."""
    assert unexpected(lambda x: nisa.tensor_copy(dts=x, src=x)) == ["isa.tensor_copy: did you mean dst?"]
    assert unexpected(lambda x: nl.softmax(x, axes=1)) == ["language.softmax: did you mean axis?"]
    assert unexpected(lambda x: ncc.rank_id(nam=1)) == ["collectives.rank_id: did you mean name?"]
    assert unexpected(lambda x: nl.load(x, mask=1)) == ["language.load: masks are gone; slice the tensors"]
    assert unexpected(lambda x: nisa.iota(x, [[1, 3]], dtype=nl.int32)) == ["isa.iota: dst has its own dtype"]
    assert unexpected(lambda x: nisa.register_move(x, imm=3)) == ["isa.register_move: it is called src now"]
    assert unexpected(lambda x: nl.store(x, x, qqqq=1)) == ["language.store: it takes dst, value"]


def test_other_type_errors_stay_as_they_are():
    def kernel(x):
        return len(3)

    with pytest.raises(TypeError, match="has no len") as error:
        nkijax.run(kernel, X)
    assert not hasattr(error.value, "__notes__")

    def mine(a):
        return a

    assert unexpected(lambda x: mine(b=1)) == []
