"""The recorder: dynamic loops and their errors, scopes, and the kernel's line in every message."""

from __future__ import annotations

import pytest

from nkijax.errors import KernelError
from nkijax.isa.move import DmaCopy, Memset
from nkijax.isa.register import RegisterMove
from nkijax.machine import TRN2, Memory
from nkijax.program import Instruction, Loop
from nkijax.trace import Recorder, current, dtype_of, recording, shape_of
from nkijax.view import View


def record(kernel):
    r = Recorder("kernel", TRN2)
    x = r.argument((256, 8), "float32", "x", False)
    return r.record(lambda: kernel(r, x) or [])


def tile(r, shape=(128, 8)):
    return View.whole(r.allocate(shape, "float32", Memory.sbuf))


def test_outside_a_kernel_nothing_records():
    assert recording() is None
    with pytest.raises(KernelError, match="nl.ndarray: runs only inside a kernel"):
        current("nl.ndarray")


def test_errors_name_the_line_of_the_kernel():
    def kernel(r, x):
        r.emit(Memset(x, 0.0))  # the line

    with pytest.raises(KernelError) as error:
        record(kernel)
    line = kernel.__code__.co_firstlineno + 1
    assert error.value.site == f"{__file__}:{line}" and f"{__file__}:{line}" in str(error.value)


def test_instructions_carry_their_line():
    def kernel(r, x):
        r.emit(Memset(tile(r), 0.0))

    (node,) = record(kernel).body
    assert isinstance(node, Instruction) and node.site.endswith(f":{kernel.__code__.co_firstlineno + 1}")


def test_a_counting_loop_is_one_node_whatever_its_turns():
    def kernel(r, x):
        for i in r.turns("nl.dynamic_range", 0, 1000, 2):
            r.emit(DmaCopy(tile(r), x.reshape_dim(0, (2, 128)).select(0, i)))

    program = record(kernel)
    (loop,) = program.body
    assert isinstance(loop, Loop) and (loop.lower, loop.upper, loop.step, len(loop.body)) == (0, 1000, 2, 1)
    assert program.loops == (loop.site,)


@pytest.mark.parametrize("step", [0, -1, 1.0, True])
def test_the_step_is_a_positive_int(step):
    with pytest.raises(KernelError, match="nl.fori_loop step: must be a positive Python int, got"):
        record(lambda r, x: list(r.turns("nl.fori_loop", 0, 4, step)) and None)


def test_the_step_is_no_register():
    with pytest.raises(KernelError, match="step: must be a positive Python int"):
        record(lambda r, x: list(r.turns("nl.fori_loop", 0, 4, r.register())) and None)


def test_the_induction_register_is_read_only():
    def kernel(r, x):
        for i in r.turns("nl.fori_loop", 0, 4, 1):
            r.emit(RegisterMove(i, 3))

    with pytest.raises(KernelError, match="induction register of a dynamic loop is read-only"):
        record(kernel)


def test_a_tensor_of_the_body_is_dead_outside():
    def kernel(r, x):
        for _ in r.turns("nl.fori_loop", 0, 4, 1):
            t = tile(r)
        r.emit(Memset(t, 0.0))

    with pytest.raises(KernelError, match="allocated in the body of a dynamic loop lives only there"):
        record(kernel)


def test_no_dynamic_loop_inside_no_reorder():
    def kernel(r, x):
        r.no_reorder += 1
        list(r.turns("nl.fori_loop", 0, 4, 1))

    with pytest.raises(KernelError, match="cannot be inside nl.no_reorder"):
        record(kernel)


def test_break_out_of_a_dynamic_loop():
    def kernel(r, x):
        for _ in r.turns("nl.dynamic_range", 0, 4, 1):
            break

    with pytest.raises(KernelError, match="must run to the end of its body, was left by break or return"):
        record(kernel)


def test_while_test_opens_and_closes():
    def kernel(r, x):
        register = r.register()
        key = object()
        r.emit(RegisterMove(register, 3))
        assert r.while_test("while", register, key)
        r.emit(Memset(tile(r), 0.0))
        assert not r.while_test("while", register, key)

    _, loop = record(kernel).body
    assert isinstance(loop, Loop) and loop.condition is not None and len(loop.body) == 1


def test_shared_allocations_are_one_buffer_for_all_programs():
    r = Recorder("kernel", TRN2, programs=2)
    seen = []

    def kernel():
        seen.append(r.allocate((4, 4), "float32", Memory.shared_hbm))
        seen.append(r.allocate((4, 4), "float32", Memory.private_hbm))
        return []

    r.record(kernel)
    assert seen[0] is seen[2] and seen[1] is not seen[3]


def test_argument_helpers():
    assert shape_of([4, 5], "nl.ndarray") == (4, 5) and dtype_of("float32", "nl.ndarray") == "float32"
    with pytest.raises(KernelError, match="nl.ndarray shape: sizes must be positive, got"):
        shape_of((4, 0), "nl.ndarray")
    with pytest.raises(KernelError, match="nl.ndarray dtype: float64 is not an NKI dtype"):
        dtype_of("float64", "nl.ndarray")


def test_the_last_instruction_can_write_elsewhere():
    def kernel(r, x):
        a, b = tile(r), tile(r)
        first = r.emit(Memset(a, 0.0))
        assert r.redirect(first, Memset(b, 0.0)) and not r.redirect(first, Memset(a, 0.0))  # it is another one now
        last = r.emit(DmaCopy(a, x.slice(0, 0, 128)))
        assert not r.redirect(last, DmaCopy(View.whole(r.allocate((128, 8), "float32", Memory.psum)), last.src))
        assert not r.untouched(b.buffer)

    first, last = record(kernel).body
    assert first.dst.buffer.index == 2 and last.dst.buffer.index == 1


def test_a_redirected_instruction_is_put_back():
    def kernel(r, x):
        a, b = tile(r), tile(r)
        made = r.emit(Memset(a, 0.0))
        r.emit(Memset(a, 1.0))
        for _ in r.turns("nl.fori_loop", 0, 4, 1):
            assert r.replace(made, Memset(b, 0.0), Memset(a, 2.0))
        assert not r.replace(made, Memset(b, 0.0), Memset(a, 2.0))

    program = record(kernel)
    assert [(n.dst.buffer.index, n.value) for n in program.body[:3]] == [(2, 0.0), (1, 2.0), (1, 1.0)]
    assert len({n.site for n in program.body[:2]}) == 1
