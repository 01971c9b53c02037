"""Which earlier accesses an access must wait for, at view granularity, and who may take on-chip space when.

A `Region` is the box of a buffer that a view touches, or, with a run-time index, may touch.  Two accesses conflict
when their regions overlap and one of them writes; two with one and the same run-time index, only when they overlap
whatever it is.  A value (RAW) is always waited for.  The other orders (WAR, WAW) wait for the completion of the earlier
access too, except within one in-order lane (an engine, or a DMA ring), which keeps them by itself; so does an operand
that is read and written in place, such as the accumulator of a matmul.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from nkijax import dtypes
from nkijax.machine import Memory
from nkijax.view import Buffer, View

Box = tuple[tuple[int, int], ...]


class Region:
    """A box of a buffer: first and last index of each dimension, in bytes in the last one.

    `fixed` is the box at run-time index 0.  `near` are the regions that overlap this one, itself included, as far as
    either is ever written.
    """

    __slots__ = ("box", "buffer", "dynamic", "fixed", "near", "uid", "written")

    def __init__(self, uid: int, view: View, box: Box, fixed: Box) -> None:
        self.uid, self.buffer, self.dynamic = uid, view.buffer, view.dynamic is not None
        self.box, self.fixed = box, fixed
        self.written = False
        self.near: list[Region] | None = None


class Access(NamedTuple):
    """A region, and which run-time index moves it: equal ones have one value, None is none, ANY may be any."""

    region: Region
    index: Hashable = None


ANY = object()


@cache
def _natural(shape: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of a buffer's own dimensions, the last one in bytes."""
    shape = shape or (1,)
    sizes = (*shape[:-1], shape[-1] * dtypes.size(dtype))
    return sizes, tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def view_box(view: View, reach: bool = True) -> Box:
    """The smallest box found that holds every byte a view touches; with `reach`, whatever its run-time index."""
    unit, (sizes, steps) = dtypes.size(view.dtype), _natural(view.buffer.shape, view.buffer.dtype)
    low, rest = [], view.offset * unit
    for step in steps:
        digit, rest = divmod(rest, step)
        low.append(digit)
    span = [0] * len(sizes)
    span[-1] = unit - 1
    dims = list(zip(view.strides, view.shape, strict=True))
    if view.dynamic and reach:
        dims.append((view.dynamic.stride, view.dynamic.limit))
    for stride, count in dims:
        pace = stride * unit
        if pace > 0 and count > 1:
            d = 0
            while steps[d] > pace:
                d += 1
            if pace % steps[d]:
                d = -1
            span[d] += pace * (count - 1) // steps[d]
    high = [a + s for a, s in zip(low, span, strict=True)]
    for d in range(len(sizes) - 1, 0, -1):  # what leaves a dimension fills it, and moves on in the next outer one
        if high[d] >= sizes[d]:
            high[d - 1] += high[d] // sizes[d]
            low[d], high[d] = 0, sizes[d] - 1
    return tuple(zip(low, high, strict=True))


class Regions:
    """Every region that a program touches.

    All accesses are found (`of`), in program order, before the first overlap is asked for (`near`).
    """

    def __init__(self) -> None:
        self._views: dict[Hashable, Access] = {}
        self._boxes: dict[Hashable, Region] = {}
        self._buffers: dict[Buffer, list[Region]] = {}
        self._writes: dict[Buffer, int] = {}

    def of(self, view: View, write: bool) -> Access:
        """The access that a view is; every write gives the run-time indices in its buffer new values."""
        d = view.dynamic
        key = (view.buffer, view.offset, view.strides, view.shape, view.dtype, d and (d.stride, d.limit))
        access = self._views.get(key)
        if access is None:
            access = self._views[key] = Access(self._region(view))
        region = access.region
        if write:
            region.written = True
            self._writes[view.buffer] = self._writes.get(view.buffer, 0) + 1
        if d is None:
            return access
        if d.vector or d.columns:  # each row moves by itself, so that two such views may meet wherever they are
            return Access(region, object())
        return Access(region, (d.index.buffer, d.index.offset, d.stride, self._writes.get(d.index.buffer, 0)))

    def _region(self, view: View) -> Region:
        box = view_box(view)
        fixed = view_box(view, reach=False) if view.dynamic else box
        key = (view.buffer, box, fixed, view.dynamic is None)
        region = self._boxes.get(key)
        if region is None:
            region = Region(len(self._boxes), view, box, fixed)
            self._boxes[key] = region
            self._buffers.setdefault(view.buffer, []).append(region)
        return region

    def near(self, region: Region) -> list[Region]:
        """The regions that conflict with `region` when one of the two is written."""
        if region.near is None:
            self._link(self._buffers[region.buffer])
        assert region.near is not None
        return region.near

    def _link(self, regions: list[Region]) -> None:
        written = np.array([r.written for r in regions])
        if len(regions) == 1 or not written.any():
            for region in regions:
                region.near = [region] if region.written else []
            return
        boxes = np.array([r.box for r in regions])  # (regions, dimensions, 2)
        # Sort by the dimension that tells most of them apart: what may overlap is then a short range.
        by = max(range(boxes.shape[1]), key=lambda d: len(np.unique(boxes[:, d, 0])))
        order = np.argsort(boxes[:, by, 0], kind="stable")
        boxes, written = boxes[order], written[order]
        low, high = np.ascontiguousarray(boxes[..., 0].T), np.ascontiguousarray(boxes[..., 1].T)
        starts = np.searchsorted(np.maximum.accumulate(high[by]), low[by], "left")
        stops = np.searchsorted(low[by], high[by], "right")
        for k, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            near = written[start:stop] | written[k]
            for d in range(len(low)):
                near &= (low[d, start:stop] <= high[d, k]) & (high[d, start:stop] >= low[d, k])
            regions[order[k]].near = [regions[order[j]] for j in start + np.flatnonzero(near)]


