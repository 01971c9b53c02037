"""Each example's main(), which checks itself, at a reduced size."""

import importlib
from pathlib import Path

import pytest

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


@pytest.mark.nightly
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_at_full_size(name: str):
    importlib.import_module(f"examples.{name}").main()
