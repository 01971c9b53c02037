"""Edges of the schedule: names, nesting, and an order that keeps them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nkijax
import nkijax.dialects.nki as nki
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.edges import scheduled
from nkijax.machine import TRN1, Engine
from nkijax.timeline import Model
from tests.by_hand import Hand

V, S = Engine.vector, Engine.scalar
X = np.ones((128, 2048), np.float32)


def chain(hand, *names):
    """Independent instructions of these names, in turn on the vector and the scalar engine."""
    return [hand.work(hand.buffer((128, 512), name=n), [], (V, S)[k % 2]) for k, n in enumerate(names)]


def names_of(body):
    return [i.name for i in body]


def refused(*arguments):
    with pytest.raises(KernelError) as error:
        scheduled(*arguments)
    return error.value.message


def test_without_edges_the_body_stays():
    body = chain(Hand(), "a", "b")
    assert scheduled(body, (), ()) == (body, ())


def test_names_become_pairs():
    a, b, c = chain(Hand(), "a", "b", "c")
    body, edges = scheduled([a, b, c], [("c", ("a", "b"))], [(b, a)])
    assert body == [a, b, c] and edges == ((c, a), (c, b), (b, a))
    assert scheduled([a, b, c], [("c", ("a",)), ("c", ("a",))], [(c, a)])[1] == ((c, a),), "each once"


def test_a_consumer_moves_behind_its_producer_with_what_depends_on_it():
    hand = Hand()
    a, b, c, d = chain(hand, "a", "b", "c", "d")
    reader = hand.work(hand.buffer((128, 512), name="reader"), [a.dst[0]], V)
    body, _ = scheduled([a, reader, b, c, d], [("a", ("c",))], [])
    assert names_of(body) == ["b", "c", "a", "reader", "d"]


def test_unknown_names():
    body = chain(Hand(), "load", "store")
    words = "kernel.with_schedule producer: must be the name of an instruction, got 'lode'; did you mean load?"
    assert refused(body, [("store", ("lode",))], ()) == words
    assert refused(body, [("zzz", ("load",))], ()).endswith("must be the name of an instruction, got 'zzz'")


def test_a_name_that_several_have():
    body = chain(Hand(), "a", "b", "a")
    assert "kernel.with_schedule 'a': an edge needs a name that one instruction has, got several" in refused(
        body, [("b", ("a",))], ()
    )
    with pytest.raises(KernelError):
        scheduled(body, [("a", ("b",))], ())
    assert names_of(scheduled(chain(Hand(), "a", "b", "c", "c"), [("b", ("a",))], ())[0]) == ["a", "b", "c", "c"]


def test_circles():
    hand = Hand()
    a, b = chain(hand, "a", "b")
    reader = hand.work(hand.buffer((128, 512), name="reader"), [a.dst[0]], V)
    assert refused([a, reader], [("a", ("reader",))], ()) == (
        "schedule edge 'a': edges and data must not wait for each other in a circle"
    )
    assert "circle" in refused([a, b], [("a", ("b",)), ("b", ("a",))], ())
    assert refused([a, b], [("a", ("a",))], ()).endswith("an instruction cannot wait for itself")


def test_nesting():
    """Both ends at one dynamic loop nesting, or the producer outside of the consumer's loops and before them."""
    hand = Hand()
    before, inside, deep, after = chain(hand, "before", "inside", "deep", "after")
    loop = hand.loop([inside, hand.loop([deep], site="k.py:2")], site="k.py:1")
    body = [before, loop, after]
    for edge in (("inside", "before"), ("deep", "before"), ("deep", "inside"), ("after", "before")):
        assert scheduled(body, [(edge[0], (edge[1],))], ())[0] == body
    words = (
        "the producer must be at the dynamic loop nesting of the consumer, or outside of its loops, got one inside of"
    )
    assert refused(body, [("after", ("inside",))], ()).endswith(f"{words} k.py:1")
    assert refused(body, [("inside", ("deep",))], ()).endswith(f"{words} k.py:2")
    late = "a dynamic loop keeps the producer from coming first"
    assert late in refused(body, [("inside", ("after",))], ()) and late in refused(body, [("before", ("after",))], ())
    twin = hand.loop(chain(hand, "twin"), site="k.py:3")
    assert f"{words} k.py:3" in refused([*body, twin], [("inside", ("twin",))], ())


def test_inside_a_loop_too_the_order_changes():
    hand = Hand()
    a, b = chain(hand, "a", "b")
    (loop,), _ = scheduled([hand.loop([a, b])], [("a", ("b",))], ())
    assert names_of(loop.body) == ["b", "a"]


def test_an_end_that_is_not_in_the_program():
    a, b = chain(Hand(), "a", "b")
    assert refused([a], (), [(a, b)]) == "schedule edge 'b': must end at an instruction of one core"


