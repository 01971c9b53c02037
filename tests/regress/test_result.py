"""Results as plain data."""

import json

import numpy as np

from nkijax.regress.digest import Digest
from nkijax.regress.result import GOOD, Result


def test_json_and_back():
    digest = Digest.of(np.arange(4.0))
    result = Result("a::b[trn2]", "passed", outputs=(digest,), notes=("x",), instructions=3, model_us=1.5)
    data = json.loads(json.dumps(result.to_json()))
    assert "history" not in data and data["instructions"] == 3
    again = Result.from_json(data)
    assert again.outputs[0].change(digest) == 0 and again.notes == ("x",) and again.id == result.id


def test_what_is_good():
    assert {s: Result("", s).good for s in ("passed", "failed", "unsupported", "xfailed", "timeout")} == {
        "passed": True,
        "failed": False,
        "unsupported": False,
        "xfailed": True,
        "timeout": False,
    }
    assert len(GOOD) == 3
