"""What the dialect says of names that it lacks: attributes of its modules, and keywords of its functions."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

_KEYWORD = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")

# Keywords that instructions had once, and what serves instead.
_REMOVED_KEYWORDS = {
    "mask": "masks are gone; slice the tensors",
    "dtype": "dst has its own dtype",
    "imm": "it is called src now",
}


def attribute(module: str, name: str, present: Iterable[str], removed: Mapping[str, str] | None = None) -> NoReturn:
    """Raise the AttributeError of a name that `module` lacks: with what replaced it, or with the nearest names."""
    hint = ""
    if removed and name in removed:
        hint = f": it was removed from NKI; use {removed[name]}"
    elif not name.startswith("__"):
        near = difflib.get_close_matches(name, [n for n in present if n[0] != "_"])
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise AttributeError(f"module '{module}' has no attribute '{name}'{hint}")


def explain_keyword(error: TypeError, modules: Iterable[Any]) -> None:
    """Add to a TypeError about an unexpected keyword of a function of `modules` what it may have meant."""
    found = _KEYWORD.search(str(error))
    if found is None:
        return
    function, keyword = found.groups()
    for module in modules:
        candidate = vars(module).get(function)
        if inspect.isfunction(candidate):
            names = list(inspect.signature(candidate).parameters)
            near = difflib.get_close_matches(keyword, names)
            note = f"did you mean {' or '.join(near)}?" if near else f"it takes {', '.join(names)}"
            error.add_note(f"{module.__name__.rpartition('.')[2]}.{function}: {_REMOVED_KEYWORDS.get(keyword, note)}")
            return
