"""Programs: a list of instructions, dynamic loops, and (after rolling) repeats.

An `Instruction` is a frozen record whose annotated fields say what it reads and writes.  From the annotations this
module derives, once for all instructions, what the stages need: its operands, its *numbers* (what may differ
between turns of a repeat: which buffer, which offset, which immediate) and its *token* (everything else).
"""

from __future__ import annotations

import operator
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

import jax
import numpy as np

from nkijax.errors import KernelError
from nkijax.machine import Engine, Generation, Memory, Target, Transfer, Work
from nkijax.view import GROUP, WIDE_GROUP, Buffer, View

In = Annotated[View, "read"]
Out = Annotated[View, "write"]
InOut = Annotated[View, "read", "write"]
Number = Annotated[float, "number"]  # an immediate that may differ between turns of a repeat

Read = Callable[..., jax.Array]
"""`read(operand, dtype=None)`: the operand's elements as an array, cast to a JAX dtype when one is given.

A tile or an HBM tensor arrives flat, (P, F): partitions, and all free dimensions as one.  A register or an immediate
arrives as a scalar.  `read.valid(operand)` says which rows of a run-time indexed operand are inside its tensor.
"""


@dataclass(frozen=True)
class Masked:
    """A result of which only the elements where `mask` holds are written; the others keep their bits."""

    value: jax.Array
    mask: jax.Array


EVERY_CORE = -1


def _roles(hint: Any) -> tuple[str, ...]:
    """The roles named anywhere in an annotation: of `In | Number`, of `tuple[In, ...] | None`, …"""
    own = tuple(m for m in getattr(hint, "__metadata__", ()) if isinstance(m, str))
    return own or tuple(role for arg in typing.get_args(hint) for role in _roles(arg))


@dataclass(frozen=True)
class _Layout:
    """The annotated fields of a record class, in order."""

    operands: tuple[tuple[str, bool, bool, bool], ...]  # (field, read, written, number)
    read: Callable[[Any], tuple]  # of a record: the values of the operands that it reads
    written: Callable[[Any], tuple]
    every: Callable[[Any], tuple]
    static: Callable[[Any], tuple]  # the values of all other fields


