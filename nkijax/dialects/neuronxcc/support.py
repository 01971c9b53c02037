"""What rewritten kernels call (see `rewrite`): truth of predicates, and the turns of loops."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from nkijax.dialects.neuronxcc.loops import Repeated, TracedOnce
from nkijax.dialects.neuronxcc.loops import range_of as range_of
from nkijax.dialects.neuronxcc.predicate import Predicate

locals = builtins.locals  # it looks at the frame that calls it

# ---- and, or, not


def passes(first: Any) -> Any:
    """What stands for the first operand of `and`: a predicate lets the second one be evaluated."""
    return True if isinstance(first, Predicate) else first


def both(first: Any, second: Any) -> Any:
    """`first and second`, given that `second` is already what Python's `and` would give."""
    if isinstance(first, Predicate):
        return first & second if isinstance(second, Predicate) else first if second is True else second
    return second


def stops(first: Any) -> Any:
    """What stands for the first operand of `or`."""
    return False if isinstance(first, Predicate) else first


def either(first: Any, second: Any) -> Any:
    """`first or second`, given that `second` is already what Python's `or` would give."""
    if isinstance(first, Predicate):
        return first | second if isinstance(second, Predicate) else first if second is False else second
    return second


def negated(x: Any) -> Any:
    """`not x`."""
    return ~x if isinstance(x, Predicate) else not x


# ---- loops


def traced_once(turns: Any) -> bool:
    """Whether the vendor traced the body of this loop once."""
    return isinstance(turns, TracedOnce)


def kept(names: Mapping[str, Any], assigned: Sequence[str]) -> dict[str, Any]:
    """The bindings that each turn starts from, of names that the body assigns."""
    return {name: names[name] for name in assigned if name in names}


def while_turns(loop: Any) -> TracedOnce:
    """The turns of `with do_while(…)`."""
    if isinstance(loop, Repeated):
        return TracedOnce(loop.turns())
    raise TypeError(f"do_while: must be that of neuronxcc.nki._private.private_api, got {loop!r}")
