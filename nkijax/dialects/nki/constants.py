"""The enums of `nki.isa` (also `nki.isa.constants`): one name for each, and the deprecated aliases of engines.

Plain ints and strings are refused where a member is asked for, except that `perf_mode` takes its own strings, and
`dge_mode` its members' values, as nki-library passes them.
"""

from __future__ import annotations

from typing import Any

from nkijax.isa.matmul import MatmulPerfMode
from nkijax.isa.move import DgeMode, OobMode
from nkijax.isa.operators import ReduceCmd
from nkijax.isa.sync import DmaEngine
from nkijax.machine import Engine, Generation

engine = Engine
reduce_cmd = ReduceCmd
dge_mode = DgeMode
oob_mode = OobMode
matmul_perf_mode = MatmulPerfMode
nc_version = Generation
dma_engine = DmaEngine


# Deprecated since NKI 0.3, and in wide use.
tensor_engine = Engine.tensor
vector_engine = Engine.vector
scalar_engine = Engine.scalar
gpsimd_engine = Engine.gpsimd
unknown_engine = Engine.unknown


def dge(mode: Any) -> Any:
    """The member of dge_mode that an int is the value of; anything else as it is."""
    return DgeMode(mode) if type(mode) is int and mode in [m.value for m in DgeMode] else mode
