"""`nl.tile_size`: the sizes of the target's memories and of the tiles that its engines take."""

from __future__ import annotations

from nkijax.dialects import sizes
from nkijax.dialects.neuronxcc.jit import DIALECT
from nkijax.machine import Target

tile_size = sizes.Sizes(DIALECT.target)


def active_target() -> Target:
    """The target of the kernel that is being traced; outside of kernels, the environment's, else the dialect's."""
    return sizes.active_target(DIALECT.target)
