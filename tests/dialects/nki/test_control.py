"""Ranges, dynamic loops and programs: every form, and every error of the specification's loop table."""

import numpy as np
import pytest

import nkijax
import nkijax.dialects.nki.isa as nisa
import nkijax.dialects.nki.language as nl
from nkijax import KernelError
from nkijax.dialects.nki.jit import jit
from nkijax.program import Loop
from tests.dialects.nki.faces import register

ROWS = np.arange(32, dtype=np.float32).reshape(8, 4)
EAGER = pytest.mark.parametrize("eager", [False, True])
deprecated = pytest.mark.filterwarnings("ignore:nki.language.dynamic_range is deprecated")


def count(value):
    return np.full((1, 1), value, np.int32)


def loaded(tensor):
    reg = nisa.register_alloc()
    nisa.register_load(reg, tensor)
    return reg


def message(kernel, *args, **kwargs):
    """The KernelError of a kernel, which must point into this file."""
    with pytest.raises(KernelError) as error:
        nkijax.trace(kernel, *(args or (ROWS,)), **kwargs)
    assert error.value.site.startswith(__file__), error.value
    return error.value.message


# ---- static ranges


@pytest.mark.parametrize("name", ["affine_range", "sequential_range", "static_range", "range"])
def test_static_ranges(name):
    make = getattr(nl, name)
    assert list(make(3)) == [0, 1, 2]
    assert list(make(1, 7, 2)) == [1, 3, 5]
    assert list(make(start=np.int64(2), stop=np.int32(4))) == [2, 3]
    assert all(type(i) is int for i in make(np.int64(3)))
    with pytest.raises(TypeError, match="use nl.fori_loop"):
        make(register())


# ---- fori_loop


def double_rows(x, lower, upper, step):
    out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)

    def body(i):
        row = nl.ndarray((1, x.shape[1]), x.dtype)
        nisa.dma_copy(row, x[i])
        nisa.tensor_scalar(row, row, nl.multiply, 2.0)
        nisa.dma_copy(out[i], row)

    lower, upper = (b if isinstance(b, int) else loaded(b) for b in (lower, upper))
    nl.fori_loop(lower, upper, body, step)
    return out


@EAGER
@pytest.mark.parametrize(
    "bounds", [(0, 8, 1), (2, 7, 2), (3, 3, 1), (5, 2, 1), (0, count(3), 1), (count(1), count(8), 3), (count(6), 2, 1)]
)
def test_fori_loop(bounds, eager):
    lower, upper, step = bounds
    want = np.zeros_like(ROWS)
    rows = range(*(int(np.asarray(b).item()) for b in (lower, upper)), step)
    want[list(rows)] = 2 * ROWS[list(rows)]
    np.testing.assert_array_equal(nkijax.run(double_rows, ROWS, lower, upper, step, eager=eager), want)


@EAGER
def test_bounds_are_read_once(eager):
    def kernel(n):
        total, bound = nl.zeros((1, 1), nl.int32), loaded(n)

        def body(i):
            nisa.register_move(bound, 100)
            nisa.tensor_scalar(total, total, nl.add, 1)

        nl.fori_loop(0, bound, body)
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    np.testing.assert_array_equal(nkijax.run(kernel, count(3), eager=eager), [[3]])


@EAGER
def test_case_12_nested_loops_with_run_time_bounds(eager):
    """Ragged attention's skeleton: bounds of the inner loop differ by turn of the outer one."""

    def kernel(blocks, rows):
        out = nl.zeros((4, 1), nl.int32, buffer=nl.shared_hbm)

        def outer(i):
            visible, total = loaded(blocks[i]), nl.zeros((1, 1), nl.int32)
            nl.fori_loop(0, visible, lambda j: nisa.tensor_scalar(total, total, nl.add, 1) and None)
            nisa.dma_copy(out[i], total)

        nl.fori_loop(0, loaded(rows), outer)
        return out

    blocks = np.array([[1], [2], [4], [9]], np.int32)
    np.testing.assert_array_equal(nkijax.run(kernel, blocks, count(3), eager=eager)[:, 0], [1, 2, 4, 0])


