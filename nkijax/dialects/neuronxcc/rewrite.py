"""The one source rewrite of the dialect: what its tracer did to a kernel's Python, done to the functions' AST.

* The body of an NKI loop (`affine_range`, `sequential_range`) was traced once: names that are bound before the loop
  start every turn at that binding, and a `return` that ends the body means "after the loop".
* `with do_while(condition):` repeats its block.
* `and`, `or`, `not` and chained comparisons also take predicates.
* `range` also takes run-time bounds.

`rewrite(function)` does this to a function and to every function of the modules that it can reach and that import the
dialect.  A function object stays the same: only its `__code__` is replaced, by that of the rewritten file, compiled
under the same file name and with the same lines.  What the new code calls is `support`, under one global name.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nkijax.api import Kernel
from nkijax.dialects.neuronxcc import support

_SUPPORT = "_nkijax"
_PACKAGE = __name__.rpartition(".")[0]
_HOUSE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


# ---- pieces of the new source


def _call(name: str, *args: ast.expr) -> ast.Call:
    function = ast.Attribute(ast.Name(_SUPPORT, ast.Load()), name, ast.Load())
    return ast.Call(function, list(args), [])


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _set(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _walrus(name: str, value: ast.expr) -> ast.NamedExpr:
    return ast.NamedExpr(ast.Name(name, ast.Store()), value)


def _assigned(body: Sequence[ast.stmt]) -> list[str]:
    """The names that a loop's body binds in its own scope."""
    found: dict[str, None] = {}
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = None
        elif isinstance(node, ast.alias):
            found[(node.asname or node.name).partition(".")[0]] = None
        if not isinstance(node, _Scope | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))
    return [name for name in found if not name.startswith(_SUPPORT)]


class _Rewriter(ast.NodeTransformer):
    """Rewrites one file; only function bodies change."""

    def __init__(self):
        self.count = 0
        self.inside: list[bool] = [False]  # whether the scope is a function's: there temporaries may live

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{_SUPPORT}_{kind}{self.count}"

    # -- scopes

    def _scoped(self, node: Any, inside: bool) -> ast.AST:
        self.inside.append(inside)
        try:
            return self.generic_visit(node)
        finally:
            self.inside.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._scoped(node, True)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._scoped(node, False)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._scoped(node, False)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._scoped(node, False)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        return self._scoped(node, False)  # no temporaries: its `iter` may not have any

    # -- truth

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """`a and b` → both(t := a, first_and(t) and b), which evaluates each operand at most once, in order."""
        self.generic_visit(node)
        if not self.inside[-1]:
            return node
        return functools.reduce(functools.partial(self._joined, node.op), node.values)

    def _joined(self, op: ast.boolop, first: ast.expr, second: ast.expr) -> ast.expr:
        t = self.fresh("t")
        join, guard = ("both", "passes") if isinstance(op, ast.And) else ("either", "stops")
        return _call(join, _walrus(t, first), ast.BoolOp(op, [_call(guard, _load(t)), second]))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call("negated", node.operand) if isinstance(node.op, ast.Not) and self.inside[-1] else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """`a < b < c` → `a < (m := b)` and `m < c`."""
        self.generic_visit(node)
        if len(node.ops) == 1 or not self.inside[-1]:
            return node
        left, parts = node.left, []
        for k, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            if k < len(node.ops) - 1:
                name = self.fresh("t")
                parts.append(ast.Compare(left, [op], [_walrus(name, right)]))
                left = _load(name)
            else:
                parts.append(ast.Compare(left, [op], [right]))
        return functools.reduce(functools.partial(self._joined, ast.And()), parts)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "range" and any(self.inside):
            return ast.Call(_call("range_of", node.func).func, [node.func, *node.args], node.keywords)
        return node

    # -- loops

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if not self.inside[-1]:
            return node
        return self._loop(node, node.iter)

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        context = node.items[0].context_expr
        called = context.func if isinstance(context, ast.Call) else None
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", None)
        if name != "do_while" or len(node.items) > 1 or not self.inside[-1]:
            return node
        loop = ast.For(ast.Name(self.fresh("turn"), ast.Store()), _call("while_turns", context), node.body, [])
        return self._loop(loop, loop.iter)

    def _loop(self, node: ast.For, iterated: ast.expr) -> ast.AST | list[ast.stmt]:
        names = _assigned(node.body)
        own = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        names = [n for n in names if n not in own]
        returns = isinstance(node.body[-1], ast.Return) or getattr(node.body[-1], "ends_loop", False)
        if not names and not returns:
            return node
        it, kept = self.fresh("loop"), self.fresh("kept")
        before = ast.Tuple([ast.Constant(n) for n in names], ast.Load())
        locals_ = ast.Call(ast.Attribute(_load(_SUPPORT), "locals", ast.Load()), [], [])
        out: list[ast.stmt] = [
            _set(it, iterated),
            _set(kept, ast.IfExp(_call("traced_once", _load(it)), _call("kept", locals_, before), ast.Constant(None))),
        ]
        restore: list[ast.stmt] = [
            ast.If(
                ast.Compare(ast.Constant(n), [ast.In()], [_load(kept)]),
                [_set(n, ast.Subscript(_load(kept), ast.Constant(n), ast.Load()))],
                [],
            )
            for n in names
        ]
        if restore:
            node.body.insert(0, ast.If(_load(kept), restore, []))
        node.iter = _load(it)
        out.append(node)
        if returns:
            out = [*out[:1], *self._returning(node, kept, out[1:])]
        return [ast.fix_missing_locations(ast.copy_location(s, node)) for s in out]

    def _returning(self, node: ast.For, kept: str, loop: list[ast.stmt]) -> list[ast.stmt]:
        """A `return` that ends the body of a loop that is traced once happens after the loop."""
        result = self.fresh("result")
        last = node.body[-1]
        value = last.value if isinstance(last, ast.Return) else None
        inner = last.body[0].value if isinstance(last, ast.If) and isinstance(last.body[0], ast.Return) else value
        wrapped = ast.Tuple([inner or ast.Constant(None)], ast.Load())
        plain = ast.Return(ast.Subscript(_load(result), ast.Constant(0), ast.Load()))
        later: list[ast.stmt] = [_set(result, wrapped), ast.If(_is_none(kept), [plain], [])]
        node.body[-1:] = [ast.If(last.test, later, [])] if isinstance(last, ast.If) else later
        after = ast.If(_load(result), [ast.Return(plain.value)], [])
        after.ends_loop = True  # type: ignore[attr-defined]
        return [_set(result, ast.Constant(None)), *loop, after]