def _getter(names: Sequence[str]) -> Callable[[Any], tuple]:
    """The function that takes the values of these fields out of a record."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda record, name=names[0]: (getattr(record, name),)) if names else lambda record: ()


def _views(values: Sequence[Any]) -> list[View]:
    """The views among operands, of which some are tuples of views."""
    out = []
    for value in values:
        out += [value] if type(value) is View else [v for v in value if type(v) is View] if type(value) is tuple else []
    return out


def view_token(v: View) -> tuple:
    """Everything of a view but its numbers: which buffer, which offset."""
    b = v.buffer
    key = (v.strides, v.shape, v.dtype, b.shape, b.dtype, b.memory, b.depth, b.index if b.pinned else -1)
    if v.dynamic is None:
        return key
    d = v.dynamic
    return (*key, d.stride, d.limit, d.vector, d.columns, *view_token(d.index))


class Record:
    """What instructions and loop headers share: operands, numbers and tokens, derived from the annotations."""

    _layout: ClassVar[_Layout]

    @classmethod
    def layout(cls) -> _Layout:
        found = cls.__dict__.get("_layout")
        if found is None:
            hints = typing.get_type_hints(cls, include_extras=True)
            operands, statics = [], []
            for f in fields(typing.cast(Any, cls)):
                roles = _roles(hints[f.name])
                if roles:
                    operands.append((f.name, "read" in roles, "write" in roles, "number" in roles))
                elif f.compare and f.name != "body":
                    statics.append(f.name)
            read, written, every = ([o[0] for o in operands if f(o)] for f in (lambda o: o[1], lambda o: o[2], bool))
            getters = _getter(read), _getter(written), _getter(every), _getter(statics)
            found = cls._layout = _Layout(tuple(operands), *getters)
        return found

    def reads(self) -> tuple[View, ...]:
        """Every view that is read, run-time indices of all operands included."""
        layout = self.layout()
        direct = _views(layout.read(self))
        indices = [v.dynamic.index for v in (*direct, *_views(layout.written(self))) if v.dynamic is not None]
        return (*direct, *indices)

    def writes(self) -> tuple[View, ...]:
        """Every view that is written, in the order of the fields: the order of `run`'s results."""
        return tuple(_views(self.layout().written(self)))

    def operands(self) -> list[View]:
        """Every view, run-time indices not among them."""
        return _views(self.layout().every(self))

    def token(self, view: Callable[[View], Hashable] = view_token) -> tuple:
        """Everything that must agree for two records to be turns of one repeat: all but the numbers.

        `view` may be another function with equal values for views of equal `view_token`.
        """
        layout = self.layout()
        key: list[Any] = [type(self), layout.static(self)]
        for value, (_, _, _, number) in zip(layout.every(self), layout.operands, strict=True):
            if type(value) is View:
                key.append(view(value))
            elif type(value) is tuple:
                key.append(tuple(view(v) if type(v) is View else _kind(v, number) for v in value))
            else:
                key.append(_kind(value, number))
        return tuple(key)

    def numbers(self) -> list[float]:
        """The numbers, in the order of the fields: a buffer's index and an offset for a view, an immediate itself."""
        out: list[float] = []
        layout = self.layout()
        for value, (_, _, _, number) in zip(layout.every(self), layout.operands, strict=True):
            for v in value if type(value) is tuple else (value,):
                if type(v) is View:
                    out += (v.buffer.index, v.offset)
                    if v.dynamic is not None:
                        out += (v.dynamic.index.buffer.index, v.dynamic.index.offset)
                elif number and v is not None:
                    out.append(v)
        return out

    def rebind(self, view: Callable[[View], View], number: Callable[[Any], Any]) -> typing.Self:
        """A copy in which every view and every immediate is replaced, called in the order of `numbers`."""
        changes = {}
        for name, _, _, is_number in self.layout().operands:
            value = getattr(self, name)
            one = lambda v, n=is_number: view(v) if type(v) is View else number(v) if n and v is not None else v  # noqa: E731
            changes[name] = tuple(one(v) for v in value) if isinstance(value, tuple) else one(value)
        return self.changed(**changes)

    def changed(self, **changes: Any) -> typing.Self:
        """A copy with other values in some fields, without the checks of a constructor."""
        new = object.__new__(type(self))
        vars(new).update(vars(self), **changes)
        return new

    def with_numbers(self, numbers: Sequence[float], buffers: Sequence[Buffer]) -> typing.Self:
        """The inverse of `numbers`."""
        source = iter(numbers)

        def view(v: View) -> View:
            buffer, offset = buffers[int(next(source))], int(next(source))
            dynamic = v.dynamic
            if dynamic:
                i = dynamic.index
                index = View(buffers[int(next(source))], int(next(source)), i.strides, i.shape, i.dtype)
                dynamic = replace(dynamic, index=index)
            return View(buffer, offset, v.strides, v.shape, v.dtype, dynamic)

        return self.rebind(view, lambda v: type(v)(next(source)))


def _kind(value: Any, number: bool) -> Any:
    """An operand that is no view: of an immediate only its type counts."""
    return type(value) if number and value is not None else value


