"""`k3lab replay`: a call that a serving process recorded, run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from k3lab.cli import options
from k3lab.cli.program import FAILED_BOUND
from k3lab.cli.progress import progress


@click.command()
@click.argument("file", type=Path)
@click.option(
    "--backend",
    type=options.Choice(("twin", *options.KERNELS)),
    default="twin",
    show_default=True,
    help="Where to run it again; `k3lab doctor` says which work here.",
)
@click.option("--order", type=options.Choice(options.ORDERS), default="kernel", show_default=True, help="Of the twin.")
@options.run_options
@options.sim_options
@click.option(
    "--relative-rms",
    type=float,
    metavar="SHARE",
    help="Let each output differ by this share of its rms value; every bit has to be equal without it.",
)
@click.option("--out", type=Path, metavar="DIR", help="Also write report.html, report.json and points.csv into DIR.")
@click.pass_context
def replay(
    ctx: click.Context,
    file: Path,
    backend: str,
    order: str,
    mfma: str | None,
    device: str | None,
    relative_rms: float | None,
    out: Path | None,
    **described: Any,
) -> None:
    """Run the call recorded in FILE (by `k3lab.record`) again, and compare with the outputs it recorded.

    Exit codes beside the usual: 0 all outputs within the bound, 1 one is not.
    """
    from k3lab.files import check_writable

    model = options.mfma_model(mfma, backend, order)
    sim = options.simulation(backend, described)
    if out is not None:
        check_writable(out)
    from k3lab.analysis import replay as replaying
    from k3lab.analysis.words import number
    from k3lab.cases.recording import load_recorded, outputs_of
    from k3lab.cli import show

    call = load_recorded(file)
    how: dict[str, Any] = {"order": order, "mfma": model, "device": device, "sim": sim, "relative_rms": relative_rms}
    with progress("replay", 3) as step:
        made = replaying.replay(call, backend, progress=step, **how)
    table = show.table("output", "differ", "max ulp", "rms difference / rms", "bound", "held", left=1)
    rows, judged = {row.name: row for row in made.tensors}, {verdict.name: verdict for verdict in made.verdicts}
    for name in outputs_of(call.case.declaration, call.case.key):
        found, verdict = rows[name].difference, judged[name]
        differ = f"{found.differ} of {found.count}"
        figures = (number(found.max_ulp), number(found.relative_rms))
        table.add_row(name, differ, *figures, verdict.bound, "yes" if verdict.passed else "no")
    console = show.console()
    console.print(f"{call.case!r}, recorded on {call.made_by or 'a device not named'}", soft_wrap=True)
    console.print("\n".join(show.report_lines(call.case.launch, made)), soft_wrap=True)
    console.print(table)
    if out is not None:
        console.print(str(made.save(out)), soft_wrap=True)
    if not made.passed:
        ctx.exit(FAILED_BOUND)
