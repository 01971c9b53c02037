"""bench/ at small sizes: what it compares is the same math, and each section prints its table."""

import importlib

import jax
import numpy as np
import pytest

from bench import gpu, growth, kernels, measure, memory, run
from bench.measure import QUICK, Budget


@pytest.mark.parametrize("case", kernels.cases(quick=True), ids=lambda case: case.name)
def test_all_forms_of_a_case_agree(case):
    want = jax.jit(case.reference)(*case.inputs)
    forms = {"kernel": case.kernel, "numpy": case.numpy} | {n: jax.jit(f) for n, f in case.by_hand.items()}
    for name, f in forms.items():
        assert measure.error(f(*case.inputs), want) < case.tolerance, name


@pytest.mark.parametrize("section", [s for s in run.SECTIONS if s != "growth"])
def test_a_section_prints_its_table(section, capsys):
    run.main([section, "--quick", "--only", "softmax"])
    tables = [[line for line in part.splitlines() if line[0] == "|"] for part in capsys.readouterr().out.split("\n\n")]
    for head, line, *rows in filter(None, tables):
        assert head.count("|") == line.count("|") == rows[-1].count("|") > 2
        assert rows[-1].startswith("| softmax 512² | " if section != "calls" else "| kernel(x) | ")
    assert any(tables)


def test_growth(capsys, monkeypatch):
    rows = growth.attention((512,), QUICK)
    growth.report(rows)
    out = capsys.readouterr().out
    assert out.count("| 512 | ") == 2 and "| nkijax | plain | tiles, scan | tiles, vmap |" in out
    assert all(f["seconds"] > 0 and f["MiB"] > 0 for f in rows[0]["gradient"].values())
    monkeypatch.setattr(growth, "MOST_MIB", 0)
    case = kernels.attention_case(512)
    (found,) = growth._side_by_side({"plain": jax.jit(case.reference)}, case, QUICK).values()
    assert found["seconds"] is None and growth._cell(found).startswith("- / ")


def test_what_a_dynamic_loop_holds_does_not_depend_on_its_turns(capsys):
    first, second = memory.main(["--quick"])
    assert first == second > 0 and capsys.readouterr().out.count("\n| ") == 3


def test_the_short_table_of_a_device(capsys):
    gpu.main(["--quick", "--only", "softmax"])
    device, off, what, head, _, row = (line for line in capsys.readouterr().out.splitlines() if line)
    assert jax.default_backend() in device and "off float64" in off and "| auto | scan | vmap | JAX |" in head
    assert row.startswith("| softmax 512² | ") and row.count("|") == head.count("|"), what


def test_the_picture_of_growth(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    plot = importlib.import_module("bench.plot")
    cell = {"seconds": 1e-3, "MiB": 8.0}
    forms = {form: cell for form in plot.COLOURS} | {"plain": {"seconds": None, "MiB": 9e3}}
    plot.draw([{"seq": n, "forward": forms, "gradient": forms} for n in (512, 1024)], tmp_path / "growth.svg")
    picture = (tmp_path / "growth.svg").read_text()
    assert "sequence length" in picture and ">1 K<" in picture and len(picture) < 60_000


def test_calls_take_turns():
    order: list[str] = []
    works = {name: (lambda name=name: order.append(name) or np.zeros(1)) for name in "ab"}
    times = measure.in_turns(works, Budget(2, 9, 0.0))
    assert order == ["a", "b", "a", "b"] and [len(t) for t in times.values()] == [2, 2]
    assert measure.ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == 2.0


def test_there_is_no_such_section(capsys):
    with pytest.raises(SystemExit):
        run.main(["fly"])
    assert "no such section: fly; there are cases, pallas" in capsys.readouterr().err
