"""Each example's main(), which checks itself, at a reduced size."""

import importlib
from pathlib import Path

import numpy as np
import pytest

import nkijax
from examples import dynamic_loops

SMALL: dict[str, dict[str, int]] = {
    "dynamic_loops": {"tiles": 8, "free": 128},
    "flash_attention": {"seq": 1024, "d": 64},
    "matmul_4096": {"size": 1024},
    "paged_gather": {"pages": 64, "width": 32, "blocks": 4, "used": 3},
    "softmax": {"rows": 512, "columns": 256},
}
EXAMPLES = sorted(path.stem for path in (Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, capsys: pytest.CaptureFixture[str]):
    importlib.import_module(f"examples.{name}").main(**SMALL[name])
    assert " us" in capsys.readouterr().out  # it prints its cost


def test_loops_cost_what_was_measured():
    """Issue 1411 of aws-neuron-sdk: us of 64 tiles, and of a turn in a profile of 16."""
    from_range, fori, _, four, dynamic, _ = dynamic_loops.main()
    assert from_range == pytest.approx(483, rel=0.03)
    assert fori == pytest.approx(1147, rel=0.03)
    assert four == pytest.approx(653, rel=0.08)
    assert dynamic == pytest.approx(1147, rel=0.03)
    _, fori, register, _, _, by_while = (us / 16 for us in dynamic_loops.main(tiles=16))
    assert fori == pytest.approx(17.9, rel=0.03)
    assert register == pytest.approx(17.9, rel=0.03)
    assert by_while == pytest.approx(18.27, rel=0.05)


@pytest.mark.filterwarnings("ignore:nki.language.dynamic_range is deprecated")
@pytest.mark.parametrize("mode", range(1, len(dynamic_loops.FORMS)))
def test_a_dynamic_form_records_the_same_for_any_number_of_tiles(mode: int):
    count = np.ones((1, 1), np.int32)
    small, large = (
        nkijax.trace(dynamic_loops.exp_tiles, np.ones((n, 128 * 8), np.float32), count, mode, rolled=False)
        for n in (16, 64)
    )
    assert len(list(nkijax.instructions(small.body))) == len(list(nkijax.instructions(large.body)))


@pytest.mark.nightly
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_at_full_size(name: str):
    importlib.import_module(f"examples.{name}").main()
