"""What the README shows is run: its Python blocks, in order, and what they print.

After a change of the README or of what it shows: python -m tests.test_readme writes the new output into it.
"""

import contextlib
import io
import re
from pathlib import Path

import nkijax
from nkijax.cli import SUPPORT
from nkijax.dialects.nki import surface

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
LINES = re.compile(r"The package has about ([\d,]+) lines")
TABLE = re.compile(r"\n(.*?)".join(SUPPORT), re.DOTALL)


def ran(text: str) -> str:
    """The README with its `text` blocks as its Python blocks print them now."""
    out, position = [], 0
    names: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + block[1], str(README), "exec"), names)
        if block[2] is not None:
            out += [text[position : block.start(2)], printed.getvalue().replace(f"{README}:", "README.md:")]
            position = block.end(2)
    return "".join(out) + text[position:]


def lines() -> int:
    """Lines of the package."""
    return sum(len(p.read_text().splitlines()) for p in Path(nkijax.__file__).parent.rglob("*.py"))


def test_blocks_run_and_print_what_is_shown():
    text = README.read_text()
    assert len(BLOCK.findall(text)) > 1
    assert ran(text) == text


def test_the_support_table_is_the_package_s():
    """After a change: nkijax isa --markdown README.md."""
    shown = TABLE.search(README.read_text())
    assert shown and shown[1] == surface.markdown()


def test_the_number_of_lines_is_about_right():
    said = LINES.search(README.read_text())
    assert said and abs(int(said[1].replace(",", "")) / lines() - 1) < 0.1, lines()


def test_the_layout_names_every_module():
    named = set(re.findall(r"`([a-z_]+\.py)`", README.read_text()))
    modules = {p.name for p in Path(nkijax.__file__).parent.glob("[a-z]*.py")}
    assert named == modules


def _refresh() -> None:
    text = README.read_text()
    text = TABLE.sub(lambda _: surface.markdown().join((SUPPORT[0] + "\n", SUPPORT[1])), text)
    text = LINES.sub(f"The package has about {round(lines(), -3):,} lines", text)
    README.write_text(ran(ran(text)))  # once for the lines, once for their numbers


if __name__ == "__main__":
    _refresh()
