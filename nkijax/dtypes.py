"""NKI dtypes: a dtype is a plain string; this table says how each is stored, and `cast` is the store cast.

Source: spec of `nki` 0.6, data types.  Compute engines work in float32 and cast once, on the write.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Kind:
    """One dtype.  `bytes` is the size of an element; `storage` the JAX dtype that holds it."""

    name: str
    storage: np.dtype
    family: str  # "float", "int" (signed and unsigned), "bool", "packed" (x4 types: four values an element)
    exponent_bits: int = 0
    mantissa_bits: int = 0

    @property
    def bytes(self) -> int:
        return self.storage.itemsize


def _kind(name: str, storage, family: str, exponent_bits: int = 0, mantissa_bits: int = 0) -> Kind:
    return Kind(name, np.dtype(storage), family, exponent_bits, mantissa_bits)


KINDS: dict[str, Kind] = {
    k.name: k
    for k in (
        _kind("bool", np.bool_, "bool"),
        _kind("int8", np.int8, "int"),
        _kind("int16", np.int16, "int"),
        _kind("int32", np.int32, "int"),
        _kind("uint8", np.uint8, "int"),
        _kind("uint16", np.uint16, "int"),
        _kind("uint32", np.uint32, "int"),
        _kind("float16", np.float16, "float", 5, 10),
        _kind("bfloat16", jnp.bfloat16, "float", 8, 7),
        _kind("tfloat32", np.float32, "float", 8, 10),
        _kind("float32", np.float32, "float", 8, 23),
        _kind("float8_e4m3", jnp.float8_e4m3, "float", 4, 3),
        _kind("float8_e4m3fn", jnp.float8_e4m3fn, "float", 4, 3),
        _kind("float8_e5m2", jnp.float8_e5m2, "float", 5, 2),
        _kind("float8_e8m0fnu", jnp.float8_e8m0fnu, "float", 8, 0),
        _kind("float8_e5m2_x4", np.uint32, "packed"),
        _kind("float8_e4m3fn_x4", np.uint32, "packed"),
        _kind("float4_e2m1fn_x4", np.uint16, "packed"),
    )
}

_ALIASES = {"bool_": "bool", "float8e4": "float8_e4m3", "float8e5": "float8_e5m2"}
_BY_STORAGE = {k.storage: k.name for k in KINDS.values() if k.family != "packed" and k.name != "tfloat32"}


def of(dtype) -> str:
    """The NKI name of a dtype given as an NKI string, a NumPy or ml_dtypes dtype, or a JAX scalar type.

    An x4 type is a NumPy dtype of that name, or one with a single field of that name.
    Raises TypeError for what NKI does not have (float64, int64, complex).
    """
    if isinstance(dtype, str):
        name = _ALIASES.get(dtype, dtype)
        if name in KINDS:
            return name
    try:
        storage = np.dtype(dtype)
    except TypeError:
        storage = None
    if storage is not None and storage in _BY_STORAGE:
        return _BY_STORAGE[storage]
    if storage is not None and storage.kind == "V":
        name = storage.names[0] if storage.names and len(storage.names) == 1 else storage.name
        if name in KINDS and KINDS[name].family == "packed" and storage.itemsize == size(name):
            return name
    raise TypeError(f"{dtype} is not an NKI dtype; NKI has {', '.join(KINDS)}")


def size(dtype: str) -> int:
    """Bytes of one element."""
    return KINDS[dtype].storage.itemsize


def is_float(dtype: str) -> bool:
    return KINDS[dtype].family == "float"


def is_int(dtype: str) -> bool:
    """Integers, and bool, which is stored as a byte."""
    return KINDS[dtype].family in ("int", "bool")


def is_fp8(dtype: str) -> bool:
    return KINDS[dtype].family == "float" and size(dtype) == 1


def argument(dtype: str, ocp: bool) -> str:
    """The dtype that a kernel argument arrives as: cores without the OCP format have its values as float8_e4m3."""
    return "float8_e4m3" if dtype == "float8_e4m3fn" and not ocp else dtype


def storage(dtype: str, precise: bool = True) -> np.dtype:
    """The JAX dtype that stores `dtype`; with `precise=False` every float is stored as float32."""
    kind = KINDS[dtype]
    return kind.storage if precise or kind.family != "float" else np.dtype(np.float32)


def poison(dtype: str, precise: bool = True):
    """What fresh memory holds: NaN for floats, 4 for the rest, as a NumPy scalar of the storage dtype."""
    kind = storage(dtype, precise)
    return np.array(np.nan if KINDS[dtype].family == "float" else 4).astype(kind)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _round_to_grid(x: jax.Array, mantissa_bits: int, least_exponent: int) -> jax.Array:
    """Float32 rounded to nearest even at `mantissa_bits`, with subnormals below 2**least_exponent.

    Its derivative is 1, as that of every float cast in JAX.
    """
    scale = np.float32(2.0 ** (mantissa_bits - least_exponent))
    subnormal = jnp.round(x * scale) / scale  # reduce_precision would flush these to zero
    normal = lax.reduce_precision(x, 8, mantissa_bits)
    return jnp.where(jnp.abs(x) < 2.0**least_exponent, subnormal, normal)


@_round_to_grid.defjvp
def _round_to_grid_jvp(mantissa_bits, least_exponent, primals, tangents):
    return _round_to_grid(primals[0], mantissa_bits, least_exponent), tangents[0]


# The exponent of the least normal number of each narrow float.
_LEAST_EXPONENT = {"float16": -14, "float8_e4m3": -6, "float8_e4m3fn": -6, "float8_e5m2": -14}


def _to_int(x: jax.Array, kind: np.dtype) -> jax.Array:
    """Round to nearest even, then saturate; NaN becomes 0.  The bounds are not all floats, hence the selects."""
    info = np.iinfo(kind)
    x = jnp.round(x)
    low, high = np.float32(info.min), np.float32(info.max)  # high may round up to info.max + 1
    inside = jnp.where((x > low) & (x < high), x, np.float32(0))
    out = jnp.where(x >= high, np.array(info.max, kind), inside.astype(kind))
    return jnp.where(x <= low, np.array(info.min, kind), out)


def cast(x: jax.Array, dtype: str, precise: bool = True) -> jax.Array:
    """The store cast of an instruction's result to `dtype`.

    A result that already has the storage dtype passes bit for bit.  Anything else goes through float32: to a float
    it rounds to nearest even (explicitly, so that XLA cannot keep excess precision), to an integer it rounds to
    nearest even and saturates.
    """
    kind = KINDS[dtype]
    target = storage(dtype, precise)
    if x.dtype == target and dtype != "tfloat32":
        return x
    if kind.family == "bool":
        return x != 0
    if kind.family == "packed":
        return x.astype(target)
    if jnp.issubdtype(x.dtype, jnp.integer) and kind.family == "int" and x.dtype.itemsize <= 2 <= target.itemsize:
        x = x.astype(np.int32)
    x = x.astype(np.float32)
    if kind.family == "int":
        return _to_int(x, target)
    if not precise or dtype == "float32":
        return x
    if dtype in _LEAST_EXPONENT:
        x = _round_to_grid(x, kind.mantissa_bits, _LEAST_EXPONENT[dtype])
    elif dtype != "float8_e8m0fnu":
        x = lax.reduce_precision(x, kind.exponent_bits, kind.mantissa_bits)
    return x.astype(target)


def widened(x: jax.Array, want: np.dtype) -> jax.Array:
    """The last dimension's elements, `want.itemsize` bytes in all, as one element of dtype `want`.

    As `lax.bitcast_convert_type`, of which XLA folds a constant that was transposed in its layout's order.
    """
    word, part = np.dtype(f"u{want.itemsize}"), np.dtype(f"u{x.dtype.itemsize}")
    places = lax.broadcasted_iota(word, x.shape, x.ndim - 1) * word.type(8 * part.itemsize)
    words = lax.bitcast_convert_type(x, part).astype(word) << places
    return lax.bitcast_convert_type(jnp.bitwise_or.reduce(words, axis=-1), want)
