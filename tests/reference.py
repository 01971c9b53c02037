"""The meaning of every instruction of the shelf in NumPy, and of programs on NumPy memory: nothing of nkijax runs here.

Written from the specification, with the definitions that the tests of the shelf have (`tests/isa`).  Addresses come
from the views' numbers alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nkijax import dtypes
from nkijax.isa import (
    accumulating,
    activate2,
    activation,
    dma_compute,
    elementwise,
    gather,
    index,
    mathematics,
    matmul,
    move,
    mx,
    random,
    reduce,
    register,
    scan,
    search,
    segments,
    select,
    selecting,
    statistics,
    transpose,
)
from nkijax.isa.operators import AluOp, ReduceCmd
from nkijax.machine import Memory
from nkijax.program import Instruction, Loop, Node, Program
from nkijax.view import Buffer, View
from tests.isa import harness
from tests.isa.harness import reference_cast
from tests.isa.test_activate2 import FOLDS
from tests.isa.test_gather import gathered, shuffled
from tests.isa.test_index import values as affine
from tests.isa.test_mathematics import ONE, TWO
from tests.isa.test_mx import ELEMENT, pack, quantized, row, values_of
from tests.isa.test_operators import BITS, FUNCTIONS, NUMERIC, POSITIVE, UNARY
from tests.isa.test_search import found, largest, replaced, snake
from tests.isa.test_segments import bounds, listed
from tests.isa.test_statistics import aggregated
from tests.isa.test_statistics import statistics as halves

Cells = dict[Buffer, np.ndarray]
FLOAT32_MIN = np.finfo(np.float32).min


class Tiles:
    """The operands of one instruction, read from memory: `tiles(view)` as (P, F), a register as a scalar."""

    def __init__(self, instruction: Instruction, memory: Cells):
        self.group, self.memory = instruction.index_group, memory

    def __call__(self, operand: Any) -> Any:
        """Elements as they are stored; a number as itself."""
        if not isinstance(operand, View):
            return operand
        values = _flat(operand, self.memory)[self.places(operand)[0]]
        return values.reshape(()) if operand.memory is Memory.register else values

    def f32(self, operand: Any) -> np.ndarray:
        return np.asarray(self(operand)).astype(np.float32)

    def bits(self, operand: Any) -> np.ndarray:
        """Raw bits in a wide integer, zeros above."""
        values = np.asarray(self(operand))
        if not isinstance(operand, View):
            return values.astype(np.int64) & 0xFFFFFFFF
        return values.view(f"u{values.itemsize}").astype(np.int64)

    def places(self, view: View) -> tuple[np.ndarray, np.ndarray]:
        """The address of each element, (P, F), and whether its run-time index is inside (if not, index 0 is taken)."""
        address, d = _addresses(view).reshape(view.shape[0], -1), view.dynamic
        if d is None:
            return address, np.ones(address.shape, bool)
        at = np.atleast_2d(self(d.index)).astype(np.int64)
        if d.columns:
            groups = at.reshape(-1, min(self.group, len(at)), at.shape[1]).transpose(0, 2, 1)
            moved = groups.reshape(len(groups), -1)[:, : view.shape[1]].repeat(len(at) // len(groups), axis=0)
        else:
            moved = at.T.reshape(-1)[: view.shape[0], None] if d.vector else at.reshape(1, 1)
        inside = (moved >= 0) & (moved < d.limit)
        return address + np.where(inside, moved, 0) * d.stride, np.broadcast_to(inside, address.shape)


def _flat(view: View, memory: Cells) -> np.ndarray:
    """The storage of a view's buffer in the view's dtype; it shares memory."""
    return memory[view.buffer].reshape(-1).view(dtypes.storage(view.dtype))


class Kept:
    """A result of which only some elements are written."""

    def __init__(self, value: np.ndarray, mask: np.ndarray):
        self.value, self.mask = value, mask


# ---- operators


def _alu(op: AluOp, a: np.ndarray, b: Any, reverse: bool = False) -> np.ndarray:
    """a <op> b in float32, or in bits."""
    if op.name in UNARY:
        return UNARY[op.name](a).astype(np.float32)
    if op.name == "invert":
        return ~a & 0xFFFFFFFF
    table = NUMERIC if op.name in NUMERIC else BITS
    a, b = (b, a) if reverse else (a, b)
    value = table[op.name](a, b)
    return value if table is BITS else np.asarray(value).astype(np.float32)


def _as_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    kind = dtypes.storage(dtype)
    return x.astype(f"u{kind.itemsize}").view(kind)


def _scalar(i: Any, t: Tiles) -> np.ndarray:
    """data <op0> operand0 <op1> operand1."""
    bits = i.op0.name in BITS or i.op0.name == "invert"
    take = t.bits if bits else t.f32
    x = _alu(i.op0, take(i.data), None if i.operand0 is None else take(i.operand0), i.reverse0)
    if i.op1 is not None:
        x = _alu(i.op1, x, None if i.operand1 is None else take(i.operand1), i.reverse1)
    return _as_bits(x, i.dst.dtype) if bits else x


def _scalar_tensor(i: Any, t: Tiles) -> np.ndarray:
    x = _alu(i.op0, t.f32(i.data), None if i.operand0 is None else t.f32(i.operand0), i.reverse0)
    return _alu(i.op1, x, t.f32(i.operand1), i.reverse1)


def _tensor(i: Any, t: Tiles) -> np.ndarray:
    if i.op.name in BITS:
        return _as_bits(_alu(i.op, t.bits(i.data1), t.bits(i.data2)), i.dst.dtype)
    return _alu(i.op, t.f32(i.data1), t.f32(i.data2))


def _math(i: Any, t: Tiles) -> np.ndarray:
    a = t.f32(i.a)
    value = ONE[i.function.name](a) if i.b is None else TWO[i.function.name](a, t.f32(i.b))
    return np.broadcast_to(value, (i.dst.partitions, i.dst.free))


def _activated(op: Any, x: np.ndarray, parameter: np.ndarray | None = None) -> np.ndarray:
    if op.name == "prelu":
        return np.where(x > 0, x, parameter * x)
    return np.vectorize({**FUNCTIONS, **POSITIVE}[op.name], otypes=[np.float64])(x.astype(np.float64))


# ---- accumulators


def _fold(op: AluOp, x: np.ndarray) -> np.ndarray:
    """(P, F) to (P, 1), element after element."""
    one = FOLDS.get(op.name) or NUMERIC.get(op.name) or BITS[op.name]
    total = x[:, 0]
    for k in range(1, x.shape[1]):
        total = one(total, x[:, k])
    return np.asarray(total).reshape(-1, 1)


IDENTITY = {"add": 0, "subtract": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf, "abs_max": 0}
IDENTITY["abs_min"] = np.inf


def _accumulator(i: Any, t: Tiles, op: AluOp, x: np.ndarray, command: ReduceCmd, loaded: Any = None) -> np.ndarray:
    """The accumulator's column after an instruction that computed `x`, (P, 1)."""
    before, start = t.f32(i.accumulator), np.full((len(x), 1), IDENTITY[op.name])
    if command is ReduceCmd.idle:  # the scalar engine's stays, the vector engine's is undefined
        scalar = isinstance(i, activation.Activate | activate2.Activate2)
        return before if scalar else np.full_like(before, np.nan)
    if command is ReduceCmd.reset:
        return start
    start = {ReduceCmd.reduce: before, ReduceCmd.load_reduce: loaded}.get(command, start)
    return _fold(op, np.concatenate([np.broadcast_to(start, (len(x), 1)), x], axis=1))


