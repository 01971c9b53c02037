"""`install()`: from then on `import nki…` and `import neuronxcc…` mean nkijax in this process.

Names of the vendor's packages for frameworks (`torch_neuronx.nki_jit`, `jax_neuronx.nki_call`) are given where such a
package is not installed.  The kernels that `neuronxcc.nki.kernels` re-exports are AWS's own code, which is not here:
they are taken from a checkout of the public samples, where one can be imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from nkijax.dialects import neuronxcc, nki
from nkijax.dialects.neuronxcc import frameworks, iterators, nccl, private_api, shims, sizes

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
    "neuronxcc.nki.compiler.backends": shims.package("neuronxcc.nki.compiler.backends"),
    "neuronxcc.nki.compiler.backends.neuron": shims.package("neuronxcc.nki.compiler.backends.neuron"),
    "neuronxcc.nki.compiler.backends.neuron.indexing": shims.indexing,
    "neuronxcc.nki.compiler.backends.neuron.tensor": shims.tensor,
    "neuronxcc.nki.typing": neuronxcc.typing,
    "neuronxcc.nki.kernels": shims.package("neuronxcc.nki.kernels"),
    "neuronxcc.nki.docs": shims.package("neuronxcc.nki.docs"),
    "neuronxcc.nki.docs.examples": shims.package("neuronxcc.nki.docs.examples"),
    "neuronxcc.nki.docs.examples.layernorm": shims.package("neuronxcc.nki.docs.examples.layernorm"),
    "neuronxcc.nki.nccl": nccl,
    "neuronxcc.nki.nccl.collectives": nccl,
    "neuronxcc.nki._private": shims.package("neuronxcc.nki._private"),
    "neuronxcc.nki._private.private_api": private_api,
    "neuronxcc.nki._private_kernels": private_api,
    "neuronxcc.nki._private_kernels.RoPE": private_api,
    "neuronxcc.nki._private_kernels.qkv": private_api,
    "neuronxcc.starfish": shims.package("neuronxcc.starfish"),
    "neuronxcc.starfish.support": shims.package("neuronxcc.starfish.support"),
    "neuronxcc.starfish.support.util": shims.util,
}
_ROOTS = ("nki", "neuronxcc")
_FRAMEWORKS: dict[str, ModuleType] = {
    "jax_neuronx": shims.package("jax_neuronx", {"nki_call": frameworks.nki_call}),
    "torch_neuronx": shims.package("torch_neuronx", {"nki_jit": frameworks.nki_jit}),
    "torch_neuronx.xla_impl": shims.package("torch_neuronx.xla_impl"),
    "torch_neuronx.xla_impl.ops": shims.package("torch_neuronx.xla_impl.ops", {"nki_jit": frameworks.nki_jit}),
}
_SAMPLES = {  # re-exports, and where the public samples have what they name
    "neuronxcc.nki.kernels.attention": ("nki_samples.reference.attention",),
    "neuronxcc.nki.kernels.vision": ("nki_samples.reference.vision",),
    "neuronxcc.nki.docs.examples.layernorm.layernorm_nki_kernel": (
        "nki_samples.tutorials.layernorm.layernorm_nki_kernel",
        "layernorm_nki_kernel",
    ),
}


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
        if fullname in _SAMPLES:
            return ModuleSpec(fullname, _Alias(_sample(fullname)))
        root = fullname.partition(".")[0]
        if root in _ROOTS:
            known = ", ".join(name for name in _MODULES if name.partition(".")[0] == root)
            raise ModuleNotFoundError(
                f"No module named '{fullname}': nkijax has {known} (nkijax.install put them here)",
                name=fullname,
            )
        return None


class _Frameworks(MetaPathFinder):
    """Comes last: knows the names of `_FRAMEWORKS` where no package has them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias(_FRAMEWORKS[fullname])) if fullname in _FRAMEWORKS else None


def _sample(fullname: str) -> ModuleType:
    """The module of the public samples that a re-export stands for."""
    for name in _SAMPLES[fullname]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ModuleNotFoundError(
        f"{fullname} re-exports kernels of github.com/aws-neuron/nki-samples, which nkijax does not contain: put the "
        f"folder `src` of a checkout (commit 0898a77 has all of them) on sys.path, so that {_SAMPLES[fullname][0]} "
        "can be imported",
        name=_SAMPLES[fullname][0],
    )


_finder, _frameworks = _Finder(), _Frameworks()
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
    sys.meta_path.append(_frameworks)
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
    sys.meta_path.remove(_frameworks)
    for name in (*_MODULES, *_SAMPLES):
        sys.modules.pop(name, None)
    for name, module in _FRAMEWORKS.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
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
