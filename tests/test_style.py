"""Habits of the house that a program can check; floors are import-linter's, see pyproject.toml."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import nkijax
from nkijax import machine
from nkijax.dialects import neuronxcc
from nkijax.dialects.nki import collectives, isa, language
from nkijax.program import Instruction

PACKAGE = Path(nkijax.__file__).parent
TESTS = Path(__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = [importlib.import_module(m.name) for m in pkgutil.walk_packages([str(PACKAGE)], "nkijax.")]

FILE_LINES, FUNCTION_LINES, INIT_LINES = 400, 50, 60

# Files without a test file of their own, and why.
UNMIRRORED = {
    "__init__.py": "only names",
    "__main__.py": "only calls cli.main",
    "isa/rules.py": "each rule is broken once in the test of an instruction that has it",
}

# Dataclasses that are not frozen: what one stage fills while it runs, never handed to a user.
WORKING_STATE = {
    "compiled.Compiled",
    "plan.Plan",
    "storage.Access",
    "storage.Bound",
    "storage.Family",
    "storage.Layout",
    "open_loop.OpenLoop",
    "regress.execute._Run",
    "regress.history.Search",
    "regress.pool._Worker",
}

PRODUCTS = ("dot", "dot_general", "einsum", "inner", "matmul", "tensordot", "vdot", "vecdot", "conv_general_dilated")

# Functions of a dialect that take **kwargs, and why.
OPEN_SIGNATURES = {
    "dialects/nki/jit.py:simulated": "hands the kernel's own arguments on",
    "dialects/neuronxcc/jit.py:__call__": "hands the kernel's own arguments on",
    "dialects/neuronxcc/jit.py:simulate_kernel": "hands the kernel's own arguments on",
    "dialects/neuronxcc/loops.py:range_of": "stands for a `range` of the kernel's own and hands everything on",
    "dialects/neuronxcc/private_api.py:closed": "raises Unsupported whatever it is given",
    "dialects/neuronxcc/shims.py:absent": "raises Unsupported whatever it is given",
    "dialects/nki/objects.py:__init__": "takes the fields of a subclass, and refuses every other name itself",
}


def _instructions(base: type = Instruction) -> Iterator[type]:
    """Every instruction of the package that can be made."""
    for cls in base.__subclasses__():
        if cls.__module__.startswith("nkijax.") and not inspect.isabstract(cls):
            yield cls
        yield from _instructions(cls)


INSTRUCTIONS = sorted(set(_instructions()), key=lambda cls: cls.__name__)


def _name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


# ---- instructions


@pytest.mark.parametrize("cls", INSTRUCTIONS, ids=lambda cls: cls.__name__)
def test_an_instruction_lives_on_the_shelf_and_is_documented(cls: type[Instruction]):
    assert cls.__module__.startswith("nkijax.isa."), cls.__module__
    if isinstance(cls.api, str):  # else its name depends on its fields
        namespace, _, name = cls.api.rpartition(".")
        modules = {"nki.isa": isa, "nki.language": language, "nki.collectives": collectives}
        modules["neuronxcc.nki.language"] = neuronxcc.language
        assert name in vars(modules[namespace]), "spelled in the dialect"
    doc = inspect.getdoc(cls) or ""
    formula = doc.split("\n\n")[0]
    assert "=" in formula or "<-" in formula, f"the first paragraph says what it computes, as a formula: {formula!r}"
    for section in ("Engine:", "Cost:", "Source:"):
        assert any(line.startswith(section) or f"  {section}" in line for line in doc.splitlines()), section


# ---- ceilings


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_ceilings(path: Path):
    lines = len(path.read_text().splitlines())
    assert lines <= (INIT_LINES if path.name == "__init__.py" else FILE_LINES), f"{lines} lines"
    long = {f.name: n for f in _functions(path) if (n := (f.end_lineno or 0) - f.lineno + 1) > FUNCTION_LINES}
    assert not long, long


# ---- tests mirror the package


@pytest.mark.parametrize("path", [p for p in FILES if p.name not in UNMIRRORED], ids=_name)
def test_a_module_has_its_test_file(path: Path):
    if _name(path) in UNMIRRORED:
        return
    mirror = TESTS / path.relative_to(PACKAGE).parent / f"test_{path.name}"
    assert mirror.exists(), mirror


# ---- failures and signatures


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_only_two_kinds_of_failure(path: Path):
    """NotImplementedError is for names that NKI itself removed: in a dialect, with a message."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            call = node.exc if isinstance(node.exc, ast.Call) else None
            name = ast.unparse(call.func if call else node.exc)
            if name == "NotImplementedError":
                assert call and call.args and "dialects" in path.parts, f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", [p for p in FILES if "dialects" in p.parts], ids=_name)
def test_a_dialect_swallows_no_keyword(path: Path):
    """The old dialect's functions accept unknown keywords, which its kernels pass as hints; they call them `hints`."""
    swallows = [f.name for f in _functions(path) if f.args.kwarg and f"{_name(path)}:{f.name}" not in OPEN_SIGNATURES]
    if "neuronxcc" in path.parts:
        hints = {f.name for f in _functions(path) if f.args.kwarg and f.args.kwarg.arg == "hints"}
        swallows = [name for name in swallows if name not in hints]
    assert not swallows, swallows


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_product_names_its_precision(path: Path):
    """By default JAX multiplies float32 as TF32 on a GPU."""
    products = {f"{module}.{name}" for module in ("jnp", "lax") for name in PRODUCTS}
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.MatMult)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in products:
            assert "precision" in {k.arg for k in node.keywords}, f"line {node.lineno}: {ast.unparse(node)}"


# ---- values


def test_values_are_frozen():
    loose = set()
    for module in MODULES:
        for name, cls in vars(module).items():
            if inspect.isclass(cls) and cls.__module__ == module.__name__ and dataclasses.is_dataclass(cls):
                if not typing.cast(typing.Any, cls).__dataclass_params__.frozen:
                    loose.add(f"{module.__name__.removeprefix('nkijax.')}.{name}")
    assert loose == WORKING_STATE


@pytest.mark.parametrize("target", [machine.TRN1, machine.TRN2, machine.TRN3], ids=lambda t: t.name)
def test_every_number_of_the_machine_has_a_unit_a_source_and_a_status(target: machine.Target):
    assert target.facts
    for name, fact in target.facts.items():
        assert fact.unit and len(fact.source) > len("page"), name
        assert fact.status in typing.get_args(machine.Status), name