def _with_accumulator(i: Any, t: Tiles, op: AluOp, x: np.ndarray, command: ReduceCmd, loaded: Any = None) -> list:
    """dst, then reduce_res and the accumulator as far as there are such."""
    if i.accumulator is None:
        return [x]
    lanes = _accumulator(i, t, op, x, command, loaded)
    sign = -1 if getattr(i, "reduce_res_negate", False) else 1
    return [x, *([sign * lanes] if i.reduce_res is not None else []), lanes]


ADD = AluOp("add", "arithmetic", np.add)  # type: ignore[arg-type]


def _activate(i: Any, t: Tiles) -> list:
    x = t.f32(i.data) * t.f32(i.scale) + (0 if i.bias is None else t.f32(i.bias))
    command = getattr(i, "reduce_cmd", ReduceCmd.reset_reduce)
    return _with_accumulator(i, t, ADD, _activated(i.op, x), command)


def _activate2(i: Any, t: Tiles) -> list:
    x = t.f32(i.data)
    for op, imm, reverse in ((i.op0, i.imm0, i.reverse0), (i.op1, i.imm1, i.reverse1)):
        if op.name != "bypass":
            x = _alu(op, x, t.f32(imm), reverse)
    x = _activated(i.op, x, t.f32(i.relu_param))
    return _with_accumulator(i, t, i.reduce_op or ADD, x, i.reduce_cmd)


