"""Draws bench/growth.svg from bench/growth.json, which `python -m bench.run growth --save` writes.

python -m bench.plot        needs matplotlib, which is in the extra `bench`
"""

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

DATA = Path(__file__).with_name("growth.json")
COLOURS = {"nkijax": "C3", "plain": "0.6", "tiles, scan": "C0", "tiles, vmap": "C2"}
AXES = {"seconds": "seconds of a call", "MiB": "MiB of temporaries"}


def draw(rows: list[dict], picture: Path) -> None:
    """Time and memory against sequence length, both axes logarithmic; dashed: the gradient."""
    mpl.rcParams["svg.fonttype"], mpl.rcParams["svg.hashsalt"] = "none", "growth"
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    lengths = [row["seq"] for row in rows]
    for axes, (key, label) in zip(figure.subplots(1, 2), AXES.items(), strict=True):
        for form, colour in COLOURS.items():
            for what, style in (("forward", "-o"), ("gradient", "--o")):
                points = [row[what][form][key] for row in rows]
                name = form if what == "forward" else None
                axes.plot(lengths, [p or float("nan") for p in points], style, color=colour, label=name, markersize=3)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{n // 1024} K" if n >= 1024 else str(n) for n in lengths])
        axes.set_xlabel("sequence length")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(title="attention, d 128\ndashed: gradient", fontsize=8, title_fontsize=8)
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads(DATA.read_text()), DATA.with_suffix(".svg"))
