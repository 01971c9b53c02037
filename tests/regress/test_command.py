"""`nkijax regress`: what it prints, writes and exits with."""

import json
from xml.etree import ElementTree

import pytest

from nkijax.cli import main
from nkijax.regress import command
from nkijax.regress.baseline import Baseline
from tests.regress.written import BROKEN, GOOD, KERNEL, LINE, write


@pytest.fixture
def regress(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own, in this process: its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main(["regress", "-j", "0", *arguments])
        out, err = capsys.readouterr()
        return code, out + err

    return run


def test_a_kernel_that_is_broken_later(regress, tmp_path):
    """The whole way: accepted, broken, caught, replayed, its first wrong instruction named."""
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    write(tmp_path / "before", GOOD)
    write(tmp_path / "after", BROKEN)
    code, out = regress("before", "--baseline", "before/b.json", "--update-baseline")
    assert code == 0 and "b.json: 1 case, 1 with the values of their instructions" in out
    code, out = regress("before", "--baseline", "before/b.json", "--strict")
    assert code == 0 and "since the baseline" not in out
    for file in ("b.json", "b.values.npz"):
        (tmp_path / "before" / file).rename(tmp_path / "after" / file)
    code, out = regress("after", "--baseline", "after/b.json")
    assert code == 1 and "    output 0 by about " in out
    command = next(line.strip() for line in out.splitlines() if "--replay" in line)
    assert command == "nkijax regress --replay nkijax-failures/regress_affine_affine_trn2.npz"
    code, out = regress(*command.split()[2:])
    assert code == 1
    named = "the first instruction whose value the good run had nowhere: #1 nki.isa.tensor_scalar at "
    assert f"{named}after/regress_affine.py:{LINE}: " in out


def test_changes_are_told_and_strict_minds_them(regress, tmp_path):
    write(tmp_path, GOOD, "one.py")
    longer = GOOD.replace("nl.add, 1.0)", "nl.add, 0.5)\n    nisa.tensor_scalar(t, t, nl.add, 0.5)")
    write(tmp_path, longer, "two.py")
    assert regress("one.py", "--baseline", "b.json", "--update-baseline")[0] == 0
    text = (tmp_path / "b.json").read_text()
    (tmp_path / "b.json").write_text(text.replace("one.py", "two.py"))
    code, out = regress("two.py", "--baseline", "b.json")
    assert code == 0 and "    instructions 4 -> 5 (+1)\n" in out and " us (" in out and "slower" in out
    assert "1 changed since the baseline" in out
    assert regress("two.py", "--baseline", "b.json", "--strict")[0] == 3
    assert regress("two.py", "--baseline", "b.json", "--strict", "--update-baseline")[0] == 0
    assert regress("two.py", "--baseline", "b.json", "--strict")[0] == 0


def test_cases_that_are_gone(regress, tmp_path):
    two = GOOD + "other = nkijax.Case(affine, inputs, name='other', targets='trn2')\n"
    write(tmp_path, two, "two.py")
    write(tmp_path, GOOD, "one.py")
    assert regress("two.py", "--baseline", "b.json", "--update-baseline", "--values", "0")[0] == 0
    assert Baseline.load("b.json").histories == {}
    (tmp_path / "b.json").write_text((tmp_path / "b.json").read_text().replace("two.py", "one.py"))
    code, out = regress("one.py", "--baseline", "b.json", "--strict")
    assert code == 3 and "gone since the baseline: one.py::other[trn2]" in out
    assert "gone" not in regress("one.py", "--baseline", "b.json", "-k", "affine")[1]
    assert regress("one.py", "--baseline", "b.json", "--update-baseline")[0] == 0
    assert list(Baseline.load("b.json").cases) == ["one.py::affine[trn2]"]


def test_selection_and_files(regress, tmp_path):
    write(
        tmp_path, KERNEL + "c = [nkijax.Case(affine, inputs, lambda x: 2 * x + 1, params={'rows': n}) for n in (2, 3)]"
    )
    write(tmp_path, "import nowhere  # nkijax.Case(", "broken.py")
    code, out = regress(".", "--list", "--target", "trn1,gen3")
    ids = [f"regress_affine.py::affine-{n}[{t}]" for n in (2, 3) for t in ("trn1", "trn2")]
    assert code == 1 and out.splitlines()[:5] == [*ids, "error broken.py"]
    code, out = regress(
        ".", "-k", "e-3", "-k", "other", "--target", "trn1", "--json", "r.json", "--junit", "r.xml", "-v"
    )
    assert code == 1 and "error broken.py\n    cannot be loaded: ModuleNotFoundError: No module named 'nowhere'" in out
    assert "    | Traceback" in out and out.splitlines()[-1].startswith("2 cases: 1 passed, 1 error in ")
    assert [c["id"] for c in json.loads((tmp_path / "r.json").read_text())["cases"]] == ["broken.py", ids[2]]
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("errors") == "1"
    code, out = regress("regress_affine.py::affine-3", f"{ids[0]}", "--target", "trn1,trn2", "--list")
    assert code == 0 and out.splitlines() == [*ids[2:], ids[0]]
    assert regress("regress_affine.py", "-k", "nothing") == (5, "nkijax regress: no cases found\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a file or a folder"),
        (["nowhere"], "no such file or directory: nowhere"),
        ([".", "--update-baseline"], "needs --baseline FILE"),
    ],
)
def test_usage(regress, arguments, words):
    code, out = regress(*arguments)
    assert code == 2 and words in out


def test_a_wrong_target(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["regress", "--target", "trn2,trn9", "."])
    assert exit_.value.code == 2 and "must be one of trn1" in capsys.readouterr().err


def test_interrupted(regress, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    write(tmp_path, GOOD)
    monkeypatch.setattr(command.pool, "execute", interrupted)
    code, out = regress(".", "--baseline", "b.json", "--update-baseline")
    assert code == 130 and "0 cases: none" in out and not (tmp_path / "b.json").exists()


def test_results_outlive_a_process_that_cannot_be_replaced(regress, tmp_path, monkeypatch):
    def lost(job, execute=command.pool.execute):
        if "one.py" in job.found.id:
            return execute(job)
        raise command.pool.NoProcess("no process")

    write(tmp_path, GOOD, "one.py")
    write(tmp_path, GOOD, "two.py")
    monkeypatch.setattr(command.pool, "execute", lost)
    code, out = regress("one.py", "two.py", "--json", "r.json", "--baseline", "b.json", "--update-baseline")
    assert code == 2 and "nkijax regress: no process" in out and "1 case: 1 passed" in out
    assert json.loads((tmp_path / "r.json").read_text())["counts"] == {"passed": 1}
    assert not (tmp_path / "b.json").exists()
    assert regress("two.py")[0] == 2


def test_how_many_processes():
    assert command.processes(3, 1) == 3 and command.processes(0, 9) == 0
    assert command.processes(None, 1) == 1 and 1 <= command.processes(None, 100) <= command.MOST
