"""`nkijax regress PATH…`: run the cases found there, compare them with a baseline, and say what came of it.

Exit codes: 0 all good; 1 a case failed, or a file with cases could not be loaded; 2 wrong usage, or a process for the
cases did not start; 3 (with --strict) all good, but something changed since the baseline; 5 no cases; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from nkijax.machine import Target
from nkijax.regress import pool, report
from nkijax.regress import result as kinds
from nkijax.regress.baseline import Baseline
from nkijax.regress.discover import Found, base_of, files, find, shown
from nkijax.regress.execute import Job as Job
from nkijax.regress.execute import execute as execute
from nkijax.regress.replay import replay
from nkijax.regress.result import Result

GOOD, BAD, NO_PROCESS, CHANGED, NOTHING, INTERRUPTED = 0, 1, 2, 3, 5, 130
FAILURES = "nkijax-failures"
NOTED = 1000
MOST = 8  # processes, unless the user asks for more: each holds JAX, and on a GPU a context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `nkijax regress`."""
    parser.epilog = (
        "exit codes: 0 all good; 1 a case failed, or a file could not be loaded; 2 wrong usage, or a process did not "
        "start; 3 (--strict) something changed since the baseline; 5 no cases; 130 interrupted"
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files with cases, folders of them, or cases: FILE::NAME[TARGET]")
    add("-k", dest="words", action="append", metavar="WORD", help="only cases whose id has this word; may be repeated")
    add("--target", type=_targets, default=(), help="only these targets (several: trn1,trn2)")
    add("--device", choices=("cpu", "gpu"), help="where to run; by default where JAX does")
    add(
        "-j", dest="processes", type=int, help="processes; 0 runs the cases in this one; default: one a core, at most 8"
    )
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds that one case may take (default 600)")
    add("--list", action="store_true", help="print the ids, run nothing")
    add("--json", metavar="FILE", help="write every result as JSON")
    add("--junit", metavar="FILE", help="write JUnit XML")
    add("--baseline", metavar="FILE", help="say what changed since this baseline")
    add("--update-baseline", action="store_true", help="and store the good cases of this run there")
    noted = f"note what each instruction writes, of cases that execute at most N (default {NOTED}); for replays"
    add("--values", type=int, default=NOTED, metavar="N", help=f"with --update-baseline, {noted}")
    add("--strict", action="store_true", help="exit with 3 if anything changed since the baseline")
    add("--save", default=FAILURES, metavar="DIR", help=f"the folder for failing cases (default {FAILURES})")
    add("-v", "--verbose", action="store_true", help="show the traceback and the output of failing cases")
    add("--replay", metavar="FILE", help="replay one failing case from that folder")
    add("--eager", action="store_true", help="with --replay, then run the kernel eagerly: its prints show data")


def main(options: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    if options.replay:
        return GOOD if replay(options.replay, options.eager) else BAD
    if not options.paths:
        print("nkijax regress: name a file or a folder", file=sys.stderr)
        return 2
    if options.update_baseline and not options.baseline:
        print("nkijax regress --update-baseline: needs --baseline FILE", file=sys.stderr)
        return 2
    if options.device:
        jax.config.update("jax_platforms", pool.PLATFORMS[options.device])  # of this process, too
    try:
        with pool.environment(options.device):
            return _Run(options).run()
    except pool.NoProcess as error:
        print(f"nkijax regress: {error}", file=sys.stderr)
        return NO_PROCESS


def _targets(names: str) -> tuple[str, ...]:
    try:
        return tuple(Target.of(name).name for name in names.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, eq=False)
class _Run:
    """One run of the command."""

    options: argparse.Namespace

    def run(self) -> int:
        options = self.options
        try:
            found, broken = collect(options)
        except FileNotFoundError as error:
            print(f"nkijax regress: {error}", file=sys.stderr)
            return 2
        picked = [f for f in found if _picked(f, options.words)]
        if options.list:
            print("\n".join([*(f.id for f in picked), *filter(None, [report.failures(broken, options.verbose)])]))
            return BAD if broken else GOOD
        if not picked and not broken:
            print("nkijax regress: no cases found", file=sys.stderr)
            return NOTHING
        baseline = self._baseline(picked)
        begin = time.monotonic()
        results, ended = self._results(picked, baseline)
        seconds = time.monotonic() - begin
        results = [*broken, *results]
        changes = changes_of(results, baseline) if baseline.cases else {}
        part = options.words or options.target or any("::" in path for path in options.paths)
        gone = [] if part else gone_from(baseline, found, broken)
        self._tell(results, changes, gone, seconds)
        if ended:
            return ended
        if options.update_baseline:
            baseline = baseline.updated(results, gone)
            baseline.save(options.baseline)
            noted = f"{len(baseline.histories)} with the values of their instructions"
            print(f"{options.baseline}: {report.counted_cases(len(baseline.cases))}, {noted}")
        if not all(r.good for r in results):
            return BAD
        return CHANGED if options.strict and (changes or gone) and not options.update_baseline else GOOD

    def _baseline(self, picked: Sequence[Found]) -> Baseline:
        if not self.options.baseline:
            return Baseline()
        return Baseline.load(self.options.baseline, None if self.options.update_baseline else {f.id for f in picked})

    def _results(self, picked: Sequence[Found], baseline: Baseline) -> tuple[list[Result], int]:
        """The results, in the order of the cases, and the exit code of what ended the run early, or 0."""
        options = self.options
        jobs = [job(f, baseline, options.save, options.values if options.update_baseline else None) for f in picked]
        progress = report.Progress(len(jobs))
        results: dict[str, Result] = {}
        ended = GOOD
        try:
            for result in pool.run(jobs, processes(options.processes, len(jobs)), options.timeout, options.device):
                results[result.id] = result
                progress.see(result)
        except KeyboardInterrupt:
            ended = INTERRUPTED
        except pool.NoProcess as error:
            if not results:
                raise
            progress.close()
            print(f"nkijax regress: {error}", file=sys.stderr)
            ended = NO_PROCESS
        progress.close()
        return [results[f.id] for f in picked if f.id in results], ended

    def _tell(
        self, results: Sequence[Result], changes: Mapping[str, Sequence[str]], gone: Sequence[str], seconds: float
    ) -> None:
        options = self.options
        print(report.table(results, changes))
        for name in gone:
            print(f"gone since the baseline: {name}")
        if wrong := report.failures(results, options.verbose):
            print(f"\n{wrong}")
        print(f"\n{report.totals(results, changes, seconds)}", flush=True)
        if options.json:
            report.save_json(options.json, results, changes, seconds)
        if options.junit:
            report.save_junit(options.junit, results, changes, seconds)


def collect(options: argparse.Namespace) -> tuple[list[Found], list[Result]]:
    """The cases that the paths name, and an error for each file that cannot be loaded."""
    found: dict[str, Found] = {}
    broken: dict[str, Result] = {}
    base = base_of(options.baseline)
    for given in options.paths:
        place, _, name = given.partition("::")
        for path in files([place]):
            try:
                of_file = find(path, base, options.target)
                found.update((f.id, f) for f in of_file if name in ("", f.name, f"{f.name}[{f.target}]"))
            except Exception as error:
                message = f"{type(error).__name__}: {error}".splitlines()[0]
                detail = "".join(traceback.format_exception(error))
                file = shown(path, base)
                broken[file] = Result(file, kinds.ERROR, f"cannot be loaded: {message}", detail)
    return list(found.values()), list(broken.values())


def job(found: Found, baseline: Baseline, failures: str, noted: int | None) -> Job:
    """The job of a case; `noted` is None unless the baseline is being updated."""
    stored = baseline.cases.get(found.id)
    expected = stored.outputs if stored is not None and noted is None else ()
    return Job(found, failures, noted or 0, expected, baseline.histories.get(found.id))


def changes_of(results: Sequence[Result], baseline: Baseline) -> dict[str, tuple[str, ...]]:
    """What changed since the baseline, for those cases of which anything did."""
    return {r.id: changed for r in results if (changed := baseline.changes(r))}


def gone_from(baseline: Baseline, found: Sequence[Found], broken: Sequence[Result]) -> list[str]:
    """Cases of the baseline whose file was searched, and no longer has them."""
    searched = {f.shown for f in found} - {r.id for r in broken}
    lost = set(baseline.cases).difference(f.id for f in found)
    return sorted(name for name in lost if name.partition("::")[0] in searched)


def _picked(found: Found, words: Sequence[str] | None) -> bool:
    return not words or any(word in found.id for word in words)


def processes(asked: int | None, jobs: int) -> int:
    """How many processes: as asked, else one for each core of the machine, at most `MOST`."""
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(jobs, cores, MOST)
