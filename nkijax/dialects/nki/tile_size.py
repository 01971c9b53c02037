"""`nl.tile_size`: the sizes of the target's memories and of the tiles that its engines take."""

from __future__ import annotations

import os

from nkijax.api import Options
from nkijax.machine import Generation, Target
from nkijax.trace import recording

_RESERVED_SBUF_BYTES = 16384  # of a partition; AWS publishes no number, nki-library reserves about this much
_WORD_BYTES = 4


def active_target() -> Target:
    """The target of the kernel that is being traced; outside of kernels, the environment's."""
    recorder = recording()
    return Options().resolve() if recorder is None else recorder.target


class TileSize:
    """Sizes of the active target; free sizes are elements of one partition, float32 unless the name says bytes."""

    @property
    def pmax(self) -> int:
        """Partitions."""
        return active_target().pmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        return active_target().psum_bank_bytes

    @property
    def psum_bank_fmax(self) -> int:
        return self.psum_bank_fmax_bytes // _WORD_BYTES

    @property
    def psum_fmax(self) -> int:
        """Deprecated name of psum_bank_fmax."""
        return self.psum_bank_fmax

    @property
    def psum_num_banks(self) -> int:
        """Usable banks: one fewer if NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE=true takes one (NeuronCore-v3 and later)."""
        target = active_target()
        taken = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE") == "true" and target.generation >= Generation.gen3
        return target.psum_banks - taken

    @property
    def gemm_stationary_fmax(self) -> int:
        return active_target().stationary_fmax

    @property
    def gemm_moving_fmax(self) -> int:
        return active_target().moving_fmax

    @property
    def bn_stats_fmax(self) -> int:
        return self.psum_bank_fmax

    @property
    def psum_min_align(self) -> int:
        """Bytes; assumed, as AWS publishes no number."""
        return _WORD_BYTES

    @property
    def sbuf_min_align(self) -> int:
        """Bytes; assumed, as AWS publishes no number."""
        return 1

    @property
    def sbuf_size_bytes(self) -> int:
        """All partitions together."""
        target = active_target()
        return target.pmax * target.sbuf_partition_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """What kernels may use of a partition."""
        return active_target().sbuf_partition_bytes - _RESERVED_SBUF_BYTES

    @property
    def sbuf_fmax(self) -> int:
        return self.sbuf_fmax_bytes // _WORD_BYTES

    @property
    def total_available_sbuf_size(self) -> int:
        """Deprecated name of sbuf_fmax_bytes."""
        return self.sbuf_fmax_bytes


tile_size = TileSize()
