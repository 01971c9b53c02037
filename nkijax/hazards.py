"""Which earlier accesses an access must wait for, at view granularity, and who may take on-chip space when.

A `Region` is the box of a buffer that a view touches, or, with a run-time index, may touch.  Two accesses conflict
when their regions overlap and one of them writes.  A value (RAW) is always waited for.  The other orders (WAR, WAW)
wait for the completion of the earlier access too, except within one in-order lane (an engine, or a DMA ring), which
keeps them by itself; so does an operand that is read and written in place, such as the accumulator of a matmul.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from nkijax import dtypes
from nkijax.view import Buffer, View

Box = tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class Region:
    """A box of a buffer: first and last index of each dimension, in bytes in the last one.

    `near` are the regions that overlap it, itself included, as far as either is ever written.
    """

    uid: int
    buffer: Buffer
    box: Box
    dynamic: bool
    written: bool = False
    near: list[Region] | None = None


def view_box(view: View) -> Box:
    """The smallest box found that holds every byte a view touches, whatever its run-time index."""
    unit, shape = dtypes.size(view.dtype), view.buffer.shape or (1,)
    sizes = (*shape[:-1], shape[-1] * dtypes.size(view.buffer.dtype))
    steps = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    low, rest = [], view.offset * unit
    for step in steps:
        digit, rest = divmod(rest, step)
        low.append(digit)
    span = [0] * len(sizes)
    span[-1] = unit - 1
    dims = list(zip(view.strides, view.shape, strict=True))
    if view.dynamic:
        dims.append((view.dynamic.stride, view.dynamic.limit))
    for stride, count in dims:
        far = stride * unit * (count - 1)
        if far > 0:
            d = next(d for d, step in enumerate(steps) if step <= stride * unit)
            exact = stride * unit % steps[d] == 0
            span[d if exact else -1] += far // steps[d] if exact else far
    high = [a + s for a, s in zip(low, span, strict=True)]
    for d in range(len(sizes) - 1, 0, -1):  # what leaves a dimension fills it, and moves on in the next outer one
        if high[d] >= sizes[d]:
            high[d - 1] += high[d] // sizes[d]
            low[d], high[d] = 0, sizes[d] - 1
    return tuple(zip(low, high, strict=True))


class Regions:
    """Every region that a program touches.  All are found (`of`) before the first overlap is asked for (`near`)."""

    def __init__(self) -> None:
        self._views: dict[Hashable, Region] = {}
        self._boxes: dict[Hashable, Region] = {}
        self._buffers: dict[Buffer, list[Region]] = {}

    def of(self, view: View, write: bool) -> Region:
        """The region of a view."""
        d = view.dynamic
        key = (view.buffer, view.offset, view.strides, view.shape, view.dtype, d and (d.stride, d.limit))
        region = self._views.get(key)
        if region is None:
            box = view_box(view)
            region = self._boxes.get((view.buffer, box, d is None))
            if region is None:
                region = Region(len(self._boxes), view.buffer, box, d is not None)
                self._boxes[view.buffer, box, d is None] = region
                self._buffers.setdefault(view.buffer, []).append(region)
            self._views[key] = region
        region.written |= write
        return region

    def near(self, region: Region) -> list[Region]:
        """The regions that conflict with `region` when one of the two is written."""
        if region.near is None:
            self._link(self._buffers[region.buffer])
        assert region.near is not None
        return region.near

    def _link(self, regions: list[Region]) -> None:
        written = np.array([r.written for r in regions])
        boxes = np.array([r.box for r in regions])  # (regions, dimensions, 2)
        boxes = boxes[:, (boxes != boxes[:1]).any(axis=(0, 2))]  # dimensions in which they differ
        low, high = np.ascontiguousarray(boxes[..., 0].T), np.ascontiguousarray(boxes[..., 1].T)
        for k, region in enumerate(regions):
            if not written.any():
                region.near = []
                continue
            near = np.ones_like(written) if region.written else written.copy()
            for first, last in zip(low, high, strict=True):
                near &= (first <= last[k]) & (last >= first[k])
            region.near = [regions[j] for j in np.flatnonzero(near)]


@dataclass(slots=True)
class _Last:
    """The last accesses of a region: its writer, and its readers since by lane (a lane completes in order)."""

    writer: int = -1
    lane: str = ""
    readers: dict[str, int] = field(default_factory=dict)


class Hazards:
    """Finds, access by access in program order, which earlier nodes a node must follow.

    `turn` numbers the copies of an unrolled loop body: buffers of depth `depth` or more are each copy's own, and
    run-time addresses of different copies are distinct.
    """

    def __init__(self, regions: Regions, depth: int) -> None:
        self._regions = regions
        self._depth = depth
        self._last: dict[tuple[int, int], _Last] = {}

    def _own(self, region: Region, turn: int) -> int:
        return turn if turn and (region.dynamic or region.buffer.depth >= self._depth) else 0

    def _seen(self, region: Region, other: Region, turn: int) -> Iterable[_Last]:
        """The last accesses of `other` that copy `turn` of `region` conflicts with."""
        turns: Iterable[int] = (self._own(other, turn),)
        if turn and other.dynamic and not region.dynamic and other.buffer.depth < self._depth:
            turns = range(turn + 1)
        return [last for t in turns if (last := self._last.get((other.uid, t))) is not None]

    def visit(
        self, node: int, lane: str, reads: Iterable[Region], writes: Iterable[Region], turn: int = 0
    ) -> tuple[set[int], set[int]]:
        """The nodes that `node` waits for, and those that its lane already keeps before it."""
        waits: set[int] = set()
        kept: set[int] = set()
        for region in reads:
            for other in self._regions.near(region):
                for last in self._seen(region, other, turn):
                    if last.writer >= 0:
                        waits.add(last.writer)
        for region in writes:
            for other in self._regions.near(region):
                for last in self._seen(region, other, turn):
                    if last.writer >= 0:
                        (kept if last.lane == lane else waits).add(last.writer)
                    for reader_lane, reader in last.readers.items():
                        (kept if reader_lane == lane else waits).add(reader)
        for region in reads:
            if region.near:
                self._last.setdefault((region.uid, self._own(region, turn)), _Last()).readers[lane] = node
        for region in writes:
            self._last[region.uid, self._own(region, turn)] = _Last(node, lane)
        return waits, kept


class Space:
    """Bytes of a partition of one memory, handed out in program order: never used ones first, then the longest dead.

    When everything alive does not fit, the shortage is lent: nothing waits, and the next bytes freed pay it back.
    """

    def __init__(self, free_bytes: int) -> None:
        self._fresh = max(free_bytes, 0)
        self._debt = max(-free_bytes, 0)
        self._dead: deque[tuple[int, dict[str, int]]] = deque()
        self._dead_bytes = 0

    def take(self, size_bytes: int) -> list[dict[str, int]]:
        """Take space; returns the last users, by lane, of the buffers that were in it."""
        fresh = min(self._fresh, size_bytes)
        self._fresh -= fresh
        need = size_bytes - fresh
        if need > self._dead_bytes:
            self._debt += need - self._dead_bytes
            self._dead.clear()
            self._dead_bytes = 0
            return []
        self._dead_bytes -= need
        users = []
        while need > 0:
            size, last = self._dead.popleft()
            users.append(last)
            if size > need:
                self._dead.appendleft((size - need, last))
            need -= size
        return users

    def give(self, size_bytes: int, users: dict[str, int]) -> None:
        """Return space whose last users, by lane, are `users`."""
        paid = min(self._debt, size_bytes)
        self._debt -= paid
        if size_bytes > paid:
            self._dead.append((size_bytes - paid, users))
            self._dead_bytes += size_bytes - paid
