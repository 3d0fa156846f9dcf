"""Puts together what `cuda_ranks` found: one file of all items, a table of the times, and the timelines' pages.

    python -m benchmarks.cuda_ranks_results OUT [OUT ...] --to data/results/ranks

Writes ranks.json, ranks.md, LAUNCH-timeline.json and .html. Of an item that several OUT have, the last one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch

import k3lab
from benchmarks.cuda_ranks_items import EQUAL, KILLED, STAMPED, STEPS, TIMED, items
from k3lab.analysis.timeline import Timeline, load, page
from k3lab.analysis.timeline.make import timeline_of
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.errors import BadInput, expect
from k3lab.files import write_together

KINDS = {"equal": EQUAL, "steps": STEPS, "killed": KILLED, "stamped": STAMPED, "timed": TIMED}
"""The parts that have items, and the kinds of these."""
PARTS = ("link", *KINDS)
MEASURED = ("link", "stamped", "timed")
"""Those that hold nothing against a twin."""
ABOUT = ("device", "gpus", "engine", "driver", "versions", "date")
"""What every part says of where it ran; the same for all of them."""
HEADS = ("launch", "ours", "shortest", "a step", "floor", "x floor")
TORCH = (
    "NCCL all-reduce, graph",
    "symmetric memory one-shot all-reduce, graph",
    "torch and NCCL",
    "torch and NCCL, graph",
    "torch and symmetric memory",
    "torch and symmetric memory, graph",
    "NCCL all-gather, graph",
)
"""Of torch's ways, those that the table shows where some item has them."""
Found = dict[str, Any]


def timeline(
    case: k3lab.Case, stamps: Sequence[torch.Tensor], plan: Plan, device: str, said: Found, versions: Found
) -> Timeline:
    """The timeline of a launch over several GPUs.

    Args:
        stamps: by rank, [BLOCKS, points] int64 ns on GPU 0's clock, 0 where a CTA did not pass.
        said: what the team says of the clocks.
    """
    facts = {
        "versions": versions,
        "backend": "cuda",
        "order": "kernel",
        "device": device,
        "case": case.describe(),
        "translation": {"build": "fast" if plan.fast else "exact", "clock": "global timer, ns"},
        "ranks": plan.described(),
        **said,
    }
    return timeline_of(k3lab.Run(case, "cuda", "kernel", "fused", device, (), {}, 0.0, facts, list(stamps)))


def merged(folders: Sequence[Path], notes: Sequence[str] = ()) -> Found:
    """All parts' items by part, what ran where, and what did not run.

    Args:
        notes: what a reader must know of this run, sentences.

    Raises:
        BadInput: for no part at all, or parts that ran on other devices or with other versions.
    """
    about: Found = {}
    parts: dict[str, Found] = {}
    for path in (folder / f"{part}.json" for part in PARTS for folder in folders):
        if not path.is_file():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        here = {name: found[name] for name in ABOUT}
        about = about or here
        expect(here == about, f"results {str(path)!r}", f"those of {about}", here)
        part = parts.setdefault(path.stem, {"items": {}})
        part["items"] |= found["items"]
        if "ended" in found:
            part["ended"] = found["ended"]
    if not parts:
        raise BadInput(f"results: expected at least one of {', '.join(f'{part}.json' for part in PARTS)}, got none.")
    for name, kind in KINDS.items():
        known = [item.name for item in items() if item.kind == kind]
        part = parts.setdefault(name, {"items": {}})
        part["not_run"] = [item for item in known if item not in part["items"]]
    return {**about, "notes": list(notes), "parts": {name: parts[name] for name in PARTS if name in parts}}


def counts(result: Found) -> Iterator[str]:
    """A line for each part: how many items were as they must be, and which did not run."""
    for name, part in result["parts"].items():
        found = part["items"].values()
        fine = f"{sum(row['equal'] for row in found)} of {len(found)} items"
        line = f"{name}: {fine} {'measured' if name in MEASURED else 'as they must be'}"
        left = part.get("not_run", [])
        why = f" ({part['ended']})" if left and "ended" in part else ""
        yield f"{line}; not run{why}: {'; '.join(left)}" if left else line


def markdown(result: Found) -> str:
    """The times as a table, microseconds."""
    timed = result["parts"]["timed"]["items"]
    ours = {name: row for name, row in timed.items() if "floor" in row}
    other = {name: _by_torch(timed.get(f"{name}: torch", {})) for name in ours}
    shown = [way for way in TORCH if any(way in found for found in other.values())]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"# Launches over {result['gpus']} GPUs",
        "",
        f"Measured on {result['gpus']} x {result['device']} of one host (driver {result['driver']}; {versions}), "
        f"{result['date']}. Microseconds, medians; of the GPUs' the longest. *Ours* is one launch of the fast build, a "
        "rank a GPU, between two events; *a step* is from one launch to the next. The floor is a GPU's bytes at the "
        "bandwidth of a copy or, where longer, its words over the link at that of a copy, and one way over the link.",
        "",
        _line((*HEADS, *shown)),
        f"| --- |{' ---: |' * (len(HEADS) + len(shown) - 1)}",
    ]
    for name, row in ours.items():
        times = [other[name].get(way) for way in shown]
        lines.append(_line((name, *_own(row), *("-" if each is None else f"{each:.1f}" for each in times))))
    lines += [line for note in result["notes"] for line in ("", note)]
    return "\n".join([*lines, "", *(f"- {line}" for line in counts(result)), ""])


def _by_torch(found: Found) -> dict[str, float]:
    """Medians by name, the longest of the GPUs'; of what was measured."""
    held = found.get("medians_us", {})
    each: Sequence[Mapping[str, Any]] = held if isinstance(held, list) else [held]
    names = [name for name in each[0] if all(isinstance(gpu[name], float) for gpu in each)]
    return {name: max(gpu[name] for gpu in each) for name in names}


def _own(row: Found) -> tuple[str, ...]:
    step = max(gpu["step_us"] for gpu in row["ours"])
    floor = row["floor"]["all_us"]
    return (
        f"{row['median_us']:.1f}",
        f"{_shortest(row):.1f}",
        f"{step:.1f}",
        f"{floor:.1f}",
        f"{row['median_us'] / floor:.1f}",
    )


def _shortest(row: Found) -> float:
    """The shortest launch, on the GPU where that took longest."""
    return float(max(gpu["shortest_us"] for gpu in row["ours"]))


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def files(folders: Sequence[Path], notes: Sequence[str] = ()) -> dict[str, str | bytes]:
    """By name, everything that is written."""
    result = merged(folders, notes)
    made: dict[str, str | bytes] = {"ranks.json": json.dumps(result, indent=1), "ranks.md": markdown(result)}
    for folder in folders:
        for path in sorted(folder.glob("*-timeline.json")):
            made[path.name] = path.read_text(encoding="utf-8")
            made[path.with_suffix(".html").name] = page.render(load(path), ceilings="h200")
    return made


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--to", "target", type=Path, required=True)
@click.option("--note", "notes", multiple=True, help="A sentence that a reader of this run's times must know.")
def main(folders: tuple[Path, ...], target: Path, notes: tuple[str, ...]) -> None:
    try:
        write_together(target, files(folders, notes))
    except BadInput as error:
        raise click.ClickException(str(error)) from None
    for line in counts(json.loads((target / "ranks.json").read_text(encoding="utf-8"))):
        click.echo(line)


if __name__ == "__main__":
    main()
