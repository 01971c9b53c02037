"""`install()`: from then on `import nki…` means nkijax in this process."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from nkijax.dialects import nki

_MODULES: dict[str, ModuleType] = {
    "nki": nki,
    "nki.collectives": nki.collectives,
    "nki.dtype": nki.dtype,
    "nki.isa": nki.isa,
    "nki.isa.constants": nki.isa.constants,
    "nki.language": nki.language,
    "nki.typing": nki.typing,
}
_ROOT = "nki"


class _Alias(Loader):
    """Gives a module that is there already."""

    def __init__(self, module: ModuleType):
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put the alias's here


class _Finder(MetaPathFinder):
    """Knows the names of `_MODULES`, and that there are no others below them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _MODULES:
            return ModuleSpec(fullname, _Alias(_MODULES[fullname]))
        if fullname.startswith(_ROOT + "."):
            raise ModuleNotFoundError(
                f"No module named '{fullname}': nkijax has {', '.join(_MODULES)} (nkijax.install put them here)",
                name=fullname,
            )
        return None


_finder = _Finder()
_shadowed: dict[str, ModuleType] = {}  # modules of a real package that were imported before `install`


def install(shadow: bool = False) -> None:
    """Make `import nki`, `nki.isa`, `nki.language` and their kin mean nkijax, in this process.

    If a package called `nki` is installed, raises ImportError unless `shadow` is true.  Installing twice is harmless.
    """
    if _finder in sys.meta_path:
        return
    if not shadow:
        _refuse_real()
    for name in [n for n in sys.modules if n == _ROOT or n.startswith(_ROOT + ".")]:
        _shadowed[name] = sys.modules.pop(name)
    sys.meta_path.insert(0, _finder)
    sys.modules.update(_MODULES)


def _refuse_real() -> None:
    real = sys.modules.get(_ROOT)
    spec = importlib.util.find_spec(_ROOT) if real is None else None
    place = getattr(real, "__file__", None) or (spec and spec.origin)  # a mere folder called `nki` has neither
    if real is not None or place:
        raise ImportError(
            f"nkijax.install: a package called '{_ROOT}' is installed ({place}); nkijax.install(shadow=True) hides it",
            name=_ROOT,
        )


def uninstall() -> None:
    """Undo `install`."""
    if _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    for name in _MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(_shadowed)
    _shadowed.clear()


@contextlib.contextmanager
def installed(shadow: bool = False) -> Iterator[None]:
    """`install` for a while; one from before stays."""
    before = _finder in sys.meta_path
    install(shadow)
    try:
        yield
    finally:
        if not before:
            uninstall()
