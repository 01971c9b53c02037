"""Finding cases: which files have some, and which at the top level of a file are some.

A directory gives its files `regress_*.py`, and those others whose text has `nkijax.Case(`; a file is taken as it is.
In a module a case is a global that is a `Case` (or what `Case.later` gives), an element of a global list or tuple, or
what its function `cases()` gives.  `import nki` and `import neuronxcc` mean nkijax there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

from nkijax import imports
from nkijax.regress.case import Case, Later

PREFIX, MENTION = "regress_", "nkijax.Case("
_NOT_CASES = ("test_", "conftest.py")


@dataclass(frozen=True)
class Found:
    """One case on one target, to be found again in another process."""

    path: str
    name: str
    target: str
    shown: str  # the file's name in the id, see `base_of`
    timeout_s: float | None = None

    @property
    def id(self) -> str:
        return f"{self.shown}::{self.name}[{self.target}]"


def speaks_of_cases(path: Path) -> bool:
    """Whether a file that nobody named has cases; decided without importing it."""
    if path.suffix != ".py" or path.name.startswith(_NOT_CASES):
        return False
    return path.name.startswith(PREFIX) or MENTION in path.read_text(errors="replace")


def files(paths: Sequence[str]) -> list[Path]:
    """The files with cases among `paths`, in order; FileNotFoundError for a path that is not there."""
    out: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            below = sorted(p for p in path.rglob("*.py") if not any(part.startswith(".") for part in p.parts[1:]))
            out.update(dict.fromkeys(p.resolve() for p in below if speaks_of_cases(p)))
        elif path.exists():
            out[path.resolve()] = None
        else:
            raise FileNotFoundError(f"no such file or directory: {path}")
    return list(out)


def load(path: Path) -> ModuleType:
    """The module of a file, imported once: under its own name where it is part of a package."""
    path = path.resolve()
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # as for a script: its neighbours can be imported
    with imports.installed(shadow=True):
        if len(parts) > 1:
            return importlib.import_module(".".join(parts))
        name = f"nkijax_cases_{abs(hash(str(path))):x}_{path.stem}"  # two folders may have files of one name
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def cases(module: ModuleType) -> dict[str, Case | Later]:
    """The cases of a module by name, in its order; ValueError where two share one."""
    out: dict[str, Case | Later] = {}
    for case in _cases(module):
        if out.setdefault(case.name, case) is not case:
            raise ValueError(f"two cases are called {case.name!r}; give one of them another name=")
    return out


def _cases(module: ModuleType) -> Iterator[Case | Later]:
    for name, value in list(vars(module).items()):
        if isinstance(value, Case | Later):
            yield value
        elif isinstance(value, list | tuple):
            yield from (v for v in value if isinstance(v, Case | Later))
        elif name == "cases" and isinstance(value, FunctionType):
            with imports.installed(shadow=True):
                yield from value()


def base_of(baseline: str | None) -> Path:
    """What the files in ids are relative to: the folder of the baseline, else the current one."""
    return Path(baseline).resolve().parent if baseline else Path.cwd()


def shown(path: Path, base: Path) -> str:
    """A file's name in ids."""
    return Path(os.path.relpath(path, base)).as_posix()


def find(path: Path, base: Path, targets: Sequence[str] = ()) -> list[Found]:
    """Every case of a file on every target."""
    return [
        Found(str(path), case.name, target, shown(path, base), case.timeout_s)
        for case in cases(load(path)).values()
        for target in case.on(targets)
    ]