def _scalar_reduce(i: Any, t: Tiles) -> list:
    x = _alu(i.op0, t.f32(i.data), None if i.operand0 is None else t.f32(i.operand0))
    loaded = None if i.reduce_init is None else t.f32(i.reduce_init)
    return _with_accumulator(i, t, i.reduce_op, x, i.reduce_cmd, loaded)


def _cumulative(i: Any, t: Tiles) -> list:
    x = _alu(i.op0, t.f32(i.src), None if i.imm0 is None else t.f32(i.imm0))
    start = {ReduceCmd.reduce: lambda: t.f32(i.accumulator), ReduceCmd.load_reduce: lambda: t.f32(i.imm1)}
    r = np.broadcast_to(start.get(i.reduce_cmd, lambda: np.float32(IDENTITY[i.op1.name]))(), (len(x), 1))
    out = []
    for k in range(x.shape[1]):
        r = _alu(i.op1, x[:, k : k + 1], r)
        out.append(r)
    return [np.concatenate(out, axis=1), r]


def _exponential(i: Any, t: Tiles) -> list:
    x = np.exp(t.f32(i.src) - t.f32(i.max_value))
    return _with_accumulator(i, t, ADD, x, i.reduce_cmd, t.f32(i.reduce_init))


def _select(i: Any, t: Tiles) -> list:
    chosen = (t(i.predicate) != 0) != i.reverse_pred
    return _with_accumulator(i, t, i.reduce_op, np.where(chosen, t.f32(i.on_true), t.f32(i.on_false)), i.reduce_cmd)


def _range_select(i: Any, t: Tiles) -> list:
    x = t.f32(i.on_true_tile)
    k = np.float32(i.range_start) + np.arange(x.shape[1], dtype=np.float32)
    inside = _alu(i.comp_op0, k, t.f32(i.bound0)) * _alu(i.comp_op1, k, t.f32(i.bound1))
    return _with_accumulator(i, t, i.reduce_op, np.where(inside != 0, x, FLOAT32_MIN), i.reduce_cmd)


# ---- reductions, scans, statistics


def _reduce(i: Any, t: Tiles) -> np.ndarray:
    x = (t.bits if i.op.name in BITS else t.f32)(i.data)
    kept = x.reshape(len(x), *i.data.shape[1:]).reshape(len(x) * i.dst.free, -1)
    total = _fold(i.op, kept).reshape(len(x), -1)
    return _as_bits(total, i.dst.dtype) if i.op.name in BITS else -total if i.negate else total


def _partition_reduce(i: Any, t: Tiles) -> np.ndarray:
    x = (t.bits if i.op.name in BITS else t.f32)(i.data).T
    if i.op.name == "average":
        return _fold(ADD, x).T / np.float32(x.shape[1])
    return _as_bits(_fold(i.op, x), i.dst.dtype).T if i.op.name in BITS else _fold(i.op, x).T


