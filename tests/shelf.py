"""Statements of random programs: one for each chapter of the shelf, on small integers, which every order of sums keeps.

Each takes a `Bench`, a tile to write and two to read, all (P, F) of one dtype, and draws its variant from the bench, in
every turn of a loop the same.  What may be no integer, or NaN, goes through a tile of int32, where a rounding error is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from nkijax.isa import operators
from nkijax.isa.accumulating import Exponential, TensorScalarCumulative, TensorScalarReduce
from nkijax.isa.activate2 import Activate2
from nkijax.isa.activation import Activate, ActivationReduce
from nkijax.isa.dma_compute import DmaCompute
from nkijax.isa.elementwise import Reciprocal, ScalarTensorTensor, TensorScalar, TensorTensor
from nkijax.isa.gather import LocalGather, NcNGather, NcStreamShuffle
from nkijax.isa.index import Iota
from nkijax.isa.mathematics import FUNCTIONS, Elementwise
from nkijax.isa.move import DmaCopy, Memset, OobMode, TensorCopy
from nkijax.isa.mx import QuantizeMx, matmul_mx_instructions
from nkijax.isa.random import STATE_WORDS, Dropout, Rand2, RandGetState, RandSetState, Rng, SetRngSeed
from nkijax.isa.reduce import TensorPartitionReduce, TensorReduce
from nkijax.isa.register import RegisterLoad, RegisterMove, RegisterStore
from nkijax.isa.scan import TensorTensorScan
from nkijax.isa.search import Max8, NcFindIndex8, NcMatchReplace8, Topk
from nkijax.isa.segments import NonzeroWithCount, SequenceBounds
from nkijax.isa.select import AffineSelect, TensorCopyPredicated
from nkijax.isa.selecting import RangeSelect, SelectReduce
from nkijax.isa.statistics import BnAggr, BnStats
from nkijax.isa.transpose import DmaTranspose, NcTranspose
from nkijax.machine import Engine, Memory
from nkijax.program import Instruction
from nkijax.trace import Recorder
from nkijax.view import View

P, F = 2, 3
WIDE, COLUMNS = 16, 6  # a tile of one GpSimd core
ALU, ACTIVATIONS, Cmd = operators.ALU, operators.ACTIVATIONS, operators.ReduceCmd
EXACT = ["copy", "abs", "square", "sign", "relu"]
ROUNDED = sorted({*ACTIVATIONS} - {*EXACT, "prelu", "log", "sqrt", "rsqrt", "reciprocal"})
COMPARE = ["equal", "greater", "less_equal"]
SUMS = ["add", "maximum", "minimum"]


class Bench:
    """Where a statement works: the recorder, its draws, and how often the innermost loop has turned."""

    def __init__(self, recorder: Recorder, x: View, seed: int, turn: int):
        self.recorder, self.x, self.turn = recorder, x, turn
        self.random = Random(seed)

    def one(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    def op(self, *names: str) -> Any:
        return ALU[self.one(names)]

    def emit(self, *instructions: Instruction) -> None:
        for i in instructions:
            self.recorder.emit(i)

    def tile(self, *shape: int, dtype: str = "float32", memory: Memory = Memory.sbuf) -> View:
        return View.whole(self.recorder.allocate(shape, dtype, memory))

    def filled(self, value: float, *shape: int, dtype: str = "float32") -> View:
        """A tile of one number."""
        tile = self.tile(*shape, dtype=dtype)
        self.emit(Memset(tile, value))
        return tile

    def column(self) -> View:
        """A (P, 1) tile of 0, 1 or 2, which may vary with the turns."""
        return self.filled(float(self.turn % 3 if self.one([True, False]) else 1), P, 1)

    def number(self) -> Any:
        """A small integer, or a column of them."""
        return self.one([lambda: 2.0, lambda: -1.0, lambda: float(self.turn % 3), self.column])()

    def as_float(self, a: View, *shape: int, dtype: str = "float32") -> View:
        """A copy of a tile in a dtype, each partition repeated to fill `shape`."""
        tile = self.tile(*shape, dtype=dtype) if shape else self.tile(*a.shape, dtype=dtype)
        free = a.free
        for k in range(0, tile.free, free):
            n = min(free, tile.free - k)
            self.emit(TensorCopy(tile.slice(1, k, k + n), a.slice(1, 0, n)))
        return tile

    def bits(self, a: View, mask: int, dtype: str) -> View:
        """The low bits of a tile of integers, in an unsigned dtype."""
        whole = self.tile(*a.shape, dtype="int32")
        self.emit(TensorCopy(whole, a), TensorScalar(whole, whole, ALU["bitwise_and"], mask))
        if dtype == "int32":
            return whole
        out = self.tile(*a.shape, dtype=dtype)
        self.emit(TensorCopy(out, whole))
        return out

    def settle(self, dst: View, value: View) -> None:
        """Round, bound, and write; NaN counts as 0."""
        whole = value
        if value.dtype != "int32":
            whole = self.tile(*value.shape, dtype="int32")
            self.emit(TensorCopy(whole, value))
        self.emit(TensorScalar(dst, whole, ALU["minimum"], 16.0, False, ALU["maximum"], -16.0))

    def bound(self, dst: View) -> None:
        self.emit(TensorScalar(dst, dst, ALU["minimum"], 16.0, False, ALU["maximum"], -16.0))

    def lanes(self, engine: str, a: View) -> View:
        """The accumulator of an engine for the partitions of a tile."""
        return self.recorder.state(f"{engine} accumulator", (128, 1), "float32").slice(0, 0, a.partitions)

    def wide(self, a: View, dtype: str = "float32") -> View:
        """A tile of a whole GpSimd core: rows of an argument, and `a` among them."""
        tile = self.tile(WIDE, COLUMNS, dtype=dtype)
        self.emit(DmaCopy(tile, self.x), DmaCopy(tile.slice(0, 2, 2 + P).slice(1, 1, 1 + F), a))
        return tile

    def spill(self, dst: View, value: View) -> None:
        """Some (P, F) window of a larger tile into `dst`."""
        row, column = (self.random.randrange(0, n - k + 1) for n, k in zip(value.shape, (P, F), strict=True))
        part = self.tile(P, F, dtype=value.dtype)
        self.emit(DmaCopy(part, value.slice(0, row, row + P).slice(1, column, column + F)))
        self.settle(dst, part)

    def register(self, value: int | View) -> View:
        """A register that holds a number, or element (0, 0) of a tile of integers."""
        r = self.recorder.register()
        if isinstance(value, View):
            self.emit(RegisterLoad(r, value.slice(0, 0, 1).slice(1, 0, 1)))
        else:
            self.emit(RegisterMove(r, value))
        return r


# ---- elementwise


def binary(b: Bench, d: View, x: View, y: View) -> None:
    names = ["add", "subtract", "multiply", "maximum", "greater", "logical_xor", "not_equal", "abs_max"]
    b.emit(TensorTensor(d, x, y, b.op(*names), b.one([Engine.unknown, Engine.vector])))
    b.bound(d)


def scalars(b: Bench, d: View, x: View, y: View) -> None:
    second = b.one([None, "minimum", "less", "logical_or", "add"])
    extra = (ALU[second], b.number(), b.one([False, True])) if second else ()
    b.emit(
        TensorScalar(d, x, b.op("subtract", "multiply", "equal", "maximum"), b.number(), b.one([False, True]), *extra)
    )
    b.bound(d)


def scalar_tensor(b: Bench, d: View, x: View, y: View) -> None:
    ops = b.op("add", "multiply", "minimum"), b.op("subtract", "add", "maximum", "less_equal")
    b.emit(ScalarTensorTensor(d, x, ops[0], b.number(), ops[1], y, b.one([False, True]), b.one([False, True])))
    b.bound(d)


def bitwise(b: Bench, d: View, x: View, y: View) -> None:
    dtype = b.one(["int32", "uint8", "uint16"])
    p, q = b.bits(x, 7, dtype), b.bits(y, 3, dtype)
    b.emit(TensorTensor(p, p, q, b.op("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")))
    b.emit(TensorScalar(p, p, b.op("bitwise_xor", "invert"), 0, False, ALU["bitwise_and"], 15))
    b.settle(d, p)


def reciprocals(b: Bench, d: View, x: View, y: View) -> None:
    whole = b.tile(P, F, dtype="int32")
    b.emit(TensorScalar(d, x, ALU["multiply"], 0.125), Reciprocal(whole, d))
    b.settle(d, whole)


def mathematics(b: Bench, d: View, x: View, y: View) -> None:
    function, whole = FUNCTIONS[b.one(sorted(FUNCTIONS))], b.tile(P, F, dtype="int32")
    b.emit(Elementwise(whole, x, None if function.arity == 1 else b.one([y, b.number()]), function))
    b.settle(d, whole)


# ---- reductions


def reduction(b: Bench, d: View, x: View, y: View) -> None:
    k = b.one([0, 1, 2])
    if b.one([True, False]):
        b.emit(TensorReduce(d.slice(1, k, k + 1), b.op(*SUMS), x, (1,), b.one([False, True])))
    else:
        both = b.tile(P, F, 2)
        b.emit(TensorCopy(both.select(2, 0), x), TensorCopy(both.select(2, 1), y))
        b.emit(TensorReduce(d, b.op(*SUMS), both, (2,)))
    b.bound(d)


def bit_reduction(b: Bench, d: View, x: View, y: View) -> None:
    p, out = b.bits(x, 15, "int32"), b.tile(P, 1, dtype="int32")
    b.emit(TensorReduce(out, b.op("bitwise_or", "bitwise_and", "bitwise_xor"), p, 1))
    b.settle(d.slice(1, 0, 1), out)


def partition_reduction(b: Bench, d: View, x: View, y: View) -> None:
    out = b.tile(1, F, dtype="int32")
    b.emit(TensorPartitionReduce(out, b.op("add", "average", "maximum"), x))
    b.settle(d.slice(0, 0, 1), out)


def statistics(b: Bench, d: View, x: View, y: View) -> None:
    """Of four elements, so that every mean is exact."""
    data, stats, out = b.tile(P, 4), b.tile(P, 6), b.tile(P, 2, dtype="int32")
    b.emit(TensorCopy(data.slice(1, 0, 2), x.slice(1, 0, 2)), TensorCopy(data.slice(1, 2, 4), y.slice(1, 1, 3)))
    b.emit(BnStats(stats, data), BnAggr(out, stats))
    b.settle(d.slice(1, 0, 2), out)


# ---- activations and accumulators


def _result(b: Bench, command: Any) -> View | None:
    return b.tile(P, 1) if command is not None and b.one([True, False]) else None


def activate(b: Bench, d: View, x: View, y: View) -> None:
    op, command = ACTIVATIONS[b.one(EXACT)], b.one([None, Cmd.idle, Cmd.reset, Cmd.reduce, Cmd.reset_reduce])
    rest = ()
    result = _result(b, command)
    if command is not None:
        rest = (
            ALU["add"] if command in (Cmd.reduce, Cmd.reset_reduce) else None,
            result,
            command,
            b.lanes("scalar", x),
        )
    b.emit(Activate(d, op, x, b.one([None, b.column()]), b.number(), *rest))
    b.bound(d)
    if result is not None:
        b.settle(d.slice(1, 1, 2), result)


def rounded(b: Bench, d: View, x: View, y: View) -> None:
    """Functions that every library rounds in its own way."""
    whole = b.tile(P, F, dtype="int32")
    b.emit(Activate(whole, ACTIVATIONS[b.one(ROUNDED)], x, None, 0.21875))
    b.settle(d, whole)


def positive(b: Bench, d: View, x: View, y: View) -> None:
    whole = b.tile(P, F, dtype="int32")
    op = ACTIVATIONS[b.one(["log", "sqrt", "rsqrt", "reciprocal"])]
    b.emit(Activate(d, ACTIVATIONS["square"], x), Activate(whole, op, d, 1.0))
    b.settle(d, whole)


def activate_and_sum(b: Bench, d: View, x: View, y: View) -> None:
    result = b.tile(P, 1)
    b.emit(ActivationReduce(d, ACTIVATIONS[b.one(EXACT)], x, ALU["add"], result, b.column(), 1.0, b.lanes("scalar", x)))
    b.bound(d)
    b.settle(d.slice(1, 2, 3), result)


def activate_twice(b: Bench, d: View, x: View, y: View) -> None:
    op = ACTIVATIONS[b.one([*EXACT, "prelu"])]
    op0, op1 = b.one([("multiply", "add"), ("multiply", "subtract"), ("add", "bypass"), ("bypass", "bypass")])
    reverse = op0 != "bypass" and b.one([True, False]), op1 != "bypass" and b.one([True, False])
    command = b.one([Cmd.idle, Cmd.reset, Cmd.reduce, Cmd.reset_reduce])
    result = _result(b, command)
    reduce_op = ALU[b.one([*SUMS, "abs_max", "abs_min"])]
    rest = (*reverse, reduce_op, result, command, b.lanes("scalar", x))
    b.emit(Activate2(d, op, x, b.one([2.0, -1.0]), float(b.turn % 3), ALU[op0], ALU[op1], 2.0, *rest))
    b.bound(d)
    if result is not None:
        b.settle(d.slice(1, 0, 1), result)


def scalar_reduction(b: Bench, d: View, x: View, y: View) -> None:
    command, result = b.one([Cmd.reset_reduce, Cmd.reduce, Cmd.load_reduce]), b.tile(P, 1)
    init = b.number() if command is Cmd.load_reduce else None
    rest = (ALU[b.one(SUMS)], result, False, command, init, b.one([False, True]), b.lanes("vector", x))
    b.emit(TensorScalarReduce(d, x, b.op("add", "multiply"), b.number(), *rest))
    b.bound(d)
    b.settle(d.slice(1, 0, 1), result)


def cumulative(b: Bench, d: View, x: View, y: View) -> None:
    command = b.one([Cmd.reset_reduce, Cmd.reduce, Cmd.load_reduce])
    imm1 = b.number() if command is Cmd.load_reduce else None
    op1 = b.op("add", "subtract", "maximum", "minimum")
    b.emit(TensorScalarCumulative(d, x, b.op("add", "multiply"), op1, b.number(), imm1, command, b.lanes("vector", x)))
    b.bound(d)


def exponential(b: Bench, d: View, x: View, y: View) -> None:
    """With an accumulator of its own: its sums are no integers."""
    whole, part, result = b.tile(P, F, dtype="int32"), b.tile(P, F), b.tile(P, 1)
    command = b.one([Cmd.idle, Cmd.reduce, Cmd.reset_reduce, Cmd.load_reduce])
    lanes = b.recorder.state("sums of exponentials", (128, 1), "float32").slice(0, 0, P)
    init = b.number() if command is Cmd.load_reduce else 0.0
    b.emit(TensorScalar(part, x, ALU["multiply"], 0.21875))
    b.emit(Exponential(whole, part, b.one([0.5, b.column()]), result, command, init, lanes))
    b.settle(d, whole)
    b.settle(d.slice(1, 1, 2), result)


def select_reduction(b: Bench, d: View, x: View, y: View) -> None:
    command = b.one([Cmd.idle, Cmd.reduce, Cmd.reset_reduce])
    result = _result(b, command)
    rest = (result, command, ALU["maximum"], b.one([False, True]), b.lanes("vector", x))
    b.emit(SelectReduce(d, b.bits(y, 1, "uint8"), x, b.number(), *rest))
    if result is not None:
        b.settle(d.slice(1, 2, 3), result)


def range_selection(b: Bench, d: View, x: View, y: View) -> None:
    out, result, command = b.tile(P, F), b.tile(P, 1), b.one([Cmd.reduce, Cmd.reset_reduce, Cmd.reset, Cmd.idle])
    bounds = b.column(), b.filled(float(b.one([2, 3])), P, 1)
    ops = ALU[b.one(["greater_equal", "equal", "less"])], ALU[b.one(["less", "greater"])]
    b.emit(
        RangeSelect(out, x, *ops, *bounds, command, result, range_start=b.turn % 2, accumulator=b.lanes("vector", x))
    )
    b.settle(d, out)
    b.settle(d.slice(1, 0, 1), result)


# ---- scans, selections, searches


def scan(b: Bench, d: View, x: View, y: View) -> None:
    ops = b.op("add", "maximum", "subtract", "minimum"), b.op("add", "minimum", "maximum", "subtract")
    b.emit(TensorTensorScan(d, x, y, b.number(), *ops, b.one([False, True]), b.one([False, True])))
    b.bound(d)


def affine_selection(b: Bench, d: View, x: View, y: View) -> None:
    offset = b.one([0, -1, b.turn, b.register(b.turn % 3)])
    b.emit(AffineSelect(d, [[b.one([1, -1]), F]], b.one([1, -2]), x, float(b.turn % 3), ALU[b.one(COMPARE)], offset))


def iota(b: Bench, d: View, x: View, y: View) -> None:
    pattern = b.one([[[2, F]], [[-1, F]], [[1, 1], [3, F]]])
    b.emit(Iota(d, pattern, b.one([1, b.turn, b.register(b.turn % 3)]), b.one([0, 3])))


def predicated(b: Bench, d: View, x: View, y: View) -> None:
    b.emit(
        TensorCopyPredicated(
            d, b.one([2.0, x]), b.bits(y, 1, b.one(["uint8", "uint16", "uint32"])), b.one([False, True])
        )
    )


def largest(b: Bench, d: View, x: View, y: View) -> None:
    """max8, then where its values are, or the data without them."""
    data = b.tile(P, 2 * COLUMNS)
    for k, a in enumerate((x, y, x, y)):
        b.emit(TensorScalar(data.slice(1, k * F, k * F + F), a, ALU["add"], float(k)))
    vals, out = b.tile(P, 8), b.tile(P, 8, dtype=b.one(["uint16", "uint32"]))
    b.emit(Max8(vals, data))
    if b.one([True, False]):
        b.emit(NcFindIndex8(out, data, vals))
        b.spill(d, out)
    else:
        b.emit(NcMatchReplace8(data, data, vals, float(b.turn % 3), b.one([None, out])))
        b.spill(d, data)


def topk(b: Bench, d: View, x: View, y: View) -> None:
    src, k = b.wide(x, "bfloat16"), b.one([5, 20])
    values, places = b.filled(1.0, WIDE, k, dtype="bfloat16"), b.filled(2, WIDE, k, dtype="uint32")
    b.emit(Topk(values, places, src, b.one([96, 50])))
    b.spill(d, b.one([values, places]))


def segments(b: Bench, d: View, x: View, y: View) -> None:
    ids, out = b.tile(1, F, dtype=b.one(["int32", "float32"])), b.tile(1, 2, F, dtype="float32")
    b.emit(TensorScalar(ids, x.slice(0, 0, 1), ALU["minimum"], 1.0, False, ALU["maximum"], 0.0))
    b.emit(SequenceBounds(out, ids))
    b.settle(d.slice(0, 0, 1), out.select(1, b.one([0, 1])))


def nonzero(b: Bench, d: View, x: View, y: View) -> None:
    src, out = b.as_float(x), b.filled(3, P, F + 1, dtype="int32")
    b.emit(NonzeroWithCount(out, src, b.turn, b.one([-1, 7])))
    b.settle(d, out.slice(1, 1, F + 1))


# ---- moving


def shuffle(b: Bench, d: View, x: View, y: View) -> None:
    b.emit(NcStreamShuffle(d, x, b.one([[1, 255], [1, 0], [0, 0]]) * 16))


def gathers(b: Bench, d: View, x: View, y: View) -> None:
    if b.one([True, False]):
        out = b.tile(P, F)
        b.emit(NcNGather(out, b.as_float(x), b.bits(y, 1, "uint32")))
        b.settle(d, out)
        return
    out = b.tile(WIDE, 2 * WIDE)
    b.emit(LocalGather(out, b.wide(x), b.bits(b.wide(y, "int32").slice(1, 0, 2), 3, "uint16")))
    b.spill(d, out)


def transposed(b: Bench, d: View, x: View, y: View) -> None:
    kind = b.one(["tensor", "vector", "dma"])
    turned = b.tile(F, P, dtype=x.dtype, memory=Memory.psum if kind == "tensor" else Memory.sbuf)
    b.emit(DmaTranspose(turned, x) if kind == "dma" else NcTranspose(turned, x))
    b.emit(TensorCopy(d.slice(1, 0, P), turned.slice(0, 0, P)))


def rows(b: Bench, d: View, x: View, y: View) -> None:
    """Rows of an argument by a run-time index of each partition, some outside and left out."""
    at, out = b.tile(WIDE, 1, dtype="int32"), b.filled(1.0, WIDE, COLUMNS)
    skip = b.one([True, False])
    b.emit(Iota(at, [[0, 1]], b.turn, b.one([1, -3, 5])))
    if not skip:
        b.emit(TensorScalar(at, at, ALU["bitwise_and"], WIDE - 1))
    mode, src = OobMode.skip if skip else OobMode.error, b.x.vector_select(0, at)
    if b.one([True, False]):
        b.emit(DmaCopy(out, src, oob_mode=mode))
    else:
        b.emit(DmaCompute(out, (src, out), ALU["add"], oob_mode=mode))
    b.spill(d, out)


def turned_rows(b: Bench, d: View, x: View, y: View) -> None:
    """A gather that transposes."""
    table, at = b.tile(WIDE, COLUMNS, dtype="bfloat16", memory=Memory.private_hbm), b.tile(WIDE, 1, dtype="uint32")
    out = b.tile(COLUMNS, WIDE, dtype="bfloat16")
    b.emit(DmaCopy(table, b.wide(x)), Iota(at, [[0, 1]], 15, -1), DmaTranspose(out, table.vector_select(0, at)))
    b.spill(d, out)


def scatter(b: Bench, d: View, x: View, y: View) -> None:
    """Rows to places that differ, into a tensor of HBM, and some of it back."""
    at = b.tile(P, 1, dtype="int32")
    table = b.tile(4, F, memory=Memory.private_hbm)
    b.emit(Iota(at, [[0, 1]], b.turn % 3, 1), DmaCopy(table, b.x.slice(0, 0, 4).slice(1, 0, F)))
    into, src = table.vector_select(0, at), b.as_float(x)
    b.emit(b.one([DmaCopy(into, src), DmaCompute(into, (src, into), ALU["add"])]))
    b.spill(d, table)


def sums_on_the_way(b: Bench, d: View, x: View, y: View) -> None:
    b.emit(DmaCompute(d, b.one([(x, y), (x, x, y), (y,)]), ALU["add"]))
    b.bound(d)


def columns(b: Bench, d: View, x: View, y: View) -> None:
    """Columns by a run-time index: of a register, or of each group of partitions."""
    if b.one([True, False]):
        both, at = b.as_float(x, P, 2 * F), b.register(b.bits(y, 1, "int32"))
        b.emit(TensorCopy(both.slice(1, F, 2 * F), y))
        b.emit(TensorCopy(d, both.shifted(1, at, F)))
        return
    src, at = b.wide(x), b.bits(b.wide(y, "int32").slice(1, 0, 1), 3, "uint16")
    out = b.tile(WIDE, COLUMNS)
    b.emit(Memset(out, 1.0), TensorCopy(out, src.indirect(at, COLUMNS)))
    b.spill(d, out)


def registers(b: Bench, d: View, x: View, y: View) -> None:
    word = b.tile(1, 1, dtype=b.one(["int32", "uint8", "int16"]))
    b.emit(RegisterStore(word, b.one([b.turn, b.register(b.bits(x, 7, "int32"))])))
    b.settle(d.slice(0, 0, 1).slice(1, 1, 2), word)


def boxes(b: Bench, d: View, x: View, y: View) -> None:
    """Views other than whole tiles: strided, permuted, broadcast, reshaped, of three dimensions."""
    box = b.filled(float(b.turn), P, F, 2)
    kind = b.one(["strided", "permuted", "broadcast", "pattern"])
    b.emit(TensorCopy(box.select(2, 1), x))
    if kind == "strided":
        b.emit(TensorTensor(box.slice(2, 0, 1), box.slice(2, 1, 2), y, ALU["add"]))
        view = box.reshape((P, 2 * F)).slice(1, 0, 2 * F, 2)
    elif kind == "permuted":
        view = box.permute((0, 2, 1)).reshape_dim(1, (2, 1)).select(1, 1).reshape_dim(2, (F, 1)).select(3, 0)
    elif kind == "broadcast":
        view = box.slice(1, 1, 2).slice(2, 1, 2).select(2, 0).broadcast(1, F)
    else:
        view = box.ap([[2 * F, P], [1, F]], offset=2)
    b.emit(ScalarTensorTensor(d, view, ALU["minimum"], 16.0, ALU["maximum"], y))


# ---- MX and random numbers


def microscaling(b: Bench, d: View, x: View, y: View) -> None:
    rows, dtype = 2 * WIDE, b.one(["float8_e5m2_x4", "float8_e4m3fn_x4"])
    src, packed = b.filled(1.0, rows, 16, dtype="bfloat16"), b.tile(rows, 4, dtype=dtype)
    scale = b.filled(0, rows, 4, dtype="uint8")
    b.emit(DmaCopy(src.slice(0, 0, WIDE).slice(1, 0, COLUMNS), b.wide(x)), QuantizeMx(packed, src, scale))
    out = b.tile(4, 4, memory=Memory.psum)
    for _ in range(b.one([1, 2])):
        b.emit(*matmul_mx_instructions(b.recorder, out, packed, packed, scale, scale))
    b.settle(d, b.bits(out.slice(0, 0, P).slice(1, 0, F), 15, "int32"))


def chance(b: Bench, d: View, x: View, y: View) -> None:
    """Uniform numbers as bits, scaled, and as dropout."""
    state = b.recorder.state("generator", (128, STATE_WORDS[Engine.vector]), "uint32")
    lanes, out = state.slice(0, 0, P), b.tile(P, F, dtype="uint8")
    if b.one([True, False]):
        b.emit(SetRngSeed(b.filled(b.turn, 1, 1, dtype="uint32"), state))
    kind = b.one(["rng", "rand2", "dropout"])
    if kind == "rng":
        b.emit(Rng(out, Engine.vector, lanes), TensorScalar(out, out, ALU["bitwise_and"], 15), TensorCopy(d, out))
    elif kind == "rand2":
        b.emit(Rand2(out, 0.0, b.one([9.0, 5.0]), lanes), TensorCopy(d, out))
    else:
        b.emit(Dropout(d, x, 0.5, lanes))


def generators(b: Bench, d: View, x: View, y: View) -> None:
    words = STATE_WORDS[Engine.gpsimd]
    state = b.recorder.state("slow generator", (128, words), "uint32").slice(0, 0, P)
    seeds, out = b.filled(3, P, words, dtype="uint32"), b.tile(P, F, dtype="int8")
    if b.one([True, False]):
        b.emit(RandSetState(seeds, Engine.gpsimd, state))
    b.emit(RandGetState(seeds, Engine.gpsimd, state), TensorScalar(seeds, seeds, ALU["bitwise_and"], 7))
    b.settle(d, seeds.slice(1, words - F, words))
    b.emit(Rng(out, Engine.gpsimd, state))
    b.settle(d.slice(1, 0, 1), out.slice(1, 0, 1))


SHELF: list[Callable[[Bench, View, View, View], None]] = [
    *(binary, scalars, scalar_tensor, bitwise, reciprocals, mathematics),
    *(reduction, bit_reduction, partition_reduction, statistics),
    *(activate, rounded, positive, activate_and_sum, activate_twice),
    *(scalar_reduction, cumulative, exponential, select_reduction, range_selection),
    *(scan, affine_selection, iota, predicated, largest, topk, segments, nonzero),
    *(shuffle, gathers, transposed, rows, turned_rows, scatter, sums_on_the_way, columns, registers, boxes),
    *(microscaling, chance, generators),
]
