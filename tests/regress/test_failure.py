"""Failing cases on disk."""

import ml_dtypes
import numpy as np
import pytest

from nkijax.regress.discover import Found
from nkijax.regress.failure import Failure, file_name
from tests.regress.test_history import GOOD

FOUND = Found("/some/kernels.py", "a-1", "trn2", "kernels.py")


def test_saved_and_loaded(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    inputs = (x, x.astype(ml_dtypes.bfloat16), x.astype(np.int8), np.float32(3.0), x[:, :0])
    command = Failure(FOUND, "wrong", inputs, (x + 1,), (x + 2,), GOOD).save(str(tmp_path / "new"))
    path = tmp_path / "new" / "kernels_a-1_trn2.npz"
    assert command == f"nkijax regress --replay {path}"
    again = Failure.load(str(path))
    assert again.found == FOUND and again.message == "wrong"
    for old, new in zip(inputs, again.inputs, strict=True):
        assert new.dtype == old.dtype and new.shape == np.shape(old)
        np.testing.assert_array_equal(new, old)
    np.testing.assert_array_equal(again.outputs[0], x + 1)
    np.testing.assert_array_equal(again.reference[0], x + 2)
    assert again.good is not None and [e.hash for e in again.good.entries] == [e.hash for e in GOOD.entries]


def test_one_that_left_nothing(tmp_path):
    Failure(FOUND, "timeout").save(str(tmp_path))
    again = Failure.load(str(tmp_path / "kernels_a-1_trn2.npz"))
    assert again.inputs == () and again.good is None


def test_another_npz(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    with pytest.raises(ValueError, match="is not a failure that nkijax regress saved"):
        Failure.load(str(tmp_path / "x.npz"))


def test_names_need_no_quotes():
    assert file_name("../a b/k.py::c[1]-x y[trn2]") == "a_b_k_c_1_-x_y_trn2"
