"""NKIObject, the base of kernels' configuration classes."""

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.language as nl
from nkijax import api


class Config(nl.NKIObject):
    rows: int
    scale: float = 2.0
    tag: str

    def __post_init__(self):
        self.half = self.rows // 2 if self.rows is not None else None


class Wider(Config):
    columns: int = 8


@dataclass
class Plain(nl.NKIObject):
    rows: int
    scale: float = 2.0


@dataclass(frozen=True)
class Frozen(nl.NKIObject):
    rows: int = 4


@dataclass
class Partial(nl.NKIObject):
    first: int = 1
    rows: int  # pyright: ignore[reportGeneralTypeIssues]
    scale: float = 2.0


@dataclass
class Bare(nl.NKIObject):
    rows = None
    _private = 3
    shared = []

    def twice(self):
        return 2 * self.rows  # pyright: ignore[reportOperatorIssue]


class Custom(nl.NKIObject):
    def __init__(self, rows):
        self.rows = rows


class Kind(Enum):
    a = 1


def test_generated_init():
    c = Config(6, tag="x")
    assert (c.rows, c.scale, c.tag, c.half) == (6, 2.0, "x", 3)
    assert Config().rows is None and Config().tag is None
    assert vars(Wider(1, 2.0, "t", 3)) == {"rows": 1, "scale": 2.0, "tag": "t", "columns": 3, "half": 0}
    assert nl.NKIObject(anything=1).anything == 1
    for wrong in (lambda: Config(1, 2, 3, 4), lambda: Config(1, rows=1), lambda: Config(colour=1)):
        with pytest.raises(TypeError, match="Config: "):
            wrong()


def test_dataclasses_as_the_vendors_compiler_reads_them():
    """Fields that are left out are None, and plain attributes are fields (nki-library's constants, SectionParams)."""
    assert vars(Partial(scale=4.0)) == {"first": 1, "rows": None, "scale": 4.0} and Partial(2, 3).rows == 3
    assert Bare(rows=4).twice() == 8 and Bare().rows is None and Bare(rows=4) != Bare(rows=5)
    for wrong in (lambda: Bare(shared=[1]), lambda: Bare(_private=1), lambda: Partial(colour=1)):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            wrong()


def test_structure():
    assert Config(6) == Config(6) != Config(7) and Config(6) != Wider(6) and Config(6) != None  # noqa: E711
    assert hash(Config(tag=[1])) == hash(Config(tag=[1]))
    assert repr(Wider(6)) == "Wider(rows=6, scale=2.0, tag=None, columns=8, half=3)"
    assert Plain(3) == Plain(3, 2.0) and replace(Frozen(), rows=5).rows == 5 and Custom(3).rows == 3


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        (Config(4), Config(4), Config(4, 3.0)),
        (Config(rows=4, tag=[1, 2]), Config(rows=4, tag=[1, 2]), Config(rows=4, tag=[1, 3])),
        (Plain(4), Plain(4), Plain(5)),
        (Frozen(4), Frozen(4), Frozen(5)),
        (Custom(4), Custom(4), Custom(5)),
        (Kind.a, Kind.a, None),
    ],
)
def test_as_a_kernel_argument(first, same, other):
    """Kernels take such objects, and a call with an equal one records nothing."""

    def kernel(x, config):
        assert config is not None or other is None
        return x

    x = np.zeros((2, 2), np.float32)
    counts = []
    for config in (first, same, other):
        nkijax.run(kernel, x, config)
        counts.append(api.counters["traces"])
    assert counts[1] == counts[0] and counts[2] == counts[1] + 1
