"""Errors carry the kernel's line, found without anybody passing it along."""

from __future__ import annotations

import pytest

from nkijax.errors import KernelError, Unsupported, kernel_frame, kernel_site
from nkijax.view import Buffer, Memory, View


def test_the_site_is_the_innermost_line_outside_the_package():
    view = View.whole(Buffer(0, (4, 4), "float32", Memory.private_hbm))
    with pytest.raises(KernelError) as error:
        view.select(0, 9)
    assert (
        error.value.site.startswith(__file__) and str(error.value) == f"{error.value.message}\n  at {error.value.site}"
    )


def test_a_kernel_error_is_an_assertion_error_and_unsupported_is_not():
    assert issubclass(KernelError, AssertionError) and not issubclass(Unsupported, AssertionError)
    assert str(KernelError("what", "")) == "what"


def test_frames():
    frame = kernel_frame()
    assert frame is not None and frame.f_code.co_filename == __file__
    assert kernel_site().startswith(__file__) or kernel_site()
