"""Every public name of `nki` 0.6, how it is called, and what nkijax makes of it.

`surface.tsv` has the facts, one name a line; what an instruction does not emulate is taken from its own entry.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nkijax.dialects.nki import collectives, isa, language  # noqa: F401  their instructions are looked up below
from nkijax.isa.mathematics import FUNCTIONS, Elementwise
from nkijax.program import Instruction

STATUSES = ("emulated", "no effect", "unsupported", "removed")
_LIMITS = re.compile(r"Not emulated: (.*?)(?:\.\n[A-Z]|\.?$)", re.DOTALL)
_MODULES = ("isa", "language", "collectives")
_FILE = Path(__file__).with_suffix(".tsv")


@dataclass(frozen=True)
class Name:
    """One public name.  `signature` is AWS's, "" for what is not called; `note` says what to know of it."""

    name: str
    kind: str
    signature: str
    status: str
    note: str

    def __post_init__(self):
        assert self.status in STATUSES and (self.note or self.status == "emulated"), self

    @property
    def module(self) -> str:
        """The module that has it: nki, or one below it."""
        parts = self.name.split(".")
        return ".".join(parts[:2]) if parts[1] in _MODULES and len(parts) > 2 else parts[0]


def names() -> list[Name]:
    """All names, in the order of the file."""
    limits = dict(_limits())
    out = []
    for line in _FILE.read_text().splitlines()[1:]:
        name, kind, signature, status, note = line.split("\t")
        notes = [text for text in (note, limits.get(name, "")) if text]
        out.append(Name(name, kind, signature, status, "; ".join(notes)))
    return out


def _limits() -> Iterator[tuple[str, str]]:
    """What each instruction does not emulate, as its docstring says."""
    for cls in Instruction.__subclasses__():
        found = _LIMITS.search(inspect.getdoc(cls) or "")
        if found is None or found[1] == "nothing":
            continue
        text = " ".join(found[1].split())
        text = text.removeprefix("nothing. ") if text.startswith("nothing. ") else f"not emulated: {text}"
        for api in [f"nki.language.{name}" for name in FUNCTIONS] if cls is Elementwise else [cls.api]:
            yield api, text


def text() -> str:
    """The support table for a terminal, a name a line."""
    every = names()
    width = max(len(n.name) for n in every)
    return "\n".join(f"{n.name:{width}}  {n.status:11}  {n.note}".rstrip() for n in every)


def markdown() -> str:
    """The support table for a README: the emulated names by module, then every name of which there is more to say."""
    every = names()
    lines = ["| module | emulated |", "| --- | --- |"]
    for module in dict.fromkeys(n.module for n in every):
        inside = [n for n in every if n.module == module and n.status == "emulated"]
        lines.append(f"| `{module}` | {', '.join(_cell(n.name.removeprefix(module + '.')) for n in inside)} |")
    lines += ["", "| name | | limits, or what serves instead |", "| --- | --- | --- |"]
    alike: dict[tuple[str, str], list[str]] = {}
    for n in every:
        if n.note:
            alike.setdefault((n.status, n.note), []).append(_cell(n.name.removeprefix("nki.")))
    lines += [f"| {', '.join(group)} | {status} | {_cell(note)} |" for (status, note), group in alike.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return f"`{text}`" if text.startswith("_") or ".__" in text else text.replace("|", "\\|").replace("*", "\\*")
