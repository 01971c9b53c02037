"""`neuronxcc.nki._private.private_api` and `._private_kernels`: names that public kernels import.

What the vendor never published raises Unsupported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NoReturn

from nkijax.dialects.neuronxcc.loops import Repeated
from nkijax.dialects.neuronxcc.tensor import operand
from nkijax.errors import Unsupported
from nkijax.isa.register import RegisterLoad
from nkijax.trace import current


class do_while(Repeated):
    """`with do_while(condition):` repeats its block while `condition`, a 1-element tensor of integers, is not zero.

    The condition is read before each turn.
    """

    def __init__(self, condition: Any):
        self.condition = condition

    def __enter__(self) -> NoReturn:
        raise Unsupported("do_while: the source of the function that holds this `with` cannot be found")

    def __exit__(self, *_: object) -> None: ...

    def turns(self) -> Iterator[None]:
        recorder, condition = current("do_while"), operand(self.condition, api="do_while condition")
        register = recorder.register()
        recorder.emit(RegisterLoad(register, condition))
        key = object()
        while recorder.while_test("do_while", register, key):
            yield None
            recorder.emit(RegisterLoad(register, condition))


class NormType(Enum):
    """The normalisations that the closed kernels know."""

    NO_NORM = 0
    RMS_NORM = 1


def _closed(name: str) -> Callable[..., NoReturn]:
    def closed(*args: Any, **kwargs: Any) -> NoReturn:
        raise Unsupported(f"{name}: its source was never published")

    closed.__name__ = closed.__qualname__ = name.rpartition(".")[2]
    return closed


_API = "neuronxcc.nki._private.private_api"
attention_kernel = _closed(f"{_API}.attention_kernel")
cc_div = _closed(f"{_API}.cc_div")
column_tiled_mm_kernel = _closed(f"{_API}.column_tiled_mm_kernel")
core_barrier = _closed(f"{_API}.core_barrier")
mlp_fused_add_kernel = _closed(f"{_API}.mlp_fused_add_kernel")
mlp_kernel = _closed(f"{_API}.mlp_kernel")
qkv_fused_add_kernel = _closed(f"{_API}.qkv_fused_add_kernel")
qkv_kernel = _closed(f"{_API}.qkv_kernel")
row_tiled_mm_kernel = _closed(f"{_API}.row_tiled_mm_kernel")
sendrecv = _closed(f"{_API}.sendrecv")

RoPE_sbuf = _closed("neuronxcc.nki._private_kernels.RoPE.RoPE_sbuf")
rmsnorm_qkv_isa_kernel = _closed("neuronxcc.nki._private_kernels.qkv.rmsnorm_qkv_isa_kernel")
