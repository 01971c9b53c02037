"""Files that tell of a run: program text, cost and timeline."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nkijax import timeline
from nkijax.cost import cost
from nkijax.program import Program
from nkijax.roll import roll


def save_timeline(path: str | os.PathLike[str], program: Program, trips: Sequence[int]) -> None:
    """Write the engines' timeline as Chrome/Perfetto trace JSON."""
    Path(path).write_text(json.dumps(timeline.chrome_trace(timeline.schedule(program, trips))))


def save(folder: str, program: Program, trips: Any) -> None:
    """Write NAME.txt (the rolled program), NAME.cost.json and NAME.timeline.json into `folder` (NKI_ARTIFACTS_DIR)."""
    base = Path(folder)
    base.mkdir(parents=True, exist_ok=True)
    counts = [int(n) for n in np.asarray(trips)[: len(program.loops)]]
    (base / f"{program.name}.txt").write_text(str(roll(program)) + "\n")
    (base / f"{program.name}.cost.json").write_text(json.dumps(cost(program, counts).to_json(), indent=1))
    save_timeline(base / f"{program.name}.timeline.json", program, counts)
