"""Random programs for the property tests of rolling and lowering, and their meaning, one instruction after another.

A program is made by nested Python loops over statements that pick tiles and windows by the loop indices: fresh tiles,
lists of tiles, double buffers, shared tiles updated in place, aliasing views, peeled turns, and dynamic loops.
"""

from __future__ import annotations

import warnings
from random import Random

import numpy as np

from nkijax import dtypes
from nkijax.isa.activation import Activate, ActivationReduce
from nkijax.isa.elementwise import ScalarTensorTensor, TensorScalar, TensorTensor
from nkijax.isa.gather import NcStreamShuffle
from nkijax.isa.index import Iota
from nkijax.isa.matmul import matmul_instructions
from nkijax.isa.move import DmaCopy, Memset, TensorCopy
from nkijax.isa.operators import ACTIVATIONS, ALU, ReduceCmd
from nkijax.isa.reduce import TensorReduce
from nkijax.isa.register import RegisterLoad
from nkijax.isa.scan import TensorTensorScan
from nkijax.isa.select import AffineSelect, TensorCopyPredicated
from nkijax.isa.transpose import NcTranspose
from nkijax.machine import TRN2, Memory
from nkijax.program import Instruction, Loop, Program
from nkijax.trace import Recorder
from nkijax.view import Buffer, View
from tests.isa import harness

ROWS, COLUMNS, P, F = 16, 6, 2, 3
STATEMENTS = "load load store store binary binary scalar copy memset new matmul contraction flush shelf shelf".split()


def _sum(r: Recorder, a: View) -> View:
    """The scalar engine's accumulator for the partitions of a tile."""
    return r.state("scalar accumulator", (128, 1), "float32").slice(0, 0, a.partitions)


def _mask(r: Recorder) -> tuple[View, list]:
    mask = View.whole(r.allocate((P, F), "uint8", Memory.sbuf))
    return mask, [Iota(mask, [[1, F]], 0, 1), TensorScalar(mask, mask, ALU["bitwise_and"], 1)]


def _predicated(r, dst, a, b, column):
    mask, made = _mask(r)
    return [*made, TensorCopyPredicated(dst, a, mask)]


def _transposed(r, dst, a, b, column):
    turned = View.whole(r.allocate((F, P), a.dtype, Memory.psum))
    return [NcTranspose(turned, a), TensorCopy(dst.slice(1, 0, P), turned.slice(0, 0, P))]


COPY = ACTIVATIONS["copy"]

# Each takes (recorder, dst, a, b, column): whole (P, F) tiles, and a (P, 1) tile of its own.
SHELF = [
    lambda r, d, a, b, c: [TensorReduce(d.slice(1, 0, 1), ALU["add"], a, (1,))],
    lambda r, d, a, b, c: [TensorReduce(d.slice(1, 1, 2), ALU["maximum"], a, (1,), negate=True)],
    lambda r, d, a, b, c: [Activate(d, ACTIVATIONS["relu"], a, c, 1.0)],
    lambda r, d, a, b, c: [
        Activate(d, ACTIVATIONS["copy"], a, None, c, ALU["add"], None, ReduceCmd.reduce, _sum(r, a))
    ],
    lambda r, d, a, b, c: [Activate(d, ACTIVATIONS["abs"], a, None, 1.0, None, c, ReduceCmd.reset, _sum(r, a))],
    lambda r, d, a, b, c: [ActivationReduce(d, ACTIVATIONS["square"], a, ALU["add"], c, accumulator=_sum(r, a))],
    lambda r, d, a, b, c: [ScalarTensorTensor(d, a, ALU["multiply"], c, ALU["add"], b)],
    lambda r, d, a, b, c: [TensorTensorScan(d, a, b, c, ALU["maximum"], ALU["add"])],
    lambda r, d, a, b, c: [TensorTensorScan(d, a, b, 0.0, ALU["add"], ALU["minimum"])],
    lambda r, d, a, b, c: [AffineSelect(d, [[1, F]], -1, a, 2.0, ALU["greater"])],
    lambda r, d, a, b, c: [Iota(d, [[2, F]], 1, 3)],
    lambda r, d, a, b, c: [NcStreamShuffle(d, a, [1, 255] * 16)],
    lambda r, d, a, b, c: [NcStreamShuffle(d, a, [1, 0] * 16)],
    lambda r, d, a, b, c: [TensorScalar(d, a, ALU["equal"], c)],
    _predicated,
    _transposed,
]


