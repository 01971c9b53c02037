"""When a matmul into PSUM adds to what it finds there: which elements a matmul has written before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nkijax import dtypes
from nkijax.errors import Unsupported, kernel_frame
from nkijax.isa.move import Memset
from nkijax.program import Instruction
from nkijax.view import Buffer, View

_Pattern = tuple[int, tuple[int, ...], tuple[int, ...], str]  # offset, strides, shape, dtype of a static view


@dataclass(slots=True)
class _Written:
    """What is known of one PSUM buffer: the patterns that a matmul has written for certain, in order.

    `bytes` is their union, a flag a byte, made when a pattern meets another one that it is not; `state` is the run-time
    truth, once something needed it; `untold` that a write which no state could record came before there was one.
    """

    buffer: Buffer
    patterns: dict[_Pattern, None] = field(default_factory=dict)
    bytes: np.ndarray | None = None
    state: Buffer | None = None
    untold: bool = False

    def region(self, pattern: _Pattern) -> np.ndarray:
        """The flags of a pattern, a NumPy view."""
        if self.bytes is None:
            self.bytes = np.zeros(self.buffer.size * dtypes.size(self.buffer.dtype), np.bool_)
            for known in self.patterns:
                self.region(known)[...] = True
        offset, strides, shape, dtype = pattern
        size = dtypes.size(dtype)
        steps = (*(s * size for s in strides), 1)
        return np.ndarray((*shape, size), np.bool_, self.bytes, offset * size, steps)

    def coverage(self, dst: View) -> tuple[bool, bool]:
        """Whether all, and whether any, of what `dst` may address is written for certain."""
        pattern = _pattern(dst)
        if dst.dynamic is not None:
            pattern = _pattern(View.whole(self.buffer))
        if all(_apart(pattern, known, dst.partition_stride) for known in self.patterns):
            return False, False
        flags = self.region(pattern)
        return bool(flags.all()), bool(flags.any())


def _pattern(view: View) -> _Pattern:
    return view.offset, view.strides, view.shape, view.dtype


def _apart(a: _Pattern, b: _Pattern, partition_stride: int) -> bool:
    """Cheap evidence that two patterns share no element: their spans within a partition are disjoint."""
    if a[3] != b[3]:
        return False
    spans = []
    for offset, strides, shape, _ in (a, b):
        first = offset % partition_stride
        spans.append((first, first + sum(s * (n - 1) for s, n in zip(strides[1:], shape[1:], strict=True))))
    return spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]


def _is_whole(view: View) -> bool:
    """A static view that addresses every element of its buffer once."""
    if view.dynamic is not None or view.offset or view.size != view.storage_size:
        return False
    step = 1
    for stride, n in sorted((s, n) for s, n in zip(view.strides, view.shape, strict=True) if n != 1):
        if stride != step:
            return False
        step *= n
    return True


class MatmulFacts:
    """Which elements of which PSUM buffers a matmul has written, as far as tracing can tell.

    The recorder owns one, tells it of dynamic loops, and lends it two functions.  `allocate(psum)` makes a state
    buffer of the shape, depth and scope of `psum`, dtype bool, in `Memory.state`.  `untouched(psum)` says that no
    instruction so far reads or writes `psum`.  `zeros` are the buffers that must start as zeros instead of poison,
    state buffers among them.

    What a loop's body learns is forgotten at its end, as the loop may not have run.  What is not known for certain of
    a buffer from outside of the loop is told by its state, where every write that is not known already is recorded.
    """

    def __init__(self, allocate: Callable[[Buffer], Buffer], untouched: Callable[[Buffer], bool]):
        self.zeros: set[Buffer] = set()
        self.untouched = untouched
        self._allocate = allocate
        self._buffers: dict[Buffer, _Written] = {}
        self._loops: list[list[tuple[_Written, _Pattern]]] = []  # what each open loop has learnt

    def enter_loop(self) -> None:
        """A dynamic loop's body starts."""
        self._loops.append([])

    def exit_loop(self) -> None:
        """The innermost dynamic loop's body ends."""
        for known, pattern in self._loops.pop():
            known.patterns.pop(pattern, None)
            known.bytes = None

    def of(self, buffer: Buffer) -> _Written:
        known = self._buffers.get(buffer)
        if known is None:
            known = self._buffers[buffer] = _Written(buffer)
        return known

    def learn(self, dst: View) -> None:
        """From here on, to the end of the innermost loop, `dst` is written for certain."""
        if dst.dynamic is not None:
            return
        known, pattern = self.of(dst.buffer), _pattern(dst)
        if pattern not in known.patterns:
            known.patterns[pattern] = None
            if known.bytes is not None:
                known.region(pattern)[...] = True
            if self._loops:
                self._loops[-1].append((known, pattern))

    def needs_state(self, dst: View) -> bool:
        """Only the run can tell what of `dst` is written: another turn, or an unknown address, may have done it."""
        outside = dst.buffer.depth < len(self._loops)
        return outside or dst.dynamic is not None or self.of(dst.buffer).state is not None

    def state_of(self, dst: View) -> tuple[View, tuple[Instruction, ...]]:
        """The state of `dst`, and, the first time, the instructions that record in it what is known already."""
        known, before = self.of(dst.buffer), []
        fits = dtypes.size(dst.dtype) == dtypes.size(dst.buffer.dtype)
        if known.untold or not fits:
            raise Unsupported(
                f"nki.isa.nc_matmul accumulate: None cannot tell whether {dst!r} was written, where matmuls write one "
                "PSUM tensor as dtypes of different sizes; say True or False"
            )
        if known.state is None:
            known.state = self._allocate(dst.buffer)
            self.zeros.add(known.state)
            before = [Memset(View(known.state, *p[:3], "bool"), True) for p in known.patterns]
        state = View(known.state, dst.offset, dst.strides, dst.shape, "bool", dst.dynamic)
        return state, tuple(before)

    def record(self, dst: View) -> tuple[Instruction, ...]:
        """The instructions that record an explicit write where only the run can tell."""
        known = self.of(dst.buffer)
        if known.state is None and dtypes.size(dst.dtype) != dtypes.size(dst.buffer.dtype):
            known.untold = True
        if known.untold:
            return ()
        state, before = self.state_of(dst)
        return (*before, Memset(state, True))


