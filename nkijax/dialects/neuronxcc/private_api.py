"""`neuronxcc.nki._private.private_api` and `._private_kernels`: names that public kernels import.

What the vendor never published raises Unsupported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NoReturn

from nkijax.dialects.neuronxcc.loops import Repeated
from nkijax.dialects.neuronxcc.tensor import operand
from nkijax.errors import KernelError, Unsupported
from nkijax.isa.move import DmaCopy
from nkijax.isa.programs import ProgramBarrier
from nkijax.isa.register import RegisterLoad
from nkijax.machine import Memory
from nkijax.trace import current
from nkijax.view import View


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


def core_barrier(data, cores, **hints) -> None:
    """The programs of the grid wait for each other: all see what each stored in `data`, HBM that they share, before.

    `cores` names them and must be all of them; hints have no effect.
    """
    del hints
    recorder = current("core_barrier")
    if sorted(cores) != list(range(recorder.programs)):
        raise KernelError(f"core_barrier cores: must be the {recorder.programs} programs of the grid, got {cores}")
    recorder.emit(ProgramBarrier(operand(data, api="core_barrier data")))


def sendrecv(send_to_rank, recv_from_rank, src, dst, pipe_id=0, **hints) -> None:
    """dst = the src of program `recv_from_rank`, where it sends to this one; dst and src (P, …) are alike.

    Every program leaves its tile in HBM that all share, they meet, and each takes its partner's.  `pipe_id` and hints
    have no effect.
    """
    del pipe_id, hints
    recorder, tile = current("sendrecv"), operand(src, api="sendrecv src")
    for name, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if not 0 <= rank < recorder.programs:
            raise KernelError(f"sendrecv {name}: must be one of the grid's {recorder.programs} programs, got {rank}")
    shared = View.whole(recorder.allocate((recorder.programs, *tile.shape), tile.dtype, Memory.shared_hbm))
    recorder.emit(DmaCopy(shared.select(0, recorder.program_id), tile))
    recorder.emit(ProgramBarrier(shared))
    recorder.emit(DmaCopy(operand(dst, api="sendrecv dst"), shared.select(0, recv_from_rank)))


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
mlp_fused_add_kernel = _closed(f"{_API}.mlp_fused_add_kernel")
mlp_kernel = _closed(f"{_API}.mlp_kernel")
qkv_fused_add_kernel = _closed(f"{_API}.qkv_fused_add_kernel")
qkv_kernel = _closed(f"{_API}.qkv_kernel")
row_tiled_mm_kernel = _closed(f"{_API}.row_tiled_mm_kernel")

RoPE_sbuf = _closed("neuronxcc.nki._private_kernels.RoPE.RoPE_sbuf")
rmsnorm_qkv_isa_kernel = _closed("neuronxcc.nki._private_kernels.qkv.rmsnorm_qkv_isa_kernel")
