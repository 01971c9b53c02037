"""Which files have cases, and which globals are some."""

import sys

import pytest

from nkijax.regress import discover
from tests.regress.written import GOOD, KERNEL, write


def test_files(tmp_path):
    (tmp_path / "sub" / ".hidden").mkdir(parents=True)
    wanted = [
        write(tmp_path, "", "regress_a.py"),
        write(tmp_path / "sub", "x = nkijax.Case(k, i)", "kernels.py"),
    ]
    write(tmp_path, "print('a script')", "script.py")
    write(tmp_path, "nkijax.Case(", "test_a.py")
    write(tmp_path, "nkijax.Case(", "notes.txt")
    write(tmp_path / "sub" / ".hidden", "nkijax.Case(", "b.py")
    assert discover.files([str(tmp_path)]) == wanted
    named = write(tmp_path, "", "anything.py")
    assert discover.files([str(named), str(tmp_path), str(named)]) == [named, *wanted]
    with pytest.raises(FileNotFoundError, match="no such file or directory: nowhere"):
        discover.files(["nowhere"])


def test_cases_of_a_module(tmp_path):
    text = """
one = nkijax.Case(affine, inputs)
other = [nkijax.Case(affine, inputs, params={"rows": n}) for n in (1, 2)]
pair = (nkijax.Case(affine, inputs, name="three"), "no case")

def cases():
    yield nkijax.Case(affine, inputs, name="four")
    yield one
    yield nkijax.Case.later("five", lambda: one)
"""
    module = discover.load(write(tmp_path, KERNEL + text))
    assert list(discover.cases(module)) == ["affine", "affine-1", "affine-2", "three", "four", "five"]
    assert discover.load(tmp_path / "regress_affine.py") is module


def test_two_cases_of_one_name(tmp_path):
    path = write(tmp_path, GOOD + "again = nkijax.Case(affine, inputs)\n")
    with pytest.raises(ValueError, match="two cases are called 'affine'; give one of them another name="):
        discover.find(path, tmp_path)


def test_ids_are_relative_to_the_baseline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, GOOD)
    (tmp_path / "sub").mkdir()
    ids = [
        [f.id for f in discover.find(path, discover.base_of(b), targets)]
        for b, targets in ((None, ()), (str(tmp_path / "sub" / "b.json"), ("trn2", "trn1")), (None, ("trn1",)))
    ]
    assert ids == [["regress_affine.py::affine[trn2]"], ["../regress_affine.py::affine[trn2]"], []]


def test_files_of_a_package_and_files_of_one_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "one" / "pack_of_cases"
    (tmp_path / "two").mkdir()
    package.mkdir(parents=True)
    write(package, "", "__init__.py")
    write(package, "value = 1", "near.py")
    inside = discover.load(write(package, "from .near import value", "regress_x.py"))
    outside = discover.load(write(tmp_path / "two", "value = 2", "regress_x.py"))
    assert (inside.__name__, inside.value, outside.value) == ("pack_of_cases.regress_x", 1, 2)
    for name in [n for n in sys.modules if n.startswith("pack_of_cases")]:
        del sys.modules[name]


def test_a_file_that_fails_is_tried_again(tmp_path):
    path = write(tmp_path, "raise OSError('no data')")
    for _ in range(2):
        with pytest.raises(OSError, match="no data"):
            discover.load(path)
