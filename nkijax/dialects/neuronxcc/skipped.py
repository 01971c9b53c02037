"""Which elements of a tile its loads with `oob_mode.skip` have left out, for an assignment to leave them out too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nkijax.dialects.neuronxcc.predicate import Box
from nkijax.dialects.neuronxcc.tensor import Tile, allocate, boxed
from nkijax.isa.move import DmaCopy, OobMode
from nkijax.machine import Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View


class Flags:
    """The loads that made a tile, and, once it is needed, a uint8 tile: 1 where they moved an element."""

    def __init__(self, tile: Tile):
        self._tile, self._loads = tile, list[tuple[Box, Instruction]]()
        self._view: View | None = None

    def note(self, box: Box, load: DmaCopy) -> None:
        """A box of the tile was loaded."""
        if load.skips() and load.src.dynamic is not None:
            self._loads.append((_padded(box, self._tile.ndim), load))

    def take(self, box: Box, part: Tile) -> None:
        """A box of the tile was copied from another tile."""
        if part.skipped is not None:
            for inner, load in part.skipped._loads:
                places = zip(_padded(box, part.ndim), inner, strict=True)
                self._loads.append((tuple((at + a, at + b) for (at, _), (a, b) in places), load))

    def noted(self) -> None:
        """All of the tile is there: it knows what was left out."""
        if self._loads:
            self._tile.skipped = self
            if current("nl.load").executor is not None:
                self.view()  # later the indices may be others

    def redirected(self, load: Instruction, instead: Instruction) -> None:
        """Another instruction stands for a load."""
        self._loads = [(box, instead if one is load else one) for box, one in self._loads]

    def view(self) -> View:
        """The flags; each load of them follows the one that it tells of."""
        if self._view is None:
            self._view, recorder = allocate(self._tile.shape, "uint8", Memory.sbuf, zero=True), current("nl.load")
            for box, load in self._loads:
                made = _flagging(boxed(self._view, box), load)
                if not recorder.replace(load, load, made):
                    recorder.emit(made)
        return self._view


def _padded(box: Box, rank: int) -> Box:
    return (*box, *((0, 1) for _ in range(rank - len(box))))[:rank]


def _flagging(flags: View, load: Instruction) -> DmaCopy:
    """The load of ones by the run-time index of another load."""
    assert isinstance(load, DmaCopy) and load.src.dynamic is not None
    one = current("nl.load").constant(np.ones((1, 1), np.uint8), "uint8", Memory.private_hbm)
    src = View(one.buffer, 0, (0,) * load.src.ndim, load.src.shape, "uint8", replace(load.src.dynamic, stride=0))
    return DmaCopy(flags, src, oob_mode=OobMode.skip)


def loaded(load: DmaCopy) -> View | None:
    """Flags of a load that was just emitted; None if it skips nothing."""
    if not load.skips() or load.src.dynamic is None:
        return None
    flags = allocate(load.dst.shape, "uint8", Memory.sbuf, zero=True)
    current("nl.load").emit(_flagging(flags, load))
    return flags
