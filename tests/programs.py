"""Random programs for the property tests of rolling and lowering.

A program is made by nested Python loops over statements that pick tiles and windows by the loop indices: fresh tiles,
lists of tiles, double buffers, shared tiles updated in place, aliasing views, peeled turns, inner loops that grow with
the outer index, dynamic loops that count or wait for a condition, matmuls that accumulate, and the statements of
`tests.shelf`.  Every tile holds small integers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from random import Random

import jax
import jax.numpy as jnp
import numpy as np

from nkijax.eager import Eager
from nkijax.isa.elementwise import TensorScalar, TensorTensor
from nkijax.isa.matmul import matmul_instructions
from nkijax.isa.move import DmaCopy, Memset, TensorCopy
from nkijax.isa.operators import ALU
from nkijax.isa.register import RegisterLoad
from nkijax.machine import TRN3, Memory
from nkijax.open_loop import Executor
from nkijax.program import Program
from nkijax.trace import Recorder
from nkijax.view import View
from tests.shelf import COLUMNS, SHELF, Bench, F, P
from tests.shelf import WIDE as ROWS

STATEMENTS = "load load store store binary copy memset new matmul contraction flush shelf shelf shelf shelf".split()


class Maker:
    """Writes one random program."""

    def __init__(self, random: Random, dtype: str = "float32", executor: Executor | None = None):
        self.random, self.dtype = random, dtype
        self.recorder = r = Recorder("random", TRN3, executor)
        self.x = r.argument((ROWS, COLUMNS), "float32", "x", False)
        self.y = r.argument((ROWS, COLUMNS), "float32", "y", False)
        self.n = r.argument((4, 1), "int32", "n", False)

    def make(self) -> Program:
        """Every draw is made before what it decides is emitted: an eager program is the traced one, turn by turn."""
        with warnings.catch_warnings(action="ignore"):  # of matmuls that add to what none has written
            return self.recorder.record(self._kernel)

    def _kernel(self):
        r, random = self.recorder, self.random
        self.out = View.whole(r.allocate((ROWS, COLUMNS), "float32", Memory.shared_hbm))
        self.psums = [View.whole(r.allocate((F, F), "float32", Memory.psum)) for _ in range(2)]
        self.tiles = [self._tile() for _ in range(random.randint(1, 4))]
        for t in self.tiles:
            r.emit(Memset(t, float(random.randint(-2, 2))))
        for _ in range(random.choice([1, 1, 2])):
            self._loop([], 0)
        b = self._bench(0, [0])
        last = [*self.tiles, *(b.bits(p.slice(0, 0, P), 15, "int32") for p in self.psums)]
        ends = View.whole(r.allocate((len(last), P, F), "float32", Memory.shared_hbm))
        for k, t in enumerate(last):
            r.emit(DmaCopy(ends.select(0, k), t))
        return [self.out, self.y, ends]

    def _tile(self) -> View:
        return View.whole(self.recorder.allocate((P, F), self.dtype, Memory.sbuf))

    # ---- structure

    def _loop(self, indices: list[int], depth: int) -> None:
        random = self.random
        count = random.choice([1, 2, 3, 4, 5])
        script = [self._statement() for _ in range(random.randint(1, 3))]
        nested = depth < 2 and random.random() < 0.5
        turns, grows = random.choice([1, 2, 3]), random.choice([0, 0, 1])
        inner = [self._statement() for _ in range(random.randint(1, 2))]
        peeled = random.random() < 0.2
        for i in range(count):
            self.fresh = None
            if peeled and i == 0:
                self.recorder.emit(Memset(self.tiles[0], 1.0))
            for s in script:
                s([*indices, i])
            if nested:
                for j in range(turns + grows * i):
                    for s in inner:
                        s([*indices, i, j])
        if depth == 0 and random.random() < 0.4:
            self._dynamic_loop()()

    def _dynamic_loop(self, depth: int = 0):
        """A loop, to be emitted by a call: everything is drawn before, as an eager loop turns more than once."""
        random = self.random
        constant = random.choice([0, 1, 3])
        word = self.n.slice(0, random.randint(0, 2), 3).slice(0, 0, 1) if random.random() < 0.5 else None
        script = [self._statement() for _ in range(random.randint(1, 2))]
        body = self._body(script, random.choice([1, 2, 3]), random.random() < 0.7)
        if random.random() < 0.3:
            return lambda: self._while(body, constant)
        inner = self._dynamic_loop(depth + 1) if depth == 0 and random.random() < 0.3 else None

        def loop() -> None:
            upper: View | int = constant
            if word is not None:
                upper = self.recorder.register()
                self.recorder.emit(RegisterLoad(upper, word))
            for i in self.recorder.turns("loop", 0, upper, 1):
                body(i)
                if inner is not None:
                    inner()
            self.fresh = None

        return loop

    def _body(self, script, repeat: int, moving: bool):
        """One turn; tiles that were allocated in the body are dead after it."""
        r, psums = self.recorder, self.psums

        def body(i: View) -> None:
            self.fresh, self.psums = None, list(psums)
            for k in range(repeat):
                for s in script:
                    s([k])
            if moving:
                t = self._tile()
                row = self.x.slice(1, 0, F).reshape_dim(0, (ROWS // P, P)).select(0, i)
                r.emit(DmaCopy(t, row))
                r.emit(TensorTensor(self.tiles[0], self.tiles[0], t, ALU["maximum"]))
                r.emit(DmaCopy(self.out.slice(1, F, 2 * F).reshape_dim(0, (ROWS // P, P)).select(0, i), t))
            self.fresh, self.psums = None, psums

        return body

    def _while(self, body, turns: int) -> None:
        """Turns while a counter in memory is not 0; the condition is a register that is loaded anew."""
        r, left = self.recorder, View.whole(self.recorder.allocate((1, 1), "int32", Memory.sbuf))
        condition = r.register()
        r.emit(Memset(left, turns))
        r.emit(RegisterLoad(condition, left))

        def turn(i: View) -> View:
            body(i)
            after = r.register()
            r.emit(TensorScalar(left, left, ALU["subtract"], 1))
            r.emit(RegisterLoad(after, left))
            return after

        r.repeat_while("loop", condition, turn)

    # ---- statements: each picks its operands by the loop indices, the same way in every turn

    def _pick(self):
        random = self.random
        a, b, c = (random.randint(0, 2) for _ in range(3))
        return lambda idx, n: (a * idx[-1] + b * (idx[-2] if len(idx) > 1 else 0) + c) % n

    def _operand(self):
        pick, fresh = self._pick(), self.random.random() < 0.5
        columns = self.random.choice([None, None, None, 0, 1])

        def operand(idx) -> View:
            t = self.fresh if fresh and self.fresh is not None else self.tiles[pick(idx, len(self.tiles))]
            return t if columns is None else t.slice(1, columns, columns + 2)

        return operand

    def _window(self, tensor):
        pick, column = self._pick(), self._pick()

        def window(idx, like: View) -> View:
            row = pick(idx, ROWS // P) * P
            c = column(idx, 2) * F
            return tensor.slice(0, row, row + P).slice(1, c, c + like.shape[1])

        return window

    def _statement(self):
        kind = self.random.choice(STATEMENTS)
        return getattr(self, f"_{kind}")()

    def _load(self):
        window = self._window(self.random.choice([self.x, self.x, self.y]))

        def load(idx):
            self.fresh = self._tile()
            self.recorder.emit(DmaCopy(self.fresh, window(idx, self.fresh)))

        return load

    def _store(self):
        window, operand = self._window(self.random.choice([self.out, self.out, self.y])), self._operand()

        def store(idx):
            t = operand(idx)
            self.recorder.emit(DmaCopy(window(idx, t), t))

        return store

    def _binary(self):
        op, d, a, b = ALU[self.random.choice(["add", "subtract", "maximum"])], *(self._operand() for _ in range(3))

        def binary(idx):
            views = [v if v.shape == (P, 2) else v.slice(1, 0, 2) for v in (d(idx), a(idx), b(idx))]
            self.recorder.emit(TensorTensor(*views, op))
            self._bench(0, idx).bound(views[0])

        return binary

    def _copy(self):
        d, a = self._operand(), self._operand()

        def copy(idx):
            dst, src = d(idx), a(idx)
            n = min(dst.shape[1], src.shape[1])
            self.recorder.emit(TensorCopy(dst.slice(1, 0, n), src.slice(1, 0, n)))

        return copy

    def _memset(self):
        operand, varies = self._operand(), self.random.random() < 0.5
        return lambda idx: self.recorder.emit(Memset(operand(idx), float(idx[-1] if varies else 3)))

    def _matmul(self):
        """Accumulates into one of two PSUM tiles, or a fresh one, as nc_matmul does by default; small integers."""
        windows, pick = [self._window(self.x) for _ in range(2)], self._pick()
        fresh, accumulate = self.random.random() < 0.3, self.random.choice([None, None, None, True, False])
        part = self.random.choice([F, F, 2])

        def matmul(idx):
            r = self.recorder
            if fresh and accumulate is None:
                self.psums[0] = View.whole(r.allocate((F, F), "float32", Memory.psum))
            k = pick(idx, 2)
            dst = self.psums[k].slice(1, 0, part)
            if accumulate is True:
                r.emit(Memset(self.psums[k], 1.0))
            sides = []
            for window, n in zip(windows, (F, part), strict=True):
                sides.append(View.whole(r.allocate((P, n), "float32", Memory.sbuf)))
                r.emit(DmaCopy(sides[-1], window(idx, sides[-1])))
            for instruction in matmul_instructions(r, dst, *sides, False, False, False, accumulate, (), (), "none"):
                r.emit(instruction)

        return matmul

    def _contraction(self):
        """A tile of PSUM that several matmuls add up to, copied out."""
        turns, matmul, flush = self.random.choice([2, 3, 4]), self._matmul(), self._flush()

        def contraction(idx):
            self.psums = [View.whole(self.recorder.allocate((F, F), "float32", Memory.psum)) for _ in range(2)]
            for k in range(turns):
                matmul([*idx, k])
            flush(idx)

        return contraction

    def _flush(self):
        operand, pick = self._operand(), self._pick()

        def flush(idx):
            t = operand(idx)
            b, psum = self._bench(0, idx), self.psums[pick(idx, 2)]
            b.settle(t, b.bits(psum.slice(0, 0, P).slice(1, 0, t.shape[1]), 15, "int32"))

        return flush

    def _bench(self, seed: int, idx) -> Bench:
        return Bench(self.recorder, self.x, seed, idx[-1])

    def _shelf(self):
        """One of the instructions of the shelf on whole tiles."""
        make, seed = self.random.choice(SHELF), self.random.getrandbits(32)
        picks = [self._pick() for _ in range(3)]
        window = self._window(self.random.choice([self.out, self.y])) if self.random.random() < 0.5 else None

        def shelf(idx):
            dst, *operands = (self.tiles[pick(idx, len(self.tiles))] for pick in picks)
            make(self._bench(seed, idx), dst, *operands)
            if window is not None:
                self.recorder.emit(DmaCopy(window(idx, dst), dst))

        return shelf

    def _new(self):
        return lambda idx: setattr(self, "fresh", None)


def arguments(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-8, 8, (ROWS, COLUMNS)).astype(np.float32) for _ in range(2))
    return x, y, np.array([[2], [0], [3], [1]], np.int32)


def eagerly(random: Random, dtype: str, inputs: Sequence[np.ndarray]) -> list[jax.Array]:
    """The outputs of the program that a `Maker` with the same draws makes."""
    memory = Eager(TRN3)
    maker = Maker(random, dtype, memory)
    memory.zeros, memory.constants = maker.recorder.zeros, maker.recorder.constants
    for view, x in zip((maker.x, maker.y, maker.n), inputs, strict=True):
        memory.arrays[view.buffer] = jnp.asarray(x)
    return [memory.load(v) for v in maker.make().outputs]
