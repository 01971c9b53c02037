"""install(): what `import nki…` means."""

import importlib
import importlib.util
import sys

import pytest

import nkijax
from nkijax import imports
from nkijax.dialects import neuronxcc, nki


@pytest.fixture(autouse=True)
def clean():
    """Start without nkijax's names, and leave the process as it was found."""
    before = imports._finder in sys.meta_path
    imports.uninstall()
    yield
    imports.uninstall()
    if before:
        imports.install(shadow=True)


@pytest.fixture
def real(tmp_path, monkeypatch):
    """An installed package called nki."""
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "__init__.py").write_text("real = True\n")
    (tmp_path / "nki" / "isa.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    imports.uninstall()
    for name in [n for n in sys.modules if n.partition(".")[0] == "nki"]:
        del sys.modules[name]


def test_nothing_is_there_unless_asked():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nki")


SPELLINGS = """
import nki
import nki as alias
import nki.isa as nisa
import nki.language as nl
import nki.typing as nt
import nki.dtype as dt
import nki.collectives as ncc
import nki.isa.constants
from nki import jit, isa, language, typing, dtype
from nki.isa import oob_mode, constants, topk
from nki.collectives import ReplicaGroup
from nki.isa.constants import dge_mode
from nki.language import NKIObject, float32
from nki.meta import tensor
from nki.experimental import while_loop
from nki.simulator import simulate_kernel
from nki.compiler.kernel_builder import compile_kernel
import nki.compiler.frontend as frontend
from nki.compiler.ncc_driver import CompileOptions, CompiledKernel
from neuronxcc.nki.typing import mutable_tensor
"""


def test_every_way_to_import():
    nkijax.install()
    names = {}
    exec(SPELLINGS, names)
    assert names["nki"] is names["alias"] is nki and names["nisa"] is nki.isa and names["dt"] is nki.dtype
    assert names["nki"].isa.constants is names["constants"] is nki.isa.constants
    assert names["jit"] is nki.jit and names["float32"] == "float32"
    assert importlib.util.find_spec("nki.language") is not None
    assert names["while_loop"] is nki.language.while_loop and names["frontend"] is nki.compiler.frontend


def test_what_is_not_there():
    nkijax.install()
    for name in ("nki.nothing", "nki.jit", "nki.tensor", "nki.isa.nothing"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            importlib.import_module(name)
    assert "nki.jit" not in sys.modules, "files of nkijax are no modules of nki"
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'nkijax.dialects.nki.isa'"):
        exec("from nki.isa import nothing")


def test_a_purged_name_comes_back():
    nkijax.install()
    for name in ("nki", "nki.isa"):
        del sys.modules[name]
    assert importlib.import_module("nki") is nki and importlib.import_module("nki.isa") is nki.isa
    assert nki.__spec__.name == "nkijax.dialects.nki" and nki.isa.__spec__.name == "nkijax.dialects.nki.isa"


def test_installing_twice_and_uninstalling():
    nkijax.install()
    nkijax.install()
    assert sys.meta_path.count(imports._finder) == 1
    imports.uninstall()
    imports.uninstall()
    assert imports._finder not in sys.meta_path and "nki.isa" not in sys.modules


def test_a_real_package_stays_unless_shadowed(real):
    with pytest.raises(
        ImportError, match=r"a package called 'nki' is installed .*nkijax.install\(shadow=True\) hides it"
    ):
        nkijax.install()
    theirs = importlib.import_module("nki")
    their_isa = importlib.import_module("nki.isa")
    assert theirs.real
    with pytest.raises(ImportError, match="shadow=True"):
        nkijax.install()
    nkijax.install(shadow=True)
    assert importlib.import_module("nki") is nki and importlib.import_module("nki.isa") is nki.isa
    imports.uninstall()
    assert importlib.import_module("nki") is theirs and importlib.import_module("nki.isa") is their_isa


def test_a_mere_folder_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "nki").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    nkijax.install()
    assert importlib.import_module("nki") is nki


def test_for_a_while():
    with imports.installed():
        assert importlib.import_module("nki") is nki
    assert "nki" not in sys.modules
    nkijax.install()
    with imports.installed(shadow=True):
        pass
    assert importlib.import_module("nki") is nki


OLD_SPELLINGS = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.typing as nt
import neuronxcc.nki.nccl as nccl
from neuronxcc import nki as again
from neuronxcc.nki import baremetal, benchmark, jit, profile, simulate_kernel, trace
from neuronxcc.nki.compiler.backends.neuron.indexing import TileIndex
from neuronxcc.nki.compiler.backends.neuron.tensor import local_tile
from neuronxcc.nki.isa.constants import oob_mode
from neuronxcc.nki.isa.neuron_isa import dma_copy
from neuronxcc.nki.language import bfloat16, par_dim
from neuronxcc.nki.language.constants import sizeinbytes
from neuronxcc.nki.language.iterators import sync_program
from neuronxcc.nki.nccl.collectives import collective_permute_implicit
from neuronxcc.nki.typing import scalar, tensor
from neuronxcc.nki._private.private_api import core_barrier, do_while, sendrecv
from neuronxcc.nki._private_kernels import NormType
from neuronxcc.nki._private_kernels.RoPE import RoPE_sbuf
from neuronxcc.nki._private_kernels.qkv import rmsnorm_qkv_isa_kernel
from neuronxcc.starfish.support.util import allclose
from nki.language.constants import sizeinbytes as sized
"""


def test_every_way_to_import_the_old_dialect():
    nkijax.install()
    names = {}
    exec(OLD_SPELLINGS, names)
    assert names["nki"] is names["again"] is neuronxcc and names["nisa"] is neuronxcc.isa
    assert names["nki"].compiler.sbuf is names["ncc"].sbuf and names["sized"] is names["sizeinbytes"]
    with pytest.raises(ModuleNotFoundError, match="nkijax has neuronxcc, neuronxcc.nki"):
        importlib.import_module("neuronxcc.nki.nothing")
    imports.uninstall()
    assert "neuronxcc.nki" not in sys.modules
