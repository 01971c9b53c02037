"""`neuronxcc.nki.language.constants`: sizes of dtypes."""

from __future__ import annotations

from nkijax import dtypes
from nkijax.dialects.neuronxcc.dtype import name_of


def sizeinbytes(dtype) -> int:
    """Bytes of one element."""
    return dtypes.size(name_of(dtype, "nl.constants.sizeinbytes"))
