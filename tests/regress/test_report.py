"""Bar, table, JSON and JUnit."""

import io
import json
from dataclasses import replace
from xml.etree import ElementTree

from nkijax.regress import report
from nkijax.regress.result import Result

GOOD = Result(
    "k.py::a[trn2]",
    "passed",
    seconds=1.25,
    compile_s=0.5,
    instructions=1234,
    leaves=5,
    model_us=20.0,
    error=0.5,
    relative=1e-6,
)
BAD = Result(
    "k.py::b[trn2]", "failed", "output 0\x00 wrong", "Traceback\x1b[0m", 2.0, replay="nkijax regress --replay x"
)
LOST = Result("k.py::c[trn2]", "timeout", "took longer than 1 s")
KNOWN = Result("k.py::d[trn2]", "xfailed", "known", notes=("writes its argument `x`",))
RESULTS = [GOOD, BAD, LOST, KNOWN]
CHANGES = {GOOD.id: ("model 10.0 -> 20.0 us (100.0 % slower)",)}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_table():
    lines = report.table(RESULTS, CHANGES).splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["case", "s", "compile", "instructions", "leaves", "model", "us", "error"],
        ["k.py::a[trn2]", "passed", "1.2", "0.5", "1,234", "5", "20.0", "1.0e-06"],
    ]
    assert lines[2] == "    model 10.0 -> 20.0 us (100.0 % slower)" and lines[-1] == "    writes its argument `x`"
    assert [line.index("s") for line in lines if line.startswith("k.py::a")] == [lines[1].index("s")]


def test_failures_and_totals():
    text = report.failures(RESULTS, full=False)
    assert text.splitlines() == [
        "failed k.py::b[trn2]",
        "    output 0\x00 wrong",
        "    nkijax regress --replay x",
        "timeout k.py::c[trn2]",
        "    took longer than 1 s",
    ]
    assert "    | Traceback" in report.failures(RESULTS, full=True)
    assert report.totals(RESULTS, CHANGES, 3.0) == (
        "4 cases: 1 passed, 1 failed, 1 timeout, 1 xfailed; 1 changed since the baseline in 3.0 s"
    )
    assert report.totals([GOOD], {}, 1.0) == "1 case: 1 passed in 1.0 s"


def test_the_bar_is_for_terminals():
    plain, terminal = io.StringIO(), Terminal()
    for out in (plain, terminal):
        progress = report.Progress(4, out)
        for r in RESULTS:
            progress.see(r)
        progress.close()
    assert plain.getvalue() == "failed k.py::b[trn2]\ntimeout k.py::c[trn2]\n"
    often = io.StringIO()
    report.Progress(4, often, every_s=0).see(GOOD)
    assert often.getvalue() == "1/4, 0 bad, 0 s\n"
    shown = terminal.getvalue()
    assert "[============            ] 2/4, 1 bad" in shown and shown.endswith("\r\033[K")


def test_json(tmp_path):
    report.save_json(str(tmp_path / "r.json"), RESULTS, CHANGES, 3.0)
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["counts"] == {"passed": 1, "failed": 1, "timeout": 1, "xfailed": 1} and data["seconds"] == 3
    assert data["cases"][0]["changes"] == list(CHANGES[GOOD.id])
    again = {k: v for k, v in data["cases"][0].items() if k != "changes"}
    assert Result.from_json(again) == replace(GOOD)


def test_junit(tmp_path):
    report.save_junit(str(tmp_path / "r.xml"), RESULTS, CHANGES, 3.0)
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert {k: suite.get(k) for k in ("tests", "failures", "errors")} == {"tests": "4", "failures": "1", "errors": "1"}
    good, bad, lost, known = suite.findall("testcase")
    assert (good.get("classname"), good.get("name"), good.get("time")) == ("k.py", "a[trn2]", "1.250")
    properties = {p.get("name"): p.get("value") for p in good.iter("property")}
    assert properties["instructions"] == "1234" and properties["change"] == CHANGES[GOOD.id][0]
    assert bad[-1].tag == "failure" and bad[-1].get("message") == "output 0 wrong"
    assert bad[-1].text == "Traceback[0m\nnkijax regress --replay x"
    assert lost[-1].tag == "error" and known[-1].tag == "skipped" and known[-1].get("message") == "known"
