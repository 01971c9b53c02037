"""The pytest plugin: cases are tests."""

import os
import subprocess
import sys
from pathlib import Path

from nkijax.regress.baseline import Baseline
from nkijax.regress.discover import base_of, find
from nkijax.regress.execute import Job, execute
from tests.regress.written import BROKEN, GOOD, write

OTHERS = """
known = nkijax.Case(affine, inputs, lambda x: x, name="known", targets="trn2", xfail="not yet")
free = nkijax.Case(affine, inputs, name="free", targets="trn2")
elsewhere = nkijax.Case(affine, inputs, name="elsewhere", targets="trn1")
"""


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """pytest with the plugin, in a process of its own: its exit code and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    plugins = ["-p", "nkijax.regress.plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "-q", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_cases_are_tests(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nnkijax_files = regress_*.py more/*.py\n")
    (tmp_path / "more").mkdir()
    good = write(tmp_path / "more", GOOD, "good.py")
    (found,) = find(good, base_of(str(tmp_path / "b.json")))
    Baseline().updated([execute(Job(found))], ()).save(str(tmp_path / "b.json"))
    write(tmp_path, BROKEN + OTHERS)
    code, out = run(
        tmp_path, "--nkijax-baseline", "b.json", "--nkijax-target", "trn2", "-rA", "regress_affine.py", "more"
    )
    assert code == 1, out
    assert "2 passed" in out and "1 failed" in out and "1 xfailed" in out, "elsewhere is left out"
    assert "PASSED more/good.py::affine[trn2]" in out and "PASSED regress_affine.py::free[trn2]" in out
    assert "failed: output 0: 32 of 32 elements" in out
    assert "nkijax regress --replay nkijax-failures/regress_affine_affine_trn2.npz" in out
    assert (tmp_path / "nkijax-failures" / "regress_affine_affine_trn2.npz").exists()
    assert "regress_affine.py::affine[trn2]: not in the baseline" in out and "good.py::affine[trn2]:" not in out
