"""`nkijax regress --replay FAILURE.npz`: run a failing case again, eagerly, to the first instruction that went wrong.

What there is to compare with decides what is told, the strongest first: a good run that the baseline noted, the jitted
program, the reference (see `nkijax.regress.blame`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nkijax import api, imports
from nkijax.regress.blame import against_good_run, against_jit, against_reference
from nkijax.regress.call import arrays_of, gradients, ran, reference_of, taken, verdict_of
from nkijax.regress.case import Arguments, Case
from nkijax.regress.compare import Verdict
from nkijax.regress.discover import cases, load
from nkijax.regress.failure import Failure
from nkijax.regress.history import History

Say = Callable[[str], None]


def replay(path: str, eager: bool = False, say: Say = print) -> bool:
    """Replay one failure, and tell what is found; whether the case is good now.

    With `eager` the kernel itself then runs once more, eagerly: what it prints, and its breakpoints, show data.
    """
    failure = Failure.load(path)
    target = failure.found.target
    say(f"{failure.found.id} failed with: {failure.message}")
    with imports.installed(shadow=True):
        case = cases(load(Path(failure.found.path)))[failure.found.name].made()
        given = _inputs(case, failure, say)
        try:
            good = _look(case, given, target, failure.good, say)
        except Exception as error:
            say("".join(traceback.format_exception(error)))
            good = False
        if eager:
            mine = given.copy()
            api.run(case.runnable(), *mine.args, **mine.kwargs, **case.static, target=target, eager=True)
    return good


def _look(case: Case, given: Arguments, target: str, good: History | None, say: Say) -> bool:
    """Run the case and tell what is wrong with it; whether nothing is."""
    if case.raises is not None:
        wrong = taken(case, given, target)
        say(wrong or "the kernel refuses its inputs, as it should")
        return not wrong
    found, wanted = ran(case, given, target), reference_of(case, given)
    verdict = None if wanted is None else verdict_of(case, found.outputs.beside(wanted), wanted)
    if verdict is not None and not verdict.text:
        wrong = gradients(case, given, target) if case.grad else ""
        say(wrong or "it agrees with its reference now")
        return not wrong
    if verdict is not None:
        say(f"it fails with: {verdict.text}")
    if case.host:
        say("its function may call several kernels, so no instruction is named")
        return False
    program, values = found.programs[0][0], arrays_of(case, given)
    said = against_good_run(program, values, good) if good is not None else ""
    say(said or against_jit(program, values) or _from_reference(program, values, verdict))
    return False


def _from_reference(program: Any, values: Any, verdict: Verdict | None) -> str:
    if verdict is None or verdict.first is None:
        return "there is no good run of it and no wrong element to start from, so no instruction can be named"
    return against_reference(program, values, *verdict.first)


def _inputs(case: Case, failure: Failure, say: Say) -> Arguments:
    """The arguments of the failing run."""
    given = case.arguments()
    if not failure.inputs:
        say(f"it left no inputs; these are made anew, of seed {case.seed}")
        return given
    if len(failure.inputs) != len(given.leaves()):
        raise ValueError(f"the case has {len(given.leaves())} array inputs now, and had {len(failure.inputs)}")
    source = iter(failure.inputs)
    return given.map(lambda _: next(source))
