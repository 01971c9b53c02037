"""Which repeats run at once: the tests of independence, each with what passes and what does not."""

from __future__ import annotations

import pytest

from nkijax.isa.elementwise import TensorTensor
from nkijax.isa.matmul import NcMatmul
from nkijax.isa.move import DmaCopy, Memset, TensorCopy
from nkijax.isa.operators import ALU
from nkijax.machine import TRN2, Memory
from nkijax.plan import plan
from nkijax.program import Repeat
from nkijax.roll import roll
from nkijax.storage import layout
from nkijax.trace import Recorder
from nkijax.view import View


def modes(kernel, loops="auto"):
    """Whether each repeat is batched, outermost first, and the plan."""
    r = Recorder("kernel", TRN2)
    x = r.argument((1024, 64), "float32", "x", False)
    y = r.argument((1024, 64), "float32", "y", False)
    program = roll(r.record(lambda: kernel(r, x, y) or []))
    out = plan(program, layout(program), loops)
    found = []

    def walk(nodes):
        for n in nodes:
            if isinstance(n, Repeat):
                found.append(out.is_batch(n))
            walk(getattr(n, "body", ()))

    walk(program.body)
    return found, out


def tile(r, shape=(128, 64), memory=Memory.sbuf):
    return View.whole(r.allocate(shape, "float32", memory))


def rows(x, i, n=128):
    return x.slice(0, i * n, i * n + n)


def columns(x, i, n=16):
    return x.slice(0, 0, 128).slice(1, i * n, i * n + n)


def copy(r, dst, src):
    t = tile(r, dst.shape)
    r.emit(DmaCopy(t, src))
    r.emit(DmaCopy(dst, t))


@pytest.mark.parametrize(
    "body, batched",
    [
        (lambda r, x, y, i: copy(r, rows(y, i), rows(x, i)), True),  # disjoint rows
        (lambda r, x, y, i: copy(r, columns(y, i), columns(x, i)), True),  # disjoint columns
        (lambda r, x, y, i: copy(r, rows(x, i), rows(x, i)), True),  # in place
        (lambda r, x, y, i: copy(r, rows(y, i), rows(x, 0)), True),  # one source
        (lambda r, x, y, i: copy(r, rows(y, 0), rows(x, i)), False),  # one destination in HBM
        (lambda r, x, y, i: copy(r, y.slice(0, 64 * i, 64 * i + 128), rows(x, i)), False),  # overlapping writes
        (lambda r, x, y, i: copy(r, rows(x, i + 1), rows(x, i)), False),  # reads what the turn before wrote
        (lambda r, x, y, i: copy(r, columns(y, i, 16), columns(y, 3 - i, 16)), False),  # crosswise
    ],
)
def test_windows(body, batched):
    assert modes(lambda r, x, y: [body(r, x, y, i) for i in range(4)] and None)[0] == [batched]


def test_a_tile_from_outside_that_each_turn_rewrites_is_private():
    def kernel(r, x, y):
        t = tile(r)
        for i in range(4):
            r.emit(DmaCopy(t, rows(x, i)))
            r.emit(DmaCopy(rows(y, i), t))

    found, out = modes(kernel)
    assert found == [True] and [len(s) for s in out.private.values()] == [1]


def test_a_running_value_is_a_scan():
    def kernel(r, x, y):
        total = tile(r)
        r.emit(Memset(total, 0.0))
        for i in range(4):
            t = tile(r)
            r.emit(DmaCopy(t, rows(x, i)))
            r.emit(TensorTensor(total, total, t, ALU["add"]))
        r.emit(DmaCopy(rows(y, 0), total))

    found, out = modes(kernel)
    assert found == [False]
    (streams,) = out.streams.values()
    assert len(streams.reads) == 1 and not streams.writes


def test_a_prefix_that_is_written_out_streams():
    def kernel(r, x, y):
        total = tile(r)
        r.emit(Memset(total, 0.0))
        for i in range(4):
            t = tile(r)
            r.emit(DmaCopy(t, rows(x, i)))
            r.emit(TensorTensor(total, total, t, ALU["add"]))
            r.emit(DmaCopy(rows(y, i), total))

    (streams,) = modes(kernel)[1].streams.values()
    assert len(streams.reads) == 1 and len(streams.writes) == 1


def test_a_matmul_that_accumulates_is_one_contraction():
    def kernel(r, x, y):
        psum = tile(r, (64, 64), Memory.psum)
        r.zeros.add(psum.buffer)
        for i in range(4):
            a = tile(r)
            r.emit(DmaCopy(a, rows(x, i)))
            r.emit(NcMatmul(psum, a, a, accumulate=True, addend=psum))
        out = tile(r, (64, 64))
        r.emit(TensorCopy(out, psum))
        r.emit(DmaCopy(y.slice(0, 0, 64), out))

    found, out = modes(kernel)
    assert found == [True] and [len(s) for s in out.sums.values()] == [1]


def test_scan_can_be_asked_for():
    assert modes(lambda r, x, y: [copy(r, rows(y, i), rows(x, i)) for i in range(4)] and None, "scan")[0] == [False]


def test_a_repeat_with_a_dynamic_loop_inside_is_a_scan():
    def kernel(r, x, y):
        for i in range(4):
            for _ in r.turns("loop", 0, 3, 1):
                copy(r, rows(y, i), rows(x, i))

    assert modes(kernel)[0] == [False]


def test_a_ragged_repeat_is_a_scan_and_so_is_what_sets_its_counts():
    def kernel(r, x, y):
        for head in range(4):
            for i in range(6):
                t = tile(r)
                r.emit(DmaCopy(t, rows(x, i)))
                for k in range(i + 1):
                    r.emit(TensorCopy(t.slice(1, k, k + 1), t.slice(1, k + 1, k + 2)))
                r.emit(DmaCopy(rows(y, i).slice(1, 16 * head, 16 * head + 16), t.slice(1, 0, 16)))

    found, _ = modes(kernel)
    assert found == [True, False, False]  # heads, rows, the ragged one


def test_what_does_not_differ_between_turns_is_held_once(monkeypatch):
    def kernel(r, x, y):
        for i in range(8):
            for k in range(4):
                same, other = tile(r), tile(r)
                r.emit(DmaCopy(same, rows(x, k)))  # whatever i is
                r.emit(Memset(other, float(4 * i + k)))

    tile_bytes = 128 * 64 * 4
    for room, inner in ((4 + 8 * 4, True), (4 + 8 * 4 - 1, False)):
        monkeypatch.setattr("nkijax.plan.BATCH_BYTES", room * tile_bytes)
        assert modes(kernel)[0] == [True, inner]


def test_an_operand_that_a_contraction_repeats_takes_room(monkeypatch):
    """Equal matmuls are one long contraction, of copies of their operands, only where these fit."""

    def kernel(r, x, y):
        psum = tile(r, (64, 64), Memory.psum)
        left, right = tile(r), tile(r)
        for t in (left, right):
            r.emit(DmaCopy(t, rows(x, 0)))
        r.emit(Memset(psum, 0.0))
        for _ in range(16):
            r.emit(NcMatmul(psum, left, right, accumulate=True, addend=psum))

    room = 16 * 2 * 128 * 64 * 4
    for bytes_, batched in ((room, True), (room - 1, False)):
        monkeypatch.setattr("nkijax.plan.BATCH_BYTES", bytes_)
        assert modes(kernel)[0][-1] is batched
