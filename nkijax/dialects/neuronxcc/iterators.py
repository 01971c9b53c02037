"""`neuronxcc.nki.language.iterators`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def sync_program(axes=None) -> Iterator[None]:
    """What is inside ends in every program of the grid's `axes` before any goes on.

    Programs run one after another, so a kernel may only read what earlier programs wrote.
    """
    del axes
    yield
