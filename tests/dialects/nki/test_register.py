"""VirtualRegister, and the `while register:` statement."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.program import Loop
from tests.dialects.nki.faces import register, tensor

pytestmark = pytest.mark.filterwarnings("ignore:`while register")
ONE = np.zeros((1, 1), np.int32)
EAGER = pytest.mark.parametrize("eager", [False, True])


def count(value):
    return np.full((1, 1), value, np.int32)


def loaded(tile):
    reg = nisa.register_alloc()
    nisa.register_load(reg, tile)
    return reg


def add(tile, number):
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=number)


def stored(tile):
    out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


def two_each(n):
    left, total = nl.load(n), nl.zeros((1, 1), nl.int32)
    more = loaded(left)
    while more:
        add(total, 2)
        add(left, -1)
        nisa.register_load(more, left)
    return stored(total)


@EAGER
@pytest.mark.parametrize("n", [0, 1, 3])
def test_trap_18_while_register(n, eager):
    np.testing.assert_array_equal(nkijax.run(two_each, count(n), eager=eager), [[2 * n]])


def test_its_body_is_recorded_once():
    loops = [node for node in nkijax.trace(two_each, ONE, rolled=False).body if isinstance(node, Loop)]
    assert len(loops) == 1 and len(loops[0].body) == 3
    assert loops[0].site.startswith(__file__)


def test_it_warns():
    with pytest.warns(DeprecationWarning, match="use nl.while_loop") as seen:
        nkijax.trace(two_each, ONE)
    assert seen[0].filename == __file__


def nested(n):
    left, total = nl.load(n), nl.zeros((1, 1), nl.int32)
    outer, inner = loaded(left), nisa.register_alloc()
    while outer:
        nisa.register_load(inner, left)
        inside = nl.ndarray((1, 1), nl.int32)
        nisa.tensor_copy(inside, left)
        while inner:
            add(total, 1)
            add(inside, -1)
            nisa.register_load(inner, inside)
        add(left, -1)
        nisa.register_load(outer, left)
    return stored(total)


def unrolled(n):
    """One statement, three loops, each closed before the next opens."""
    total = nl.zeros((1, 1), nl.int32)
    for _ in range(3):
        left = nl.load(n)
        more = loaded(left)
        while more:
            add(total, 1)
            add(left, -1)
            nisa.register_load(more, left)
    return stored(total)


class Holder:
    pass


def odd_tests(n):
    """The test is an attribute, a subscript, a walrus; the body is on its line, has `continue`, or nests an `if`."""
    total, left = nl.zeros((1, 1), nl.int32), nl.load(n)
    holder = Holder()
    holder.more = loaded(left)

    def turn(reg):
        add(total, 1)
        add(left, -1)
        nisa.register_load(reg, left)

    while holder.more:
        if n.shape == (1, 1):
            turn(holder.more)
            continue
        raise AssertionError
    nisa.dma_copy(left, n)
    regs = [loaded(left)]
    while regs[0]:
        turn(regs[0])  # noqa: E701
    nisa.dma_copy(left, n)
    regs = [loaded(left)]
    while reg := regs[0]:
        turn(reg)
    else:
        add(total, 100)
    return stored(total)


@EAGER
@pytest.mark.parametrize(("kernel", "want"), [(nested, 6), (unrolled, 9), (odd_tests, 109)])
def test_forms(kernel, want, eager):
    np.testing.assert_array_equal(nkijax.run(kernel, count(3), eager=eager), [[want]])


def test_bool_elsewhere():
    def use_if(n):
        if loaded(n):
            pass

    def use_not(n):
        while not loaded(n):
            pass

    def use_and(n):
        while loaded(n) and True:
            pass

    def use_bool(n):
        while bool(loaded(n)):
            pass

    def inside_a_while(n):
        reg = loaded(n)
        while True:
            if reg:
                break

    def through_a_function(n):
        reg = loaded(n)
        while (lambda: not reg)():
            pass

    for kernel in (use_if, use_not, use_and, use_bool, inside_a_while, through_a_function):
        with pytest.raises(TypeError, match=r"write `while register:` or nl.while_loop.*nl.fori_loop\(0, flag, body\)"):
            nkijax.trace(kernel, ONE)


def test_without_source():
    """The statement is found in the source; where there is none the error says what to write."""
    names = {"nisa": nisa}
    exec("def kernel(n):\n reg = nisa.register_alloc()\n while reg:\n  pass\n", names)
    with pytest.raises(TypeError, match="nl.while_loop"):
        nkijax.trace(names["kernel"], ONE)


def test_leaving_the_loop_is_an_error():
    def kernel(n):
        reg = loaded(n)
        while reg:
            break

    with pytest.raises(KernelError, match="must run to the end of its body, was left by break or return") as error:
        nkijax.trace(kernel, ONE)
    assert error.value.site.startswith(__file__)


def test_inside_no_reorder():
    def kernel(n):
        reg = loaded(n)
        with nl.no_reorder():
            while reg:
                pass

    with pytest.raises(KernelError, match="a dynamic loop cannot be inside nl.no_reorder"):
        nkijax.trace(kernel, ONE)


def test_values_are_unknown_while_tracing():
    seen = []

    def kernel(n):
        reg = loaded(n)
        seen.append(repr(reg))
        for use in (lambda: int(reg), lambda: range(reg), lambda: [1, 2][reg]):
            with pytest.raises(TypeError, match=r"use nl.fori_loop\(lower, upper, body\)"):
                use()
        for use in (
            lambda: reg + 1,
            lambda: 2 * reg,
            lambda: -reg,
            lambda: reg < 3,
            lambda: reg == 0,
            lambda: reg << 1,
        ):
            with pytest.raises(TypeError, match="registers take no arithmetic"):
                use()

    nkijax.trace(kernel, ONE)
    assert seen[0].startswith("VirtualRegister(register")


def test_values_are_known_in_eager_mode():
    seen = []

    def kernel(n):
        reg = loaded(n)
        seen.extend([int(reg), bool(reg), repr(reg), len(range(reg))])

    nkijax.run(kernel, count(5), eager=True)
    assert seen == [5, True, "VirtualRegister(5)", 5]


def test_identity():
    a, b = register(), register()
    assert a == a and a != b and a != None and a in [b, a] and {a: 1}[a] == 1  # noqa: E711
    assert a != tensor((1, 1)) and a != "a"


@EAGER
def test_as_a_guard(eager):
    """fori_loop(0, flag, body) is the `if`."""

    def kernel(flag):
        tile = nl.full((1, 1), 7, nl.int32)
        nl.fori_loop(0, loaded(flag), lambda i: add(tile, 1))
        return stored(tile)

    for flag, want in ((0, 7), (1, 8)):
        np.testing.assert_array_equal(nkijax.run(kernel, count(flag), eager=eager), [[want]])
