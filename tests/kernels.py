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


@nki.jit
def chains(x, c):
    """Tile i, 16 rows, of each head of x (H, N, F): x = x · c[k] + c[k] for the tiles k <= i of c (N, F)."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = []
    for k in range(c.shape[0] // 16):
        tiles.append(nl.ndarray((16, c.shape[1]), dtype=c.dtype, buffer=nl.sbuf))
        nisa.dma_copy(dst=tiles[k], src=c[16 * k : 16 * k + 16])
    for head in range(x.shape[0]):
        for i in range(len(tiles)):
            t = nl.ndarray((16, x.shape[2]), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[head, 16 * i : 16 * i + 16])
            for k in range(i + 1):
                product = nl.ndarray((16, x.shape[2]), dtype=x.dtype, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=product, data1=t, data2=tiles[k], op=nl.multiply)
                nisa.tensor_tensor(dst=t, data1=product, data2=tiles[k], op=nl.add)
            nisa.dma_copy(dst=out[head, 16 * i : 16 * i + 16], src=t)
    return out


class Softmax:
    """The running softmax of M rows, and v (T, d) weighted by it: a flash attention's state, in SBUF."""

    def __init__(self, rows, d):
        self.high, self.total, self.shrink, self.low = (tile((rows, 1)) for _ in range(4))
        self.out = tile((rows, d))
        nisa.memset(dst=self.high, value=-1e30)
        nisa.memset(dst=self.total, value=0.0)
        nisa.memset(dst=self.out, value=0.0)

    def add(self, scores, v):
        """Take in scores (M, T) of T more keys, and their v (T, d)."""
        rows, keys = scores.shape
        here, mass, e = tile((rows, 1)), tile((rows, 1)), tile((rows, keys))
        nisa.tensor_reduce(dst=here, op=nl.maximum, data=scores, axis=1)
        nisa.tensor_tensor(dst=here, data1=here, data2=self.high, op=nl.maximum)
        nisa.tensor_scalar(dst=self.low, data=here, op0=nl.multiply, operand0=-1.0)
        nisa.activation(dst=self.shrink, op=nl.exp, data=self.high, bias=self.low)
        nisa.tensor_copy(dst=self.high, src=here)
        nisa.activation_reduce(dst=e, op=nl.exp, data=scores, bias=self.low, reduce_op=nl.add, reduce_res=mass)
        for x, y in ((self.total, mass), (self.out, dot(transposed(e), v))):
            nisa.scalar_tensor_tensor(dst=x, data=x, op0=nl.multiply, operand0=self.shrink, op1=nl.add, operand1=y)

    def result(self):
        inverse = tile(self.total.shape)
        nisa.reciprocal(dst=inverse, data=self.total)
        nisa.tensor_scalar(dst=self.out, data=self.out, op0=nl.multiply, operand0=inverse)
        return self.out


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def loaded(src, dtype=None):
    t = tile(src.shape, dtype or src.dtype)
    nisa.dma_copy(dst=t, src=src)
    return t


def dot(a, b):
    """a.T @ b for a (K, M) and b (K, N), into PSUM."""
    out = tile((a.shape[1], b.shape[1]), buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=a, moving=b)
    return out


def transposed(x):
    psum, out = tile(x.shape[::-1], x.dtype, nl.psum), tile(x.shape[::-1], x.dtype)
    nisa.nc_transpose(dst=psum, data=x)
    nisa.tensor_copy(dst=out, src=psum)
    return out


@nki.jit
def ragged_attention(q, k, v, count, first, tiles, lengths):
    """softmax(q[b].T k) v over the keys of sequence b, for the first `count` sequences.

    q (B, d, M).  Keys and values are packed in tiles of T, k (N, d, T) and v (N, T, d): sequence b has tiles[b] of them
    from first[b] on, and lengths[b] keys.  All four of the integers are data, (…, 1), lengths as floats.
    """
    (b, d, m), keys = q.shape, k.shape[2]
    out = nl.ndarray((b, m, d), dtype=q.dtype, buffer=nl.shared_hbm)
    sequences, turns, at = (nisa.register_alloc() for _ in range(3))
    nisa.register_load(sequences, count)

    def sequence(i):
        state, q_tile = Softmax(m, d), loaded(q[i])
        limit, zero = tile((m, 1)), tile((m, 1))
        nisa.memset(dst=zero, value=0.0)
        nisa.dma_copy(dst=limit, src=lengths.ap([[0, m], [1, 1]], scalar_offset=i))
        place = loaded(first[i].reshape((1, 1)))
        nisa.register_load(turns, tiles.select(0, i))

        def some_keys(_):
            nisa.register_load(at, place)
            scores = tile((m, keys))
            nisa.range_select(scores, dot(q_tile, loaded(k[at])), nl.greater_equal, nl.less, zero, limit)
            state.add(scores, loaded(v[at]))
            nisa.tensor_scalar(dst=limit, data=limit, op0=nl.subtract, operand0=float(keys))
            nisa.tensor_scalar(dst=place, data=place, op0=nl.add, operand0=1)

        nl.fori_loop(0, turns, some_keys)
        nisa.dma_copy(dst=out[i], src=state.result())

    nl.fori_loop(0, sequences, sequence)
    return out


@nki.jit
def paged_attention(q, k, v, rows, tiles):
    """softmax(q.T k[rows].T) v[rows] for q (d, M), caches k and v (N, d), rows (n, T, 1) of which `tiles` (1, 1) count.

    A row of -1 is none.
    """
    (d, m), keys = q.shape, rows.shape[1]
    out = nl.ndarray((m, d), dtype=q.dtype, buffer=nl.shared_hbm)
    turns = nisa.register_alloc()
    nisa.register_load(turns, tiles)
    state, q_tile, ones = Softmax(m, d), loaded(q), tile((1, m))
    nisa.memset(dst=ones, value=1.0)

    def some_keys(i):
        index, absent = loaded(rows[i]), tile((keys, 1))
        nisa.tensor_scalar(dst=absent, data=index, op0=nl.less, operand0=0, op1=nl.multiply, operand1=-1e30)
        k_tile, v_tile = tile((keys, d)), tile((keys, d))
        for cache, into in ((k, k_tile), (v, v_tile)):
            nisa.memset(dst=into, value=0.0)
            pages = cache.ap([[d, keys], [1, d]], vector_offset=index)
            nisa.dma_copy(dst=into, src=pages, oob_mode=nisa.oob_mode.skip)
        scores = tile((m, keys), buffer=nl.psum)
        nisa.nc_matmul(dst=scores, stationary=q_tile, moving=transposed(k_tile))
        nisa.nc_matmul(dst=scores, stationary=ones, moving=transposed(absent))
        state.add(scores, v_tile)

    nl.fori_loop(0, turns, some_keys)
    nisa.dma_copy(dst=out, src=state.result())
    return out