class Accumulation(NamedTuple):
    """Three fields of an `NcMatmul`, and the instructions to emit before it."""

    accumulate: bool
    addend: View | None
    written: View | None
    before: tuple[Instruction, ...] = ()


_OVERWRITE = Accumulation(False, None, None)


def resolve_accumulate(dst: View, accumulate: bool | None, facts: MatmulFacts) -> Accumulation:
    """Decide whether a matmul into `dst` adds, and note that `dst` is written now.

    `None` is the machine's own rule, for each element of PSUM: the first matmul since the allocation overwrites, later
    ones add.  Where tracing knows, this is a constant.  A first matmul that covers a buffer which nothing has touched
    adds to zeros, so that all steps of a contraction are the same instruction.  Anything else asks the state.
    """
    known = facts.of(dst.buffer)
    if dst.dynamic is None and _pattern(dst) in known.patterns:
        return _OVERWRITE if accumulate is False else Accumulation(True, dst, None)
    everything, anything = known.coverage(dst)
    if everything:
        facts.learn(dst)
        return _OVERWRITE if accumulate is False else Accumulation(True, dst, None)
    result = _OVERWRITE if accumulate is not True else Accumulation(True, dst, None)
    tracked = facts.needs_state(dst)
    if accumulate is None and (tracked or anything):
        written, before = facts.state_of(dst)
        result = Accumulation(True, dst, written, before)
    elif accumulate is None and _is_whole(dst) and facts.untouched(dst.buffer):
        facts.zeros.add(dst.buffer)
        result = Accumulation(True, dst, None)
    elif tracked:
        result = result._replace(before=facts.record(dst))
    elif accumulate:
        _warn_unwritten(dst)
    facts.learn(dst)
    return result


def _warn_unwritten(dst: View) -> None:
    """Warn at the kernel's line."""
    text = f"nki.isa.nc_matmul accumulate: True adds to PSUM that no matmul has written (undefined there), got {dst!r}"
    frame = kernel_frame()
    if frame is None:
        warnings.warn(text, stacklevel=2)
    else:
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
