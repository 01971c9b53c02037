"""Instructions at which the two cores of `kernel[2]` meet."""

from __future__ import annotations

from nkijax.dialects.nki.constants import dma_engine, engine
from nkijax.dialects.nki.emit import NkiInstruction, emit
from nkijax.dialects.nki.tensor import view_of
from nkijax.isa.sync import CoreBarrier, SendRecv


def sendrecv(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma_engine.dma, name=None) -> NkiInstruction:
    """dst = the other core's src, (P, F); cores meet by `pipe_id`."""
    of, to = view_of("nki.isa.sendrecv src", src), view_of("nki.isa.sendrecv dst", dst)
    return emit(SendRecv(of, to, int(send_to_rank), int(recv_from_rank), pipe_id, dma_engine, name=name))


def core_barrier(data, cores, engine=engine.gpsimd, name=None) -> NkiInstruction:
    """Every core of `cores`, an int or a sequence, reaches this point before any goes on."""
    return emit(CoreBarrier(view_of("nki.isa.core_barrier data", data), cores, engine, name=name))
