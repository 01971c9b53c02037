"""A stored baseline, and what is told of changes."""

import json
from dataclasses import replace

import numpy as np

from nkijax.regress.baseline import Baseline, values_path
from nkijax.regress.digest import Digest
from nkijax.regress.result import Result
from tests.regress.test_history import GOOD

X = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
RESULT = Result(
    "k.py::a[trn2]",
    "passed",
    instructions=100,
    leaves=10,
    model_us=20.0,
    device="cpu",
    outputs=(Digest.of(X),),
    history=GOOD,
)


def stored(tmp_path, *results):
    path = str(tmp_path / "b.json")
    Baseline().updated(results, ()).save(path)
    return path


def test_stored_and_read(tmp_path):
    path = stored(tmp_path, RESULT, replace(RESULT, id="k.py::b[trn2]", history=None))
    again = Baseline.load(path)
    assert list(again.cases) == ["k.py::a[trn2]", "k.py::b[trn2]"] and list(again.histories) == ["k.py::a[trn2]"]
    assert again.changes(RESULT) == () and again.made["devices"] == "cpu"
    assert [e.hash for e in again.histories[RESULT.id].entries] == [e.hash for e in GOOD.entries]
    assert Baseline.load(path, ["k.py::b[trn2]"]).histories == {}
    assert json.loads((tmp_path / "b.json").read_text())["cases"][RESULT.id]["instructions"] == 100
    assert Baseline.load(str(tmp_path / "none.json")).cases == {}


def test_changes(tmp_path):
    baseline = Baseline.load(stored(tmp_path, RESULT))
    noise = np.random.default_rng(1).standard_normal(X.shape).astype(np.float32)
    now = replace(RESULT, instructions=101, leaves=9, model_us=25.0, outputs=(Digest.of(X + np.float32(0.1) * noise),))
    counts, leaves, cost, values = baseline.changes(now)
    assert counts == "instructions 100 -> 101 (+1)" and leaves == "leaves 10 -> 9 (-1)"
    assert cost == "model 20.0 -> 25.0 us (25.0 % slower)"
    assert values.startswith("output 0 by about 1.") and values.endswith("e-01 of its norm")
    assert baseline.changes(replace(RESULT, model_us=18.0)) == ("model 20.0 -> 18.0 us (10.0 % faster)",)
    rounded = replace(RESULT, outputs=(Digest.of(X * np.float32(1 + 3e-7)),))
    assert baseline.changes(rounded)[0].endswith("(rounding)")


def test_changes_of_another_kind(tmp_path):
    baseline = Baseline.load(stored(tmp_path, RESULT))
    poisoned = X.copy()
    poisoned[:2, 0] = np.nan
    for outputs, words in (
        ((Digest.of(poisoned),), "output 0: 0 -> 2 elements not finite"),
        ((Digest.of(X[:4]),), "output 0: float32[16, 16] -> float32[4, 16]"),
        ((), "outputs 1 -> 0"),
    ):
        assert baseline.changes(replace(RESULT, outputs=outputs)) == (words,)
    assert baseline.changes(replace(RESULT, id="new")) == ("not in the baseline",)
    assert baseline.changes(replace(RESULT, instructions=None)) == ()


def test_an_update_keeps_what_did_not_run_and_what_failed(tmp_path):
    old = Baseline.load(stored(tmp_path, RESULT, replace(RESULT, id="b"), replace(RESULT, id="c")))
    new = old.updated(
        [replace(RESULT, instructions=7, history=None), replace(RESULT, id="b", status="failed", instructions=8)], ["c"]
    )
    assert {k: e.instructions for k, e in new.cases.items()} == {RESULT.id: 7, "b": 100}
    assert list(new.histories) == ["b"], "the old values of the changed case are gone"
    new.updated([], ["b"]).save(str(tmp_path / "b.json"))
    assert not (tmp_path / "b.values.npz").exists() and values_path("x/b.json") == "x/b.values.npz"
