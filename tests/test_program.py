"""Records: operands, numbers and tokens derived from annotations; programs as text."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import nkijax
from nkijax.isa.elementwise import TensorScalar, TensorTensor
from nkijax.isa.move import DmaCopy, Memset
from nkijax.isa.operators import ALU
from nkijax.machine import Engine, Memory, Work
from nkijax.program import In, InOut, Instruction, Loop, Number, Out, instructions
from nkijax.view import Buffer, View
from tests import kernels

BUFFERS = [Buffer(k, (128, 64), "float32", Memory.sbuf) for k in range(4)]
A, B, C, D = (View.whole(b) for b in BUFFERS)


@dataclass(frozen=True)
class Everything(Instruction):
    """One field of each kind."""

    dst: Out
    both: InOut
    sources: tuple[In, ...]
    scale: In | Number | None
    count: int = 3

    @property
    def queue(self):
        return Engine.vector

    def check(self, target):
        pass

    def run(self, read):
        return ()

    def cycles(self, target):
        return Work(1, 1)


def test_reads_and_writes_come_from_the_annotations():
    inst = Everything(A, B, (C, D), 2.0)
    assert inst.writes() == (A, B) and inst.reads() == (B, C, D)
    assert replace(inst, scale=A).reads() == (B, C, D, A)


def test_a_run_time_index_is_read_even_of_a_destination():
    register = View.whole(Buffer(9, (1,), "int32", Memory.register))
    hbm = View.whole(Buffer(8, (4, 64), "float32", Memory.private_hbm))
    inst = DmaCopy(hbm.select(0, register), A.slice(0, 0, 1))
    assert register in inst.reads() and register not in inst.writes()


def test_numbers_and_tokens_are_complementary():
    inst = Everything(A, B, (C, D.slice(1, 8, 16)), 2.0)
    assert inst.numbers() == [0, 0, 1, 0, 2, 0, 3, 8, 2.0]
    moved = inst.with_numbers([3, 64, 1, 0, 2, 0, 0, 0, 5.0], BUFFERS)
    assert moved.token() == inst.token() and moved != inst
    assert moved.dst.buffer is BUFFERS[3] and moved.dst.offset == 64 and moved.scale == 5.0
    assert inst.with_numbers(inst.numbers(), BUFFERS) == inst


@pytest.mark.parametrize(
    "changes", [{"count": 4}, {"scale": 2}, {"scale": None}, {"dst": A.slice(1, 0, 8)}, {"sources": (C,)}, {"scale": A}]
)
def test_what_is_no_number_is_in_the_token(changes):
    inst = Everything(A, B, (C, D), 2.0)
    assert replace(inst, **changes).token() != inst.token()


def test_arguments_keep_their_identity_in_the_token():
    one, two = (View.whole(Buffer(k, (4, 4), "float32", Memory.private_hbm, pinned=True)) for k in range(2))
    assert Memset(one, 0.0).token() != Memset(two, 0.0).token()


@pytest.mark.parametrize("missing", ["check", "run", "cycles", "queue"])
def test_an_entry_without_one_of_its_four_parts_cannot_be_made(missing):
    parts = {"queue": Engine.vector, "check": lambda s, t: None, "run": lambda s, r: (), "cycles": lambda s, t: None}
    del parts[missing]
    cls = dataclass(frozen=True)(type("Entry", (Instruction,), {**parts, "__annotations__": {}}))
    with pytest.raises(TypeError, match=missing):
        cls()


def test_instructions_print_like_the_kernel():
    assert str(TensorTensor(A, A, B, ALU["add"])) == "TensorTensor(dst=sbuf0, data1=sbuf0, data2=sbuf1, op='add')"
    assert "operand0=2.0" in str(TensorScalar(A, A, ALU["multiply"], 2.0))


def test_programs_print_their_repeats_and_loops():
    text = str(nkijax.trace(kernels.double, np.ones((512, 8), np.float32), target="trn2"))
    assert text.startswith("program double(x: float32[512, 8]) on trn2") and "  repeat 4:\n    DmaCopy(dst=sbuf" in text
    text = str(nkijax.trace(kernels.pick_rows, np.ones((6, 4), np.float32), np.ones((3, 1), np.int32)))
    assert "in range(0, register" in text and "kernels.py:" in text


def test_the_recorded_size_does_not_depend_on_a_dynamic_loops_turns():
    sizes = []
    for n in (4, 400):
        program = nkijax.trace(kernels.pick_rows, np.ones((6, 4), np.float32), np.ones((n, 1), np.int32), rolled=False)
        sizes.append(len(list(instructions(program.body))))
        assert any(isinstance(node, Loop) for node in program.body)
    assert sizes[0] == sizes[1]


def test_fields_that_are_not_compared_are_no_part_of_the_token():
    @dataclass(frozen=True)
    class Noted(Everything):
        note: str = field(default="", compare=False)

    typing.cast(typing.Any, Noted)
    assert Noted(A, B, (), None, note="x").token() == Noted(A, B, (), None, note="y").token()
