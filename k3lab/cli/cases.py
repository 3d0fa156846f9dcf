"""`k3lab case`: make case files, by drawing or from a model's checkpoint, and look into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from k3lab.cli import options
from k3lab.errors import expect

if TYPE_CHECKING:
    from rich.table import Table

    from k3lab.cases.statistics import Spread

RULES = ("even", "floor", "rceil", "ceil")
"""MXFP4 scale rules; named here too, so that --help imports nothing heavy."""
SIZES = ("geometry", "tp", "blocks")


@click.group()
def case() -> None:
    """Make and inspect case files: all inputs of a launch."""


@case.command()
@click.argument("launch")
@click.option("-o", "--out", type=Path, required=True, metavar="FILE", help="Where to write the case.")
@options.case_options
def make(launch: str, out: Path, **described: Any) -> None:
    """Draw the inputs of LAUNCH and write them to a file."""
    from k3lab import cases

    made = options.make_case(launch, described)
    cases.save(made, out)
    click.echo(f"{out}: {made!r}")


@case.command("from-checkpoint")
@click.argument("folder", type=Path, metavar="DIR")
@click.option("--launch", required=True, help="Launch to make inputs of: k1, m1a or k2a.")
@click.option("--layer", type=int, required=True, help="Decoder layer, from 0: KDA for k1, MLA for m1a, any for k2a.")
@click.option("--rank", type=int, help="Whose heads, where the launch runs on one rank (0); see --ranks for several.")
@click.option("-o", "--out", type=Path, required=True, metavar="FILE", help="Where to write the case.")
@click.option("--activations", type=Path, metavar="FILE", help="A recorded case: take all but the weights from it.")
@click.option("--scale-rule", type=options.Choice(RULES), help="MXFP4 scale rule W_K is quantised by (even).")
@click.option("--values", help="Distribution that activations are drawn from (outliers).")
@click.option("--seed", type=int, help="Seed of the activations (0).")
@click.option("--null", help="Null state slots: mixed (the default) or none.")
@click.option("--slots", type=int, help="Number of state or cache slots.")
@options.key_options
def from_checkpoint(folder: Path, launch: str, layer: int, out: Path, **described: Any) -> None:
    """Inputs of a launch with the weights of one layer of a Kimi-K3 checkpoint in DIR, as one rank holds them.

    DIR is a Hugging Face folder of safetensors shards. Only the slices that the rank holds are read. The key follows
    the layer: the blocks it sees, whether it writes one.
    """
    from k3lab import cases
    from k3lab.cases.checkpoint import case_from_checkpoint
    from k3lab.files import check_writable

    assigned = dict(options.parse_assignment(text) for text in described.pop("assignments"))
    given = {name: value for name, value in described.items() if value is not None}
    twice = sorted(given.keys() & assigned)
    expect(not twice, "--set", "fields that no other option gives", ", ".join(twice))
    settled = "activations" in given and not any(name in given for name in SIZES)
    geometry = None if settled else options.take_geometry(given)
    check_writable(out.parent)
    made = case_from_checkpoint(folder, launch, layer, geometry=geometry, **given, **assigned)
    cases.save(made, out)
    click.echo(f"{out}: {made!r}")
    click.echo(f"{made.notes['checkpoint']['bytes_read'] / 1e6:.1f} MB read from {folder}")


@case.command()
@click.argument("file", type=Path)
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@click.option(
    "--scale-rule",
    type=options.Choice(RULES),
    default=RULES[0],
    show_default=True,
    help="MXFP4 scale rule of the table's last columns; --json has them all.",
)
def info(file: Path, as_json: bool, scale_rule: str) -> None:
    """Say what a case FILE holds, and how its values are spread; its checksums are verified."""
    from k3lab import cases
    from k3lab.cases.statistics import statistics
    from k3lab.cli import show

    loaded = cases.load(file)
    if as_json:
        spreads = [each.to_dict() for each in statistics(loaded)]
        click.echo(
            json.dumps({**show.case_facts(loaded), "notes": dict(loaded.notes), "statistics": spreads}, indent=1)
        )
        return
    console = show.console()
    console.print(repr(loaded), soft_wrap=True)
    for line in _origin(loaded.notes):
        console.print(line, soft_wrap=True)
    console.print(show.case_table(loaded))
    console.print(_statistics(statistics(loaded, (scale_rule,)), scale_rule))


def _origin(notes: Any) -> list[str]:
    """Where weights and activations came from, one line each."""
    lines = []
    if "checkpoint" in notes:
        about = notes["checkpoint"]
        ranks = ", ".join(map(str, about["ranks"]))
        lines.append(
            f"weights: layer {about['layer']} of checkpoint {about['folder']!r}, heads of rank {ranks}; "
            f"W_K, if any, by scale rule {about['scale_rule']}"
        )
    if "recorded" in notes:
        about = notes["recorded"]
        lines.append(f"recorded {about['created']} on {about['made_by'] or 'a device not named'}, with outputs")
    return lines


def _statistics(spreads: list[Spread], rule: str) -> Table:
    """One line a float tensor."""
    from k3lab.analysis.words import number, percent
    from k3lab.cases.statistics import OUTLIER
    from k3lab.cli import show

    columns = ("min", "1 %", "median", "99 %", "max", "rms", "octaves", "outlier channels", "cut", "flushed")
    made = show.table("tensor", *columns, title="How the values are spread", left=1)
    for each in spreads:
        at = each.quantiles.get
        figures = (each.min, at("0.01"), at("0.5"), at("0.99"), each.max, each.rms, each.octaves)
        found = each.channels
        outliers = f"{found.count} of {found.channels}" if found else "–"
        blocks = each.mxfp4[0] if each.mxfp4 else None
        shares = (percent(blocks.saturate if blocks else None), percent(blocks.flush if blocks else None))
        made.add_row(each.name, *map(number, figures), outliers, *shares)
    made.caption = (
        f"octaves: log2 of the largest over the smallest magnitude but 0; outlier channels: rms at least {OUTLIER:g} "
        f"times the median channel's; cut, flushed: share of blocks of 32 in which MXFP4 by rule {rule} would cut a "
        "value to 6 scales, or make one zero (w_kv_b: of W_UK's blocks)"
    )
    made.caption_justify = "left"
    return made
