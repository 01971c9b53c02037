"""Several cores that run one kernel: their programs joined into one, from one meeting to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nkijax.errors import KernelError
from nkijax.program import EVERY_CORE, Instruction, Loop, Node, Program, instructions


def joined(bodies: Sequence[Sequence[Node]]) -> list[Node]:
    """One body of several programs: from one meeting to the next, one program after another.

    Dynamic loops in which cores meet are one loop, with one body.
    """
    out: list[Node] = []
    rest = [list(body) for body in bodies]
    while True:
        met: list[Instruction | Loop | None] = []
        for body in rest:
            k = next((k for k, n in enumerate(body) if _key(n) is not None), len(body))
            out += body[:k]
            node = body[k] if k < len(body) else None
            met.append(node if isinstance(node, Instruction | Loop) else None)
            del body[: k + 1]
        if all(n is None for n in met):
            return out
        first = agreed(met)
        loops = [n for n in met if isinstance(n, Loop)]
        partners = [n for n in met if isinstance(n, Instruction) and n is not first]
        out += [_joined_loop(loops)] if isinstance(first, Loop) else first.join(partners)


def agreed(met: Sequence[Instruction | Loop | None]) -> Instruction | Loop:
    """The first of the nodes at which cores wait for each other, given that all wait at the same; None: it has ended.

    Raises:
      KernelError: they do not.
    """
    first = next(n for n in met if n is not None)
    for core, node in enumerate(met):
        if node is None or _key(node) != _key(first):
            other = "nothing" if node is None else f"{_name(node)} at {node.site}"
            raise KernelError(
                f"{_name(first)}: every core must reach it at the same point, core {core} reaches {other}",
                first.site,
            )
    return first


def _key(node: Node) -> object:
    """What the other cores must reach too before this core goes on, or None."""
    if isinstance(node, Loop):
        meets = any(i.meets() is not None for i in instructions(node.body))
        return ("loop", node.condition is None, node.step) if meets else None
    return node.meets() if isinstance(node, Instruction) else None


def _name(node: Instruction | Loop) -> str:
    return node.api if isinstance(node, Instruction) else "dynamic loop in which cores meet"


def _joined_loop(loops: Sequence[Loop]) -> Loop:
    """The loop that stands for one of each core, in which they meet."""
    turns = [_turns(loop) for loop in loops]
    for core, n in enumerate(turns):
        if None not in (n, turns[0]) and n != turns[0]:
            rule = f"every core must turn as often as core 0, {turns[0]} times"
            raise KernelError(f"{_name(loops[0])}: {rule}, core {core} turns {n} times", loops[0].site)
    return replace(_one_loop(loops), body=tuple(joined([loop.body for loop in loops])))


def _one_loop(loops: Sequence[Loop]) -> Loop:
    """The header of a loop that stands for one of each core."""
    first, *others = loops
    return replace(
        first,
        registers=tuple(loop.register for loop in others),
        bounds=tuple(bound for loop in others for bound in (loop.lower, loop.upper)),
        conditions=tuple(loop.condition for loop in others if loop.condition is not None),
        idents=tuple(loop.ident for loop in others),
    )


def _turns(loop: Loop) -> int | None:
    """How often a loop turns, where that is known."""
    if not isinstance(loop.lower, int) or not isinstance(loop.upper, int):
        return None
    return len(range(loop.lower, loop.upper, loop.step))


def side_by_side(nodes: Sequence[Node], cores: int) -> list[Node]:
    """A joined body in which the n-th loops of the cores between meetings are one loop, too, to be timed together."""
    out: list[Node] = []
    apart: list[list[Node]] = [[] for _ in range(cores)]

    def flush() -> None:
        while any(apart):
            loops = []
            for own in apart:
                k = next((k for k, n in enumerate(own) if isinstance(n, Loop)), len(own))
                out.extend(own[:k])
                loops += own[k : k + 1]
                del own[: k + 1]
            out.extend([_side_by_side(loops, cores)] if loops else [])

    for node in nodes:
        if isinstance(node, Loop) and node.registers:
            flush()
            out.append(replace(node, body=tuple(side_by_side(node.body, cores))))
        elif core_of(node) == EVERY_CORE or isinstance(node, Instruction) and node.meets() is not None:
            flush()
            out.append(node)
        else:
            apart[core_of(node)].append(node)
    flush()
    return out


def _side_by_side(loops: Sequence[Loop], cores: int) -> Loop:
    body = [node for loop in loops for node in loop.body]
    return replace(_one_loop(loops), body=tuple(side_by_side(body, cores)))


def core_of(node: Node) -> int:
    """The core that executes a node: that of its first instruction."""
    return next((i.core for i in instructions([node])), 0)


def check_trips(program: Program, trips: Sequence[int]) -> None:
    """Raise unless every core turned its n-th dynamic loop as often as core 0 did."""
    counts = [
        [(int(t), site) for t, site, c in zip(trips, program.loops, program.loop_cores, strict=False) if c == core]
        for core in range(program.cores)
    ]
    for other in counts[1:]:
        for (want, _), (got, site) in zip(counts[0], other, strict=False):
            if got != want:
                raise KernelError(
                    f"dynamic loop: every core must turn as often as core 0, {want} times, got {got}", site
                )
