"""Edges of the schedule: which instruction waits for which, beyond what data ask for.

They come from `kernel.with_schedule` by the instructions' names, from `depends_on`, and from `nl.no_reorder`.  An edge
is a pair (consumer, producer).  Both run at the same dynamic loop nesting, or the producer does outside of the
consumer's loop and before it.  A consumer that the kernel issues first is moved behind its producer, with all that
depends on it.
Source: nki/guides/how-to-scheduling-apis.rst
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from nkijax.errors import KernelError
from nkijax.hazards import Hazards, Regions
from nkijax.program import Edge, Instruction, Loop, Node

Named = Sequence[tuple[str, Sequence[str]]]
"""(consumer, producers) by name."""


def scheduled(body: Sequence[Node], named: Named, pairs: Sequence[Edge]) -> tuple[list[Node], tuple[Edge, ...]]:
    """A flat program's body in an order that keeps all edges, and the edges; KernelError if there is no such order."""
    if not named and not pairs:
        return list(body), ()
    places: dict[int, _Place] = {}
    _place(body, (), places)
    edges = tuple(dict.fromkeys([*_resolved(named, places), *pairs]))
    for consumer, producer in edges:
        _check(places, consumer, producer)
    return _sorted(body, edges, 0), edges


class _Place(NamedTuple):
    """Where an instruction is: the loops around it, and its and their positions, outermost first.

    `stretch` counts the loops before it at its own nesting.
    """

    instruction: Instruction
    loops: tuple[Loop, ...]
    positions: tuple[int, ...]
    stretch: int


def _place(nodes: Sequence[Node], around: tuple[tuple[Loop, int], ...], places: dict[int, _Place]) -> None:
    stretch = 0
    for k, node in enumerate(nodes):
        if isinstance(node, Loop):
            stretch += 1
            _place(node.body, (*around, (node, k)), places)
        elif isinstance(node, Instruction):
            loops = tuple(loop for loop, _ in around)
            places[id(node)] = _Place(node, loops, (*(at for _, at in around), k), stretch)


# ---- names


def _resolved(named: Named, places: dict[int, _Place]) -> list[Edge]:
    """Edges between named instructions, on each core that has them."""
    by_name: dict[str, dict[int, Instruction]] = {}
    for place in places.values():
        inst = place.instruction
        if inst.name is None:
            continue
        cores = by_name.setdefault(inst.name, {})
        if inst.core in cores and any(inst.name in (consumer, *producers) for consumer, producers in named):
            rule = "an edge needs a name that one instruction has"
            raise KernelError(f"kernel.with_schedule {inst.name!r}: {rule}, got several", inst.site)
        cores[inst.core] = inst
    edges: list[Edge] = []
    for consumer, producers in named:
        for producer in producers:
            ends = [_named(by_name, "consumer", consumer), _named(by_name, "producer", producer)]
            edges += [(inst, ends[1][core]) for core, inst in ends[0].items() if core in ends[1]]
    return edges


def _named(by_name: dict[str, dict[int, Instruction]], end: str, name: str) -> dict[int, Instruction]:
    if name not in by_name:
        near = difflib.get_close_matches(str(name), by_name)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise KernelError(f"kernel.with_schedule {end}: must be the name of an instruction, got {name!r}{hint}", "")
    return by_name[name]


# ---- places


def _label(inst: Instruction) -> str:
    return repr(inst.name) if inst.name else f"{inst.api} at {inst.site}"


def _check(places: dict[int, _Place], consumer: Instruction, producer: Instruction) -> None:
    """The producer is at the consumer's nesting or outside of its loops, and no loop keeps it from coming first."""
    if id(consumer) not in places or id(producer) not in places:
        missing = producer if id(consumer) in places else consumer
        raise KernelError(f"schedule edge {_label(missing)}: must end at an instruction of one core", missing.site)
    here, there = places[id(consumer)], places[id(producer)]
    depth = len(there.loops)
    edge = f"schedule edge {_label(consumer)} after {_label(producer)}"
    if any(a is not b for a, b in zip(here.loops[:depth], there.loops, strict=False)) or len(here.loops) < depth:
        rule = "the producer must be at the dynamic loop nesting of the consumer, or outside of its loops"
        raise KernelError(f"{edge}: {rule}, got one inside of {there.loops[-1].site}", consumer.site)
    if consumer is producer:
        raise KernelError(f"{edge}: an instruction cannot wait for itself", consumer.site)
    late = there.positions[-1] > here.positions[depth]
    if late and (len(here.loops) > depth or here.stretch != there.stretch):
        raise KernelError(f"{edge}: a dynamic loop keeps the producer from coming first", consumer.site)


# ---- order


def _sorted(nodes: Sequence[Node], edges: Sequence[Edge], depth: int) -> list[Node]:
    """Nodes with each stretch between loops in an order that keeps the edges."""
    out: list[Node] = []
    stretch: list[Instruction] = []
    for node in nodes:
        if isinstance(node, Loop):
            out += _ordered(stretch, edges, depth)
            stretch = []
            out.append(replace(node, body=tuple(_sorted(node.body, edges, depth + 1))))
        else:
            assert isinstance(node, Instruction)
            stretch.append(node)
    return [*out, *_ordered(stretch, edges, depth)]


def _ordered(stretch: list[Instruction], edges: Sequence[Edge], depth: int) -> list[Instruction]:
    """The instructions in program order, but for those that an edge moves behind a later one."""
    at = {id(inst): k for k, inst in enumerate(stretch)}
    inside = [(at[id(c)], at[id(p)]) for c, p in edges if id(c) in at and id(p) in at]
    if not any(consumer < producer for consumer, producer in inside):
        return stretch
    after: list[set[int]] = [set() for _ in stretch]
    for consumer, producer in [*inside, *_data(stretch, depth)]:
        after[producer].add(consumer)
    missing = [0] * len(stretch)
    for consumers in after:
        for k in consumers:
            missing[k] += 1
    ready = [k for k, n in enumerate(missing) if not n]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for k in after[order[-1]]:
            missing[k] -= 1
            if not missing[k]:
                heappush(ready, k)
    if len(order) < len(stretch):
        first = next(k for k, n in enumerate(missing) if n)
        rule = "edges and data must not wait for each other in a circle"
        raise KernelError(f"schedule edge {_label(stretch[first])}: {rule}", stretch[first].site)
    return [stretch[k] for k in order]


def _data(stretch: Sequence[Instruction], depth: int) -> list[tuple[int, int]]:
    """(consumer, producer) of every order that data ask for."""
    regions = Regions()
    accesses = [
        ([regions.of(v, False) for v in inst.reads()], [regions.of(v, True) for v in inst.writes()]) for inst in stretch
    ]
    hazards = Hazards(regions, depth)
    pairs: list[tuple[int, int]] = []
    for k, (reads, writes) in enumerate(accesses):
        waits, _ = hazards.visit(k, str(k), reads, writes)  # a lane each: no order is kept for us
        pairs += [(k, producer) for producer in waits]
    return pairs
