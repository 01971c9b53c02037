"""nkijax run, profile and trace, on scripts that import `nki` as their authors wrote it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest

from nkijax import api
from nkijax.cli import SUPPORT, main
from nkijax.dialects.nki import surface

SCRIPT = """
import os
import sys

import beside
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np


@nki.jit
def double(x, turns):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

    def turn(i):
        tile = nl.ndarray((1, x.shape[1]), x.dtype)
        nisa.dma_copy(tile, x[i])
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(out[i], tile)

    nl.fori_loop(0, turns, turn)
    return out


if __name__ == "__main__":
    x = np.ones((4, 8), np.float32)
    assert (double(x, 4) == 2).all() and (double(x, 4) == 2).all()
    assert sys.modules["__main__"].double is double and __file__ == sys.argv[0]
    print(beside.name, sys.argv[1:], nisa.get_nc_version().name, os.environ.get("NKI_PRECISE_FP"))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    yield str(path)
    sys.modules.pop("beside", None)


def test_run(script, capsys):
    cache = jax.config.jax_compilation_cache_dir
    before = (dict(os.environ), list(sys.path), list(sys.argv), sys.modules["__main__"], list(sys.meta_path))
    assert main(["run", script, "a", "--flag", "-x"]) == 0
    assert capsys.readouterr().out == "beside ['a', '--flag', '-x'] gen4 None\n"
    assert before == (dict(os.environ), sys.path, sys.argv, sys.modules["__main__"], sys.meta_path)
    assert jax.config.jax_compilation_cache_dir == cache


def test_run_a_module(script, capsys, monkeypatch):
    monkeypatch.chdir(os.path.dirname(script))
    before = list(sys.argv), list(sys.path)
    assert main(["run", "--target", "trn2", "-m", "script", "-q", "here"]) == 0
    assert capsys.readouterr().out == "beside ['-q', 'here'] gen3 None\n"
    assert before == (sys.argv, sys.path)


@pytest.mark.parametrize("given, why", [([], "needs a script, or -m MODULE"), (["gone.py"], "no such file: gone.py")])
def test_nothing_to_run(given, why, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["run", *given])
    assert exit_.value.code == 2 and why in capsys.readouterr().err


def test_options(script, capsys):
    assert main(["run", "--target", "trn1", "--precise", "0", script]) == 0
    assert capsys.readouterr().out == "beside [] gen2 0\n"
    assert "NKI_PRECISE_FP" not in os.environ


def test_how_loops_run_and_strictness_are_options_too(tmp_path, capsys):
    path = tmp_path / "script.py"
    asked = "nkijax.api.Options().how, nkijax.api.Options(loops='vmap').how, nkijax.api.Options().strictly"
    path.write_text(f"import nkijax.api\nprint({asked})")
    for given, want in ((["--loops", "unroll", "--strict"], "unroll vmap True"), ([], "auto vmap False")):
        assert main(["run", *given, str(path)]) == 0
        assert capsys.readouterr().out.split("\n")[0] == want


def test_profile(script, capsys):
    assert main(["profile", "--target", "trn2", script]) == 0
    out = capsys.readouterr().out
    assert out.count("double: ") == 2, "every call"
    line = SCRIPT.splitlines().index("    nl.fori_loop(0, turns, turn)") + 1
    assert " us on trn2: " in out and f"loop {script}:{line}: 4 trips" in out
    assert out.endswith("beside [] gen3 None\n") and not api.observers


def test_trace(script, capsys):
    assert main(["trace", script]) == 0
    out = capsys.readouterr().out
    assert out.count("program double(x: float32[4, 8]) on trn3") == 1, "each program once"
    assert "in range(0, 4, 1):" in out and "TensorScalar(" in out and out.endswith("beside [] gen4 None\n")


def test_profile_under_an_outer_jit(tmp_path, capsys):
    path = tmp_path / "outer.py"
    path.write_text(
        SCRIPT.replace("import beside\n", "").split("if __name__")[0]
        + textwrap.dedent("""
        import jax
        jax.jit(lambda x: double(x, 4))(np.ones((4, 8), np.float32))
    """)
    )
    assert main(["profile", str(path)]) == 0
    assert capsys.readouterr().out == "double: under jax.jit, where trip counts are not known; profile it alone\n"


