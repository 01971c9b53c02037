"""What became of one case."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from nkijax.regress.digest import Digest
from nkijax.regress.history import History

PASSED, FAILED, ERROR, UNSUPPORTED = "passed", "failed", "error", "unsupported"
TIMEOUT, CRASHED, XFAILED, XPASSED = "timeout", "crashed", "xfailed", "xpassed"
GOOD = (PASSED, XFAILED, XPASSED)


@dataclass(frozen=True)
class Result:
    """One case on one target.

    `status`: passed; failed (values); error (an exception); unsupported (nkijax lacks something); timeout; crashed
    (its process died); xfailed and xpassed (`Case.xfail`).  `message` is one line, `detail` a traceback and what was
    printed.
    `kernel_s` is from the call to the outputs, of which `compile_s` until it could run: recording, rolling, lowering
    and XLA.  `instructions` counts those recorded,
    `leaves` those left after rolling; `model_us` is the modelled cost.  `error` and `relative` are the largest
    difference from the reference, as it is and of the largest magnitude there; `device` is JAX's name of where it ran.
    """

    id: str
    status: str
    message: str = ""
    detail: str = ""
    seconds: float = 0.0
    kernel_s: float = 0.0
    compile_s: float | None = None
    instructions: int | None = None
    leaves: int | None = None
    model_us: float | None = None
    error: float | None = None
    relative: float | None = None
    device: str = ""
    outputs: tuple[Digest, ...] = ()
    notes: tuple[str, ...] = ()
    replay: str = ""
    history: History | None = field(default=None, repr=False)

    @property
    def good(self) -> bool:
        return self.status in GOOD

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data, without the history."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "history"}
        return {**out, "outputs": [d.to_json() for d in self.outputs], "notes": list(self.notes)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Result:
        outputs = tuple(Digest.from_json(d) for d in data["outputs"])
        return Result(**{**data, "outputs": outputs, "notes": tuple(data["notes"])})