@dataclass(frozen=True)
class Instruction(Record, ABC):
    """One instruction of the machine: all that is known of it, in one place.

    Subclasses are final, live in `nkijax.isa`, and their fields are the instruction's own signature.  `contracts`
    names operands whose partitions are summed over, into a destination that is added to: presenting those operands
    with more partitions adds more terms, which lets `lower` fold a repeat of such instructions into one.
    """

    api: ClassVar[str] = ""  # the documented name, such as nki.isa.tensor_tensor
    contracts: ClassVar[tuple[str, ...]] = ()
    indirect: ClassVar[tuple[str, ...]] = ()  # the operands that may be views made by `View.indirect`
    name: str | None = field(default=None, kw_only=True, compare=False)  # no turn differs by it
    core: int = field(default=0, kw_only=True, compare=False, repr=False)  # EVERY_CORE: what cores do together
    site: str = field(default="", kw_only=True, compare=False, repr=False)

    @property
    @abstractmethod
    def queue(self) -> Engine:
        """The engine that executes it."""

    @abstractmethod
    def check(self, target: Target) -> None:
        """Raise KernelError if a rule of the machine is broken; sees only shapes, dtypes and memories."""

    @abstractmethod
    def run(self, read: Read) -> tuple[jax.Array | Masked, ...]:
        """The results, one for each of `writes()`, in any shape of the right size, not yet cast."""

    @abstractmethod
    def cycles(self, target: Target) -> Work | Transfer:
        """What it costs, from facts of the machine only."""

    def contracting(self) -> bool:
        """Whether this instance adds its result to its destination, so that `contracts` applies."""
        return False

    def meets(self) -> Hashable:
        """What the other cores must reach too before this goes on (their instructions agree on it), or None."""
        return None

    def join(self, others: Sequence[Instruction]) -> tuple[Instruction, ...]:
        """The instructions that this one and its partners on the other cores amount to, where it `meets` them."""
        return (self, *others)

    @property
    def index_group(self) -> int:
        """How many partitions share the columns of an indirect view (`View.indirect`)."""
        return WIDE_GROUP if self.queue is Engine.tensor else GROUP

    def check_indirect(self, target: Target) -> None:
        """Raise KernelError if a view made by `View.indirect` stands where, or as, it may not."""
        for name, _, written, _ in self.layout().operands:
            view = getattr(self, name)
            if isinstance(view, View) and view.dynamic and view.dynamic.columns and view.memory is not Memory.state:
                broken = self._indirect_rule(name, view, written, target)
                if broken:
                    raise KernelError(f"{self.api} {name}: {broken}")

    def _indirect_rule(self, name: str, view: View, written: bool, target: Target) -> str:
        assert view.dynamic
        index, group = view.dynamic.index, self.index_group
        if name not in self.indirect:
            return "must not be indirect, got a view made by .indirect"
        if target.generation < Generation.gen4:
            return f".indirect needs gen4 or later, got {target.name}"
        if written and view.memory is Memory.psum and self.queue is Engine.scalar:
            return "the scalar engine cannot scatter to psum, got an indirect view in psum"
        if view.partitions % group or view.shape[1] > group * index.free:
            rule = f"needs partitions in groups of {group}, and num_elem at most {group} a column of index"
            return f"an indirect view {rule}, got {view.shape} by index {index.shape}"
        return ""

    def skips(self) -> bool:
        """Whether elements with a run-time index outside their tensor are left out, rather than an error."""
        return False

    def __str__(self) -> str:
        parts = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "site" or (f.name in ("name", "core") and value == f.default):
                continue
            if value == f.default and not isinstance(value, View):
                continue
            parts.append(f"{f.name}={getattr(value, 'name', None) or value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True)
class Loop(Record):
    """A dynamic loop: its body is traced once.

    With `condition` None it counts: `register` runs from `lower` to `upper` by `step`.  Otherwise `register` is the
    body's condition register: it starts as `lower`, takes after each turn the value of `condition`, the register that
    the body returned, and the loop ends when it is zero.  `ident` indexes the trip counts that a run returns.  Where
    cores meet in the body, one loop stands for core 0's and those of other cores, which must turn as often: of each
    of these it has the register, two bounds, the condition and the ident.
    """

    register: Out
    lower: In | Number | None
    upper: In | Number | None
    condition: In | None
    ident: Number
    step: int
    site: str = field(compare=False)
    body: tuple[Node, ...]
    registers: tuple[Out, ...] = ()
    bounds: tuple[In | Number | None, ...] = ()
    conditions: tuple[In, ...] = ()
    idents: tuple[Number, ...] = ()


@dataclass(frozen=True, eq=False)
class Leaf:
    """An instruction inside repeats: the first turn's, and the numbers of every turn, (…counts, numbers)."""

    instruction: Instruction
    numbers: np.ndarray


@dataclass(frozen=True, eq=False)
class LoopLeaf:
    """A dynamic loop inside repeats."""

    loop: Loop
    numbers: np.ndarray
    body: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """`count` turns of `body`; a *ragged* one has fewer in some turns of the repeats around: `counts`, by their turns.

    Tables of numbers inside have `count` entries all the same; those of turns that do not run mean nothing.
    """

    count: int
    body: tuple[Node, ...]
    counts: np.ndarray | None = None


Node = Instruction | Loop | Leaf | LoopLeaf | Repeat

Edge = tuple[Instruction, Instruction]
"""(consumer, producer): the first waits for the second, whatever data ask for."""


@dataclass(frozen=True)
class Program:
    """A traced kernel.

    `arguments` are the buffers of the array arguments in order, `outputs` the views that it returns, `written` those
    arguments that it wrote.  `constants` are buffers that hold data; `zeros` those that start as zero, not poison.
    """

    name: str
    target: Target
    buffers: tuple[Buffer, ...]
    arguments: tuple[Buffer, ...]
    body: tuple[Node, ...]
    outputs: tuple[View, ...] = ()
    written: tuple[int, ...] = ()
    constants: dict[int, np.ndarray] = field(default_factory=dict, compare=False)
    zeros: frozenset[int] = frozenset()
    loops: tuple[str, ...] = ()  # the site of each dynamic loop, by its `ident`
    loop_cores: tuple[int, ...] = ()  # and the core that runs it
    cores: int = 1
    edges: tuple[Edge, ...] = ()  # between instructions of the flat program, which has them in that order

    def __str__(self) -> str:
        from_ = ", ".join(f"{b.name or b.index}: {b.dtype}{list(b.shape)}" for b in self.arguments)
        lines = [f"program {self.name}({from_}) on {self.target.name}"]
        lines += _text(self.body, 1)
        lines += [f"  schedule: {c.name} after {p.name}" for c, p in self.edges if c.name and p.name]
        lines.append(f"  return {', '.join(map(repr, self.outputs))}")
        return "\n".join(lines)


def _text(nodes: Sequence[Node], depth: int) -> list[str]:
    pad, lines = "  " * depth, []
    for node in nodes:
        if isinstance(node, Repeat):
            least = "" if node.counts is None else f"{node.counts.min()}.."
            lines.append(f"{pad}repeat {least}{node.count}:")
            lines += _text(node.body, depth + 1)
        elif isinstance(node, Loop | LoopLeaf):
            loop = node if isinstance(node, Loop) else node.loop
            registers = ", ".join(map(repr, (loop.register, *loop.registers)))
            if loop.condition is None:
                head = f"for {registers} in range({loop.lower!r}, {loop.upper!r}, {loop.step})"
            else:
                head = f"while {registers} (next {loop.condition!r})"
            lines.append(f"{pad}{head}:  # {loop.site}")
            lines += _text(node.body, depth + 1)
        else:
            lines.append(f"{pad}{node.instruction if isinstance(node, Leaf) else node}")
    return lines


def instructions(nodes: Sequence[Node]) -> Iterator[Instruction]:
    """Every instruction of the tree once, repeats not unrolled."""
    for node in nodes:
        if isinstance(node, Repeat | Loop | LoopLeaf):
            yield from instructions(node.body)
        else:
            yield node.instruction if isinstance(node, Leaf) else node
