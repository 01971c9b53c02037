"""What people and machines get to see of a run: a progress bar, a table, JSON, JUnit XML."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from nkijax.regress import result as kinds
from nkijax.regress.result import Result

BAR = 24  # characters
COLUMNS = ("case", "", "s", "compile", "instructions", "leaves", "model us", "error")


class Progress:
    """A bar on a terminal, a line every half minute elsewhere; failures are told as they come on both."""

    def __init__(self, total: int, out: TextIO | None = None, every_s: float = 30.0):
        self.total, self.out = total, out or sys.stderr
        self.done, self.bad, self.begin = 0, 0, time.monotonic()
        self.live, self.every_s, self.told = self.out.isatty(), every_s, self.begin

    def see(self, result: Result) -> None:
        self.done += 1
        self.bad += not result.good
        if not result.good:
            self._clear()
            print(f"{result.status} {result.id}", file=self.out, flush=True)
        now = time.monotonic()
        text = f"{self.done}/{self.total}, {self.bad} bad, {now - self.begin:.0f} s "
        if self.live:
            filled = BAR * self.done // self.total
            text = f"[{'=' * filled}{' ' * (BAR - filled)}] {text}"
            room = shutil.get_terminal_size().columns - len(text) - 1
            print(f"\r{text}{result.id[-room:] if room > 0 else ''}\033[K", end="", file=self.out, flush=True)
        elif now - self.told >= self.every_s:
            self.told = now
            print(text.rstrip(), file=self.out, flush=True)

    def close(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self.live:
            print("\r\033[K", end="", file=self.out, flush=True)


def table(results: Sequence[Result], changes: Mapping[str, Sequence[str]]) -> str:
    """A line for each case, with what changed since the baseline and what is to be noted below it."""
    rows = [COLUMNS, *(_row(r) for r in results)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(COLUMNS))]
    lines: list[str] = []
    for k, row in enumerate(rows):
        cells = [c.ljust(w) if j < 2 else c.rjust(w) for j, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
        if k:
            result = results[k - 1]
            lines += [f"    {text}" for text in (*changes.get(result.id, ()), *result.notes)]
    return "\n".join(lines)


def _row(r: Result) -> tuple[str, ...]:
    counts = (
        f"{r.instructions:,}" if r.instructions is not None else "",
        f"{r.leaves:,}" if r.leaves is not None else "",
    )
    cost = "" if r.model_us is None else f"{r.model_us:,.1f}"
    error = "" if r.relative is None else f"{r.relative:.1e}"
    compiled = "" if r.compile_s is None else f"{r.compile_s:.1f}"
    return (r.id, r.status, f"{r.seconds:.1f}", compiled, *counts, cost, error)


def failures(results: Sequence[Result], full: bool) -> str:
    """What is wrong with each bad case, with the command that replays it."""
    lines: list[str] = []
    for r in results:
        if not r.good:
            lines.append(f"{r.status} {r.id}\n    {r.message}")
            if full and r.detail:
                lines += [f"    | {line}" for line in r.detail.rstrip().splitlines()]
            if r.replay:
                lines.append(f"    {r.replay}")
    return "\n".join(lines)


def totals(results: Sequence[Result], changes: Mapping[str, Sequence[str]], seconds: float) -> str:
    """One line: how many of each status, how many changed, how long."""
    counted = Counter(r.status for r in results)
    said = ", ".join(f"{counted[s]} {s}" for s in dict.fromkeys((kinds.PASSED, *sorted(counted))) if counted[s])
    changed = f"; {len(changes)} changed since the baseline" if changes else ""
    return f"{counted_cases(len(results))}: {said or 'none'}{changed} in {seconds:.1f} s"


def counted_cases(n: int) -> str:
    return f"{n:,} case{'' if n == 1 else 's'}"


def save_json(path: str, results: Sequence[Result], changes: Mapping[str, Sequence[str]], seconds: float) -> None:
    """Write everything that is known, values only as digests."""
    counted = Counter(r.status for r in results)
    cases = [{**r.to_json(), "changes": list(changes.get(r.id, ()))} for r in results]
    Path(path).write_text(json.dumps({"seconds": seconds, "counts": dict(counted), "cases": cases}, indent=1) + "\n")


def save_junit(path: str, results: Sequence[Result], changes: Mapping[str, Sequence[str]], seconds: float) -> None:
    """Write JUnit XML, as CI systems read it."""
    failed = sum(r.status == kinds.FAILED for r in results)
    errors = sum(not r.good for r in results) - failed
    counts = {"tests": len(results), "failures": failed, "errors": errors}
    named = {"name": "nkijax regress", "time": f"{seconds:.3f}", **{k: str(v) for k, v in counts.items()}}
    suite = ElementTree.Element("testsuite", named)
    for r in results:
        file, _, name = r.id.partition("::")
        case = ElementTree.SubElement(suite, "testcase", classname=file, name=name, time=f"{r.seconds:.3f}")
        names = ("compile_s", "instructions", "leaves", "model_us", "error")
        known = {k: str(v) for k in names if (v := getattr(r, k)) is not None}
        properties = ElementTree.SubElement(case, "properties")
        for key, value in (*known.items(), *(("change", text) for text in changes.get(r.id, ()))):
            ElementTree.SubElement(properties, "property", name=key, value=value)
        if not r.good:
            kind = "failure" if r.status == kinds.FAILED else "error"
            wrong = ElementTree.SubElement(case, kind, message=_printable(r.message), type=r.status)
            wrong.text = _printable(f"{r.detail}\n{r.replay}")
        elif r.status == kinds.XFAILED:
            ElementTree.SubElement(case, "skipped", message=_printable(r.message), type=r.status)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c for c in text if c >= " " or c in "\n\t")
