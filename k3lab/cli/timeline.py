"""`k3lab timeline`: where a kernel's time goes, as a page, pictures and exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from k3lab.cli import options
from k3lab.cli.progress import progress
from k3lab.errors import expect

if TYPE_CHECKING:
    from k3lab.analysis.timeline import Timeline

CEILINGS = ("mi355x", "h200")


@click.command()
@click.argument("launch")
@click.option("--out", type=Path, default="reports/timeline", show_default=True, metavar="DIR", help="Where to write.")
@options.case_or_file
@click.option(
    "--backend",
    type=options.Choice(options.KERNELS),
    default="sim",
    show_default=True,
    help="sim models the times, and knows hand-offs and bytes; the others measure stamps alone.",
)
@options.run_options
@options.sim_options
@options.cuda_options
@click.option(
    "--ceilings",
    type=options.Choice(CEILINGS),
    default="mi355x",
    show_default=True,
    help="Device whose data sheet the bytes and operations are held against.",
)
@click.option("--against", type=Path, metavar="OLD.json", help="An older timeline.json: list what changed since.")
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
def timeline(
    launch: str,
    out: Path,
    backend: str,
    mfma: str | None,
    device: str | None,
    ceilings: str,
    against: Path | None,
    open_it: bool,
    **described: Any,
) -> None:
    """Say where LAUNCH's time goes: CTA by CTA, stage by stage, and who waits for whom.

    Writes DIR/LAUNCH/: timeline.html, its pictures, trace.json for Perfetto, CSV and NPZ files, and timeline.json.
    """
    sim, cuda = options.simulation(backend, described), options.cuda(backend, described)
    case = options.make_case(launch, described)
    from k3lab.analysis.timeline import run_timeline
    from k3lab.cli import show
    from k3lab.files import check_writable

    old = _older(against, launch)
    check_writable(out)
    model = options.mfma_model(mfma)
    how: dict[str, Any] = {"mfma": model, "device": device, "backend": backend, "sim": sim, **cuda}
    with progress(launch, 2) as step:
        step(f"kernel with stamps, {backend}")
        made = run_timeline(launch, case, **how)
        step("pictures, page and exports")
        page = made.save(out / launch, old, ceilings)
    for line in show.timeline_lines(made, old):
        click.echo(line)
    click.echo(str(page))
    if open_it:
        show.open_page(page)


def _older(path: Path | None, launch: str) -> Timeline | None:
    """The older timeline to compare with, read before anything is run."""
    if path is None:
        return None
    from k3lab.analysis.timeline import load

    old = load(path)
    expect(old.launch == launch, f"timeline {str(path)!r}", f"one of {launch}", f"one of {old.launch}")
    return old
