"""One case, run in this process: kernel, reference, comparison, cost, digests."""

from __future__ import annotations

import contextlib
import io
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from nkijax import imports
from nkijax.cost import cost
from nkijax.errors import Unsupported
from nkijax.program import Program, instructions
from nkijax.regress import result as kinds
from nkijax.regress.call import Outputs, arrays_of, gradients, ran, reference_of, taken, verdict_of
from nkijax.regress.case import Arguments, Case
from nkijax.regress.compare import leaves, rtol_of
from nkijax.regress.digest import Digest
from nkijax.regress.discover import Found, cases, load
from nkijax.regress.failure import Failure
from nkijax.regress.history import History
from nkijax.regress.result import Result
from nkijax.regress.watch import Watch
from nkijax.roll import roll

TAIL = 4000  # characters of what a failing case printed


@dataclass(frozen=True)
class Job:
    """One case to run.  `failures`: the folder for failing cases, "" for none; `noted`: of how many executed
    instructions at most the values are noted, for the baseline.  Of the baseline: `stored`, which a case without a
    reference must come near, and `good`, what its instructions wrote."""

    found: Found
    failures: str = ""
    noted: int = 0
    stored: tuple[Digest, ...] = field(default=(), repr=False)
    good: History | None = field(default=None, repr=False)


@dataclass(eq=False)
class _Run:
    """What is known of a case so far; it may end at any point."""

    stage: str = "making the case: "  # where an exception comes from, unless from the kernel
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    wanted: tuple[Any, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def execute(job: Job) -> Result:
    """Run one case, and keep it on disk if it fails."""
    begin, run, printed = time.perf_counter(), _Run(), io.StringIO()
    case: Case | None = None
    with imports.installed(shadow=True), contextlib.chdir(os.getcwd()):  # wherever a case goes
        try:
            case = cases(load(Path(job.found.path)))[job.found.name].made()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                status, message = _judge(case, job, run)
            detail = printed.getvalue()[-TAIL:] if status != kinds.PASSED else ""
        except Exception as error:
            status = kinds.UNSUPPORTED if isinstance(error, Unsupported) else kinds.ERROR
            message = run.stage + f"{type(error).__name__}: {error}".splitlines()[0]
            detail = "".join(traceback.format_exception(error)) + printed.getvalue()[-TAIL:]
    result = Result(
        job.found.id, status, message, detail, time.perf_counter() - begin, notes=tuple(run.notes), **run.facts
    )
    if case is not None and case.xfail:
        return replace(result, status=kinds.XPASSED if result.good else kinds.XFAILED, message=case.xfail)
    if job.failures and status in (kinds.FAILED, kinds.ERROR):
        kept = Failure(job.found, message, run.inputs, run.outputs, run.wanted, job.good)
        result = replace(result, replay=kept.save(job.failures))
    return result


def _judge(case: Case, job: Job, run: _Run) -> tuple[str, str]:
    """Run kernel and reference: the status, and what is wrong."""
    given = case.arguments()
    run.inputs, run.stage = tuple(given.leaves()), ""
    if case.raises is not None:
        text = taken(case, given, job.found.target)
        return (kinds.FAILED, text) if text else (kinds.PASSED, "")
    outputs = _outputs(case, given, job, run)
    run.stage = "reference: "
    wanted = reference_of(case, given)
    if wanted is None:
        text = _changed(case, run, job.stored)
        return (kinds.FAILED, text) if text else (kinds.PASSED, "")
    run.wanted = tuple(leaves(wanted))
    verdict = verdict_of(case, outputs.beside(wanted), wanted)
    if case.compare is None:
        run.facts.update(error=verdict.error, relative=verdict.relative)
    text = verdict.text or (gradients(case, given, job.found.target) if case.grad else "")
    return (kinds.FAILED, text) if text else (kinds.PASSED, "")


def _outputs(case: Case, given: Arguments, job: Job, run: _Run) -> Outputs:
    """Run the kernel and note the facts of the run."""
    begin = time.perf_counter()
    found = ran(case, given, job.found.target)
    outputs, programs = found.outputs, [program for program, _ in found.programs]
    run.outputs = outputs.leaves()
    run.facts.update(device=jax.default_backend(), kernel_s=time.perf_counter() - begin, compile_s=found.compile_s)
    run.facts.update(outputs=tuple(Digest.of(x) for x in run.outputs))
    if not programs:
        run.notes.append("no kernel was called that could be observed: no instructions, no cost")
        return outputs
    costs = [cost(program, trips) for program, trips in found.programs]
    run.facts.update(
        instructions=sum(1 for p in programs for _ in instructions(p.body)),
        leaves=sum(1 for p in programs for _ in instructions(roll(p).body)),
        model_us=sum(c.total_us for c in costs),
    )
    if outputs.returned is not None and not case.host:
        run.notes += [f"writes its argument `{name}`" for name in _written(programs[0])]
    run.notes += [str(o) for c in costs for o in (c.sbuf, c.psum) if o.over_bytes]
    if not case.host and costs[0].instructions <= job.noted:
        run.facts["history"] = History.of(Watch(programs[0], arrays_of(case, given)).steps())
    return outputs


def _written(program: Program) -> Iterator[str]:
    for i in program.written:
        yield program.arguments[i].name or str(i)


def _changed(case: Case, run: _Run, stored: Sequence[Digest]) -> str:
    """How the outputs of a case without a reference differ from the stored ones by more than its tolerance."""
    if not stored:
        run.notes.append("no reference, and no baseline yet: values unchecked")
        return ""
    if len(stored) != len(run.outputs):
        return f"the kernel gave {len(run.outputs)} outputs, in the baseline {len(stored)}"
    off = [Digest.of(x).change(old) for x, old in zip(run.outputs, stored, strict=True)]
    limits = [rtol_of(x.dtype) if case.rtol is None else case.rtol for x in run.outputs]
    wrong = [k for k, (by, limit) in enumerate(zip(off, limits, strict=True)) if by > limit]
    return "; ".join(f"output {k} differs from the baseline by about {off[k]:.1e} of its norm" for k in wrong)
