"""Fills of tiles that nothing else uses are left out.

Kernels declare `nl.zeros` tiles for every turn of a loop, also for turns that do nothing else.  The vendor's compiler
drops such dead code; here it would also keep turns from being alike, so that the program would not roll.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nkijax.isa.move import Memset
from nkijax.program import Instruction, Loop, Node
from nkijax.trace import Recorder
from nkijax.view import Buffer


class Fills:
    """Asks the recorder, once, to leave out fills of tiles that nothing else uses (a fact of the recorder)."""

    def __init__(self):
        self._asked = False

    def enter_loop(self) -> None: ...

    def exit_loop(self) -> None: ...

    def note(self, recorder: Recorder) -> None:
        if not self._asked:
            recorder.finishing.append(without_unused)
            self._asked = True


def without_unused(recorder: Recorder, nodes: Sequence[Node]) -> list[Node]:
    """The body without fills of on-chip buffers that no other instruction reads or writes."""
    del recorder
    uses: Counter[Buffer] = Counter()
    _count(nodes, uses)
    return _kept(nodes, uses)


def _count(nodes: Sequence[Node], uses: Counter[Buffer]) -> None:
    for node in nodes:
        if isinstance(node, Loop):
            uses.update(v.buffer for v in (*node.reads(), *node.writes()))
            _count(node.body, uses)
        elif isinstance(node, Instruction):
            uses.update(v.buffer for v in (*node.reads(), *node.writes()))


def _kept(nodes: Sequence[Node], uses: Counter[Buffer]) -> list[Node]:
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            out.append(replace(node, body=tuple(_kept(node.body, uses))))
        elif not (isinstance(node, Memset) and node.dst.memory.on_chip and uses[node.dst.buffer] == 1):
            out.append(node)
    return out
