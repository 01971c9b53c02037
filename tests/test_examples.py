"""Each example's main(), which checks itself, at a reduced size."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

import nkijax
from examples import dynamic_loops, flash_attention, matmul_4096, paged_gather, softmax
from nkijax import api, cli
from nkijax.cost import cost

SMALL: dict[str, dict[str, int]] = {
    "dynamic_loops": {"tiles": 8, "free": 128},
    "flash_attention": {"seq": 1024, "d": 64},
    "matmul_4096": {"size": 1024},
    "paged_gather": {"pages": 64, "width": 32, "blocks": 4, "used": 3},
    "softmax": {"rows": 512, "columns": 256},
    "tensor_parallel": {"k": 256, "m": 32, "n": 64},
}
EXAMPLES = sorted(path.stem for path in (Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, capsys: pytest.CaptureFixture[str]):
    importlib.import_module(f"examples.{name}").main(**SMALL[name])
    assert " us" in capsys.readouterr().out  # it prints its cost


def modelled(form: int, tiles: int) -> float:
    """us on a trn1, of tiles [128, 2048]."""
    src, count = np.zeros((tiles, 128 * 2048), np.float32), np.array([[tiles]], np.int32)
    program = nkijax.trace(dynamic_loops.exp_tiles, src, count, form, target="trn1", rolled=False)
    turns = tiles // 4 if form == dynamic_loops.FORI_FOUR else tiles
    return cost(program, (turns,) * len(program.loops)).total_us


@pytest.mark.filterwarnings("ignore:nki.language.dynamic_range is deprecated")
def test_loops_cost_what_was_measured():
    """Issue 1411 of aws-neuron-sdk: us of 64 tiles, and of a turn in a profile of 16."""
    for form, (us, rel) in {
        dynamic_loops.RANGE: (483, 0.03),
        dynamic_loops.FORI: (1147, 0.03),
        dynamic_loops.FORI_FOUR: (653, 0.08),
        dynamic_loops.DYNAMIC_RANGE: (1147, 0.03),
    }.items():
        assert modelled(form, 64) == pytest.approx(us, rel=rel)
    assert modelled(dynamic_loops.FORI, 16) / 16 == pytest.approx(17.9, rel=0.03)
    assert modelled(dynamic_loops.FORI_REGISTER, 16) / 16 == pytest.approx(17.9, rel=0.03)
    assert modelled(dynamic_loops.WHILE, 16) / 16 == pytest.approx(18.27, rel=0.05)


@pytest.mark.filterwarnings("ignore:nki.language.dynamic_range is deprecated")
@pytest.mark.parametrize("mode", range(1, len(dynamic_loops.FORMS)))
def test_a_dynamic_form_records_the_same_for_any_number_of_tiles(mode: int):
    count = np.ones((1, 1), np.int32)
    small, large = (
        nkijax.trace(dynamic_loops.exp_tiles, np.ones((n, 128 * 8), np.float32), count, mode, rolled=False)
        for n in (16, 64)
    )
    assert len(list(nkijax.instructions(small.body))) == len(list(nkijax.instructions(large.body)))


# ---- what a GPU would get, lowered here without one

KERNELS = [
    (matmul_4096.matmul, "float32", [(256, 256), (256, 512)], 1),
    (matmul_4096.matmul, "bfloat16", [(256, 256), (256, 512)], 1),
    (flash_attention.attention, "float32", [(64, 512), (64, 512), (512, 64)], 2),
    (softmax.softmax, "float32", [(256, 64)], 0),
    (paged_gather.gather_pages, "float32", [(64, 32), (4, 128), (1, 1)], 0),
]


@pytest.mark.parametrize(("kernel", "dtype", "shapes", "products"), KERNELS)
def test_tf32_never_sneaks_in(kernel, dtype, shapes, products, monkeypatch):
    """Every product, forward and backward, asks for all bits of its operands, which are float32 or exact."""
    monkeypatch.setattr(api, "_cache", {})
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    inputs = [jax.ShapeDtypeStruct(s, dtype if s[0] > 4 else "int32") for s in shapes]
    forward = nkijax.function(kernel, target="trn2", max_trips=4)
    wrt = tuple(i for i, x in enumerate(inputs) if x.dtype == dtype)
    backward = jax.grad(lambda *x: forward(*x).astype(np.float32).sum(), wrt)
    for f, least in ((forward, products), (backward, 2 * products)):
        text = jax.jit(f).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
        dots = [line for line in text.splitlines() if "dot_general" in line]
        assert len(dots) >= least
        for dot in dots:
            assert "precision = [HIGHEST, HIGHEST]" in dot and dot.endswith("f32>"), dot
        assert "xf64" not in text and "convolution" not in text


@pytest.mark.filterwarnings("ignore:nki.language.dynamic_range is deprecated")
def test_the_cases_of_the_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = str(Path(__file__).parents[1] / "examples")
    assert cli.main(["regress", "-j", "0", "--save", str(tmp_path), folder]) == 0
    assert "13 cases: 13 passed" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_at_full_size(name: str):
    importlib.import_module(f"examples.{name}").main()