def test_case_16_a_body_is_recorded_once():
    def size(n):
        program = nkijax.trace(double_rows, np.zeros((n, 4), np.float32), 0, n, 1, rolled=False)
        return [len(node.body) for node in program.body if isinstance(node, Loop)]

    assert size(16) == size(512) == [3]


def test_case_15_errors_of_fori_loop():
    body = lambda i: None  # noqa: E731
    assert "fori_loop step: must be a positive Python int, got 0" in message(lambda x: nl.fori_loop(0, 4, body, 0))
    assert "step: must be a positive Python int, got -1" in message(lambda x: nl.fori_loop(0, 4, body, step=-1))
    assert "step: must be a positive" in message(lambda x: nl.fori_loop(0, 4, body, nisa.register_alloc(1)))
    assert "lower: must be an int or a register" in message(lambda x: nl.fori_loop(0.5, 4, body))
    assert "upper: must be an int or a register (load a tile" in message(lambda x: nl.fori_loop(0, x[0:1, 0:1], body))
    assert "body_fun: must return None, got 1" in message(lambda x: nl.fori_loop(0, 4, lambda i: 1))


def test_case_15_the_induction_register_is_read_only():
    want = "dst: the induction register of a dynamic loop is read-only"
    assert want in message(lambda x: nl.fori_loop(0, 4, lambda i: nisa.register_move(i, 1)))
    assert want in message(lambda x: nl.fori_loop(0, 4, lambda i: nisa.register_load(i, x[0, 0:1].view("int32"))))


def test_case_15_dynamic_loops_inside_no_reorder():
    def inside(loop):
        def kernel(x):
            with nl.no_reorder():
                loop()

        return kernel

    want = "a dynamic loop cannot be inside nl.no_reorder(); put no_reorder into its body"
    assert want in message(inside(lambda: nl.fori_loop(0, 4, lambda i: None)))
    assert want in message(inside(lambda: nl.while_loop(nisa.register_alloc(1), lambda r: r)))
    with pytest.warns(DeprecationWarning):
        assert want in message(inside(lambda: list(nl.dynamic_range(4))))


def test_no_reorder_is_an_edge_from_each_instruction_to_the_next():
    def kernel(x):
        tiles = [nl.ndarray((2, 2), nl.float32) for _ in range(6)]
        nisa.memset(tiles[0], 0)
        with nl.no_reorder():
            nisa.memset(tiles[1], 1)
            with nl.no_reorder():
                nisa.memset(tiles[2], 2)
            nisa.memset(tiles[3], 3)
        with nl.no_reorder():
            nisa.memset(tiles[4], 4)
        nisa.memset(tiles[5], 5)

    program = nkijax.trace(kernel, ROWS)
    assert [(c.value, p.value) for c, p in program.edges] == [(2, 1), (3, 2)]


def test_no_reorder_inside_a_loop_body():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

        def body(i):
            with nl.no_reorder():
                nisa.dma_copy(out[i], x[i])

        nl.fori_loop(0, 8, body)
        return out

    np.testing.assert_array_equal(nkijax.run(kernel, ROWS), ROWS)


def test_tensors_of_a_body_are_dead_outside():
    def kernel(x):
        kept = []
        nl.fori_loop(0, 4, lambda i: kept.append(nl.load(x)))
        nl.store(x, kept[0])

    assert "a tensor allocated in the body of a dynamic loop lives only there" in message(kernel)


# ---- dynamic_range


@deprecated
@EAGER
@pytest.mark.parametrize("bounds", [(8,), (2, 7), (1, 8, 3), (count(3),), (0, count(5), 2), (4, 4)])
def test_trap_18_dynamic_range(bounds, eager):
    def kernel(x, bounds):
        out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
        bounds = [b if isinstance(b, int) else loaded(b) for b in bounds]
        for i in nl.dynamic_range(*bounds):
            nisa.dma_copy(out[i], x[i])
        return out

    rows = list(range(*(int(np.asarray(b).item()) for b in bounds)))
    want = np.zeros_like(ROWS)
    want[rows] = ROWS[rows]
    np.testing.assert_array_equal(nkijax.run(kernel, ROWS, bounds, eager=eager), want)


