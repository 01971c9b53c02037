"""Cases in processes: results, a time limit, a process that dies.  One run, because each process imports JAX."""

import os

from nkijax.regress import pool
from nkijax.regress.discover import find
from nkijax.regress.execute import Job
from tests.regress.written import GOOD, write

HARD = """
import os, time
hangs = nkijax.Case(affine, lambda rng: print("hangs") or time.sleep(600), name="hangs", targets="trn2", timeout_s=1)
dies = nkijax.Case(affine, lambda rng: os.write(2, b"last words") and os._exit(3), name="dies", targets="trn2")
device = nkijax.Case(
    affine, inputs, lambda x: 2 * x + (os.environ["JAX_PLATFORMS"] == "cpu"), name="on", targets="trn2"
)
"""


def test_processes(tmp_path):
    environment = dict(os.environ)
    affine, hangs, dies, on = (Job(f, str(tmp_path)) for f in find(write(tmp_path, GOOD + HARD), tmp_path))
    results = {r.id.partition("::")[2]: r for r in pool.run([dies, affine, on, hangs], 2, 60.0, "cpu")}
    assert {k: (r.status, r.message) for k, r in results.items()} == {
        "affine[trn2]": ("passed", ""),
        "hangs[trn2]": ("timeout", "took longer than 1 s"),
        "dies[trn2]": ("crashed", "its process ended with exit code 3"),
        "on[trn2]": ("passed", ""),
    }
    assert results["dies[trn2]"].detail == "last words" and 1 <= results["hangs[trn2]"].seconds < 60
    assert results["dies[trn2]"].replay.endswith("regress_affine_dies_trn2.npz")
    assert os.environ == environment


def test_here(tmp_path):
    (found,) = find(write(tmp_path, GOOD), tmp_path)
    (result,) = pool.run([Job(found)], 0, 1.0)
    assert result.good


def test_the_environment_of_a_device(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "mine")
    with pool.environment("gpu"):
        assert os.environ["JAX_PLATFORMS"] == "" and os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert os.environ["JAX_PLATFORMS"] == "mine"
    with pool.environment(None):
        assert os.environ["JAX_PLATFORMS"] == "mine"
