"""dtypes as kernels compare, hash and mix them."""

import numpy as np
import pytest

from nkijax import KernelError
from nkijax.dialects.neuronxcc import dtype
from nkijax.dialects.neuronxcc.dtype import bfloat16, float32, int32, name_of, promoted, scalar_dtype


def test_a_dtype_equals_every_spelling_of_itself():
    assert float32 == np.float32 and float32 == np.dtype("float32") and float32 == "float32" and float32 != np.float16
    assert float32 in (np.int32, np.float32) and float32 != 3 and hash(float32) == hash("float32")
    assert {float32: 1}[dtype.float32] == 1 and int32 in (dtype.int32, dtype.uint32)
    assert bfloat16.itemsize == 2 and bfloat16.name == "bfloat16" and np.dtype(float32) == np.float32


def test_a_name_is_a_plain_string():
    assert type(name_of(float32, "f")) is str and name_of(np.float16, "f") == "float16"
    with pytest.raises(KernelError, match="f dtype: .*complex"):
        name_of(np.complex64, "f")


@pytest.mark.parametrize(
    "first, second, want",
    [
        ("float32", "float32", "float32"),
        ("bfloat16", "int32", "bfloat16"),
        ("bfloat16", "float16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("int8", "uint8", "int16"),
        ("int32", "uint32", "float32"),
        ("int8", "int32", "int32"),
        ("bool", "int8", "int8"),
        ("float8_e4m3", "float8_e5m2", "bfloat16"),
    ],
)
def test_promotion(first, second, want):
    assert promoted(first, second) == promoted(second, first) == want


def test_numbers_count_by_their_kind():
    assert [scalar_dtype(x) for x in (True, 1, 1.0)] == ["uint8", "int32", "float32"]
