"""Progress of long work, on stderr: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

QUIET_SECONDS = 10.0

Report = Callable[[str], None]


@contextmanager
def progress(title: str, steps: int) -> Iterator[Report]:
    """A function to call with what is about to be computed, `steps` times in all."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title, steps)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=steps)
        begun = False

        def show(what: str) -> None:
            nonlocal begun
            bar.update(task, description=f"{title}: {what}", advance=int(begun))
            begun = True

        yield show


def _lines(title: str, steps: int) -> Report:
    """A line for the first step, then at most one every `QUIET_SECONDS`."""
    done, last = 0, float("-inf")

    def show(what: str) -> None:
        nonlocal done, last
        done += 1
        if time.monotonic() - last >= QUIET_SECONDS:
            last = time.monotonic()
            click.echo(f"{title}: {what} ({done} of {steps})", err=True)

    return show
