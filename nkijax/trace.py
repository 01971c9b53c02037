"""The recorder: runs a kernel's Python once and notes each instruction, with its checks made at the kernel's line.

Loops over Python ints simply run.  Dynamic loops are captured: their body runs once, into a `Loop` node.  With an
*executor* the recorder executes each instruction as it comes, on concrete values (`eager=True`); loops then turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from nkijax.buffer import dtype_of as dtype_of
from nkijax.buffer import shape_of as shape_of
from nkijax.cores import joined
from nkijax.edges import Named, scheduled
from nkijax.errors import KernelError, kernel_frame
from nkijax.machine import Memory, Target
from nkijax.meeting import Meetings
from nkijax.open_loop import Executor, OpenLoop
from nkijax.program import Edge, Instruction, Loop, Node, Program
from nkijax.view import Buffer, View

_current: ContextVar[Recorder | None] = ContextVar("nkijax_recorder", default=None)


def recording() -> Recorder | None:
    """The recorder of the kernel that is being traced, or None."""
    return _current.get()


def current(api: str = "") -> Recorder:
    """The recorder of the kernel that is being traced; a KernelError outside of one."""
    recorder = _current.get()
    if recorder is None:
        raise KernelError(f"{api or 'this API'}: runs only inside a kernel; call the kernel, or nkijax.run(kernel, …)")
    return recorder


class Recorder:
    """Collects one program.  One recorder, one thread."""

    def __init__(
        self, name: str, target: Target, executor: Executor | None = None, programs: int = 1, parallel: bool = True
    ):
        self.name, self.target, self.executor = name, target, executor
        self.programs, self.program_id, self.parallel = programs, 0, parallel
        self.grid: tuple[int, ...] = ()
        self.strict = False
        self.mesh_axis: str | tuple[str, ...] | None = None
        self._meetings: Meetings | None = None  # of programs that run eagerly
        self.buffers: list[Buffer] = []
        self.arguments: list[Buffer] = []
        self.constants: dict[int, np.ndarray] = {}
        self._constants: dict[Any, Buffer] = {}
        self.zeros: set[Buffer] = set()
        self.no_reorder = 0
        self.schedule: Named = ()
        self.edges: list[Edge] = []
        self.instructions = 0
        self._bodies: list[list[Node]] = [[]]
        self._open: list[OpenLoop] = []
        self._scopes: set[int] = {-1}
        self._sites: list[str] = []
        self._loop_cores: list[int] = []
        self._site_cache: dict[tuple[int, int], tuple[str, object]] = {}
        self._frozen: set[Buffer] = set()
        self.ordered_after: Instruction | None = None  # what nl.no_reorder() keeps the next instruction behind
        self._touched: set[Buffer] = set()
        self._written: set[Buffer] = set()
        self._states: dict[tuple[str, int], View] = {}
        self._shared: list[Buffer] = []
        self._next_shared = 0
        self._facts: dict[type, Any] = {}
        self.finishing: list[Callable[[Recorder, Sequence[Node]], list[Node]]] = []  # called with the whole body

    # ---- running

    def record(self, kernel: Callable[[], Sequence[View]]) -> Program:
        """Run `kernel` once for each program id; it returns its output views (the first program's count)."""
        token = _current.set(self)
        try:
            outputs: dict[int, Sequence[View]] = {}
            bodies: list[list[Node]] = []

            def run(pid: int) -> None:
                self._enter((pid, 0, 0, None))
                self._bodies = [[]]
                outputs[pid] = kernel()
                if self._open:
                    rule = "must run to the end of its body, was left by break or return"
                    raise KernelError(f"dynamic loop: {rule}", self._open[-1].site)
                bodies.append(self._bodies[0])

            if self.executor is not None and self.programs > 1:
                self._meetings = Meetings(self.programs, run, self.executor.execute, self._leave, self._enter)
                self._meetings.run()
            else:
                for pid in range(self.programs):
                    run(pid)
        finally:
            _current.reset(token)
        return self._program(tuple(outputs[0]), joined(bodies) if self.programs > 1 else bodies[0])

    def _leave(self) -> Any:
        """What there is to know of the program that runs eagerly, for `_enter` to go back to."""
        return self.program_id, self._next_shared, self.no_reorder, self.ordered_after

    def _enter(self, here: Any) -> None:
        self.program_id, self._next_shared, self.no_reorder, self.ordered_after = here

    def _program(self, outputs: tuple[View, ...], body: list[Node]) -> Program:
        for finish in self.finishing:
            body = finish(self, body)
        edges: tuple[Edge, ...] = ()
        if self.executor is None:
            body, edges = scheduled(body, self.schedule, self.edges)
        written = tuple(i for i, b in enumerate(self.arguments) if b in self._written)
        return Program(
            self.name,
            self.target,
            tuple(self.buffers),
            tuple(self.arguments),
            tuple(body),
            outputs,
            written,
            self.constants,
            frozenset(b.index for b in self.zeros),
            tuple(self._sites),
            tuple(self._loop_cores),
            self.programs if self.parallel else 1,
            edges,
        )

    def site(self) -> str:
        """`file:line` of the kernel's statement that is running."""
        frame = kernel_frame(2)
        if frame is None:
            return ""
        code = frame.f_code
        key = (id(code), frame.f_lasti)  # hashing a code object takes longer than all the rest
        found = self._site_cache.get(key)
        if found is None:
            found = self._site_cache[key] = (f"{code.co_filename}:{frame.f_lineno}", code)
        return found[0]

    # ---- memory

    def allocate(
        self, shape: Sequence[int], dtype: str, memory: Memory, name: str = "", pinned: bool = False
    ) -> Buffer:
        """A fresh buffer; under several programs the n-th shared_hbm allocation of each is one buffer."""
        shared = memory is Memory.shared_hbm and self.programs > 1 and not pinned
        if shared and self._next_shared < len(self._shared):
            found = self._shared[self._next_shared]
            self._next_shared += 1
            if (found.shape, found.dtype) != (tuple(shape), dtype):
                raise KernelError(
                    f"nl.ndarray shape: every program must allocate the same shared_hbm tensors, got {tuple(shape)} "
                    f"{dtype} where program 0 has {found.shape} {found.dtype}"
                )
            return found
        depth, scope = (len(self._open), self._open[-1].ident) if self._open and not shared else (0, -1)
        buffer = Buffer(len(self.buffers), tuple(shape), dtype, memory, name, depth, scope, pinned)
        self.buffers.append(buffer)
        if shared:
            self._shared.append(buffer)
            self._next_shared += 1
        return buffer

    def argument(self, shape: Sequence[int], dtype: str, name: str, shared: bool) -> View:
        """The buffer of an array argument."""
        memory = Memory.shared_hbm if shared else Memory.private_hbm
        buffer = self.allocate(shape, dtype, memory, name, pinned=True)
        self.arguments.append(buffer)
        return View.whole(buffer)

    def constant(self, data: np.ndarray, dtype: str, memory: Memory, name: str = "") -> View:
        """A buffer that holds `data` in the whole program; equal data share one."""
        key = (data.shape, dtype, memory, name, data.tobytes())
        buffer = self._constants.get(key)
        if buffer is None:
            buffer = Buffer(len(self.buffers), data.shape, dtype, memory, name, pinned=True)
            self.buffers.append(buffer)
            self.constants[buffer.index] = data
            self._constants[key] = buffer
        return View.whole(buffer)

    def state(self, name: str, shape: Sequence[int], dtype: str) -> View:
        """Named state of this core that outlives instructions, zero at first."""
        key = (name, self.program_id)
        if key not in self._states:
            self._states[key] = View.whole(self.hidden(name, shape, dtype))
        return self._states[key]

    def hidden(self, name: str, shape: Sequence[int], dtype: str, like: Buffer | None = None) -> Buffer:
        """State with no address, zero at first; it lives as long as `like`, or for the whole program."""
        depth, scope = (like.depth, like.scope) if like else (0, -1)
        buffer = Buffer(len(self.buffers), tuple(shape), dtype, Memory.state, name, depth, scope)
        self.buffers.append(buffer)
        self.zeros.add(buffer)
        return buffer

    def register(self, name: str = "") -> View:
        """A fresh 32-bit register."""
        buffer = self.allocate((1,), "int32", Memory.register)
        return View.whole(buffer)

    def facts(self, kind: type[Any]) -> Any:
        """The one `kind()` of this trace: what a chapter of instructions wants to remember (see `Scoped`)."""
        found = self._facts.get(kind)
        if found is None:
            found = self._facts[kind] = kind()
            for _ in self._open:
                found.enter_loop()
        return found

    def untouched(self, buffer: Buffer) -> bool:
        """Whether no instruction has used `buffer` yet."""
        return buffer not in self._touched

    @property
    def depth(self) -> int:
        """How many dynamic loops are open."""
        return len(self._open)

    # ---- recording

    def emit(self, instruction: Instruction) -> Instruction:
        """Check an instruction and note it (or execute it, in eager mode)."""
        site = self.site()
        object.__setattr__(instruction, "site", site)
        if self.programs > 1:
            self._on_core(instruction)
        instruction.check(self.target)
        writes = instruction.writes()
        touched = self._touched
        for view in writes:
            buffer = view.buffer
            touched.add(buffer)
            self._written.add(buffer)
            if view.dynamic is not None and view.dynamic.columns:
                instruction.check_indirect(self.target)
            if buffer in self._frozen:
                raise KernelError(f"{instruction.api} dst: the induction register of a dynamic loop is read-only", site)
            if buffer.scope not in self._scopes:
                raise self.dead(instruction.api, buffer)
        for view in instruction.reads():
            buffer = view.buffer
            touched.add(buffer)
            if view.dynamic is not None and view.dynamic.columns:
                instruction.check_indirect(self.target)
            if buffer.scope not in self._scopes:
                raise self.dead(instruction.api, buffer)
        self.instructions += 1
        if self._meetings is not None and instruction.meets() is not None:
            self._meetings.meet(self.program_id, instruction)
        elif self.executor is not None:
            self.executor.execute(instruction)
        else:
            if self.no_reorder and self.ordered_after is not None:
                self.edges.append((instruction, self.ordered_after))
            self.ordered_after = instruction if self.no_reorder else None
            self._bodies[-1].append(instruction)
        return instruction

    def redirect(self, last: Instruction, instead: Instruction) -> bool:
        """Let `instead` stand for `last`, if that is the last instruction recorded and its result is used by nothing.

        `instead` is `last` with another destination.  Says whether it was done: not if `instead` breaks a rule.
        """
        body = self._bodies[-1]
        if self.executor is not None or not body or body[-1] is not last:
            return False
        old = last.writes()
        new = [v for v in instead.writes() if v not in old]
        if any(v.buffer in self._frozen or v.buffer.scope not in self._scopes for v in new):
            return False
        try:
            instead.check(self.target)
        except KernelError:
            return False
        body[-1] = instead
        for view in (*new, *instead.reads()):
            self._touched.add(view.buffer)
        self._written.update(v.buffer for v in new)
        return True

    def replace(self, old: Instruction, new: Instruction, after: Instruction) -> bool:
        """Put `new` and then `after` in the place of `old`, where its body is still open; whether it was."""
        for body in reversed(self._bodies):
            for k in range(len(body) - 1, -1, -1):
                if body[k] is old:
                    for one in (new, after):
                        object.__setattr__(one, "site", old.site)
                        one.check(self.target)
                    body[k : k + 1] = [new, after]
                    return True
        return False

    def _on_core(self, instruction: Instruction) -> None:
        """Note which core runs it."""
        if self.parallel:
            object.__setattr__(instruction, "core", self.program_id)

    def dead(self, api: str, buffer: Buffer) -> KernelError:
        """The error of using a tensor after the dynamic loop in whose body it was made."""
        return KernelError(
            f"{api} operand: a tensor allocated in the body of a dynamic loop lives only there, got "
            f"{buffer.memory.value} tensor `{buffer.name or 'unnamed'}` {buffer.shape} of the loop at "
            f"{self._sites[buffer.scope]}"
        )

    # ---- dynamic loops

    def _begin(self, api: str, lower: View | int, upper: View | int | None, step: int, key: object = None) -> View:
        if self.no_reorder:
            raise KernelError(f"{api}: a dynamic loop cannot be inside nl.no_reorder(); put no_reorder into its body")
        site = self.site()
        loop = OpenLoop(len(self._sites), site, self.register(), lower, upper, step, key)
        self._sites.append(site)
        self._loop_cores.append(self.program_id if self.parallel else 0)
        for facts in self._facts.values():
            facts.enter_loop()
        self._open.append(loop)
        self._scopes.add(loop.ident)
        self._bodies.append(loop.body)
        return loop.register

    def _end(self, condition: View | None) -> None:
        loop = self._open.pop()
        self._scopes.discard(loop.ident)
        self._bodies.pop()
        self._frozen.discard(loop.register.buffer)
        for facts in self._facts.values():
            facts.exit_loop()
        self._bodies[-1].append(
            Loop(
                loop.register,
                loop.lower,
                loop.upper,
                condition,
                loop.ident,
                loop.step,
                loop.site,
                tuple(loop.body),
            )
        )

    def turns(self, api: str, lower: View | int, upper: View | int, step: int) -> Iterator[View]:
        """The turns of a counting loop: once with its register while tracing, every turn in eager mode."""
        if not isinstance(step, int) or isinstance(step, bool) or step < 1:
            raise KernelError(f"{api} step: must be a positive Python int, got {step!r}")
        for name, bound in (("start", lower), ("stop", upper)):
            if not isinstance(bound, int | View):
                raise KernelError(f"{api} {name}: must be an int or a register, got {type(bound).__name__}")
        if self.executor is not None:
            yield from self._real_turns(self.executor, lower, upper, step)
            return
        register = self._begin(api, lower, upper, step)
        self._frozen.add(register.buffer)
        yield register
        self._end(None)

    def _real_turns(self, executor: Executor, lower: View | int, upper: View | int, step: int) -> Iterator[View]:
        first, last = (b if isinstance(b, int) else int(executor.value(b).item()) for b in (lower, upper))
        register = self.register()
        for i in range(first, last, step):
            executor.poke(register, i)
            self._frozen.add(register.buffer)
            yield register
            self._frozen.discard(register.buffer)

    def repeat_while(self, api: str, initial: View, body: Callable[[View], View]) -> None:
        """`r = initial; while r != 0: r = body(r)`."""
        executor = self.executor
        if executor is None:
            register = self._begin(api, initial, None, 1)
            self._end(body(register))
            return
        register = self.register()
        executor.poke(register, int(executor.value(initial).item()))
        while int(executor.value(register).item()):
            executor.poke(register, int(executor.value(body(register)).item()))

    def while_test(self, api: str, register: View, key: object) -> bool:
        """What `while register:` sees: True once, to trace the body, then False, to end it.

        `key` identifies the `while` statement (its frame and place).  The loop's own register is the kernel's.
        """
        if self.executor is not None:
            return bool(self.executor.value(register).item())
        if self._open and self._open[-1].key == key:
            self._end(register)
            return False
        loop_register = self._begin(api, register, None, 1, key)
        del loop_register  # the body reads the kernel's register itself
        return True