def _scan(i: Any, t: Tiles) -> np.ndarray:
    a, b, out = t.f32(i.data0), t.f32(i.data1), []
    r = np.broadcast_to(t.f32(i.initial), (len(a), 1))
    for k in range(a.shape[1]):
        r = _alu(i.op1, _alu(i.op0, a[:, k : k + 1], r, i.reverse0), b[:, k : k + 1], i.reverse1)
        out.append(r)
    return np.concatenate(out, axis=1)


# ---- matmuls


def _added(i: Any, t: Tiles, product: np.ndarray) -> list:
    if i.addend is not None and i.accumulate:
        total = t.f32(i.addend) + product
        product = total if i.written is None else np.where(t(i.written), total, product)
    return [product] if i.written is None else [product, np.ones(product.shape, bool)]


def _matmul(i: Any, t: Tiles) -> list:
    return _added(i, t, t.f32(i.stationary).T @ t.f32(i.moving))


def _scaled(t: Tiles, data: View, scale: View) -> np.ndarray:
    """(P, F, 4) of what a tile of x4 data and its scales stand for."""
    raw = t(data)
    elements = raw.view(np.uint8).view(ELEMENT[data.dtype]).reshape(*raw.shape, 4)
    return values_of(elements, t(scale)[[row(p) for p in range(len(raw))], : raw.shape[1]])


def _matmul_mx(i: Any, t: Tiles) -> list:
    sides = _scaled(t, i.stationary, i.stationary_scale), _scaled(t, i.moving, i.moving_scale)
    return _added(i, t, np.einsum("kmq,knq->mn", *sides).astype(np.float32))


def _quantize(i: Any, t: Tiles) -> list:
    elements, scales = quantized(t(i.src).astype(np.float64), i.dst.dtype)
    return [pack(elements, i.dst.dtype), scales[::8]]


# ---- choosing, searching


def _affine_select(i: Any, t: Tiles) -> np.ndarray:
    at = affine(i.dst.partitions, i.pattern, int(t(i.offset)), i.channel_multiplier).reshape(i.dst.partitions, -1)
    tile, value = t(i.on_true_tile), np.float32(i.on_false_value)
    same = i.on_true_tile.dtype == i.dst.dtype
    return np.where(_alu(i.cmp_op, at, 0) != 0, tile, reference_cast(value, i.dst.dtype) if same else value)


def _predicated(i: Any, t: Tiles) -> Kept:
    chosen = (t(i.predicate) != 0) != i.reverse_pred
    return Kept(np.broadcast_to(t(i.src), chosen.shape), chosen)


def _n_gather(i: Any, t: Tiles) -> np.ndarray:
    return np.take_along_axis(t(i.data), t(i.indices).astype(np.int64), 1)


def _local_gather(i: Any, t: Tiles) -> np.ndarray:
    count = i.num_valid_indices
    return gathered(t(i.src_buffer), t(i.index), i.num_elem_per_idx, None if count is None else int(count))


def _missing(view: View) -> int:
    return np.iinfo(dtypes.storage(view.dtype)).max


def _match_replace(i: Any, t: Tiles) -> list:
    missing = 0 if i.dst_idx is None else _missing(i.dst_idx)
    out, slots = replaced(t(i.data), t(i.vals), i.imm, missing)
    return [out] if i.dst_idx is None else [out, slots]


def _topk(i: Any, t: Tiles) -> list:
    """Of equal elements the one with the lower index comes later."""
    x, k = t.f32(i.src), i.val_dst.free
    values, places, mask = (np.zeros((len(x), k)) for _ in range(3))
    for group in range(0, len(x), 16):
        elements = snake(x[group : group + 16], i.n)
        order = np.argsort(-elements, kind="stable")[:k][::-1]
        for j, e in enumerate(order):
            at = group + j % 16, j // 16
            values[at], places[at], mask[at] = elements[e], e, 1
    return [Kept(values, mask != 0), Kept(places, mask != 0)]