def _is_none(name: str) -> ast.expr:
    return ast.Compare(_load(name), [ast.Is()], [ast.Constant(None)])


# ---- files and code objects


@functools.lru_cache(maxsize=256)
def _codes(filename: str, source: str) -> dict[tuple[str, int], types.CodeType]:
    """The code of every function of a rewritten file, by qualified name and first line.

    Lambdas that share a line are left out: nothing tells which is which, and they hold no loops.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    tree = ast.fix_missing_locations(_Rewriter().visit(tree))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # the file's own, given at its import
        code = compile(tree, filename, "exec", dont_inherit=True)
    found = [((c.co_qualname, c.co_firstlineno), c) for c in _nested(code)]
    times = Counter(key for key, _ in found)
    return {key: c for key, c in found if times[key] == 1}


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _nested(const)


_done: set[types.CodeType] = set()


def _rewrite_one(function: types.FunctionType) -> None:
    """Give a function its rewritten code, if its source can be found and is still the source of its code."""
    old = function.__code__
    if old in _done:
        return
    source = "".join(linecache.getlines(old.co_filename, function.__globals__))
    new = _codes(old.co_filename, source).get((old.co_qualname, old.co_firstlineno))
    arguments = old.co_argcount + old.co_kwonlyargcount
    if new is None or new.co_freevars != old.co_freevars or new.co_varnames[:arguments] != old.co_varnames[:arguments]:
        _done.add(old)
        return
    function.__globals__.setdefault(_SUPPORT, support)
    function.__code__ = new
    _done.add(new)


# ---- what a kernel can reach


def rewrite(function: Callable[..., Any]) -> None:
    """Rewrite a kernel's function, and the functions of every module within its reach that imports the dialect."""
    inner = _plain(function)
    if inner is None:
        return
    for part in _reached(inner):
        _rewrite_one(part)


def _plain(x: Any) -> types.FunctionType | None:
    """The Python function inside of kernels, partials and methods."""
    while not isinstance(x, types.FunctionType):
        if isinstance(x, Kernel):
            x = x.function
        elif isinstance(x, functools.partial):
            x = x.func
        elif isinstance(x, types.MethodType | staticmethod | classmethod):
            x = x.__func__
        else:
            return None
    return x


def _reached(function: types.FunctionType) -> list[types.FunctionType]:
    """The function, what its closure holds, and the functions of its module and of those that it imports."""
    found: list[types.FunctionType] = []
    modules: list[dict[str, Any]] = []
    seen: set[int] = set()
    stack: list[Any] = [function]
    while stack:
        x = stack.pop()
        inner = _plain(x)
        if inner is None or id(inner) in seen:
            continue
        seen.add(id(inner))
        stack.extend(cell.cell_contents for cell in inner.__closure__ or () if _filled(cell))
        if inner.__code__.co_filename.startswith(_HOUSE):
            continue
        found.append(inner)
        wrapped = getattr(inner, "__wrapped__", None)
        if wrapped is not None:
            stack.append(wrapped)
        if id(inner.__globals__) not in seen:
            seen.add(id(inner.__globals__))
            modules.append(inner.__globals__)
        while modules:
            stack.extend(_members(modules.pop(), modules, seen))
    return found


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _members(names: dict[str, Any], modules: list[dict[str, Any]], seen: set[int]) -> Iterator[Any]:
    """The functions of a module; modules of the dialect's users that it imports are put on `modules`."""
    for x in list(names.values()):
        if isinstance(x, types.ModuleType):
            if id(x.__dict__) not in seen and _imports_dialect(x.__dict__):
                seen.add(id(x.__dict__))
                modules.append(x.__dict__)
        elif isinstance(x, type):
            if x.__module__ == names.get("__name__"):
                yield from _methods(x)
        else:
            inner = _plain(x)
            if inner is not None and _imports_dialect(inner.__globals__):
                yield inner


def _methods(cls: type) -> Iterator[Any]:
    for x in list(vars(cls).values()):
        yield from (x.fget, x.fset) if isinstance(x, property) else (x,)


def _imports_dialect(names: dict[str, Any]) -> bool:
    return any(of_dialect(x) for x in list(names.values()))


def of_dialect(x: Any) -> bool:
    """Whether an object is a module, a function or a class of the dialect."""
    name = getattr(x, "__name__", None) if isinstance(x, types.ModuleType) else getattr(x, "__module__", None)
    return isinstance(name, str) and (name == _PACKAGE or name.startswith(_PACKAGE + "."))
