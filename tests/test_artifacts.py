"""NKI_ARTIFACTS_DIR and Profile.save."""

from __future__ import annotations

import json

import numpy as np

import nkijax
from tests import kernels


def test_a_run_leaves_program_cost_and_timeline(tmp_path, monkeypatch):
    monkeypatch.setenv("NKI_ARTIFACTS_DIR", str(tmp_path / "new"))
    kernels.double(np.ones((256, 8), np.float32))
    names = sorted(p.name for p in (tmp_path / "new").iterdir())
    assert names == ["double.cost.json", "double.timeline.json", "double.txt"]
    assert "repeat 2:" in (tmp_path / "new" / "double.txt").read_text()
    assert json.loads((tmp_path / "new" / "double.cost.json").read_text())["total_us"] > 0
    assert json.loads((tmp_path / "new" / "double.timeline.json").read_text())["traceEvents"]


def test_profile_save(tmp_path):
    nkijax.profile(kernels.double, np.ones((256, 8), np.float32)).save(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["traceEvents"]
