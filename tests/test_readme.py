"""What the README shows is run: its Python blocks, in order, and what they print."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def test_blocks_run_and_print_what_is_shown():
    text = README.read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        code, shown = block.groups()
        line = text.count("\n", 0, block.start(1))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(README), "exec"), names)
        if shown is not None:
            assert printed.getvalue().replace(f"{README}:", "README.md:") == shown