def test_edges_of_each_core():
    """kernel[2]: both cores have the names."""
    first, second = chain(Hand(), "a", "b"), chain(Hand(), "a", "b")
    for inst in second:
        object.__setattr__(inst, "core", 1)
    _, edges = scheduled([*first, *second], [("b", ("a",))], ())
    assert edges == ((first[1], first[0]), (second[1], second[0]))


def test_data_order_every_reader_before_a_later_writer():
    hand = Hand()
    tiles = [hand.buffer((128, 64), name=f"t{k}") for k in range(3)]
    body = [hand.work(tiles[dst], [tiles[0]], V) for dst in (1, 2, 0)]
    with pytest.raises(KernelError, match="in a circle"):
        scheduled(body, (), [(body[0], body[2])])


@settings(max_examples=60)
@given(st.data())
def test_any_edges_are_kept_and_data_too(data):
    hand = Hand()
    n = data.draw(st.integers(2, 8))
    tiles = [hand.buffer((128, 64), name=f"t{k}") for k in range(4)]
    body = []
    for k in range(n):
        dst, src = data.draw(st.sampled_from(tiles)), data.draw(st.sampled_from(tiles))
        body.append(replace(hand.work(dst, [src], V), name=f"i{k}"))
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] != e[1])
    pairs = [(body[c], body[p]) for c, p in data.draw(st.lists(ends, max_size=4))]
    try:
        order, edges = scheduled(body, (), pairs)
    except KernelError:
        return
    at = {id(inst): k for k, inst in enumerate(order)}
    assert sorted(at.values()) == list(range(n)) and set(edges) == set(pairs)
    assert all(at[id(producer)] < at[id(consumer)] for consumer, producer in edges)
    for k, later in enumerate(body):
        for earlier in body[:k]:
            shared = {later.dst[0].buffer} & {earlier.dst[0].buffer, earlier.data[0].buffer}
            if shared or later.data[0].buffer is earlier.dst[0].buffer:
                assert at[id(earlier)] < at[id(later)]


# ---- through the timeline and through kernels


def test_the_timeline_waits_for_the_token():
    hand = Hand()
    a, b = chain(hand, "a", "b")
    program = hand.program(a, b)
    free = Model(program, ()).main.pieces[0][1].timing
    bound = Model(replace(program, edges=((b, a),)), ()).main.pieces[0][1].timing
    assert free.issue_us == [0, 0] and bound.issue_us == [0, pytest.approx((512 + 161) / 1.12e3 + 0.03)]
    assert TRN1.ghz(V) == 1.12


def test_the_timeline_of_an_unrolled_loop_waits_in_each_copy():
    hand = Hand()
    a, b = chain(hand, "a", "b")
    loop = hand.loop([a, b])
    times = []
    for edges in ((), ((b, a),)):
        model = Model(replace(hand.program(loop), edges=edges), (4,))
        times.append(model.unrolled_us(model.main.pieces[0][1], 2))
    assert times[1] > times[0]


@nki.jit
def two_paths(x):
    tile = nl.load(x)
    a, b, c = (nl.ndarray(x.shape, x.dtype) for _ in range(3))
    nisa.reciprocal(a, tile, name="recip")
    nisa.activation(b, nl.exp, tile, name="act")
    nisa.tensor_tensor(c, a, b, nl.add)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, c)
    return out


def test_with_schedule():
    plain = nkijax.profile(two_paths, X, target="trn2")
    for edges in ([("act", "recip")], [("recip", ["act"])]):
        bound = nkijax.profile(two_paths.with_schedule(edges), X, target="trn2")
        np.testing.assert_array_equal(bound.outputs, plain.outputs)
        assert bound.cost.total_us == pytest.approx(plain.cost.total_us + 2048 / 1.2e3 + 352 / 1.2e3 + 0.03)
    names = [i.name for i in bound.program.body if i.name]
    assert names == ["act", "recip"] and "schedule: recip after act" in str(bound.program)
    assert nkijax.run(two_paths.with_schedule([("act", "recip")]), X, eager=True)[0, 0] == 1 + np.float32(np.e)


def test_with_schedule_names_what_is_wrong():
    with pytest.raises(
        KernelError, match="producer: must be the name of an instruction, got 'recap'; did you mean recip"
    ):
        nkijax.run(two_paths.with_schedule([("act", "recap")]), X)


def test_a_schedule_is_part_of_the_cache_key():
    assert len(nkijax.trace(two_paths, X).edges) == 0
    nkijax.run(two_paths, X)
    nkijax.run(two_paths.with_schedule([("act", "recip")]), X)
    assert nkijax.profile(two_paths.with_schedule([("act", "recip")]), X).program.edges


def test_on_two_cores():
    two_cores = two_paths.with_schedule([("recip", "act")])[2]
    assert len(nkijax.profile(two_cores, X, target="trn2").program.edges) == 2
