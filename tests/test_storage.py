"""Where buffers live: families of tiles, homes, slots."""

from __future__ import annotations

from nkijax.isa.move import DmaCopy, Memset, TensorCopy
from nkijax.machine import TRN2, Memory
from nkijax.program import Leaf, Repeat
from nkijax.roll import roll
from nkijax.storage import layout
from nkijax.trace import Recorder
from nkijax.view import View


def rolled(kernel):
    r = Recorder("kernel", TRN2)
    x = r.argument((1024, 8), "float32", "x", False)
    return roll(r.record(lambda: kernel(r, x) or []))


def tile(r):
    return View.whole(r.allocate((128, 8), "float32", Memory.sbuf))


def leaves(nodes):
    for n in nodes:
        if isinstance(n, Repeat):
            yield from leaves(n.body)
        else:
            yield n


def family_of(program, where, k, operand="dst"):
    node = list(leaves(program.body))[k]
    return next(a.family for a in where.bound[id(node)].accesses.values() if a.operand == operand)


def test_a_tile_of_one_turn_is_local_to_it():
    def kernel(r, x):
        for i in range(8):
            t = tile(r)
            r.emit(DmaCopy(t, x.slice(0, i * 128, i * 128 + 128)))
            r.emit(DmaCopy(x.slice(0, i * 128, i * 128 + 128), t))

    program = rolled(kernel)
    where = layout(program)
    (repeat,) = program.body
    family = family_of(program, where, 0)
    assert (family.slots, family.is_local_to(repeat), family.shape) == (1, True, (128, 8))
    assert not family_of(program, where, 1).is_local_to(repeat)


def test_a_list_of_tiles_is_a_family_with_slots():
    def kernel(r, x):
        tiles = [tile(r) for _ in range(4)]
        for i, t in enumerate(tiles):
            r.emit(DmaCopy(t, x.slice(0, i * 128, i * 128 + 128)))
        for i, t in enumerate(reversed(tiles)):
            r.emit(DmaCopy(x.slice(0, i * 128, i * 128 + 128), t))

    program = rolled(kernel)
    where = layout(program)
    family = family_of(program, where, 0)
    assert family.slots == 4 and family.home == () and family.shape == (4, 128, 8)
    last = list(leaves(program.body))[1]
    access = next(a for a in where.bound[id(last)].accesses.values() if a.operand == "src")
    assert access.family is family and access.table.tolist() == [3072, 2048, 1024, 0]


def test_lists_made_in_an_outer_turn_are_counted_within_it():
    def kernel(r, x):
        for _ in range(3):
            tiles = [tile(r) for _ in range(2)]
            for t in tiles:
                r.emit(DmaCopy(t, x.slice(0, 0, 128)))
            for t in tiles:
                r.emit(TensorCopy(t, t))

    program = rolled(kernel)
    family = family_of(program, layout(program), 0)
    assert family.slots == 2 and family.is_local_to(program.body[0])


def test_a_buffer_from_outside_a_dynamic_loop_is_not_local_to_its_body():
    def kernel(r, x):
        outer = tile(r)
        for _ in r.turns("loop", 0, 4, 1):
            r.emit(Memset(outer, 0.0))
            r.emit(Memset(tile(r), 0.0))

    program = rolled(kernel)
    where = layout(program)
    (loop,) = program.body
    first, second = (family_of_node(where, n) for n in loop.body)
    assert not first.is_local_to(loop) and second.is_local_to(loop)


def family_of_node(where, node):
    return next(iter(where.bound[id(node)].accesses.values())).family


def test_arguments_never_join_a_family():
    r = Recorder("kernel", TRN2)
    xs = [r.argument((128, 8), "float32", f"x{i}", False) for i in range(4)]

    def kernel():
        for x in xs:
            r.emit(DmaCopy(tile(r), x))
        return []

    program = roll(r.record(kernel))
    assert not any(isinstance(n, Leaf | Repeat) for n in program.body)


def test_turns_that_a_ragged_repeat_leaves_out():
    """Their entries go on like those before, and their buffers are nobody's."""

    def kernel(r, x):
        for i in range(6):
            t = tile(r)
            for k in range(i + 1):
                u = tile(r)
                r.emit(DmaCopy(u, x.slice(0, 128 * k, 128 * k + 128)))
                r.emit(TensorCopy(t, u))
            r.emit(DmaCopy(x.slice(0, 896, 1024), t))

    program = rolled(kernel)
    outer = program.body[-1]
    inner = outer.body[0]
    assert inner.counts.tolist() == [2, 3, 4, 5, 6]
    load, copy = inner.body
    where = layout(program)
    src = next(a for a in where.bound[id(load)].accesses.values() if a.operand == "src")
    assert src.table.tolist() == [[1024 * k for k in range(6)]] * 5
    assert src.runs().sum(axis=1).tolist() == [2, 3, 4, 5, 6]
    u, t = (next(a for a in where.bound[id(copy)].accesses.values() if a.operand == o).family for o in ("src", "dst"))
    assert (u.slots, u.is_local_to(inner)) == (1, True)
    assert (t.slots, t.is_local_to(outer), t.is_local_to(inner)) == (1, True, False)
