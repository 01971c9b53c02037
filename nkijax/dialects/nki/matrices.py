"""Matrices of `nki.language`: products and transposes on the tensor engine, and constants."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from nkijax import arrays, dtypes
from nkijax.dialects.nki.isa_data import nc_matmul, nc_transpose, tensor_copy
from nkijax.dialects.nki.math import tile
from nkijax.dialects.nki.tensor import NkiTensor, allocate, psum, sbuf, shared_hbm, view_of
from nkijax.errors import KernelError
from nkijax.isa.move import DmaCopy
from nkijax.trace import current, dtype_of


def _matrix(name: str, x: Any) -> tuple[int, int]:
    shape = tile(name, x).shape
    if len(shape) != 2:
        raise KernelError(f"{name}: must have 2 dimensions, got {shape}")
    return shape[0], shape[1]


def matmul(x, y, transpose_x=False) -> NkiTensor:
    """A new float32 PSUM tile: x @ y, (M, K) and (K, N), or x.T @ y with x (K, M), `transpose_x`.

    Without `transpose_x` the tensor engine transposes x first, through PSUM.
    """
    api = "nki.language.matmul"
    rows, columns = _matrix(f"{api} x", x)
    inner, n = _matrix(f"{api} y", y)
    k, m = (rows, columns) if transpose_x else (columns, rows)
    if k != inner:
        given = f"x {x.shape} and y {y.shape}"
        raise KernelError(f"{api} x, y: must agree in the size that is summed over, got {k} and {inner} of {given}")
    if not transpose_x:
        turned = allocate(api, (k, m), x.dtype, sbuf)
        tensor_copy(turned, transpose(x))
        x = turned
    out = allocate(api, (m, n), "float32", psum)
    nc_matmul(out, x, y)
    return out


def transpose(x, dtype=None) -> NkiTensor:
    """A new PSUM tile: x, (P, F) in SBUF and at most 128 x 128, transposed."""
    api = "nki.language.transpose"
    rows, columns = _matrix(f"{api} x", x)
    out = allocate(api, (columns, rows), x.dtype, psum)
    nc_transpose(out, x)
    if dtype is None or dtype_of(dtype, api) == x.dtype:
        return out
    cast = allocate(api, (columns, rows), dtype, psum)
    tensor_copy(cast, out)
    return cast


# ---- constants


def shared_constant(constant) -> NkiTensor:
    """A tensor in shared HBM that holds `constant`, an array or the path of a .npy file."""
    api = "nki.language.shared_constant"
    data = constant
    if isinstance(constant, str | os.PathLike):
        data = np.load(constant)
    if not arrays.is_array(data):
        raise KernelError(f"{api} constant: must be an array or the path of a .npy file, got {constant!r}")
    try:
        kind = arrays.describe(data)[1]
    except TypeError as error:
        raise KernelError(f"{api} constant: {error}") from None
    return NkiTensor(current(api).constant(np.array(arrays.constant(data, kind)), kind, shared_hbm))


def shared_identity_matrix(n, dtype="uint8", dst=None) -> NkiTensor:
    """The (n, n) identity in a new SBUF tile, or in `dst`, which has the dtype then."""
    api = "nki.language.shared_identity_matrix"
    if not isinstance(n, int) or n < 1:
        raise KernelError(f"{api} n: must be a positive int, got {n!r}")
    out = allocate(api, (n, n), dtype, sbuf) if dst is None else dst
    to = view_of(f"{api} dst", out)
    if to.size != n * n:
        raise KernelError(f"{api} dst: must have {n} * {n} elements, got {to.shape}")
    recorder = current(api)
    data = np.eye(n).astype(dtypes.storage(to.dtype))
    recorder.emit(DmaCopy(to, recorder.constant(data, to.dtype, shared_hbm)))
    return out
