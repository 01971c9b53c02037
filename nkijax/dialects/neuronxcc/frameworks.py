"""How frameworks called kernels: `torch_neuronx.nki_jit` and `jax_neuronx.nki_call` of Neuron 2.20, `FrameworkKernel`.

Such kernels return nothing and write into their last arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from nkijax.dialects.neuronxcc.declare import ndarray
from nkijax.dialects.neuronxcc.dtype import DType
from nkijax.dialects.neuronxcc.jit import DIALECT, NeuronKernel, jit
from nkijax.dialects.neuronxcc.tensor import shared_hbm
from nkijax.errors import Unsupported

Results = tuple[tuple[tuple[int, ...], str], ...]

nki_jit = jit


def nki_call(func, *args, out_shape: Any, grid=(), platform_target=None) -> Any:
    """`func(*args, *outputs)` with fresh outputs, which are returned: one array, or a tuple where there are several.

    `out_shape` is what has a shape and a dtype (as `jax.ShapeDtypeStruct`), or a sequence of such.
    """
    several = isinstance(out_shape, Sequence)
    kinds: Results = tuple((tuple(o.shape), str(o.dtype)) for o in (out_shape if several else (out_shape,)))
    inner = func.func if isinstance(func, NeuronKernel) else func
    kernel = NeuronKernel(_returning(inner, kinds, several), DIALECT, target=platform_target)
    return (kernel[grid] if grid else kernel)(*args)


@functools.lru_cache(maxsize=256)  # the same function again, so that what was compiled is found
def _returning(func: Callable[..., Any], kinds: Results, several: bool) -> Callable[..., Any]:
    @functools.wraps(func)
    def kernel(*args: Any) -> Any:
        outputs = tuple(ndarray(shape, dtype=DType(dtype), buffer=shared_hbm) for shape, dtype in kinds)
        func(*args, *outputs)
        return outputs if several else outputs[0]

    return kernel


class FrameworkKernel:
    """The base of what turns a kernel into a call of XLA: a framework's own part, which nothing needs here."""

    def __init__(self, *_: Any):
        raise Unsupported(
            "nki.FrameworkKernel: nkijax makes no custom calls; nkijax.function(kernel) is a JAX function"
        )