def test_a_script_that_fails(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text("import sys\nimport nki\nsys.exit(3)\n")
    before = list(sys.meta_path)
    with pytest.raises(SystemExit) as exit_:
        main(["run", str(path)])
    assert exit_.value.code == 3 and sys.argv[0] != str(path) and sys.meta_path == before


def test_isa(capsys):
    assert main(["isa"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 310 and lines[0].split()[:2] == ["nki.jit", "emulated"]
    assert any(line.split()[:2] == ["nki.collectives.all_reduce", "emulated"] for line in lines)


def test_isa_as_markdown(tmp_path, capsys):
    assert main(["isa", "--markdown"]) == 0
    table = capsys.readouterr().out
    assert table.startswith("| module | emulated |") and table == surface.markdown()
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{SUPPORT[0]}\nold\n{SUPPORT[1]}\nafter\n")
    for _ in range(2):
        assert main(["isa", "--markdown", str(readme)]) == 0
        assert readme.read_text() == f"before\n{SUPPORT[0]}\n{table}{SUPPORT[1]}\nafter\n"
    readme.write_text("nothing here")
    with pytest.raises(SystemExit, match="has no <!-- support -->"):
        main(["isa", "--markdown", str(readme)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required"),
        (["fly", "x.py"], "invalid choice: 'fly'"),
        (["run", "nowhere.py"], "no such file: nowhere.py"),
        (["run", "--target", "trn9", __file__], "must be one of trn1"),
        (["run", "--precise", "2", __file__], "invalid choice: 2"),
    ],
)
def test_usage_errors(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2 and words in capsys.readouterr().err


COMPILES = """
import hashlib
from collections import Counter

import jax
import numpy as np

import nkijax
from tests import kernels

asked = Counter()
jax.monitoring.register_event_listener(lambda event, **_: asked.update([event.removeprefix("/jax/compilation_cache/")]))
x, a, n = np.ones((256, 32), np.float32), np.ones((256, 128), np.float32), np.array([[5], [0], [2]], np.int32)
digest = hashlib.sha256()
calls = [(kernels.softmax, x), (kernels.matmul, a, a), (kernels.pick_rows, x, n), (kernels.add_into, x[:8], x[:8])]
for kernel, *inputs in calls:
    nkijax.run(kernel, *inputs)
    digest.update(jax.jit(nkijax.function(kernel)).lower(*inputs).as_text().encode())
jax.jit(jax.grad(lambda x: nkijax.function(kernels.softmax)(x).max()))(x)
print(asked["compile_requests_use_cache"], asked["cache_hits"], digest.hexdigest())
"""


def test_a_second_process_compiles_nothing(tmp_path):
    """By JAX's own settings, or by those of the command: both find what the other compiled, from the same text."""
    path = tmp_path / "compiles.py"
    path.write_text(COMPILES)
    folder = tmp_path / "cache" / "nkijax"
    shared = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "true", "PYTHONPATH": str(Path(__file__).parents[1])}
    own = {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    outs = []
    for command, settings in (
        ([sys.executable, str(path)], {**own, "PYTHONHASHSEED": "1"}),
        (
            [sys.executable, "-m", "nkijax", "run", str(path)],
            {"XDG_CACHE_HOME": str(folder.parent), "PYTHONHASHSEED": "2"},
        ),
    ):
        done = subprocess.run(command, env={**shared, **settings}, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        outs.append(done.stdout.split())
    (requests, hits, digest), (again, found, same) = outs
    assert int(requests) >= 5 and hits == "0"
    assert again == found == requests and same == digest


def test_as_a_command(script):
    """`python -m nkijax`, from another directory."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "nkijax", "run", os.path.basename(script), "b"]
    done = subprocess.run(
        command, cwd=os.path.dirname(script), env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "beside ['b'] gen4 None\n" and done.stderr == ""
