"""The enums of `nki.isa` (also `nki.isa.constants`): one name for each, and the deprecated aliases of engines.

Plain ints and strings are refused where a member is asked for, except that `perf_mode` takes its own strings.
"""

from __future__ import annotations

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
