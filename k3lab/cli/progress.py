"""Progress of long work, on stderr: what runs and about how long it will take, as a bar or as a line now and then."""

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
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar_columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    columns = (*bar_columns, TimeElapsedColumn(), TextColumn("left, about"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=steps)
        begun = False

        def show(what: str) -> None:
            nonlocal begun
            bar.update(task, description=f"{title}: {what}", advance=int(begun))
            begun = True

        yield show


def _lines(title: str, steps: int) -> Report:
    """A line for the first step, then at most one every `QUIET_SECONDS`, with an estimate of the time that is left."""
    done, start = 0, time.monotonic()
    last = float("-inf")

    def show(what: str) -> None:
        nonlocal done, last
        now = time.monotonic()
        if now - last >= QUIET_SECONDS:
            last = now
            click.echo(f"{title}: {what} ({done + 1} of {steps}{_left(done, steps, now - start)})", err=True)
        done += 1

    return show


def _left(done: int, steps: int, seconds: float) -> str:
    """`, about 40 s left`, if the steps to come take as long as those `done`; nothing before the first is."""
    if not done:
        return ""
    left = seconds / done * (steps - done)
    return f", about {left:.0f} s left" if left < 100 else f", about {left / 60:.0f} min left"
