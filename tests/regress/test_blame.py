"""Three ways to name the instruction that went wrong."""

import jax
import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki as nki
from nkijax.dialects.nki import isa as nisa
from nkijax.dialects.nki import language as nl
from nkijax.isa.elementwise import TensorScalar
from nkijax.regress.blame import against_good_run, against_jit, against_reference, summary
from nkijax.regress.history import History
from nkijax.regress.watch import Watch
from tests.regress import test_history

ARGS = (test_history.X, test_history.Y)


def program_of(*changes):
    return nkijax.trace(test_history.kernel_of(*changes), *ARGS, target="trn2", rolled=False)


def test_against_a_good_run():
    text = against_good_run(program_of("factor"), ARGS, test_history.GOOD).splitlines()
    assert text[0].startswith(
        "the first instruction whose value the good run had nowhere: #2 nki.isa.tensor_scalar at "
        "tests/regress/test_history.py:"
    )
    assert "op0='multiply', operand0=3.0" in text[0]
    assert text[1] == f"  read sbuf3: {summary(ARGS[0])}" and text[2] == f"  wrote {summary(3 * ARGS[0])}"
    assert text[3].startswith("  the good run's next of this kind, at tests/regress/test_history.py:")
    assert against_good_run(program_of(), ARGS, test_history.GOOD) == ""
    assert "no value differs by more than rounding" in against_good_run(program_of("rounding"), ARGS, test_history.GOOD)


def test_against_the_jitted_program(monkeypatch):
    """A fault of nkijax's own, made here: jitted, multiplications by 3 multiply by 4."""
    program = program_of()
    assert against_jit(program, ARGS) == ""
    honest = TensorScalar.run

    def faulty(self, read):
        (x,) = honest(self, read)
        return (x * 4 / 3 if isinstance(x, jax.core.Tracer) and self.operand0 == 3.0 else x,)

    monkeypatch.setattr(TensorScalar, "run", faulty)
    text = against_jit(program, ARGS)
    assert "a fault of nkijax" in text and "#4 of its top level, nki.isa.tensor_scalar at" in text
    assert "operand0=3.0" in text and "32 of 32 elements" in text


@nki.jit
def logarithm(x):
    """log(x) + 1, tile by tile."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for k in range(2):
        t = nl.ndarray((x.shape[0], 4), x.dtype)
        nisa.dma_copy(t, x[:, 4 * k : 4 * k + 4])
        nisa.activation(t, nl.log, t)
        nisa.tensor_scalar(t, t, nl.add, 1.0)
        nisa.dma_copy(out[:, 4 * k : 4 * k + 4], t)
    return out


def test_against_the_reference():
    x = np.full((2, 8), 2, np.float32)
    x[1, 6] = 0
    program = nkijax.trace(logarithm, x, target="trn2", rolled=False)
    lines = against_reference(program, (x,), 0, 14).splitlines()
    assert lines[0].startswith("the wrong element was written last by #7 nki.isa.dma_copy at tests/regress/test_blame")
    assert lines[1].startswith("the first of its history to write NaN or infinity: #5 nki.isa.activation")
    assert lines[2] == "its history, 4 of 4 instructions:"
    assert [line.split()[0] for line in lines[3::2]] == ["#4", "#5", "#6", "#7"]
    assert lines[4].endswith("float32[2, 4] from 0 to 2, mean 1.75") and lines[6].endswith("1 not finite")
    assert not any("NaN" in line for line in against_reference(program, (x,), 0, 0).splitlines())


def test_an_element_that_nothing_wrote():
    @nki.jit
    def half(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out[:1], x[:1])
        return out

    program = nkijax.trace(half, ARGS[0], target="trn2", rolled=False)
    assert against_reference(program, ARGS[:1], 0, 20) == "no instruction wrote element 20 of output 0"


@pytest.mark.parametrize("value", [np.array([1.0, np.nan]), np.array([np.inf]), np.zeros(0, np.int8)])
def test_summaries(value):
    assert summary(value).startswith(f"{value.dtype}{list(value.shape)}")


def test_every_instruction_of_an_equal_history_is_matched():
    steps = Watch(program_of(), ARGS).steps()
    assert len(History.of(steps).entries) == 7
