"""`k3lab selftest`: every kernel against its twin on a backend, with a report to send on."""

from __future__ import annotations

from pathlib import Path

import click

from k3lab.cli import options
from k3lab.cli.program import FAILED_BOUND
from k3lab.cli.progress import progress
from k3lab.errors import InternalFault


@click.command()
@click.argument("launches", nargs=-1, metavar="[LAUNCH]...")
@click.option(
    "--backend", type=options.Choice(options.KERNELS), default="sim", show_default=True, help="Where the kernels run."
)
@click.option("--geometry", help="Sizes: k3 (the default on a GPU) or mini (in the simulator).")
@click.option(
    "--out", type=Path, default="selftest", show_default=True, metavar="DIR", help="Folder of the page and reports."
)
@click.pass_context
def selftest(ctx: click.Context, launches: tuple[str, ...], backend: str, geometry: str | None, out: Path) -> None:
    """Hold every launch's kernel (or the named ones'), whole and stage by stage, against its twin bit for bit.

    Writes DIR/selftest.html, selftest.json and a report a launch: send the folder on. Exit codes beside the usual: 0
    all equal, 1 something differs, 4 a run stopped with a fault.
    """
    from k3lab.analysis.selftest import self_test, steps
    from k3lab.cli import show
    from k3lab.files import check_writable

    check_writable(out)
    sizes = geometry or ""
    with progress(f"selftest on {backend}", steps(launches, backend, sizes)) as step:
        made = self_test(backend, launches, sizes, step)
    page = made.save(out)
    show.console().print(show.selftest_table(made))
    click.echo(made.verdict)
    click.echo(str(page))
    if not made.passed:
        ctx.exit(InternalFault.exit_code if made.stopped else FAILED_BOUND)
