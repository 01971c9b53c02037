"""Registers as a kernel sees them, and the `while register:` statement."""

from __future__ import annotations

import ast
import functools
import linecache
import opcode
import warnings
from types import FrameType
from typing import Any, NoReturn

from nkijax.errors import kernel_frame
from nkijax.trace import current, recording
from nkijax.view import View

_ADVICE = {
    "bool": "write `while register:` or nl.while_loop(register, body); for an if, nl.fori_loop(0, flag, body)",
    "int": "its value is known only at run time; as a bound use nl.fori_loop(lower, upper, body), as an index "
    "t[register] or nl.ds(register, size)",
    "arithmetic": "registers take no arithmetic; compute on a 1x1 SBUF tile, then nki.isa.register_load",
}


class VirtualRegister:
    """A 32-bit register: a run-time scalar for loop bounds, offsets and conditions.

    Its value is unknown while a kernel is traced, so Python's `int`, `if` and arithmetic raise TypeError; with
    `eager=True`, `int` and `bool` give the value.
    """

    __slots__ = ("_view",)

    def __init__(self, view: View):
        self._view = view

    def __bool__(self) -> bool:
        """True once and False once, for a `while register:` statement, whose body is traced once."""
        recorder = current("nki.isa.VirtualRegister")
        if recorder.executor is not None:
            return recorder.while_test("while register", self._view, None)
        statement = _while_statement(kernel_frame(2))
        if statement is None:
            raise TypeError(f"nki.isa.VirtualRegister: bool(register) is unknown while tracing; {_ADVICE['bool']}")
        opens = recorder.while_test("while register", self._view, statement)
        if opens:
            warnings.warn("`while register:` is deprecated; use nl.while_loop", DeprecationWarning, stacklevel=2)
        return opens

    def __int__(self) -> int:
        value = _value(self._view)
        if value is None:
            raise TypeError(f"nki.isa.VirtualRegister: int(register): {_ADVICE['int']}")
        return value

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | float):
            _no_arithmetic(self)
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        value = _value(self._view)
        return f"VirtualRegister({self._view!r})" if value is None else f"VirtualRegister({value})"

    def _refuse(self, *_: Any) -> NoReturn:
        _no_arithmetic(self)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


def _no_arithmetic(register: VirtualRegister) -> NoReturn:
    raise TypeError(f"nki.isa.VirtualRegister {register!r}: {_ADVICE['arithmetic']}")


def _value(register: View) -> int | None:
    """A register's value in eager mode, else None."""
    recorder = recording()
    if recorder is None or recorder.executor is None:
        return None
    return int(recorder.executor.value(register).item())


# ---- which `while` statement asks

_Place = tuple[int | None, int | None, int | None, int | None]  # first line, last line, first column, last column


def _while_statement(frame: FrameType | None) -> tuple[int, _Place] | None:
    """The frame and the place of the `while` whose whole test is being evaluated as a bool, or None.

    The running bytecode must be a jump, so that neither `f(register)` nor `bool(register)` counts as the test.
    """
    if frame is None:
        return None
    code = frame.f_code
    operation = opcode.opname[code.co_code[frame.f_lasti]]
    if not ("JUMP" in operation or operation == "TO_BOOL"):
        return None
    place = list(code.co_positions())[frame.f_lasti // 2]
    source = "".join(linecache.getlines(code.co_filename, frame.f_globals))
    statement = _while_statements(source).get(place)
    return None if statement is None else (id(frame), statement)


@functools.lru_cache(maxsize=64)
def _while_statements(source: str) -> dict[_Place, _Place]:
    """Every `while` statement with a simple test, by the places that its jump may have: its own, or the test's."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    found: dict[_Place, _Place] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and not isinstance(node.test, ast.UnaryOp | ast.BoolOp | ast.IfExp):
            found[_place(node)] = found[_place(node.test)] = _place(node)
    return found


def _place(node: ast.stmt | ast.expr) -> _Place:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
