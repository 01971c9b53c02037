"""Small kernels in the nki dialect that several test files use."""

from __future__ import annotations

import nkijax.dialects.nki as nki
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl


@nki.jit
def double(x):
    """2 x for x (N, F), in tiles of 128 rows or fewer."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = min(128, x.shape[0])
    for i in range(x.shape[0] // rows):
        t = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * rows : (i + 1) * rows])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[i * rows : (i + 1) * rows], src=t)
    return out


@nki.jit
def add_into(x, y):
    """y += x, in place; returns nothing."""
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=y)
    nisa.tensor_tensor(dst=b, data1=a, data2=b, op=nl.add)
    nisa.dma_copy(dst=y, src=b)


@nki.jit
def matmul(a, b):
    """a.T @ b for a (K, M), b (K, N), tiles of at most 128, 128 and 512."""
    (k_size, m_size), (_, n_size) = a.shape, b.shape
    kt, mt, nt = min(k_size, 128), min(m_size, 128), min(n_size, 512)
    out = nl.ndarray((m_size, n_size), dtype=a.dtype, buffer=nl.shared_hbm)
    for m in range(0, m_size, mt):
        for n in range(0, n_size, nt):
            psum = nl.ndarray((mt, nt), dtype=nl.float32, buffer=nl.psum)
            for k in range(0, k_size, kt):
                left = nl.ndarray((kt, mt), dtype=a.dtype, buffer=nl.sbuf)
                right = nl.ndarray((kt, nt), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=a[k : k + kt, m : m + mt])
                nisa.dma_copy(dst=right, src=b[k : k + kt, n : n + nt])
                nisa.nc_matmul(dst=psum, stationary=left, moving=right)
            t = nl.ndarray((mt, nt), dtype=a.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=t, src=psum)
            nisa.dma_copy(dst=out[m : m + mt, n : n + nt], src=t)
    return out


@nki.jit
def softmax(x):
    """Row softmax of x (N, F), in tiles of 128 rows or fewer."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = min(128, x.shape[0])
    for i in range(x.shape[0] // rows):
        t = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        low, total = (nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(dst=t, src=x[i * rows : (i + 1) * rows])
        nisa.tensor_reduce(dst=low, op=nl.maximum, data=t, axis=1, negate=True)
        nisa.activation_reduce(dst=t, op=nl.exp, data=t, bias=low, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[i * rows : (i + 1) * rows], src=t)
    return out


@nki.jit
def pick_rows(x, n):
    """Rows n[0], n[1], … of x, one in each turn of a dynamic loop of n[-1] turns; the other rows of out are fresh."""
    out = nl.ndarray((n.shape[0], x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    turns, row = nisa.register_alloc(), nisa.register_alloc()
    nisa.register_load(turns, n[n.shape[0] - 1])

    def body(i):
        nisa.register_load(row, n.select(0, i))
        t = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=row))
        nisa.dma_copy(dst=out.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=i), src=t)

    nl.fori_loop(0, turns, body)
    return out


@nki.jit
def gather(x, rows, skip=True):
    """x[rows] for rows (n, 1); rows outside x stay as fill (7) when `skip`, else are an error."""
    n, width = rows.shape[0], x.shape[1]
    index = nl.ndarray((n, 1), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=rows)
    t = nl.ndarray((n, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=t, value=7)
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
    nisa.dma_copy(dst=t, src=x.ap([[width, n], [1, width]], vector_offset=index), oob_mode=mode)
    out = nl.ndarray((n, width), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
    return out
