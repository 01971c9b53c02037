"""pytest plugin: the cases of `regress_*.py` are tests, as `nkijax regress` finds them.

pytest -p nkijax.regress.plugin            runs them with the other tests; -n, -k, -x, --junit-xml work as for those
 … --nkijax-baseline baseline.json         also says what changed since that baseline

In a project's `conftest.py` one line does: `pytest_plugins = ["nkijax.regress.plugin"]`.  No entry point loads it, so
that a pytest run which does not ask for it never imports JAX.  The ini option `nkijax_files` names other files, as
patterns.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nkijax.regress import command, discover
from nkijax.regress.baseline import Baseline

BASELINE = pytest.StashKey[Any]()
PROPERTY = "nkijax"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nkijax", "nkijax: regression of NKI kernels")
    group.addoption("--nkijax-baseline", metavar="FILE", help="say what changed since this baseline")
    group.addoption("--nkijax-target", metavar="NAMES", default="", help="only these targets (several: trn1,trn2)")
    group.addoption("--nkijax-save", metavar="DIR", default="nkijax-failures", help="the folder for failing cases")
    parser.addini("nkijax_files", "patterns of files with cases", type="args", default=["regress_*.py"])


def _is_ours(path: Path, config: pytest.Config) -> bool:
    return any(fnmatch.fnmatch(path.name, p) or path.match(p) for p in config.getini("nkijax_files"))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if _is_ours(file_path, parent.config) and not parent.session.isinitpath(file_path):
        return CaseFile.from_parent(parent, path=file_path)
    return None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A file that was named on the command line, which pytest would import itself."""
    return CaseFile.from_parent(parent, path=module_path) if _is_ours(module_path, parent.config) else None


class CaseFile(pytest.File):
    """A file with cases."""

    def collect(self) -> Iterator[pytest.Item]:
        targets = [t for t in self.config.option.nkijax_target.split(",") if t]
        base = discover.base_of(self.config.option.nkijax_baseline)
        for found in discover.find(self.path, base, targets):
            yield CaseItem.from_parent(self, name=f"{found.name}[{found.target}]", found=found)


class CaseItem(pytest.Item):
    """A case on a target."""

    def __init__(self, *, found: Any, **of_pytest: Any):
        super().__init__(**of_pytest)
        self.found = found

    def runtest(self) -> None:
        baseline = _baseline(self.config)
        result = command.execute(command.job(self.found, baseline, self.config.option.nkijax_save, None))
        changes = baseline.changes(result) if self.config.option.nkijax_baseline else ()
        known = {k: getattr(result, k) for k in ("instructions", "leaves", "model_us", "relative")}
        self.user_properties += [(k, v) for k, v in known.items() if v is not None]
        self.user_properties.append((PROPERTY, json.dumps({"changes": changes, "notes": result.notes})))
        if result.status == "xfailed":
            pytest.xfail(result.message)
        if not result.good:
            raise CaseFailed(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        if isinstance(excinfo.value, CaseFailed):
            result = excinfo.value.args[0]
            return "\n".join(filter(None, (f"{result.status}: {result.message}", result.detail, result.replay)))
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class CaseFailed(Exception):
    """Carries the result of a case that is not good."""


def _baseline(config: pytest.Config) -> Any:
    if BASELINE not in config.stash:
        path = config.option.nkijax_baseline
        config.stash[BASELINE] = Baseline.load(path) if path else Baseline()
    return config.stash[BASELINE]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                said = dict(report.user_properties).get(PROPERTY)
                found = json.loads(said) if said else {"changes": (), "notes": ()}
                lines += [f"{report.nodeid}: {text}" for text in (*found["changes"], *found["notes"])]
    if lines:
        terminalreporter.section("nkijax: since the baseline, and notes")
        for line in lines:
            terminalreporter.write_line(line)
