"""What `nl.tile_size` has in every dialect: sizes of the target's memories and of the tiles that its engines take."""

from __future__ import annotations

from nkijax.api import Options
from nkijax.machine import Target
from nkijax.trace import recording

WORD_BYTES = 4
_RESERVED_SBUF_BYTES = 16384  # of a partition; AWS publishes no number, nki-library reserves about this much


def active_target(default: str = "trn3") -> Target:
    """The target of the kernel that is being traced; outside of kernels, the environment's, else the default."""
    recorder = recording()
    return Options().resolve(default=default) if recorder is None else recorder.target


class Sizes:
    """Sizes of the active target; free sizes are elements of one partition, float32 unless the name says bytes.

    Args:
      default: the target outside of kernels, where the environment names none.
    """

    def __init__(self, default: str = "trn3"):
        self._default = default

    @property
    def _target(self) -> Target:
        return active_target(self._default)

    @property
    def pmax(self) -> int:
        """Partitions."""
        return self._target.pmax

    @property
    def psum_fmax(self) -> int:
        """Of one bank."""
        return self._target.psum_bank_bytes // WORD_BYTES

    @property
    def gemm_stationary_fmax(self) -> int:
        return self._target.stationary_fmax

    @property
    def gemm_moving_fmax(self) -> int:
        return self._target.moving_fmax

    @property
    def bn_stats_fmax(self) -> int:
        return self.psum_fmax

    @property
    def psum_min_align(self) -> int:
        """Bytes; assumed, as AWS publishes no number."""
        return WORD_BYTES

    @property
    def sbuf_min_align(self) -> int:
        """Bytes; assumed, as AWS publishes no number."""
        return 1

    @property
    def total_available_sbuf_size(self) -> int:
        """Bytes of a partition that kernels may use."""
        return self._target.sbuf_partition_bytes - _RESERVED_SBUF_BYTES