class Maker:
    """Writes one random program."""

    def __init__(self, random: Random, dynamic: bool = True, dtype: str = "float32"):
        self.random, self.dynamic, self.dtype = random, dynamic, dtype
        self.recorder = Recorder("random", TRN2)

    def make(self) -> Program:
        r = self.recorder
        self.x = r.argument((ROWS, COLUMNS), "float32", "x", False)
        self.y = r.argument((ROWS, COLUMNS), "float32", "y", False)
        self.n = r.argument((4, 1), "int32", "n", False)
        with warnings.catch_warnings(action="ignore"):  # of matmuls that add to what none has written
            return r.record(self._kernel)

    def _kernel(self):
        r, random = self.recorder, self.random
        self.out = View.whole(r.allocate((ROWS, COLUMNS), "float32", Memory.shared_hbm))
        self.psums = [View.whole(r.allocate((F, F), "float32", Memory.psum)) for _ in range(2)]
        self.tiles = [self._tile() for _ in range(random.randint(1, 4))]
        for t in self.tiles:
            r.emit(Memset(t, float(random.randint(-2, 2))))
        for _ in range(random.randint(1, 3)):
            self._loop([], 0)
        return [self.out, self.y]

    def _tile(self) -> View:
        return View.whole(self.recorder.allocate((P, F), self.dtype, Memory.sbuf))

    # ---- structure

    def _loop(self, indices: list[int], depth: int) -> None:
        random = self.random
        count = random.choice([1, 2, 3, 4, 5])
        script = [self._statement(depth) for _ in range(random.randint(1, 4))]
        nested = depth < 2 and random.random() < 0.5
        inner = (random.choice([1, 2, 3]), [self._statement(depth) for _ in range(random.randint(1, 3))])
        peeled = random.random() < 0.2
        for i in range(count):
            self.fresh = None
            if peeled and i == 0:
                self.recorder.emit(Memset(self.tiles[0], 1.0))
            for s in script:
                s([*indices, i])
            if nested:
                for j in range(inner[0]):
                    for s in inner[1]:
                        s([*indices, i, j])
        if self.dynamic and depth == 0 and random.random() < 0.4:
            self._dynamic_loop()

    def _dynamic_loop(self) -> None:
        r, random = self.recorder, self.random
        upper: View | int = random.choice([0, 1, 3])
        if random.random() < 0.5:
            upper = r.register()
            r.emit(RegisterLoad(upper, self.n.slice(0, random.randint(0, 2), 3).slice(0, 0, 1)))
        script = [self._statement(0) for _ in range(random.randint(1, 3))]
        repeat = random.choice([1, 2, 3])
        moving = random.random() < 0.7
        psums = list(self.psums)  # those allocated in the body are dead after it
        for i in r.turns("loop", 0, upper, 1):
            self.fresh = None
            for k in range(repeat):
                for s in script:
                    s([k])
            if moving:
                t = self._tile()
                row = self.x.slice(1, 0, F).reshape_dim(0, (ROWS // P, P)).select(0, i)
                r.emit(DmaCopy(t, row))
                r.emit(TensorTensor(self.tiles[0], self.tiles[0], t, ALU["add"]))
                r.emit(DmaCopy(self.out.slice(1, F, 2 * F).reshape_dim(0, (ROWS // P, P)).select(0, i), t))
        self.fresh, self.psums = None, psums

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

    def _statement(self, depth: int):
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

        return binary

    def _scalar(self):
        operand, varies = self._operand(), self.random.random() < 0.5

        def scalar(idx):
            t = operand(idx)
            self.recorder.emit(TensorScalar(t, t, ALU["add"], float(idx[-1] if varies else 1)))

        return scalar

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
            psum = self.psums[pick(idx, 2)].slice(0, 0, P).slice(1, 0, t.shape[1])
            if not self.recorder.untouched(psum.buffer):
                self.recorder.emit(TensorCopy(t, psum))

        return flush

    def _shelf(self):
        """One of many instructions of the shelf on whole tiles, in small integers, which every order of sums keeps."""
        make, varies = self.random.choice(SHELF), self.random.random() < 0.5
        picks = [self._pick() for _ in range(3)]

        def shelf(idx):
            r = self.recorder
            dst, a, b = (self.tiles[pick(idx, len(self.tiles))] for pick in picks)
            column = View.whole(r.allocate((P, 1), "float32", Memory.sbuf))
            r.emit(Memset(column, float(idx[-1] % 3 if varies else 1)))
            for instruction in make(r, dst, a, b, column):
                r.emit(instruction)
            r.emit(TensorScalar(dst, dst, ALU["minimum"], 16.0, False, ALU["maximum"], -16.0))

        return shelf

    def _new(self):
        return lambda idx: setattr(self, "fresh", None)


def arguments(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-8, 8, (ROWS, COLUMNS)).astype(np.float32) for _ in range(2))
    return x, y, np.array([[2], [0], [3], [1]], np.int32)


def interpret(program: Program, inputs) -> list[np.ndarray]:
    """The program's outputs, by executing the flat program on NumPy memory."""
    memory: dict[Buffer, np.ndarray] = {}
    for b in program.buffers:
        zero = b.index in program.zeros
        memory[b] = np.full(b.shape, 0 if zero else dtypes.poison(b.dtype)).astype(dtypes.storage(b.dtype))
    for b, x in zip(program.arguments, inputs, strict=True):
        memory[b] = np.array(x)
    _interpret(program.body, memory)
    return [harness.load(v, memory).reshape(v.shape) for v in program.outputs]


def _interpret(nodes, memory) -> None:
    for node in nodes:
        if isinstance(node, Instruction):
            harness.execute(node, memory)
        else:
            assert isinstance(node, Loop) and node.condition is None
            bounds = [int(harness.load(b, memory)) if isinstance(b, View) else b for b in (node.lower, node.upper)]
            for i in range(*bounds, node.step):
                memory[node.register.buffer][...] = i
                _interpret(node.body, memory)
