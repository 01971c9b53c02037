"""`install()`: from then on `import nki…` and `import neuronxcc…` mean nkijax in this process."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from nkijax.dialects import neuronxcc, nki
from nkijax.dialects.neuronxcc import iterators, nccl, private_api, shims, sizes

_MODULES: dict[str, ModuleType] = {
    "nki": nki,
    "nki.collectives": nki.collectives,
    "nki.dtype": nki.dtype,
    "nki.isa": nki.isa,
    "nki.isa.constants": nki.isa.constants,
    "nki.language": nki.language,
    "nki.language.constants": sizes,  # a public kernel of the old dialect imports it from here
    "nki.typing": nki.typing,
    **nki.shims.MODULES,
    "neuronxcc": shims.package("neuronxcc", {"nki": neuronxcc}),
    "neuronxcc.nki": neuronxcc,
    "neuronxcc.nki.language": neuronxcc.language,
    "neuronxcc.nki.language.constants": sizes,
    "neuronxcc.nki.language.iterators": iterators,
    "neuronxcc.nki.isa": neuronxcc.isa,
    "neuronxcc.nki.isa.constants": neuronxcc.isa.constants,
    "neuronxcc.nki.isa.neuron_isa": neuronxcc.isa,
    "neuronxcc.nki.compiler": neuronxcc.compiler,
    "neuronxcc.nki.compiler.backends": shims.package("backends"),
    "neuronxcc.nki.compiler.backends.neuron": shims.package("neuron"),
    "neuronxcc.nki.compiler.backends.neuron.indexing": shims.indexing,
    "neuronxcc.nki.compiler.backends.neuron.tensor": shims.tensor,
    "neuronxcc.nki.typing": neuronxcc.typing,
    "neuronxcc.nki.nccl": nccl,
    "neuronxcc.nki.nccl.collectives": nccl,
    "neuronxcc.nki._private": shims.package("_private"),
    "neuronxcc.nki._private.private_api": private_api,
    "neuronxcc.nki._private_kernels": private_api,
    "neuronxcc.nki._private_kernels.RoPE": private_api,
    "neuronxcc.nki._private_kernels.qkv": private_api,
    "neuronxcc.starfish": shims.package("starfish"),
    "neuronxcc.starfish.support": shims.package("support"),
    "neuronxcc.starfish.support.util": shims.util,
}
_ROOTS = ("nki", "neuronxcc")


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
        root = fullname.partition(".")[0]
        if root in _ROOTS:
            known = ", ".join(name for name in _MODULES if name.partition(".")[0] == root)
            raise ModuleNotFoundError(
                f"No module named '{fullname}': nkijax has {known} (nkijax.install put them here)",
                name=fullname,
            )
        return None


_finder = _Finder()
_shadowed: dict[str, ModuleType] = {}  # modules of a real package that were imported before `install`


def install(shadow: bool = False) -> None:
    """Make `import nki`, `import neuronxcc.nki` and their kin mean nkijax, in this process.

    If a package called `nki` or `neuronxcc` is installed, raises ImportError unless `shadow` is true.  Installing
    twice is harmless.
    """
    if _finder in sys.meta_path:
        return
    if not shadow:
        for root in _ROOTS:
            _refuse_real(root)
    for name in [n for n in sys.modules if n.partition(".")[0] in _ROOTS]:
        _shadowed[name] = sys.modules.pop(name)
    sys.meta_path.insert(0, _finder)
    sys.modules.update(_MODULES)


def _refuse_real(root: str) -> None:
    real = sys.modules.get(root)
    spec = importlib.util.find_spec(root) if real is None else None
    place = getattr(real, "__file__", None) or (spec and spec.origin)  # a mere folder of that name has neither
    if real is not None or place:
        raise ImportError(
            f"nkijax.install: a package called '{root}' is installed ({place}); nkijax.install(shadow=True) hides it",
            name=root,
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
