"""Programs written by hand from three made-up instructions, for the tests of the engine model."""

from dataclasses import dataclass, field

from nkijax import dtypes
from nkijax.machine import TRN1, Engine, Memory, Target, Transfer, Work
from nkijax.program import In, InOut, Instruction, Loop, Node, Out, Program
from nkijax.view import Buffer, View


class Made(Instruction):
    """An instruction without meaning."""

    def check(self, target):
        pass

    def run(self, read):
        raise AssertionError("the cost model runs nothing")


@dataclass(frozen=True)
class Op(Made):
    """`dst` from `data` on an engine."""

    dst: tuple[Out, ...]
    data: tuple[In, ...]
    engine: Engine
    issue_cycles: float
    latency_cycles: float

    @property
    def queue(self):
        return self.engine

    def cycles(self, target):
        return Work(self.issue_cycles, self.latency_cycles)


@dataclass(frozen=True)
class Accumulate(Made):
    """`dst` += `data` on the tensor engine."""

    dst: InOut
    data: In

    @property
    def queue(self):
        return Engine.tensor

    def cycles(self, target):
        return Work(self.data.free, target.latency_cycles(Engine.tensor))


@dataclass(frozen=True)
class Contract(Made):
    """`dst` = `addend` + `data` on the tensor engine, where `addend` is the old `dst`."""

    contracts = ("data",)
    dst: Out
    data: In
    addend: In

    @property
    def queue(self):
        return Engine.tensor

    def cycles(self, target):
        return Work(self.data.free, target.latency_cycles(Engine.tensor))


@dataclass(frozen=True)
class Copy(Made):
    """`dst` = `src` by DMA, in rows of `row_bytes`."""

    dst: Out
    src: In
    row_bytes: int = 8192

    @property
    def queue(self):
        return Engine.dma

    def cycles(self, target):
        return Transfer(self.src.size * dtypes.size(self.src.dtype), self.row_bytes)


@dataclass
class Hand:
    """Allocates buffers and makes instructions and programs of them."""

    target: Target = TRN1
    buffers: list[Buffer] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)

    def buffer(self, shape, memory=Memory.sbuf, name="", depth=0, dtype="float32") -> View:
        made = Buffer(len(self.buffers), tuple(shape), dtype, memory, name, depth)
        self.buffers.append(made)
        return View.whole(made)

    def hbm(self, *shape) -> View:
        return self.buffer(shape, Memory.shared_hbm)

    def register(self, depth=0) -> View:
        return self.buffer((1,), Memory.register, depth=depth, dtype="int32")

    def work(self, dst, data, engine, free=None) -> Op:
        """An engine pass over the free size of `dst`."""
        issue = max(self.target.min_issue_cycles, dst.free if free is None else free)
        return Op((dst,), tuple(data), engine, issue, self.target.latency_cycles(engine), name=dst.buffer.name or None)

    def register_load(self, dst, src) -> Op:
        return Op((dst,), (src,), Engine.sync, self.target.register_move_cycles, 0)

    def loop(self, body, site="kernel.py:7", register=None, upper=64) -> Loop:
        self.loops.append(site)
        register = self.register() if register is None else register
        return Loop(register, 0, upper, None, len(self.loops) - 1, 1, site, tuple(body))

    def program(self, *body: Node) -> Program:
        return Program("by_hand", self.target, tuple(self.buffers), (), body, loops=tuple(self.loops))


def tile(hand: Hand, x: View, out: View, depth: int = 0, f: int = 2048) -> list[Instruction]:
    """The four instructions of aws-neuron-sdk issue 1411 on one tile: load, exp, multiply-add, store."""
    t, e, y = (hand.buffer((128, f), name=name, depth=depth) for name in ("t", "e", "y"))
    return [
        Copy(t, x, name="load"),
        hand.work(e, [t], Engine.scalar),
        hand.work(y, [e], Engine.vector),
        Copy(out, y, name="store"),
    ]


def unrolled(tiles: int = 64, target: Target = TRN1) -> Program:
    """The kernel of issue 1411 with its loop unrolled."""
    hand = Hand(target)
    x, out = hand.hbm(tiles * 128, 2048), hand.hbm(tiles * 128, 2048)
    rows = [(128 * k, 128 * k + 128) for k in range(tiles)]
    body = [i for a, b in rows for i in tile(hand, x.slice(0, a, b), out.slice(0, a, b))]
    return hand.program(*body)


def dynamic(tiles: int = 1, counter: bool = False, target: Target = TRN1) -> Program:
    """The kernel of issue 1411 as a dynamic loop of `tiles` tiles an iteration.

    With `counter` its address comes from a counter in SBUF, as in a `while` loop.
    """
    hand = Hand(target)
    x, out = (hand.hbm(64 * 128, 2048).reshape((64 // tiles, tiles * 128, 2048)) for _ in range(2))
    register, body = hand.register(), []
    index = register
    if counter:
        count = hand.buffer((1, 1), name="count", dtype="int32")
        index = hand.register(depth=1)
        body += [hand.work(count, [count], Engine.vector, free=1), hand.register_load(index, count)]
    for k in range(tiles):
        rows = (128 * k, 128 * k + 128)
        body += tile(hand, x.select(0, index).slice(0, *rows), out.select(0, index).slice(0, *rows), depth=1)
    if counter:
        left = hand.buffer((1, 1), name="left", dtype="int32")
        body += [hand.work(left, [left], Engine.vector, free=1), hand.register_load(register, left)]
    return hand.program(hand.loop(body, register=register))
