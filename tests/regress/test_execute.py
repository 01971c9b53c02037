"""One case in this process: each way it can end."""

import numpy as np
import pytest

from nkijax.regress.digest import Digest
from nkijax.regress.discover import find
from nkijax.regress.execute import Job, execute
from nkijax.regress.failure import Failure
from tests.regress.written import GOOD, KERNEL, write

KERNELS = (
    KERNEL
    + """
@nki.jit
def into(x, y):  # y = 2 x, and says so
    t = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(t, x)
    nisa.tensor_scalar(t, t, nl.multiply, 2.0)
    nisa.dma_copy(y, t)


@nki.jit
def into_and_out(x, y):
    into(x, y)
    return affine(x)


@nki.jit
def square(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(t, x)
    nisa.tensor_tensor(t, t, t, nl.multiply)
    nisa.dma_copy(out, t)
    return out


@nki.jit
def too_tall(x):
    nl.ndarray((256, 8), x.dtype)
    nisa.dma_copy(nl.ndarray((256, 8), x.dtype), x)


two = lambda rng: [inputs(rng), np.zeros((4, 8), np.float32)]
"""
)


def run(tmp_path, fields, **of_job):
    name = f"regress_{len(list(tmp_path.iterdir()))}.py"  # a file is imported once
    path = write(tmp_path, KERNELS + f"case = nkijax.Case({fields}, name='it', targets='trn2')\n", name)
    (found,) = find(path, tmp_path)
    return execute(Job(found, **of_job))


@pytest.mark.parametrize(
    "fields",
    [
        "affine, inputs, lambda x: 2 * x + 1",
        "into, two, lambda x, y: 2 * x",
        "into, lambda rng: {'x': inputs(rng), 'y': inputs(rng)}, lambda x, y: {'y': 2 * x}, arrays='jax'",
        "into_and_out, two, lambda x, y: (2 * x + 1, 2 * x)",
        "affine, np.ones((4, 8), np.float32), np.full((4, 8), 3.0)",
        "affine, inputs, lambda x: 2 * x, atol=1.5",
        "affine, inputs, lambda x: x, compare=lambda got, want: (got > want - 3).all()",
        "square, inputs, lambda x: x * x, grad=True",
        "too_tall, lambda rng: inputs(rng, 256), raises=nkijax.KernelError",
        "affine, inputs, precise=False",
        "lambda x: affine(affine(x)), inputs, lambda x: 4 * x + 3, host=True",
    ],
)
def test_passed(tmp_path, fields):
    result = run(tmp_path, fields)
    assert (result.status, result.message) == ("passed", ""), result.detail


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ("affine, inputs, lambda x: 2 * x", "failed", "output 0: 32 of 32 elements beyond rtol 0.0001"),
        ("affine, inputs, lambda x: x, compare=lambda got, want: 'far off'", "failed", "far off"),
        (
            "affine, inputs, lambda x: x, compare=lambda a, b: np.testing.assert_array_equal(a, b)",
            "failed",
            "Arrays are",
        ),
        ("affine, inputs, lambda x: x, compare=lambda a, b: False", "failed", "compare returned False"),
        ("square, inputs, lambda x: x * jax.lax.stop_gradient(x), grad=True", "failed", "gradient: input 0: 31 of 32"),
        ("affine, inputs, raises=nkijax.KernelError", "failed", "should raise KernelError"),
        (
            "too_tall, lambda rng: inputs(rng, 256)",
            "error",
            "KernelError: nki.isa.dma_copy dst partition dimension 256",
        ),
        ("affine, lambda rng: 1 / 0", "error", "making the case: ZeroDivisionError"),
        ("affine, inputs, lambda x: x @ x", "error", "reference: ValueError: matmul"),
        ("affine, inputs, lambda x: x, xfail='known'", "xfailed", "known"),
        ("affine, inputs, lambda x: 2 * x + 1, xfail='known'", "xpassed", "known"),
    ],
)
def test_not_passed(tmp_path, fields, status, message):
    result = run(tmp_path, fields.replace("jax.lax", "__import__('jax').lax"))
    assert result.status == status and message in result.message, result


def test_facts_and_notes(tmp_path):
    result = run(tmp_path, "into_and_out, two, lambda x, y: 2 * x + 1", noted=100)
    assert (result.instructions, result.leaves, result.device) == (7, 7, "cpu")
    assert result.model_us is not None and result.relative is not None and result.compile_s is not None
    assert result.model_us > 0 and result.seconds >= result.kernel_s > result.compile_s > 0 and result.relative < 1e-6
    assert result.notes == ("writes its argument `y`",)
    assert len(result.history.entries) == 7 and len(result.outputs) == 2, "what it writes counts"
    assert run(tmp_path, "affine, inputs", noted=3).history is None, "it executes 4"


def test_errors_mean_nothing_beside_a_comparison_of_the_user_s_own(tmp_path):
    result = run(tmp_path, "affine, inputs, lambda x: x, compare=lambda got, want: True")
    assert result.good and result.error is None and result.relative is None


def test_facts_of_a_function_that_calls_kernels(tmp_path):
    one = run(tmp_path, "affine, inputs")
    two = run(tmp_path, "lambda x: affine(affine(x)), inputs, host=True", noted=100)
    assert one.instructions and one.model_us
    assert two.instructions == 2 * one.instructions and two.model_us == pytest.approx(2 * one.model_us)
    none = run(tmp_path, "lambda x: nkijax.function(affine)(x), inputs, lambda x: 2 * x + 1, host=True")
    assert none.status == "passed" and none.instructions is None
    assert none.notes == ("no kernel was called that could be observed: no instructions, no cost",)


def test_without_a_reference_the_baseline_serves(tmp_path):
    first = run(tmp_path, "affine, inputs")
    assert first.notes == ("no reference, and no baseline yet: values unchecked",)
    assert run(tmp_path, "affine, inputs", stored=first.outputs).notes == ()
    other = Digest.of(np.ones((4, 8), np.float32))
    wrong = run(tmp_path, "affine, inputs", stored=(other,))
    assert wrong.status == "failed" and "output 0 differs from the baseline by about" in wrong.message
    assert run(tmp_path, "affine, inputs, rtol=10", stored=(other,)).status == "passed"
    assert "in the baseline 2" in run(tmp_path, "affine, inputs", stored=(other, other)).message


def test_a_failure_is_kept_with_what_it_printed(tmp_path):
    fields = "affine, inputs, lambda x: print('from the reference') or x"
    result = run(tmp_path, fields, failures=str(tmp_path / "kept"))
    assert "from the reference" in result.detail
    kept = Failure.load(result.replay.split()[-1])
    (x,) = kept.inputs
    np.testing.assert_array_equal(kept.reference[0], x)
    np.testing.assert_allclose(kept.outputs[0], 2 * x + 1, rtol=1e-6)
    assert not run(tmp_path, "affine, inputs", failures=str(tmp_path / "none")).replay
    assert not (tmp_path / "none").exists()


def test_torch(tmp_path):
    pytest.importorskip("torch")
    text = KERNEL + "import torch\ncase = nkijax.Case(affine, inputs, lambda x: torch.add(2 * x, 1), arrays='torch')\n"
    (found,) = find(write(tmp_path, text), tmp_path)
    assert execute(Job(found)).status == "passed"


def test_a_case_that_is_gone(tmp_path):
    (found,) = find(write(tmp_path, GOOD), tmp_path)
    assert (
        execute(Job(type(found)(found.path, "other", "trn2", found.shown))).message
        == "making the case: KeyError: 'other'"
    )
