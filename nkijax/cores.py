"""Several cores that run one kernel: their programs joined into one, from one meeting to the next."""

from __future__ import annotations

from collections.abc import Sequence

from nkijax.errors import KernelError
from nkijax.program import Instruction, Node, Program


def joined(bodies: Sequence[Sequence[Node]]) -> list[Node]:
    """One body of several programs: from one meeting to the next, one program after another."""
    out: list[Node] = []
    rest = [list(body) for body in bodies]
    while True:
        met: list[Instruction | None] = []
        for body in rest:
            k = next((k for k, n in enumerate(body) if _key(n) is not None), len(body))
            out += body[:k]
            node = body[k] if k < len(body) else None
            met.append(node if isinstance(node, Instruction) else None)
            del body[: k + 1]
        if all(n is None for n in met):
            return out
        first = next(n for n in met if n is not None)
        for core, node in enumerate(met):
            if node is None or node.meets() != first.meets():
                other = "nothing" if node is None else f"{node.api} at {node.site}"
                raise KernelError(
                    f"{first.api}: every core must reach it at the same point, core {core} reaches {other}", first.site
                )
        out += first.join([n for n in met if n is not None and n is not first])


def _key(node: Node) -> object:
    return node.meets() if isinstance(node, Instruction) else None


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
