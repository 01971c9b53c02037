"""What a module of the dialect gives for a name that it lacks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from nkijax.errors import Unsupported


def attribute(module: str, name: str, not_yet: Iterable[str], present: Iterable[str]) -> Any:
    """For a documented name, a function that raises Unsupported when called, so that importing it works.

    For any other name raises AttributeError, with the nearest names.
    """
    if name in not_yet:
        return _stub(f"{module}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module '{module}' has no attribute '{name}'")
    near = difflib.get_close_matches(name, [n for n in (*present, *not_yet) if n[0] != "_"])
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise AttributeError(f"module '{module}' has no attribute '{name}'{hint}")


def _stub(api: str) -> Callable[..., NoReturn]:
    def stub(*args: Any, **kwargs: Any) -> NoReturn:
        raise Unsupported(f"{api}: is not emulated yet")

    stub.__name__ = stub.__qualname__ = api.rpartition(".")[2]
    return stub
