"""Several cases at once: processes that each run one case after another, under a time limit.

A process that exceeds it, dies, or has grown too large is replaced; the other cases do not notice.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from tempfile import NamedTemporaryFile
from typing import Any

import jax

from nkijax.regress import result as kinds
from nkijax.regress.execute import TAIL, Job, execute
from nkijax.regress.failure import Failure
from nkijax.regress.result import Result

LARGEST_BYTES = 4 << 30  # of a process that is kept for the next case
PLATFORMS = {"cpu": "cpu", "gpu": ""}  # JAX_PLATFORMS; left to itself, JAX takes a GPU where it can
_READY = "ready"


class NoProcess(RuntimeError):
    """A process that runs cases could not be started."""


@dataclass(eq=False)
class _Worker:
    """One process: what it runs now, since when, and what it prints."""

    number: int
    device: str | None
    process: Any
    pipe: Connection
    printed: Any  # the file that gets what it prints
    ready: bool = False
    job: Job | None = None
    begin: float = 0.0
    limit_s: float = 0.0

    def give(self, job: Job, limit_s: float) -> None:
        self.job, self.begin, self.limit_s = job, time.monotonic(), job.found.timeout_s or limit_s
        self.pipe.send(job)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.printed.close()

    def said(self) -> str:
        self.printed.seek(0)
        return self.printed.read().decode(errors="replace")[-TAIL:]


@contextlib.contextmanager
def environment(device: str | None) -> Iterator[None]:
    """What processes started here find in their environment: the device, and that they must share a GPU's memory."""
    names = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if device is not None:
        names["JAX_PLATFORMS"] = PLATFORMS[device]
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def run(jobs: Sequence[Job], processes: int, timeout_s: float, device: str | None = None) -> Iterator[Result]:
    """Run jobs, `processes` at once; results come as they are ready.  With 0 processes: here, and without a limit."""
    if not processes:
        for job in jobs:
            yield execute(job)
        return
    left = list(reversed(jobs))
    with environment(device):
        workers = [_start(k, device) for k in range(min(processes, len(jobs)))]
        try:
            while left or any(w.job for w in workers):
                for w in workers:
                    if left and w.ready and w.job is None:
                        w.give(left.pop(), timeout_s)
                yield from _collect(workers, bool(left))
        finally:
            for w in workers:
                w.stop()


def _collect(workers: list[_Worker], more: bool) -> Iterator[Result]:
    """Wait for something to happen; give the results that there are.  With `more` to do, what is lost is replaced."""
    busy = [w for w in workers if w.job or not w.ready]
    now = time.monotonic()
    patience = min((w.begin + w.limit_s - now for w in busy if w.job), default=None)
    heard = wait([w.pipe for w in busy], None if patience is None else max(0.0, patience))
    for w in busy:
        if w.pipe in heard:
            found, lost = _hear(w)
        elif w.job and time.monotonic() - w.begin >= w.limit_s:
            found, lost = _lost(w, kinds.TIMEOUT, f"took longer than {w.limit_s:g} s"), True
        else:
            continue
        if lost:
            w.stop()
            k = workers.index(w)
            workers[k : k + 1] = [_start(w.number, w.device)] if more else []
        if found is not None:
            yield found


def _hear(w: _Worker) -> tuple[Result | None, bool]:
    """What a process says: its result, if it is one, and whether the process must be replaced."""
    try:
        said = w.pipe.recv()
    except (EOFError, OSError):
        w.process.join()
        if w.job is None:
            raise NoProcess(f"a process that runs cases ended before it was ready: {w.said()}") from None
        return _lost(w, kinds.CRASHED, f"its process ended with exit code {w.process.exitcode}"), True
    if said == _READY:
        w.ready = True
        return None, False
    result, size = said
    w.job = None
    return result, size > LARGEST_BYTES


def _lost(w: _Worker, status: str, message: str) -> Result:
    job = w.job
    assert job is not None
    result = Result(job.found.id, status, message, w.said(), time.monotonic() - w.begin)
    if job.failures:
        result = replace(result, replay=Failure(job.found, message).save(job.failures))
    return result


def _start(number: int, device: str | None) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    printed = NamedTemporaryFile()
    process = context.Process(target=_work, args=(number, device, theirs, printed.name), daemon=True)
    process.start()
    theirs.close()
    return _Worker(number, device, process, ours, printed)


def _work(number: int, device: str | None, pipe: Connection, printed: str) -> None:
    """What a process does: one job after another, until its pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    out = os.open(printed, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(out, standard)
    devices = jax.local_devices()
    if devices[0].platform == "cpu" and device == "gpu":
        sys.exit("--device gpu: JAX finds none")
    if devices[0].platform != "cpu":
        jax.config.update("jax_default_device", devices[number % len(devices)])
    pipe.send(_READY)
    with contextlib.suppress(EOFError):
        while True:
            job = pipe.recv()
            os.ftruncate(out, 0)
            pipe.send((execute(job), _largest_bytes()))


def _largest_bytes() -> int:
    """The most memory that this process has had so far."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size
