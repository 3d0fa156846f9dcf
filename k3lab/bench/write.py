"""Puts a benchmark into a folder, and on the terminal."""

from __future__ import annotations

from pathlib import Path

from k3lab.bench.figure import bench_figure, png
from k3lab.bench.result import PART, WHOLE, Result, to_json
from k3lab.bench.table import heading, markdown, rich_table
from k3lab.files import write_bytes, write_text


def save(result: Result, folder: Path) -> list[Path]:
    """Write bench.json, bench.md and bench.png, in place of what `save_part` wrote.

    Raises:
        BadInput: when the folder cannot be written.
    """
    written = [
        write_text(folder / WHOLE, to_json(result)),
        write_text(folder / "bench.md", markdown(result) + "\n![times](bench.png)\n"),
        write_bytes(folder / "bench.png", png(bench_figure(result))),
    ]
    (folder / PART).unlink(missing_ok=True)
    return written


def save_part(result: Result, folder: Path) -> Path:
    """Write the tables so far, beside those of earlier runs.

    Raises:
        BadInput: when the folder cannot be written.
    """
    return write_text(folder / PART, to_json(result))


def shown(result: Result, plain_width: int) -> None:
    """Print all tables."""
    from rich.console import Console

    made = Console(highlight=False)
    console = made if made.is_terminal else Console(highlight=False, width=plain_width)
    console.print(heading(result))
    for table in result.tables:
        console.print(rich_table(table))
