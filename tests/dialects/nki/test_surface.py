"""Every public name of NKI 0.6: it resolves, is called as AWS's signature says, and is tested or explained."""

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nkijax.dialects.nki as nki
from nkijax import Unsupported
from nkijax.dialects.nki import surface
from nkijax.dialects.nki.tensor import NkiTensor

TESTS = Path(__file__).parents[2]
NAMES = surface.names()
EVERY_TEST = "\n".join(p.read_text() for p in TESTS.rglob("test_*.py") if p != Path(__file__))


def resolved(name):
    """The object that `name` is; of a class's attribute the attribute."""
    found = nki
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def spelled(value):
    """A default as the table spells it."""
    return getattr(value, "__name__", None) or (
        value.value if isinstance(value, nki.language.MemoryRegion) else str(value)
    )


def test_all_310_are_there_once():
    assert len(NAMES) == len({n.name for n in NAMES}) == 310
    assert [n.name for n in NAMES if n.status not in surface.STATUSES] == []


@pytest.mark.parametrize("n", NAMES, ids=lambda n: n.name)
def test_name(n):
    if n.status == "removed":
        with pytest.raises((NotImplementedError, AttributeError), match=f"{n.name.rpartition('.')[2]}.*removed"):
            resolved(n.name)
        return
    found = resolved(n.name)
    if n.kind in ("function", "method"):
        _called_as(found, n)
    if n.kind == "class":
        assert inspect.isclass(found)
    if n.kind == "attribute":
        assert isinstance(inspect.getattr_static(NkiTensor, n.name.rpartition(".")[2]), property)
    if n.kind == "member":
        enum: Any = resolved(n.name.rpartition(".")[0])
        assert found is enum[n.name.rpartition(".")[2]]


def _called_as(found, n):
    """The parameters begin with AWS's, in their order and with their defaults; the rest are optional."""
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    facts = [fact.strip() for fact in n.signature[1:-1].split(",") if fact.strip()]
    assert len(parameters) >= len(facts), n.signature
    for parameter, fact in zip(parameters, facts, strict=False):
        name, _, default = fact.partition("=")
        assert parameter.name == name.lstrip("*")
        if name.startswith("*"):
            assert parameter.kind is parameter.VAR_POSITIONAL
        elif default:
            value = parameter.default
            if isinstance(value, float):
                assert np.float32(default) == np.float32(value)
                continue
            member = f"{default.partition('.')[0]}.{getattr(value, 'name', '')}"
            assert default.strip("'") in {spelled(value), repr(value), member}, (default, value)
    assert all(p.default is not p.empty for p in parameters[len(facts) :] if p.kind is not p.VAR_POSITIONAL)


@pytest.mark.parametrize("n", [n for n in NAMES if n.status == "emulated"], ids=lambda n: n.name)
def test_what_is_emulated_is_tested(n):
    last = n.name.rpartition(".")[2].replace("__getitem__", "subscript")
    assert re.search(rf"(?<!\w){re.escape(last)}(?!\w)", EVERY_TEST), n.name


def test_every_row_has_a_reason():
    for n in NAMES:
        assert n.status == "emulated" or n.note, n
    with pytest.raises(AssertionError):
        surface.Name("nki.x", "function", "()", "unsupported", "")
    with pytest.raises(AssertionError):
        surface.Name("nki.x", "function", "()", "somehow", "because")


@pytest.mark.parametrize("n", [n for n in NAMES if n.status == "unsupported"], ids=lambda n: n.name)
def test_what_is_unsupported_says_so_when_called(n):
    found = resolved(n.name)
    for call in [found] if callable(found) else [v for v in vars(found).values() if inspect.isclass(v)]:
        with pytest.raises(Unsupported, match="nki.compiler.*is a part of the vendor's compiler"):
            call(None)


def test_text():
    lines = surface.text().splitlines()
    assert len(lines) == 310 and lines[0].startswith("nki.jit ")
    (row,) = [line for line in lines if line.startswith("nki.isa.nc_n_gather ")]
    assert row.split(None, 2)[1] == "emulated" and "not emulated: what hardware finds outside of data" in row


def test_markdown():
    text = surface.markdown()
    for n in NAMES:
        row = rf"\|[^\n]*{re.escape(n.name.removeprefix(n.module + '.')).replace('_', '_')}[^\n]*\|"
        assert re.search(row, text), n.name
    assert "| `nki.isa` | get_nc_sub_version" in text and "`NkiTensor.__getitem__`" in text
    assert "| language.nc, language.spmd_dim | removed | use kernel[n] |" in text


def test_limits_come_from_the_shelf():
    notes = {n.name: n.note for n in NAMES}
    assert notes["nki.isa.max8"].startswith("not emulated: what hardware makes of NaN")
    assert notes["nki.language.cos"] == "not emulated: the rounding of each of the several instructions"
    assert notes["nki.isa.iota"] == "", "nothing"
    assert not notes["nki.isa.tensor_tensor_scan"].startswith("nothing")
