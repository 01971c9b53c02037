"""The command line: run a script whose kernels import `nki…`, and say what they cost or record.

nkijax run SCRIPT [ARGS…]       run it
nkijax profile SCRIPT [ARGS…]   run it, and print the cost of each kernel call
nkijax trace SCRIPT [ARGS…]     run it, and print the program of each kernel, rolled
nkijax regress PATH…            run the cases of a file or a folder; see nkijax.regress.command
nkijax isa [--markdown [FILE]]  print every name of NKI 0.6 and what becomes of it, or write that into a README

What JAX compiles is kept for the next process, in JAX_COMPILATION_CACHE_DIR or the user's cache folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.core import Tracer

from nkijax import api, imports
from nkijax.api import Compiled, Observer
from nkijax.cost import cost
from nkijax.dialects.nki import surface
from nkijax.lower import Result
from nkijax.machine import Target
from nkijax.plan import LOOPS
from nkijax.regress import command as regress
from nkijax.roll import roll

SUPPORT = ("<!-- support -->", "<!-- /support -->")  # around the table in a README


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the script's own exit status, or 0."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "isa":
        return _isa(options.markdown)
    if options.command == "regress":
        with _compilations_kept():
            return regress.main(options)
    module, words = bool(options.module), options.module or options.script
    if not words:
        parser.error(f"{options.command} needs a script, or -m MODULE")
    if not module and not os.path.exists(words[0]):
        parser.error(f"no such file: {words[0]}")
    observer: Observer | None = {"profile": _print_cost, "trace": _print_program()}.get(options.command)
    folder = os.getcwd() if module else os.path.dirname(os.path.abspath(words[0]))
    with _as_script(options, words, folder), _compilations_kept(), imports.installed(shadow=True), _observed(observer):
        if module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nkijax", description="Run NKI kernels through JAX.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("run", "run a script in which `import nki` is nkijax"),
        ("profile", "the same, printing the cost of each kernel call"),
        ("trace", "the same, printing the program of each kernel"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("--target", type=_target, help="trn1, trn2 or trn3; default: the environment's, else trn3")
        command.add_argument("--precise", type=int, choices=(0, 1), help="0 stores every float as float32")
        command.add_argument("--loops", choices=LOOPS, help="how repeats of static loops run; default: auto")
        command.add_argument("--strict", action="store_const", const=1, help="a tensor beyond the memory is an error")
        rest = {"nargs": argparse.REMAINDER, "default": []}
        command.add_argument("-m", dest="module", metavar="MODULE", help="a module, and its arguments, instead", **rest)
        command.add_argument("script", metavar="SCRIPT", help="a Python file, and its arguments", **rest)
    what = "run the cases of a file or a folder, and compare them with their references and a stored baseline"
    regress.add_arguments(commands.add_parser("regress", help=what, description=what))
    what = "every public name of NKI 0.6: emulated, without effect, unsupported or removed, and why"
    command = commands.add_parser("isa", help=what, description=what)
    described = "as Markdown; with FILE, in place of what FILE has between its two support comments"
    command.add_argument("--markdown", metavar="FILE", nargs="?", const="-", help=described)
    return parser


def _isa(markdown: str | None) -> int:
    """Print the support table, or write it between the markers of a file."""
    if markdown is None:
        print(surface.text())
    elif markdown == "-":
        print(surface.markdown(), end="")
    else:
        path = Path(markdown)
        before, found, rest = path.read_text().partition(SUPPORT[0])
        _, end, after = rest.partition(SUPPORT[1])
        if not found or not end:
            sys.exit(f"nkijax isa: {markdown} has no {SUPPORT[0]} … {SUPPORT[1]}")
        path.write_text("".join((before, found, "\n", surface.markdown(), end, after)))
    return 0


def _target(name: str) -> str:
    try:
        Target.of(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


@contextlib.contextmanager
def _as_script(options: argparse.Namespace, words: Sequence[str], folder: str) -> Iterator[None]:
    """What a script expects of its process: sys.argv, its folder first in sys.path; and the options as environment."""
    environment = {
        "NEURON_PLATFORM_TARGET_OVERRIDE": options.target,
        "NKI_PRECISE_FP": options.precise,
        "NKIJAX_LOOPS": options.loops,
        "NKIJAX_STRICT": options.strict,
    }
    before = {name: os.environ.get(name) for name in environment}
    argv = sys.argv
    os.environ.update({name: str(value) for name, value in environment.items() if value is not None})
    sys.argv = list(words)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path.remove(folder)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _compilations_kept() -> Iterator[None]:
    """Have JAX keep all that it compiles, in a folder for nkijax; what the user's environment says instead holds."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "nkijax")
    settings = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0.0}
    settings = {name: value for name, value in settings.items() if name.upper() not in os.environ}
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        if "jax_compilation_cache_dir" in settings:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        settings = {}
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)  # for processes that the script starts
    try:
        yield
    finally:
        for name in settings:
            jax.config.update(name, before[name])
            os.environ.pop(name.upper(), None)


@contextlib.contextmanager
def _observed(observer: Observer | None) -> Iterator[None]:
    """Have `observer` told of every kernel call."""
    if observer is None:
        yield
        return
    api.observers.append(observer)
    try:
        yield
    finally:
        api.observers.remove(observer)


def _print_cost(compiled: Compiled, result: Result) -> None:
    program = compiled.program
    if isinstance(result.trips, Tracer):
        print(f"{program.name}: under jax.jit, where trip counts are not known; profile it alone", flush=True)
        return
    trips = [int(n) for n in np.asarray(result.trips)[: len(program.loops)]]
    print(f"{program.name}: {cost(program, trips)}", flush=True)


def _print_program() -> Observer:
    """Print each program once."""
    seen: set[int] = set()

    def observer(compiled: Compiled, result: Result) -> None:
        if id(compiled) not in seen:
            seen.add(id(compiled))
            print(roll(compiled.program), flush=True)

    return observer
