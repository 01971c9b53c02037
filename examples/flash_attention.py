"""Flash attention forward with an online softmax, and its gradient by jax.grad of the same kernel.

nkijax run examples/flash_attention.py        (or: python examples/flash_attention.py)
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

import nkijax

nkijax.install()  # from here on `import nki` is nkijax

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def attention(q, k, v):
    """softmax(q.T k / sqrt(d)) v for q, k (d, seq) and v (seq, d): 128 queries against blocks of 512 keys.

    A block's scores never leave the chip.  `high`, `total` and `o` are a row's largest score so far, its sum of
    exponentials and its unnormalised output, both relative to that score.
    """
    d, seq = q.shape
    p, block = nl.tile_size.pmax, nl.tile_size.gemm_moving_fmax
    out = nl.ndarray((seq, d), dtype=q.dtype, buffer=nl.shared_hbm)

    def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
        return nl.ndarray(shape, dtype=dtype, buffer=buffer)

    for row in nl.affine_range(seq // p):
        q_tile = tile((d, p), q.dtype)
        nisa.dma_copy(dst=q_tile, src=q[:, row * p : (row + 1) * p])
        nisa.tensor_scalar(dst=q_tile, data=q_tile, op0=nl.multiply, operand0=1 / math.sqrt(d))
        high, total, o = tile((p, 1)), tile((p, 1)), tile((p, d))
        nisa.memset(dst=high, value=-1e30)
        nisa.memset(dst=total, value=0.0)
        nisa.memset(dst=o, value=0.0)

        for column in nl.sequential_range(seq // block):
            k_tile = tile((d, block), k.dtype)
            nisa.dma_copy(dst=k_tile, src=k[:, column * block : (column + 1) * block])
            scores = tile((p, block), buffer=nl.psum)
            nisa.nc_matmul(dst=scores, stationary=q_tile, moving=k_tile)

            here, low, shrink = tile((p, 1)), tile((p, 1)), tile((p, 1))
            nisa.tensor_reduce(dst=here, op=nl.maximum, data=scores, axis=1)
            nisa.tensor_tensor(dst=here, data1=here, data2=high, op=nl.maximum)
            nisa.tensor_scalar(dst=low, data=here, op0=nl.multiply, operand0=-1.0)
            nisa.activation(dst=shrink, op=nl.exp, data=high, bias=low)  # exp(old maximum - new)
            nisa.tensor_copy(dst=high, src=here)

            e, mass = tile((p, block), q.dtype), tile((p, 1))
            nisa.activation_reduce(dst=e, op=nl.exp, data=scores, bias=low, reduce_op=nl.add, reduce_res=mass)
            nisa.scalar_tensor_tensor(
                dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=mass
            )

            part = tile((p, d), buffer=nl.psum)
            for s in nl.affine_range(block // p):
                e_t_psum, e_t, v_tile = tile((p, p), q.dtype, nl.psum), tile((p, p), q.dtype), tile((p, d), v.dtype)
                nisa.nc_transpose(dst=e_t_psum, data=e[:, s * p : (s + 1) * p])
                nisa.tensor_copy(dst=e_t, src=e_t_psum)
                start = column * block + s * p
                nisa.dma_copy(dst=v_tile, src=v[start : start + p, :])
                nisa.nc_matmul(dst=part, stationary=e_t, moving=v_tile)
            nisa.scalar_tensor_tensor(dst=o, data=o, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=part)

        result = tile((p, d), q.dtype)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=result, data=o, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[row * p : (row + 1) * p, :], src=result)
    return out


def reference(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same by its definition."""
    return jax.nn.softmax(q.T @ k / math.sqrt(q.shape[0]), axis=-1) @ v


case = nkijax.Case(  # for `nkijax regress examples`
    attention,
    lambda rng: [rng.standard_normal(shape, np.float32) for shape in ((64, 1024), (64, 1024), (1024, 64))],
    reference,
    targets="trn2",
)


def main(seq: int = 4096, d: int = 128, target: str = "trn2") -> None:
    """Run it and its gradient, compare both with plain JAX, print the cost."""
    random = np.random.default_rng(0)
    q, k, v, weights = (random.standard_normal(s, dtype=np.float32) for s in ((d, seq), (d, seq), (seq, d), (seq, d)))
    run = nkijax.profile(attention, q, k, v, target=target)
    error = np.abs(run.outputs - np.asarray(jax.jit(reference)(q, k, v))).max()
    print(f"attention {seq} x {d}: largest error {error:.1e}")
    assert error < 1e-4, error

    kernel = nkijax.function(attention, target=target)
    grad = jax.jit(jax.grad(lambda *qkv: jnp.sum(kernel(*qkv) * weights), argnums=(0, 1, 2)))(q, k, v)
    want = jax.jit(jax.grad(lambda *qkv: jnp.sum(reference(*qkv) * weights), argnums=(0, 1, 2)))(q, k, v)
    for name, got, true in zip("qkv", grad, want, strict=True):
        error = float(jnp.abs(got - true).max() / jnp.abs(true).max())
        print(f"gradient by {name}: largest error {error:.1e} of the largest value")
        assert error < 1e-4, error
    print(run.cost)


if __name__ == "__main__":
    main()
