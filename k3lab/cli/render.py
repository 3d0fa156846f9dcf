"""`k3lab render`: the page of a report or timeline anew, from its JSON; nothing is run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from k3lab.cli import options
from k3lab.cli.timeline import CEILINGS
from k3lab.errors import expect

if TYPE_CHECKING:
    from k3lab.analysis.report import Report
    from k3lab.analysis.timeline import Timeline


@click.command()
@click.argument("file", type=Path, metavar="FILE.json")
@click.option("--out", type=Path, metavar="PAGE.html", help="Where to write; by default beside FILE, as FILE.html.")
@click.option("--against", type=Path, metavar="OLD.json", help="An older one of the same kind: say what changed since.")
@click.option("--timeline", "times", type=Path, metavar="T.json", help="Of a report: a timeline.json to show in it.")
@click.option(
    "--ceilings",
    type=options.Choice(CEILINGS),
    default="mi355x",
    show_default=True,
    help="Of a timeline: device whose data sheet the bytes and operations are held against.",
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
def render(
    file: Path, out: Path | None, against: Path | None, times: Path | None, ceilings: str, open_it: bool
) -> None:
    """Draw the page of a report.json or timeline.json again, as this version draws it. Nothing is run again."""
    from k3lab.analysis import html
    from k3lab.analysis.timeline import page
    from k3lab.cli import show
    from k3lab.files import write_text

    path = out or file.with_suffix(".html")
    expect(path.absolute() != file.absolute(), "--out", "another file than the one that is read", str(path))
    if _holds_stamps(file):
        expect(times is None, "--timeline", "a report's FILE beside it", "a timeline's")
        made = _timeline(file)
        text = page.render(made, None if against is None else _timeline(against, made.launch), ceilings)
    else:
        report = _report(file)
        old = None if against is None else _report(against, report.launch)
        text = html.render(report, old, None if times is None else _timeline(times, report.launch))
    click.echo(str(write_text(path, text)))
    if open_it:
        show.open_page(path)


def _holds_stamps(path: Path) -> bool:
    """Whether a document is a timeline, by what it holds; anything unreadable is left to the readers to refuse."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "stamps" in data


def _report(path: Path, launch: str | None = None) -> Report:
    from k3lab.analysis.report import Report

    made = Report.load(path)
    expect(launch in (None, made.launch), f"report {str(path)!r}", f"one of {launch}", f"one of {made.launch}")
    return made


def _timeline(path: Path, launch: str | None = None) -> Timeline:
    from k3lab.analysis.timeline import load

    made = load(path)
    expect(launch in (None, made.launch), f"timeline {str(path)!r}", f"one of {launch}", f"one of {made.launch}")
    return made