def test_dynamic_range_warns():
    def kernel(x):
        for i in nl.dynamic_range(4):
            nisa.dma_copy(x[i], x[i])

    with pytest.warns(DeprecationWarning, match="use nl.fori_loop") as seen:
        nkijax.trace(kernel, ROWS)
    assert seen[0].filename == __file__


@deprecated
def test_errors_of_dynamic_range():
    def over(*bounds):
        def kernel(x):
            for _ in nl.dynamic_range(*bounds):
                pass

        return kernel

    def write(x):
        for i in nl.dynamic_range(4):
            nisa.register_move(i, 0)

    def leave(x):
        for _ in nl.dynamic_range(4):
            break

    assert "step: must be a positive Python int, got 0" in message(over(0, 4, 0))
    assert "dynamic_range stop: must be an int or a register" in message(over("4"))
    assert "dynamic_range start: must be an int or a register" in message(over(1.0, 4))
    assert "read-only" in message(write)
    assert "was left by break or return" in message(leave)


# ---- while_loop


@EAGER
@pytest.mark.parametrize("n", [0, 3])
def test_case_14_while_loop(n, eager):
    def kernel(n):
        left, total = nl.load(n), nl.zeros((1, 1), nl.int32)

        def body(more):
            nisa.tensor_scalar(total, total, nl.add, 2)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(more, left)
            return more

        assert nl.while_loop(loaded(left), body) is None
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    np.testing.assert_array_equal(nkijax.run(kernel, count(n), eager=eager), [[2 * n]])


def test_errors_of_while_loop():
    alloc = nisa.register_alloc
    assert "init: must be a register" in message(lambda x: nl.while_loop(3, lambda r: r))
    assert "init: must be a register" in message(lambda x: nl.while_loop(x, lambda r: r))
    assert "body_fun: must return a register, the next condition, got None" in message(
        lambda x: nl.while_loop(alloc(1), lambda r: None)
    )
    assert "must return a register" in message(lambda x: nl.while_loop(alloc(1), lambda r: 0))


# ---- programs


def test_programs():
    seen = []

    def kernel(x):
        seen.append((nl.program_id(0), nl.num_programs(axes=0), nl.num_programs(), nl.program_ndim()))
        for wrong in (lambda: nl.program_id(1), lambda: nl.num_programs((0, 1))):
            with pytest.raises(KernelError, match="a grid has one axis, 0"):
                wrong()

    nkijax.trace(kernel, ROWS)
    nkijax.trace(jit(kernel)[1], ROWS)
    nkijax.trace(jit(kernel)[2], ROWS)
    assert seen == [(0, 1, 1, 0), (0, 1, 1, 1), (0, 2, 2, 1), (1, 2, 2, 1)]


def test_trap_24_two_cores_share_shared_hbm():
    @jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        half = x.shape[0] // nl.num_programs()
        rows = slice(nl.program_id() * half, (nl.program_id() + 1) * half)
        tile = nl.load(x[rows])
        nisa.tensor_scalar(tile, tile, nl.add, 1.0 + nl.program_id())
        nl.store(out[rows], tile)
        return out

    np.testing.assert_array_equal(nkijax.run(kernel, ROWS), ROWS + 1)
    np.testing.assert_array_equal(nkijax.run(kernel[2], ROWS), ROWS + np.repeat([[1], [2]], 4, axis=0))


def test_outside_of_a_kernel():
    for use in (
        nl.program_id,
        nl.num_programs,
        nl.program_ndim,
        lambda: nl.fori_loop(0, 4, print),
        lambda: nl.while_loop(register(), print),
        lambda: nl.no_reorder().__enter__(),
    ):
        with pytest.raises(KernelError, match="runs only inside a kernel"):
            use()
