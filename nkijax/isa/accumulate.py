"""When a matmul into PSUM adds to what it finds there: which elements a matmul has written before."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Protocol

import numpy as np

from nkijax import dtypes
from nkijax.errors import Unsupported, kernel_frame
from nkijax.isa.move import Memset
from nkijax.machine import Target
from nkijax.program import Instruction
from nkijax.view import Buffer, View


class Recording(Protocol):
    """What of the recorder is needed here."""

    target: Target
    zeros: set[Buffer]  # the buffers that start as zeros, not as poison

    def facts(self, kind: type[Any]) -> Any:
        """The one `kind()` of this trace, which is told of the dynamic loops."""
        ...

    def hidden(self, name: str, shape: tuple[int, ...], dtype: str, like: Buffer | None = None) -> Buffer:
        """A state buffer that starts as zeros and lives as long as `like`."""
        ...

    def untouched(self, buffer: Buffer) -> bool:
        """Whether no instruction so far reads or writes `buffer`."""
        ...


_Pattern = tuple[int, tuple[int, ...], tuple[int, ...], str]  # offset, strides, shape, dtype of a static view


class _Written:
    """What is known of one PSUM buffer: the patterns that a matmul has written for certain, and whether `state` knows.

    `state` is the run-time truth, once something needed it; `bytes` the union of the patterns, a flag a byte, made
    when a pattern meets another one that it is not; `untold` says that no state could record some write.
    """

    def __init__(self, buffer: Buffer):
        self.buffer = buffer
        self.patterns: dict[_Pattern, bool] = {}
        self.bytes: np.ndarray | None = None
        self.state: Buffer | None = None
        self.untold = False

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

    What a loop's body learns is forgotten at its end, as the loop may not have run.  What is not known for certain of
    a buffer from outside of the loop is told by its state, where every write that is not known already is recorded.
    """

    def __init__(self):
        self._buffers: dict[Buffer, _Written] = {}
        self._loops: list[list[tuple[_Written, _Pattern, bool | None]]] = []  # what to restore at each open loop's end

    def enter_loop(self) -> None:
        """A dynamic loop's body starts."""
        self._loops.append([])

    def exit_loop(self) -> None:
        """The innermost dynamic loop's body ends."""
        for known, pattern, before in reversed(self._loops.pop()):
            if before is None:
                del known.patterns[pattern]
                known.bytes = None
            else:
                known.patterns[pattern] = before

    def of(self, buffer: Buffer) -> _Written:
        known = self._buffers.get(buffer)
        if known is None:
            known = self._buffers[buffer] = _Written(buffer)
        return known

    def learn(self, dst: View, told: bool) -> None:
        """From here on, to the end of the innermost loop, `dst` is written for certain; `told`: the state knows."""
        if dst.dynamic is None:
            self._note(self.of(dst.buffer), _pattern(dst), told)

    def _note(self, known: _Written, pattern: _Pattern, told: bool) -> None:
        before = known.patterns.get(pattern)
        if before is None and known.bytes is not None:
            known.region(pattern)[...] = True
        known.patterns[pattern] = told
        if self._loops:
            self._loops[-1].append((known, pattern, before))

    def needs_state(self, dst: View) -> bool:
        """Only the run can tell what of `dst` is written: another turn, or an unknown address, may have done it."""
        known, outside = self.of(dst.buffer), dst.buffer.depth < len(self._loops)
        return outside or dst.dynamic is not None or known.untold or known.state is not None

    def state_of(self, dst: View, recorder: Recording) -> tuple[View, tuple[Instruction, ...]]:
        """The state of `dst`, and the instructions that record in it what is known, where that did not happen yet."""
        known = self.of(dst.buffer)
        fits = dtypes.size(dst.dtype) == dtypes.size(dst.buffer.dtype)
        if known.untold or not fits:
            raise Unsupported(
                f"nki.isa.nc_matmul accumulate: None cannot tell whether {dst!r} was written, where matmuls write one "
                "PSUM tensor as dtypes of different sizes; say True or False"
            )
        if known.state is None:
            name = f"{dst.buffer.name or f'psum{dst.buffer.index}'}_written"
            known.state = recorder.hidden(name, dst.buffer.shape, "bool", like=dst.buffer)
        news = [pattern for pattern, told in known.patterns.items() if not told]
        for pattern in news:
            self._note(known, pattern, True)
        before = tuple(Memset(View(known.state, *pattern[:3], "bool"), True) for pattern in news)
        return View(known.state, dst.offset, dst.strides, dst.shape, "bool", dst.dynamic), before

    def record(self, dst: View, recorder: Recording) -> tuple[Instruction, ...]:
        """The instructions that record an explicit write where only the run can tell."""
        known = self.of(dst.buffer)
        if known.state is None and dtypes.size(dst.dtype) != dtypes.size(dst.buffer.dtype):
            known.untold = True
        if known.untold:
            return ()
        state, before = self.state_of(dst, recorder)
        return (*before, Memset(state, True))


class Accumulation(NamedTuple):
    """Three fields of an `NcMatmul`, and the instructions to emit before it."""

    accumulate: bool
    addend: View | None
    written: View | None
    before: tuple[Instruction, ...] = ()


_OVERWRITE = Accumulation(False, None, None)


def resolve_accumulate(recorder: Recording, dst: View, accumulate: bool | None) -> Accumulation:
    """Decide whether a matmul into `dst` adds, and note that `dst` is written now.

    `None` is the machine's own rule, for each element of PSUM: the first matmul since the allocation overwrites, later
    ones add.  Where tracing knows, this is a constant.  A first matmul that covers a buffer which nothing has touched
    adds to zeros, so that all steps of a contraction are the same instruction.  Anything else asks the state.
    """
    facts: MatmulFacts = recorder.facts(MatmulFacts)
    known = facts.of(dst.buffer)
    if dst.dynamic is None and _pattern(dst) in known.patterns:
        return _OVERWRITE if accumulate is False else Accumulation(True, dst, None)
    everything, anything = known.coverage(dst)
    if everything:
        facts.learn(dst, told=True)  # with the patterns that make it up
        return _OVERWRITE if accumulate is False else Accumulation(True, dst, None)
    result = _OVERWRITE if accumulate is not True else Accumulation(True, dst, None)
    tracked = facts.needs_state(dst)
    if accumulate is None and (tracked or anything):
        written, before = facts.state_of(dst, recorder)
        result = Accumulation(True, dst, written, before)
    elif accumulate is None and _is_whole(dst) and recorder.untouched(dst.buffer):
        recorder.zeros.add(dst.buffer)
        result = Accumulation(True, dst, None)
    elif tracked:
        result = result._replace(before=facts.record(dst, recorder))
    elif accumulate:
        _warn_unwritten(dst)
    facts.learn(dst, told=tracked or result.written is not None)
    return result


def _warn_unwritten(dst: View) -> None:
    """Warn at the kernel's line."""
    text = f"nki.isa.nc_matmul accumulate: True adds to PSUM that no matmul has written (undefined there), got {dst!r}"
    frame = kernel_frame()
    if frame is None:
        warnings.warn(text, stacklevel=2)
    else:
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
