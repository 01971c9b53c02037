"""A failing case, replayed."""

import numpy as np
import pytest

from nkijax.regress.discover import Found, find
from nkijax.regress.execute import Job, execute
from nkijax.regress.failure import Failure
from nkijax.regress.replay import replay
from tests.regress.written import BROKEN, GOOD, KERNEL, LINE, write


def fail(folder, text, name, good=None):
    """Run a case; the .npz that it leaves."""
    (found,) = find(write(folder, text, name), folder)
    return execute(Job(found, failures=str(folder / "kept"), good=good)).replay.split()[-1]


def replayed(path):
    said = []
    return replay(path, say=said.append), "\n".join(said)


def test_a_broken_kernel_against_its_good_run(tmp_path):
    (found,) = find(write(tmp_path, GOOD, "good.py"), tmp_path)
    good = execute(Job(found, noted=100)).history
    ok, text = replayed(fail(tmp_path, BROKEN, "broken.py", good))
    assert not ok and "broken.py::affine[trn2] failed with: output 0: 32 of 32 elements" in text
    named = "the first instruction whose value the good run had nowhere: #1 nki.isa.tensor_scalar at "
    assert f"{named}{tmp_path}/broken.py:{LINE}: " in text and "operand0=3.0" in text


def test_a_broken_kernel_against_its_reference(tmp_path):
    ok, text = replayed(fail(tmp_path, BROKEN, "alone.py"))
    assert not ok and f"the wrong element was written last by #3 nki.isa.dma_copy at {tmp_path}/alone.py:" in text
    assert f"#1 nki.isa.tensor_scalar at {tmp_path}/alone.py:{LINE}: " in text


def test_a_case_that_is_good_again(tmp_path):
    path = fail(tmp_path, BROKEN, "mended.py")
    kept = Failure.load(path)
    write(tmp_path, GOOD, "mended_now.py")
    mended = Found(str(tmp_path / "mended_now.py"), "affine", "trn2", "mended_now.py")
    Failure(mended, kept.message, kept.inputs).save(str(tmp_path / "kept"))
    ok, text = replayed(str(tmp_path / "kept" / "mended_now_affine_trn2.npz"))
    assert ok and text.endswith("it agrees with its reference now")


def test_the_stored_inputs_are_used(tmp_path):
    write(tmp_path, GOOD.replace("2 * x + 1,", "np.where(x == 7, 0, 2 * x + 1),"), "rare.py")
    rare = Found(str(tmp_path / "rare.py"), "affine", "trn2", "rare.py")
    x = np.ones((4, 8), np.float32)
    x[2, 3] = 7
    Failure(rare, "wrong", (x,)).save(str(tmp_path))
    ok, text = replayed(str(tmp_path / "rare_affine_trn2.npz"))
    assert not ok and "1 of 32 elements" in text and "[2, 3]: got 15, want 0" in text
    Failure(rare, "timeout").save(str(tmp_path))
    ok, text = replayed(str(tmp_path / "rare_affine_trn2.npz"))
    assert ok and "it left no inputs; these are made anew, of seed 0" in text
    Failure(rare, "wrong", (x, x)).save(str(tmp_path))
    with pytest.raises(ValueError, match="the case has 1 array inputs now, and had 2"):
        replayed(str(tmp_path / "rare_affine_trn2.npz"))


def test_a_wrong_gradient(tmp_path):
    square = "nisa.tensor_tensor(t, t, t, nl.multiply)\n    nisa.dma_copy(out, t)"
    text = KERNEL.replace("nisa.dma_copy(out, t)", square) + (
        "from jax import lax\n"
        "case = nkijax.Case(affine, inputs, lambda x: (2 * x + 1) * lax.stop_gradient(2 * x + 1), grad=True)\n"
    )
    (found,) = find(write(tmp_path, text, "gradient.py"), tmp_path)
    ok, text = replayed(execute(Job(found, str(tmp_path))).replay.split()[-1])
    assert not ok and "gradient: input 0: 32 of 32" in text.splitlines()[-1]


def test_a_kernel_that_should_refuse(tmp_path):
    must = "case = nkijax.Case(affine, inputs, raises=nkijax.KernelError, targets='trn2')\n"
    ok, text = replayed(fail(tmp_path, KERNEL + must, "must.py"))
    assert not ok and text.endswith("should raise KernelError")
    refuses = KERNEL.replace("nisa.dma_copy(t, x)", "nisa.dma_copy(t[:3], x)") + must
    write(tmp_path, refuses, "refuses.py")
    Failure(Found(str(tmp_path / "refuses.py"), "affine", "trn2", "refuses.py"), "x").save(str(tmp_path))
    ok, text = replayed(str(tmp_path / "refuses_affine_trn2.npz"))
    assert ok and text.endswith("the kernel refuses its inputs, as it should")


def test_prints_of_an_eager_run_show_data(tmp_path, capsys):
    text = BROKEN.replace("    nisa.dma_copy(out, t)", "    print('tile', t)\n    nisa.dma_copy(out, t)")
    path = fail(tmp_path, text.replace("inputs,", "np.ones((1, 2), np.float32),"), "prints.py")
    capsys.readouterr()
    assert not replay(path, eager=True)
    assert "tile" in (out := capsys.readouterr().out) and "4. 4." in out


def test_an_exception_is_shown_at_the_kernel_s_line(tmp_path):
    path = fail(tmp_path, GOOD.replace("nisa.dma_copy(t, x)", "nisa.dma_copy(t[:3], x)"), "raises.py")
    ok, text = replayed(path)
    assert not ok and "KernelError" in text and "raises.py" in text and "nisa.dma_copy(t[:3], x)" in text


def test_a_function_that_calls_kernels(tmp_path):
    host = "case = nkijax.Case(lambda x: affine(x), inputs, lambda x: x, host=True, targets='trn2')\n"
    ok, text = replayed(fail(tmp_path, KERNEL + host, "host.py"))
    assert not ok and "32 of 32 elements" in text and text.endswith("so no instruction is named")


def test_without_reference_or_good_run_nothing_can_be_named(tmp_path):
    write(tmp_path, KERNEL + "case = nkijax.Case(affine, inputs)\n", "free.py")
    Failure(Found(str(tmp_path / "free.py"), "affine", "trn2", "free.py"), "x").save(str(tmp_path))
    assert "so no instruction can be named" in replayed(str(tmp_path / "free_affine_trn2.npz"))[1]
