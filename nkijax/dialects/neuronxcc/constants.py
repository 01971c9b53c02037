"""The enums of `neuronxcc.nki.isa` (also `neuronxcc.nki.isa.constants`), and the names of engines."""

from __future__ import annotations

import math

from nkijax.isa.move import DgeMode, OobMode
from nkijax.isa.operators import ReduceCmd
from nkijax.isa.selecting import FLOAT32_MIN
from nkijax.machine import Engine, Generation

engine = Engine
reduce_cmd = ReduceCmd
dge_mode = DgeMode
oob_mode = OobMode
nc_version = Generation

tensor_engine = Engine.tensor
vector_engine = Engine.vector
scalar_engine = Engine.scalar
gpsimd_engine = Engine.gpsimd
unknown_engine = Engine.unknown
dma_engine = Engine.dma


class fp32:
    """Facts of float32."""

    min = FLOAT32_MIN
    max = -FLOAT32_MIN
    inf = math.inf


class bfp16:
    """Facts of bfloat16; `min` is the documented bit pattern 0xff80."""

    min = -math.inf
