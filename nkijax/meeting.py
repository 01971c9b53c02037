"""Programs of one kernel that run eagerly and wait for each other: one at a time, each up to its next meeting."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

from nkijax.cores import agreed
from nkijax.program import Instruction


class _Over(BaseException):
    """Unwinds a program that nobody will resume."""


class _Waiting:
    """A program on a thread of its own: it runs from `go` to where it meets the others or ends."""

    def __init__(self):
        self.thread: threading.Thread | None = None
        self.go = threading.Semaphore(0)
        self.at: Instruction | None = None  # where it waits; None once it has ended
        self.error: BaseException | None = None


class Meetings:
    """Runs programs in turn on concrete values; they go on from a meeting once all have come.

    The first program runs on the caller's thread.  The others do so after it, unless it meets them: then each has a
    thread, of which one runs at a time.  What JAX sets for a thread, such as a default device, those do not share.

    Args:
      programs: how many there are.
      run: runs one, given its number.
      execute: executes an instruction.
      leave, enter: what the recorder knows of the program that runs, and the way back to that.
    """

    def __init__(
        self,
        programs: int,
        run: Callable[[int], None],
        execute: Callable[[Instruction], None],
        leave: Callable[[], Any],
        enter: Callable[[Any], None],
    ):
        self._run, self._execute, self._leave, self._enter = run, execute, leave, enter
        self._others = [_Waiting() for _ in range(1, programs)]
        self._caller, self._met, self._over = threading.Semaphore(0), False, False

    def run(self) -> None:
        """Run all programs to their end.

        Raises:
          KernelError: one reaches a meeting that another does not.
        """
        try:
            self._run(0)
            if self._met:
                _joint([None, *self._advanced()])
            else:
                for k in range(len(self._others)):
                    self._run(k + 1)
        finally:
            self._abandon()

    def meet(self, program: int, instruction: Instruction) -> None:
        """Wait for all programs; what their instructions amount to is executed once."""
        if self._over:
            raise _Over
        other = self._others[program - 1] if program else None
        if other is not None and other.thread is not None:
            self._wait(other, instruction)
            return
        self._met = True
        others = [None for _ in self._others] if program else self._advanced()  # without threads, others have ended
        for one in _joint([*others[:program], instruction, *others[program:]]):
            self._execute(one)

    def _advanced(self) -> list[Instruction | None]:
        """Let each other program run, in order; where they wait then."""
        here = self._leave()
        for k, other in enumerate(self._others):
            if other.thread is None:
                work = contextvars.copy_context().run
                name = f"nkijax program {k + 1}"
                other.thread = threading.Thread(None, work, name, (self._start, other, k + 1), daemon=True)
                other.thread.start()
            elif other.at is not None:
                other.go.release()
            else:
                continue
            self._caller.acquire()
            if other.error is not None:
                raise other.error
        self._enter(here)
        return [other.at for other in self._others]

    def _start(self, other: _Waiting, program: int) -> None:
        try:
            self._run(program)
        except BaseException as error:  # noqa: BLE001 - it is raised on the caller's thread
            other.error = error
        other.at = None
        self._caller.release()

    def _wait(self, other: _Waiting, instruction: Instruction) -> None:
        here, other.at = self._leave(), instruction
        self._caller.release()
        other.go.acquire()
        if self._over:
            raise _Over
        self._enter(here)

    def _abandon(self) -> None:
        """Unwind the programs that still wait, after another one has failed."""
        self._over = True
        for other in self._others:
            if other.thread is not None:
                if other.at is not None:
                    other.go.release()
                other.thread.join()


def _joint(met: Sequence[Instruction | None]) -> Sequence[Instruction]:
    """What the instructions at which programs wait amount to; None: it has ended."""
    came = [one for one in met if one is not None]
    if came:
        agreed(met)
    return came[0].join(came[1:]) if came else ()
