"""A benchmark as tables: for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from k3lab.bench.result import MISMATCHED_DB, Result, Row, Table, Tried

if TYPE_CHECKING:
    from rich.table import Table as RichTable

HEADS = ("what", "us", "10 .. 90 %", "x floor", "x torch graph", "weights MB", "SNR dB", "put", "note")
RULE = f"| --- |{' ---: |' * 6} --- | --- |"


def cells(table: Table, row: Row) -> tuple[str, ...]:
    """A row's cells, under `HEADS`."""
    samples = row.samples
    spread = f"{1e6 * samples.low:.1f} .. {1e6 * samples.high:.1f}" if samples else "-"
    return (
        row.name,
        f"{1e6 * samples.median:.1f}" if samples else "-",
        spread,
        _ratio(table.to_floor(row)),
        _ratio(table.to_graph(row)),
        f"{row.weights / 1e6:.1f}" if row.weights else "-",
        snr_text(row),
        row.mode if samples else "-",
        "; ".join(note_parts(row)),
    )


def floor_cells(table: Table) -> tuple[str, ...]:
    """The floor as a row."""
    note = f"{table.moved / 1e6:.1f} MB at the bandwidth of a copy"
    if table.link:
        link = table.link
        over = f"{link.bytes / 1e6:.2f} MB over the link at the {link.bandwidth / 1e9:.0f} GB/s of one"
        note = f"of a GPU: {note}, or {over}, and {1e6 * link.one_way:.2f} us one way"
    return ("floor", f"{1e6 * table.floor:.1f}", "-", "1.00", "-", "-", "-", "-", note)


def note_parts(row: Row) -> Iterator[str]:
    """What a row says in words."""
    if row.note:
        yield row.note
    if row.samples:
        yield row.about
    if row.knobs:
        yield knobs_text(row.knobs)
    if row.kernel:
        took = row.kernel
        yield f"{took['registers']} registers, {took['shared'] / 1024:.0f} KiB shared, {took['spilled']} B spilled"


def snr_text(row: Row) -> str:
    """The least signal to noise of a row's outputs; flagged where it is not what the twin's error asks for."""
    if row.fine is None:
        return "-"
    known = [snr for snr in row.snr.values() if snr is not None]
    least = min(known, default=None)
    shown = "exact" if least is None else "differs" if least <= MISMATCHED_DB else f"{least:.1f}"
    return shown if row.fine else f"{shown} (too low)"


def knobs_text(knobs: Mapping[str, Any]) -> str:
    """`blocks 256, token_tile 4, prefetch all`."""
    shown = {**knobs, **({"prefetch": "all"} if knobs.get("prefetch") == 0 else {})}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def title(table: Table) -> str:
    """What a table is of."""
    where = "one GPU" if table.gpus == 1 else f"{table.gpus} GPUs"
    ranks = f", {table.ranks} ranks on {where}" if table.ranks > 1 else ""
    return f"{table.launch} {table.published}, S = {table.tokens}{ranks}"


def heading(result: Result) -> str:
    """The device and what measured, in a line."""
    device = result.device
    versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
    return (
        f"{device['name']}, driver {device['driver']}; {versions}; copy bandwidth {result.copied} TB/s; "
        f"timed by {device['clock']}; {result.created}"
    )


def how(table: Table) -> str:
    """How a table's launches were put and what they found in the cache."""
    if table.gpus > 1:
        return (
            f"medians of a launch, on the GPU where it took longest; one launch between two events, always the same "
            f"inputs, whose weights would fill a GPU's last cache {table.covers:.1f} times"
        )
    return (
        f"medians of a launch; {table.launches} launches between two events, on {table.sets} sets of inputs in turn, "
        f"whose weights would fill the last cache {table.covers:.1f} times"
    )


def tried_text(tried: Tried) -> str:
    """One line of a search."""
    found = f"{1e6 * tried.median:.1f} us" if tried.median is not None else f"no time: {tried.why}"
    return f"{knobs_text(tried.knobs)}: {found}"


def markdown(result: Result) -> str:
    """All tables, and what was tried."""
    lines = ["# k3lab bench", "", heading(result), ""]
    for table in result.tables:
        lines += [f"## {title(table)}", "", f"{how(table)}.", "", _line(HEADS), RULE]
        lines += [_line(cells(table, row)) for row in table.rows] + [_line(floor_cells(table)), ""]
        if table.tuning:
            where = "from the cache" if table.tuning.cached else "measured in this run"
            lines += [f"Knobs chosen ({where}): {knobs_text(table.tuning.knobs)}. Tried:", ""]
            lines += [f"- {tried_text(tried)}" for tried in table.tuning.tried] + [""]
    return "\n".join(lines)


def _line(texts: Any) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"


def rich_table(table: Table) -> RichTable:
    """One table for a terminal."""
    from rich.table import Table as Made

    made = Made(title=title(table), caption=how(table), title_justify="left", caption_justify="left")
    for place, name in enumerate(HEADS):
        made.add_column(name, justify="right" if 0 < place < 7 else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*cells(table, row))
    made.add_row(*floor_cells(table))
    return made
