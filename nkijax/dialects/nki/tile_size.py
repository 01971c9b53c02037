"""`nl.tile_size`: the sizes of the target's memories and of the tiles that its engines take."""

from __future__ import annotations

import os

from nkijax.dialects.sizes import WORD_BYTES, Sizes
from nkijax.dialects.sizes import active_target as active_target
from nkijax.machine import Generation


class TileSize(Sizes):
    """The sizes of every dialect, and what NKI has named since."""

    @property
    def psum_bank_fmax_bytes(self) -> int:
        return self._target.psum_bank_bytes

    @property
    def psum_bank_fmax(self) -> int:
        """What `psum_fmax` was renamed to."""
        return self.psum_fmax

    @property
    def psum_num_banks(self) -> int:
        """Usable banks: one fewer if NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE=true takes one (NeuronCore-v3 and later)."""
        target = self._target
        taken = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE") == "true" and target.generation >= Generation.gen3
        return target.psum_banks - taken

    @property
    def sbuf_size_bytes(self) -> int:
        """All partitions together."""
        target = self._target
        return target.pmax * target.sbuf_partition_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """What kernels may use of a partition; `total_available_sbuf_size` was renamed to it."""
        return self.total_available_sbuf_size

    @property
    def sbuf_fmax(self) -> int:
        return self.sbuf_fmax_bytes // WORD_BYTES


tile_size = TileSize()
