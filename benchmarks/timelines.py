"""Draws the README's timelines: each launch at full K3 size in the simulator, on its modelled clock.

    python benchmarks/timelines.py [--out data/pictures] [LAUNCH ...]

Writes `<launch>-timeline.png` and `<launch>-path.png`, and prints what each says. Times are modelled, not measured.
"""

from __future__ import annotations

from pathlib import Path

import click

import k3lab
from k3lab.analysis.charts import png
from k3lab.analysis.timeline import run_timeline, views
from k3lab.analysis.timeline.sentences import summary
from k3lab.files import write_bytes

PICTURES = {"timeline": views.all_ctas, "path": views.path_steps}


@click.command(help=__doc__)
@click.option("--out", type=Path, default=Path("data/pictures"), show_default=True)
@click.option("--tokens", default=4, show_default=True)
@click.argument("names", nargs=-1)
def main(out: Path, tokens: int, names: tuple[str, ...]) -> None:
    for name in names or ("k1", "m1a", "k2a"):
        timeline = run_timeline(name, k3lab.make_case(name, tokens=tokens, nblocks=4))
        print(timeline, *summary(timeline), sep="\n  ")
        for what, draw in PICTURES.items():
            print(f"  {write_bytes(out / f'{name}-{what}.png', png(draw(timeline)))}")


if __name__ == "__main__":
    main()