def _apart(a: Region, b: Region) -> bool:
    """Whether two regions that are moved by the same run-time index never overlap."""
    return any(low > last or high < first for (first, last), (low, high) in zip(a.fixed, b.fixed, strict=True))


class _Last:
    """The last accesses of a region: its writer, and its readers since by lane (a lane completes in order).

    Each with the run-time index that it, and all before it in its lane, had.
    """

    __slots__ = ("index", "lane", "readers", "writer")

    def __init__(self, writer: int = -1, lane: str = "", index: Hashable = None) -> None:
        self.writer, self.lane, self.index = writer, lane, index
        self.readers: dict[str, tuple[int, Hashable]] = {}


class Hazards:
    """Finds, access by access in program order, which earlier nodes a node must follow.

    `turn` numbers the copies of an unrolled loop body: buffers of depth `depth` or more are each copy's own, run-time
    addresses of different copies are distinct, and no copy but the first waits for a register (the first one's index
    plus a constant is the address).
    """

    def __init__(self, regions: Regions, depth: int) -> None:
        self._regions = regions
        self._depth = depth
        self._last: list[dict[int, _Last]] = [{}]  # by turn, then by region

    def _own(self, region: Region, turn: int) -> int:
        return turn if turn and (region.dynamic or region.buffer.depth >= self._depth) else 0

    def _seen(self, access: Access, turn: int) -> Iterator[tuple[_Last, bool]]:
        """The last accesses near `access`, and for each whether it is apart if its run-time index is the same."""
        region = access.region
        for other in self._regions.near(region):
            own = self._own(other, turn)
            every = own and not region.dynamic and other.buffer.depth < self._depth  # copies of a run-time address
            for t in range(turn + 1) if every else (own,):
                last = self._last[t].get(other.uid)
                if last is not None:
                    yield last, region.dynamic and other.dynamic and other is not region and _apart(region, other)

    def visit(
        self, node: int, lane: str, reads: Iterable[Access], writes: Iterable[Access], turn: int = 0
    ) -> tuple[set[int], set[int]]:
        """The nodes that `node` waits for, and those that its lane already keeps before it."""
        waits: set[int] = set()
        kept: set[int] = set()
        while len(self._last) <= turn:
            self._last.append({})
        for access in reads:
            if turn and access.region.buffer.memory is Memory.register:
                continue
            for last, apart in self._seen(access, turn):
                if last.writer >= 0 and not (apart and last.index == access.index):
                    waits.add(last.writer)
        for access in writes:
            for last, apart in self._seen(access, turn):
                if last.writer >= 0 and not (apart and last.index == access.index):
                    (kept if last.lane == lane else waits).add(last.writer)
                for reader_lane, (reader, index) in last.readers.items():
                    if not (apart and index == access.index):
                        (kept if reader_lane == lane else waits).add(reader)
        self._record(node, lane, reads, writes, turn)
        return waits, kept

    def _record(self, node: int, lane: str, reads: Iterable[Access], writes: Iterable[Access], turn: int) -> None:
        for access in reads:
            if access.region.near:
                readers = self._entry(access, turn).readers
                before = readers.get(lane)
                readers[lane] = (node, access.index if before is None or before[1] == access.index else ANY)
        for access in writes:
            last = self._entry(access, turn)
            index = access.index if last.writer < 0 or last.index == access.index else ANY
            self._last[self._own(access.region, turn)][access.region.uid] = _Last(node, lane, index)

    def _entry(self, access: Access, turn: int) -> _Last:
        entries = self._last[self._own(access.region, turn)]
        last = entries.get(access.region.uid)
        if last is None:
            last = entries[access.region.uid] = _Last()
        return last


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
