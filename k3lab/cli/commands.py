"""The commands: `doctor`, `run`, `report`, `bisect`, `budget`, `lab`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from k3lab.cli import options
from k3lab.cli.program import FAILED_BOUND
from k3lab.cli.progress import progress
from k3lab.errors import BackendUnavailable, BadInput, InternalFault, expect

if TYPE_CHECKING:
    from k3lab.analysis.report import Report


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON, for a bug report: no path names you.")
@click.option("--paths", is_flag=True, help="With --json: name folders, and what environment variables hold.")
def doctor(as_json: bool, paths: bool) -> None:
    """Say which backends work here, and why the others do not."""
    from k3lab.cli.doctor import examine

    expect(as_json or not paths, "--paths", "--json beside it", "none")
    facts = examine(paths=paths or not as_json)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    from k3lab.cli import show

    for table in show.doctor_tables(facts):
        show.console().print(table)


@click.command()
@click.argument("launch")
@options.case_or_file
@click.option(
    "--backend",
    type=options.Choice(options.BACKENDS),
    default="twin",
    show_default=True,
    help="Where to run; `k3lab doctor` says which work here.",
)
@click.option(
    "--order",
    type=options.Choice(options.ORDERS),
    default="kernel",
    show_default=True,
    help="Order of the twin's sums.",
)
@options.run_options
@options.sim_options
@options.cuda_options
@click.option("--dumps", is_flag=True, default=None, help="Let a kernel write its locals out too (a twin always does).")
@click.option("--out", type=Path, metavar="FILE", help="Also write every exposed tensor to a safetensors file.")
def run(
    launch: str,
    backend: str,
    order: str,
    mfma: str | None,
    device: str | None,
    dumps: bool | None,
    out: Path | None,
    **described: Any,
) -> None:
    """Run LAUNCH on a case and list every tensor it exposes."""
    from k3lab import backends
    from k3lab.cli import show
    from k3lab.cli.saving import save_run
    from k3lab.files import check_writable

    model = options.mfma_model(mfma, backend, order)
    sim, cuda = options.simulation(backend, described), options.cuda(backend, described)
    if out is not None:
        check_writable(out.parent)
    case = options.make_case(launch, described)
    how: dict[str, Any] = {"order": order, "mfma": model, "device": device, "sim": sim, "dumps": dumps, **cuda}
    made = backends.run(launch, case, backend=backend, **how)
    console = show.console()
    console.print(show.run_heading(made), soft_wrap=True)
    console.print(show.run_table(made))
    console.print(show.measured(made), soft_wrap=True)
    if out is not None:
        console.print(str(save_run(made, out)), soft_wrap=True)


@click.command()
@click.argument("launch", metavar="LAUNCH|all")
@click.option("--out", type=Path, default="reports", show_default=True, metavar="DIR", help="Folder of the reports.")
@options.case_or_file
@click.option(
    "--backend",
    type=options.Choice(("twin", *options.KERNELS)),
    default="twin",
    show_default=True,
    help="twin compares orders of sums; the others hold the kernel against its twin.",
)
@options.run_options
@options.sim_options
@options.cuda_options
@click.option("--no-budget", is_flag=True, help="Leave out the error budget (most of the time).")
@click.option("--no-spread", is_flag=True, help="Leave out the other MFMA models.")
@click.option("--timeline", "timed", is_flag=True, help="Add where the kernel's time goes, and its own page.")
@click.option(
    "--against",
    type=Path,
    metavar="OLD.json",
    help="An older report.json: say what changed since; by default the one in DIR/LAUNCH, if any.",
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
@click.pass_context
def report(
    ctx: click.Context,
    launch: str,
    out: Path,
    backend: str,
    mfma: str | None,
    device: str | None,
    no_budget: bool,
    no_spread: bool,
    timed: bool,
    against: Path | None,
    open_it: bool,
    **described: Any,
) -> None:
    """Write error reports into DIR/LAUNCH/: report.html, report.json, points.csv.

    `all` writes one for every launch and variant (M1a on one rank and on eight), and an index page.
    """
    jobs = options.report_jobs(launch, described)
    old = _older(against, launch)
    sim, cuda = options.simulation(backend, described), options.cuda(backend, described)
    one = launch != "all" or described["case_file"] is None
    expect(one, "--case", "one launch, as a case has the inputs of one", "all")
    kernel = backend in options.KERNELS
    expect(kernel or not timed, "--timeline", f"--backend {' or '.join(options.KERNELS)}", f"--backend {backend}")
    from k3lab.analysis.changes import previous
    from k3lab.analysis.make import make_report, report_steps
    from k3lab.analysis.timeline import run_timeline
    from k3lab.cli import show
    from k3lab.files import check_writable, write_text

    check_writable(out)
    model = options.mfma_model(mfma)
    parts: dict[str, Any] = {"budget": not no_budget, "spread": not no_spread}
    how: dict[str, Any] = {"mfma": model, "device": device, "backend": backend, "sim": sim, **cuda}
    reports = {}
    for folder, name, variant in jobs:
        case = options.make_case(name, described, variant, for_all=launch == "all")
        with progress(folder, report_steps(case, **parts) + 1 + timed) as step:
            made = make_report(name, case, progress=step, **how, **parts)
            if timed:
                step("timeline")
            times = run_timeline(name, case, **how) if timed else None
            step("charts and page")
            before = old or previous(out / folder, name)
            page = made.save(out / folder, against=before, timeline=times)
        reports[folder] = made
        click.echo("\n".join([*show.report_lines(folder, made), *show.change_lines(made, before), str(page)]))
    if launch == "all":
        from k3lab.analysis.html import index

        page = write_text(out / "index.html", index(reports))
        click.echo(str(page))
    if open_it:
        show.open_page(page)
    if not all(made.passed for made in reports.values()):
        ctx.exit(FAILED_BOUND)


def _older(path: Path | None, launch: str) -> Report | None:
    """The older report to compare with, read before anything is computed."""
    if path is None:
        return None
    from k3lab.analysis.report import Report

    old = Report.load(path)
    expect(old.launch == launch, f"report {str(path)!r}", f"a report of {launch}", f"one of {old.launch}")
    return old


@click.command()
@click.argument("launch")
@options.case_or_file
@click.option(
    "--backend", type=options.Choice(options.KERNELS), default="sim", show_default=True, help="Where the kernel runs."
)
@click.option("--mfma", type=options.Choice(options.MFMA_MODELS), help="Model of the matrix instruction's additions.")
@options.sim_options
@options.cuda_options
@click.pass_context
def bisect(ctx: click.Context, launch: str, backend: str, mfma: str | None, **described: Any) -> None:
    """Run LAUNCH's stages one by one on exact inputs, and name the first whose kernel is not its twin.

    Exit codes beside the usual: 0 all equal, 1 one differs, 4 one stopped with a fault.
    """
    from k3lab.analysis import bisect as bisection

    sim, cuda = options.simulation(backend, described), options.cuda(backend, described)
    case = options.make_case(launch, described)
    with progress(launch, len(bisection.units(case))) as step:
        made = bisection.bisect(launch, case, backend, options.mfma_model(mfma), sim, step, **cuda)
    click.echo(repr(made))
    if made.fault:
        ctx.exit(InternalFault.exit_code if made.fault.stopped else FAILED_BOUND)


@click.command()
@click.argument("launch")
@options.case_or_file
@click.option("--device", help="Torch device: cpu (the default), cuda, cuda:1, ...")
def budget(launch: str, device: str | None, **described: Any) -> None:
    """Say which rounding points explain the error of LAUNCH's results."""
    from k3lab.analysis.budget import budget_steps, error_budget
    from k3lab.cli import show

    case = options.make_case(launch, described)
    with progress(launch, budget_steps(case)) as step:
        made = error_budget(launch, case, device=device, progress=step)
    show.console().print(show.budget_table(launch, made))


@click.command()
@click.pass_context
def lab(ctx: click.Context) -> None:
    """Open the notebooks in Jupyter Lab."""
    if find_spec("jupyterlab") is None:
        raise BackendUnavailable("jupyter lab is not installed here; install it with: pip install 'k3lab[notebooks]'.")
    folder = _notebooks()
    ctx.exit(subprocess.call([sys.executable, "-m", "jupyterlab", str(folder)]))


def _notebooks() -> Path:
    """The notebooks' folder, here or in the checkout k3lab runs from.

    Raises:
        BadInput: when there is none.
    """
    import k3lab

    for root in (Path.cwd(), Path(k3lab.__file__).parents[1]):
        if (root / "notebooks").is_dir():
            return root / "notebooks"
    raise BadInput("notebooks: expected a folder of that name here, got none; run this in a checkout of k3lab.")
