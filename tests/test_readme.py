"""What the README shows is run: its Python blocks and its nkijax commands, in order, and what they print.

A Python block that begins with a file's name is that file, or is added to it.  What commands print is compared without
its numbers, because times are among them.

After a change of the README or of what it shows: python -m tests.test_readme writes the new output into it.
"""

import contextlib
import io
import re
import shlex
import sys
import tempfile
from pathlib import Path

import pytest

import nkijax
from nkijax import cli
from nkijax.cli import SUPPORT
from nkijax.dialects.nki import surface

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n?^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
NUMBER = re.compile(r" *-?\d[\d.,]*(e[+-]\d+)?")
LINES = re.compile(r"The package has about ([\d,]+) lines")
TABLE = re.compile(r"\n(.*?)".join(SUPPORT), re.DOTALL)


def ran(text: str, refresh: bool = False) -> str:
    """The README with its `text` blocks as the blocks before them print them now; runs in the current directory."""
    out, position = [], 0
    names: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(2))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if block[1] == "sh":
                said = [cli.main(shlex.split(command)[1:]) for command in block[2].splitlines()]
                assert not any(said), block[2]
            elif file := FILE.match(block[2]):
                with open(file[1], "a") as mine:
                    mine.write(block[2])
            else:
                exec(compile("\n" * line + block[2], str(README), "exec"), names)
        if block[3] is not None:
            new = printed.getvalue().replace(f"{README}:", "README.md:")
            if block[1] == "sh" and not refresh and NUMBER.sub("#", new) == NUMBER.sub("#", block[3]):
                new = block[3]
            out += [text[position : block.start(3)], new]
            position = block.end(3)
    return "".join(out) + text[position:]


def lines() -> int:
    """Lines of the package."""
    return sum(len(p.read_text().splitlines()) for p in Path(nkijax.__file__).parent.rglob("*.py"))


def test_blocks_run_and_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
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
    for _ in range(2):  # once for the lines, once for their numbers
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            sys.path.insert(0, folder)
            text = ran(text, refresh=True)
            sys.path.remove(folder)
            sys.modules.pop("mine", None)
    README.write_text(text)


if __name__ == "__main__":
    _refresh()
