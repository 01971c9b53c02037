"""What the gradient of a dynamic loop holds, and takes, against its number of turns; a Markdown table.

python -m bench.memory [--quick]
"""

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import nkijax
from bench.measure import Budget, in_turns, ratio, table, temporaries

nkijax.install()

import nki
import nki.isa as nisa
import nki.language as nl

P, F = 128, 32
TURNS = (16, 64, 256, 1024, 4096)
BOUNDED = 256  # up to so many turns beside the form with `max_trips`, whose time grows as their square
MIB = 1 << 20


@nki.jit
def recurrence(src, turns):
    """x ← tanh(x + src[i]) from zero on, for i below `turns`, a number in HBM; src (N, 128, F)."""
    out = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
    nisa.memset(dst=x, value=0.0)
    bound = nisa.register_alloc()
    nisa.register_load(bound, turns)

    def turn(i):
        tile = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=src[i])
        nisa.tensor_tensor(dst=x, data1=x, data2=tile, op=nl.add)
        nisa.activation(dst=x, op=nl.tanh, data=x)

    nl.fori_loop(0, bound, turn)
    nisa.dma_copy(dst=out, src=x)
    return out


def reference(src: jax.Array) -> jax.Array:
    """The same in plain JAX."""
    return jax.lax.scan(lambda x, tile: (jnp.tanh(x + tile), None), jnp.zeros_like(src[0]), src)[0]


def measured(turns: int, max_trips: int | None) -> tuple[float, float]:
    """MiB of XLA's temporaries in the gradient, and how many forward runs it takes; checked against plain JAX."""
    src = np.random.default_rng(0).standard_normal((turns, P, F), dtype=np.float32) / 8
    count = np.array([[turns]], np.int32)
    f = nkijax.function(recurrence, max_trips=max_trips)
    forward = jax.jit(f)
    gradient = jax.jit(jax.grad(lambda src, count: f(src, count).sum())).lower(src, count).compile()
    want = jax.jit(jax.grad(lambda src: reference(src).sum()))(src)
    np.testing.assert_allclose(gradient(src, count), want, rtol=1e-4, atol=1e-5)
    works = {"gradient": lambda: gradient(src, count), "forward": lambda: forward(src, count)}
    times = in_turns(works, Budget(3, 9, 2.0))
    return temporaries(gradient), ratio(times["gradient"], times["forward"])


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Print the table; return what the checkpointed form holds, in MiB."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 64 turns")
    options = parser.parse_args(arguments)
    rows, held = [], []
    for turns in TURNS[:2] if options.quick else TURNS:
        found = measured(turns, None)
        held.append(found[0])
        beside = measured(turns, turns) if turns <= BOUNDED else ()
        numbers = (turns * P * F * 4 / MIB, *found, *beside)
        rows.append((turns, *(f"{x:.1f}" for x in numbers), *("" for _ in range(2 - len(beside)))))
    head = ("turns", "input, MiB", "held, MiB", "time / forward", "with max_trips: held, MiB", "time / forward")
    table(head, rows)
    return held


if __name__ == "__main__":
    main()