def _nonzero(i: Any, t: Tiles) -> Kept:
    rows = np.array([listed(r, i.index_offset, i.padding_val) for r in t(i.src)])
    return Kept(rows, np.broadcast_to(np.arange(len(rows))[:, None] % 16 == 0, rows.shape))


# ---- moving


def _copied(i: Any, t: Tiles) -> Any:
    """Elements of a run-time indexed source that are outside leave the destination alone."""
    return Kept(t(i.src), t.places(i.src)[1])


def _dma_transpose(i: Any, t: Tiles) -> Any:
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[i.src.ndim]
    value, inside = (x.reshape(i.src.shape).transpose(axes) for x in (t(i.src), t.places(i.src)[1]))
    return Kept(value, inside)


def _dma_compute(i: Any, t: Tiles) -> Any:
    inside = np.ones(i.dst.size, bool)
    for src in i.srcs:
        inside = inside & t.places(src)[1].reshape(-1)
    return Kept(np.sum([t.f32(src).reshape(-1) for src in i.srcs], axis=0), inside)


def _word(i: Any, t: Tiles) -> np.ndarray:
    """32 bits on their way into or out of a register: floats and uint32 keep them all, others their value."""
    value = np.asarray(t(i.src)).reshape(-1)
    if value.dtype == np.float32 or value.dtype == np.uint32:
        return value.view(np.int32)
    kind = dtypes.storage(i.dst.dtype)
    value = value.astype(np.int64).astype(np.int32)
    return value.view(kind) if kind.itemsize == 4 else value.astype(kind)


REFERENCES: dict[type[Instruction], Callable[[Any, Tiles], Any]] = {
    accumulating.Exponential: _exponential,
    accumulating.TensorScalarCumulative: _cumulative,
    accumulating.TensorScalarReduce: _scalar_reduce,
    activate2.Activate2: _activate2,
    activation.Activate: _activate,
    activation.ActivationReduce: _activate,
    dma_compute.DmaCompute: _dma_compute,
    elementwise.Reciprocal: lambda i, t: 1 / t.f32(i.data),
    elementwise.ScalarTensorTensor: _scalar_tensor,
    elementwise.TensorScalar: _scalar,
    elementwise.TensorTensor: _tensor,
    gather.LocalGather: _local_gather,
    gather.NcNGather: _n_gather,
    gather.NcStreamShuffle: lambda i, t: shuffled(t(i.dst), t(i.src), i.shuffle_mask),
    index.Iota: lambda i, t: affine(i.dst.partitions, i.pattern, int(t(i.offset)), i.channel_multiplier),
    mathematics.Elementwise: _math,
    matmul.NcMatmul: _matmul,
    move.DmaCopy: _copied,
    move.Memset: lambda i, t: np.full(i.dst.shape, i.value),
    move.TensorCopy: lambda i, t: t(i.src),
    mx.NcMatmulMx: _matmul_mx,
    mx.QuantizeMx: _quantize,
    reduce.TensorPartitionReduce: _partition_reduce,
    reduce.TensorReduce: _reduce,
    register.RegisterLoad: _word,
    register.RegisterMove: lambda i, t: np.asarray(t(i.src)),
    register.RegisterStore: _word,
    scan.TensorTensorScan: _scan,
    search.Max8: lambda i, t: largest(t(i.src)),
    search.NcFindIndex8: lambda i, t: found(t(i.data), t(i.vals), _missing(i.dst)),
    search.NcMatchReplace8: _match_replace,
    search.Topk: _topk,
    segments.NonzeroWithCount: _nonzero,
    segments.SequenceBounds: lambda i, t: bounds(t(i.segment_ids)[0]),
    select.AffineSelect: _affine_select,
    select.TensorCopyPredicated: _predicated,
    selecting.RangeSelect: _range_select,
    selecting.SelectReduce: _select,
    statistics.BnAggr: lambda i, t: aggregated(t.f32(i.data)),
    statistics.BnStats: lambda i, t: halves(t.f32(i.data)),
    transpose.DmaTranspose: _dma_transpose,
    transpose.NcTranspose: lambda i, t: t(i.data).T,
}
"""An instruction and its operands to the results, one for each written view, not yet cast."""

