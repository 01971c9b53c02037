"""Which instruction of a failing run went wrong: three ways to tell, each from what it has to compare with.

`against_good_run`: the baseline noted what each instruction of a good run wrote.  The first whose value that run had
nowhere is named (`nkijax.regress.history`).

`against_jit`: where the eager run and the jitted one disagree, nkijax is at fault.  Ever longer beginnings of the
program, chosen by bisection, are compiled and compared with the eager run; the instruction that first differs is named.

`against_reference`: a reference knows outputs alone, and which instruction should have written what, only the kernel's
author.  Told are the instruction that wrote the first wrong element last, those that its value came from, what they
wrote, and the first of them that made NaN or infinity of finite operands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from nkijax import arrays
from nkijax.lower import lower
from nkijax.program import Instruction, Loop, Node, Program, instructions
from nkijax.regress.compare import compare, wide
from nkijax.regress.history import Difference, History, Search, site_of
from nkijax.regress.watch import NOBODY, Provenance, Step, Watch
from nkijax.roll import roll
from nkijax.view import View

SHOWN = 10  # instructions of a wrong element's history


# ---- a good run


def against_good_run(program: Program, arguments: Sequence[Any], good: History) -> str:
    """The first instruction that wrote what the good run did not; "" if every one agrees bit for bit."""
    search = Search(good)
    for step in Watch(program, arguments).steps():
        if search.see(step) is not None:
            break
    if search.first is not None:
        return _difference(
            "the first instruction whose value the good run had nowhere", search.first, program, arguments
        )
    if search.rounded is not None:
        return _difference("no value differs by more than rounding; the first", search.rounded, program, arguments)
    return ""


def _difference(what: str, d: Difference, program: Program, arguments: Sequence[Any]) -> str:
    lines = [f"{what}: {_named(d.step)}"]
    lines += [f"  read {text}" for text in _operands(program, arguments, d.step.number)]
    lines += [f"  wrote {summary(x)}" for x in d.step.wrote]
    if d.instead is None:
        lines.append("  the good run had no other instruction of this kind")
    else:
        lines.append(
            f"  the good run's next of this kind, at {d.instead.site}, wrote about {d.off:.1e} of the norm apart"
        )
    return "\n".join(lines)


class _Reached(Exception):
    """The instruction that was looked for is the next one."""


class _Until(Watch):
    """A watch that stops before instruction `number`, and keeps it."""

    def __init__(self, program: Program, arguments: Sequence[Any], number: int):
        super().__init__(program, arguments)
        self.number = number
        self.reached: Instruction | None = None

    def execute(self, instruction: Instruction) -> None:
        if self.count == self.number:
            self.reached = instruction
            raise _Reached
        super().execute(instruction)


def _operands(program: Program, arguments: Sequence[Any], number: int) -> list[str]:
    """What instruction `number` of the run reads."""
    watch = _Until(program, arguments, number)
    with contextlib.suppress(_Reached):
        for _ in watch.steps():
            pass
    reached = watch.reached
    assert reached is not None
    return [f"{v!r}: {summary(watch.load(v, reached.index_group))}" for v in reached.reads()]


# ---- the jitted program


def against_jit(program: Program, arguments: Sequence[Any]) -> str:
    """The first instruction that the jitted program executes otherwise than the eager one; "" if there is none."""
    if not _differs(program, arguments, len(program.body)):
        return ""
    good, bad = 0, len(program.body)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if _differs(program, arguments, middle) else (middle, bad)
    node = program.body[good]
    what = "a fault of nkijax: jitted, the program differs from its eager run first at"
    return f"{what} #{good} of its top level, {_node(node)}\n  {_differs(program, arguments, bad)}"


def _differs(program: Program, arguments: Sequence[Any], length: int) -> str:
    """How the memory after the first `length` nodes differs between both ways to run them."""
    body = program.body[:length]
    watch = Watch(program, arguments)
    for _ in watch.steps(body):
        pass
    buffers = dict.fromkeys(v.buffer for i in instructions(body) for v in i.writes() if v.buffer.scope == NOBODY)
    views = tuple(View.whole(b) for b in buffers)
    prefix = replace(program, body=body, outputs=views, edges=())
    jitted = jax.jit(lower(roll(prefix)).function)(*map(arrays.to_jax, arguments))
    verdict = compare([np.asarray(x) for x in jitted.outputs], [watch.value(v) for v in views], None, None)
    if verdict.first is None:
        return verdict.text
    return verdict.text.replace(f"output {verdict.first[0]}", repr(views[verdict.first[0]]), 1)


def _node(node: Node) -> str:
    return f"the dynamic loop at {node.site}" if isinstance(node, Loop) else describe(next(instructions([node])))


# ---- the reference


def against_reference(program: Program, arguments: Sequence[Any], output: int, element: int) -> str:
    """Where the element at a flat position of an output came from."""
    watch = Provenance(program, arguments)
    steps = list(watch.steps())
    view = (*program.outputs, *(View.whole(program.arguments[i]) for i in program.written))[output]
    writers = watch.writers(view, 1).reshape(-1)
    last = int(writers[min(element, writers.size - 1)])
    if last == NOBODY:
        return f"no instruction wrote element {element} of output {output}"
    history = sorted(_origins(last, watch.sources))
    lines = [f"the wrong element was written last by {_named(steps[last])}"]
    broken = [n for n in history if _broken(steps[n])]
    if broken and not any(_broken(steps[n]) for n in watch.sources[broken[0]]):
        lines.append(f"the first of its history to write NaN or infinity: {_named(steps[broken[0]])}")
    lines.append(f"its history, {min(SHOWN, len(history))} of {len(history)} instructions:")
    for n in history[-SHOWN:]:
        lines += [f"  #{n} {describe(steps[n].instruction)}", *(f"    wrote {summary(x)}" for x in steps[n].wrote)]
    return "\n".join(lines)


def _origins(last: int, sources: Sequence[frozenset[int]]) -> set[int]:
    """The instructions that the result of instruction `last` came from, itself included."""
    found, left = {last}, [last]
    while left:
        new = sources[left.pop()] - found
        found |= new
        left += new
    return found


def _broken(step: Step) -> bool:
    return any(not np.isfinite(wide(x)).all() for x in step.wrote)


# ---- words


def _named(step: Step) -> str:
    return f"#{step.number} {describe(step.instruction)}"


def describe(instruction: Instruction) -> str:
    """An instruction in one line: its API, where the kernel issues it, and its text."""
    return f"{instruction.api} at {site_of(instruction)}: {instruction}"


def summary(x: Any) -> str:
    """An array in one line."""
    values = wide(np.asarray(x))
    finite = values[np.isfinite(values)]
    text = f"{x.dtype}{list(x.shape)}"
    if finite.size:
        text += f" from {finite.min():.6g} to {finite.max():.6g}, mean {finite.mean():.6g}"
    return text + (f", {values.size - finite.size:,} not finite" if finite.size < values.size else "")
