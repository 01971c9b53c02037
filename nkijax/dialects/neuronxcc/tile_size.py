"""`nl.tile_size`: the sizes of the target's memories and of the tiles that its engines take."""

from __future__ import annotations

from nkijax.api import Options
from nkijax.dialects.neuronxcc.jit import DIALECT
from nkijax.machine import Target
from nkijax.trace import recording

_RESERVED_SBUF_BYTES = 16384  # of a partition; the compiler's
_WORD_BYTES = 4


def active_target() -> Target:
    """The target of the kernel that is being traced; outside of kernels, the environment's."""
    recorder = recording()
    return Options().resolve(default=DIALECT.target) if recorder is None else recorder.target


class TileSize:
    """Sizes of the active target; free sizes are elements of one partition, of float32 in PSUM."""

    @property
    def pmax(self) -> int:
        """Partitions."""
        return active_target().pmax

    @property
    def psum_fmax(self) -> int:
        return active_target().psum_bank_bytes // _WORD_BYTES

    @property
    def gemm_stationary_fmax(self) -> int:
        return active_target().stationary_fmax

    @property
    def gemm_moving_fmax(self) -> int:
        return active_target().moving_fmax

    @property
    def bn_stats_fmax(self) -> int:
        return self.psum_fmax

    @property
    def psum_min_align(self) -> int:
        """Bytes."""
        return _WORD_BYTES

    @property
    def sbuf_min_align(self) -> int:
        """Bytes."""
        return 1

    @property
    def total_available_sbuf_size(self) -> int:
        """Bytes of a partition that kernels may use."""
        return active_target().sbuf_partition_bytes - _RESERVED_SBUF_BYTES


tile_size = TileSize()
