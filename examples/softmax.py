"""Row softmax in tiles of 128 rows: load, row maximum, exp with its row sum in one instruction, scale, store.

nkijax run examples/softmax.py        (or: python examples/softmax.py)
"""

import jax
import numpy as np

import nkijax

nkijax.install()  # from here on `import nki` is nkijax

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(src):
    """exp(x - max x) / sum of that, for each row x of src (rows, columns), columns in SBUF as a whole."""
    rows, columns = src.shape
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    p = nl.tile_size.pmax
    for r in nl.affine_range(rows // p):
        x = nl.ndarray((p, columns), dtype=src.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=src[r * p : (r + 1) * p, :])

        low = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)  # -max x
        nisa.tensor_reduce(dst=low, op=nl.maximum, data=x, axis=1, negate=True)

        e = nl.ndarray((p, columns), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=e, op=nl.exp, data=x, bias=low, reduce_op=nl.add, reduce_res=total)

        nisa.reciprocal(dst=total, data=total)
        y = nl.ndarray((p, columns), dtype=src.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=y, data=e, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[r * p : (r + 1) * p, :], src=y)
    return out


case = nkijax.Case(  # for `nkijax regress examples`
    softmax, lambda rng: rng.standard_normal((512, 256), np.float32), jax.nn.softmax, targets="trn2", grad=True
)


def main(rows: int = 4096, columns: int = 4096, target: str = "trn2") -> None:
    """Run it, compare with jax.nn.softmax, print the cost."""
    x = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
    run = nkijax.profile(softmax, x, target=target)
    error = np.abs(run.outputs / np.asarray(jax.nn.softmax(x)) - 1).max()
    print(f"softmax {rows} x {columns}: largest relative error {error:.1e}")
    print(run.cost)
    assert error < 1e-4, error


if __name__ == "__main__":
    main()