OWN = {random.Rng, random.Rand2, random.Dropout, random.SetRngSeed, random.RandSetState, random.RandGetState}
"""Instructions whose `run` stands for a reference: the stream of random numbers is nkijax's own."""


def execute(i: Instruction, memory: Cells) -> None:
    """Run one instruction on `memory`."""
    if type(i) in OWN:
        harness.execute(i, memory)
        return
    tiles = Tiles(i, memory)
    with np.errstate(all="ignore"):
        results = REFERENCES[type(i)](i, tiles)
        for view, result in zip(i.writes(), results if isinstance(results, list) else [results], strict=True):
            kept = result if isinstance(result, Kept) else Kept(result, np.bool_(True))
            value, mask = np.asarray(kept.value), np.broadcast_to(kept.mask, np.shape(kept.value))
            assert value.size == view.size, (i, value.shape, view.shape)
            at, inside = (x.reshape(-1) for x in tiles.places(view))
            inside = inside & mask.reshape(-1)
            _flat(view, memory)[at[inside]] = _cast(value, view.dtype).reshape(-1)[inside]


def _cast(value: np.ndarray, dtype: str) -> np.ndarray:
    return value if value.dtype == dtypes.storage(dtype) else reference_cast(value, dtype)


def interpret(program: Program, inputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray], list[int]]:
    """The outputs of a flat program, the final arrays of the arguments that it wrote, and the turns of its loops."""
    machine = _Machine(program, inputs)
    machine.walk(program.body)
    memory = machine.memory
    outputs = [_flat(v, memory)[_addresses(v)].reshape(v.shape) for v in program.outputs]
    return outputs, [memory[program.arguments[k]] for k in program.written], machine.trips


def _addresses(view: View) -> np.ndarray:
    address = np.full((), view.offset, np.int64)
    for stride, n in zip(view.strides, view.shape, strict=True):
        address = address[..., None] + stride * np.arange(n)
    return address


class _Machine:
    """Memory, and how often each dynamic loop has turned."""

    def __init__(self, program: Program, inputs: Sequence[np.ndarray]):
        self.program, self.trips = program, [0] * len(program.loops)
        self.memory: Cells = {b: self.unwritten(b) for b in program.buffers}
        constants = ((program.buffers[k], x) for k, x in program.constants.items())
        for b, x in itertools.chain(zip(program.arguments, inputs, strict=True), constants):
            self.memory[b] = np.array(x).astype(dtypes.storage(b.dtype))

    def unwritten(self, b: Buffer) -> np.ndarray:
        zero = b.index in self.program.zeros
        return np.full(b.shape, 0 if zero else dtypes.poison(b.dtype)).astype(dtypes.storage(b.dtype))

    def walk(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Instruction):
                execute(node, self.memory)
            else:
                assert isinstance(node, Loop)
                self._turns(node)

    def _turns(self, loop: Loop) -> None:
        if loop.condition is None:
            for i in range(self._int(loop.lower), self._int(loop.upper), loop.step):
                self._turn(loop, i)
            return
        i = self._int(loop.lower)
        while i:
            self._turn(loop, i)
            i = self._int(loop.condition)

    def _turn(self, loop: Loop, i: int) -> None:
        """One turn, which has tiles of its own: those that its body allocates."""
        self.memory |= {b: self.unwritten(b) for b in self.memory if b.scope == loop.ident}
        self.memory[loop.register.buffer][...] = i
        self.walk(loop.body)
        self.trips[int(loop.ident)] += 1

    def _int(self, v: Any) -> int:
        return int(self.memory[v.buffer].reshape(-1)[v.offset]) if isinstance(v, View) else v
