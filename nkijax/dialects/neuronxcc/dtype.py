"""dtypes of the old dialect: names that equal every spelling of themselves, NumPy's included."""

from __future__ import annotations

from typing import Any

from nkijax import dtypes
from nkijax.errors import KernelError


class DType(str):
    """An NKI dtype's name; equal to `np.float32`, `np.dtype("float32")` and their like."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        try:
            return str.__eq__(self, dtypes.of(other))
        except TypeError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    @property
    def name(self) -> str:
        return str(self)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return dtypes.size(str(self))


def name_of(dtype: Any, api: str) -> str:
    """The plain NKI name of a dtype argument; KernelError for what is none."""
    if isinstance(dtype, str):
        dtype = str.__str__(dtype)
    try:
        return dtypes.of(dtype)
    except TypeError as error:
        raise KernelError(f"{api} dtype: {error}") from None


bool_ = DType("bool")
int8 = DType("int8")
int16 = DType("int16")
int32 = DType("int32")
uint8 = DType("uint8")
uint16 = DType("uint16")
uint32 = DType("uint32")
float16 = DType("float16")
float32 = DType("float32")
bfloat16 = DType("bfloat16")
tfloat32 = DType("tfloat32")
float8_e4m3 = DType("float8_e4m3")
float8_e5m2 = DType("float8_e5m2")

_WIDEN = {
    frozenset(("float16", "bfloat16")): "float32",
    frozenset(("int8", "uint8")): "int16",
    frozenset(("int16", "uint16")): "int32",
    frozenset(("int32", "uint32")): "float32",
    frozenset(("float8_e4m3", "float8_e5m2")): "bfloat16",
}


def promoted(first: str, second: str) -> str:
    """The dtype of an operation on two tiles."""
    if first == second:
        return first
    for a, b in ((first, second), (second, first)):
        if a == "bool":
            return b
        if dtypes.is_float(a) and not dtypes.is_float(b):
            return a
    found = _WIDEN.get(frozenset((first, second)))
    if found is not None:
        return found
    small, large = sorted((first, second), key=dtypes.size)
    if dtypes.size(small) < dtypes.size(large):
        return large
    return "float32"


def scalar_dtype(value: bool | int | float) -> str:
    """The dtype that a Python number counts as."""
    return "uint8" if isinstance(value, bool) else "int32" if isinstance(value, int) else "float32"
