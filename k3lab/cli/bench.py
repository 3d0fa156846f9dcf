"""`k3lab bench`: how fast the launches are on an NVIDIA GPU, beside torch and beside the bytes they must move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from k3lab.cli import options
from k3lab.cli.program import FAILED_BOUND
from k3lab.cli.progress import progress
from k3lab.errors import BadInput, expect

if TYPE_CHECKING:
    from k3lab.bench.make import Plan
    from k3lab.bench.result import Result

# Named here too, so that --help imports nothing heavy; a test holds them against what there is.
LAUNCHES = ("k1", "m1a", "k2a")
KINDS = ("exact", "graph", "compile", "eager", "parts")
MODES = ("max-autotune-no-cudagraphs", "default")
"""Modes of torch.compile that are timed."""
PLAIN_WIDTH = 200


@click.command()
@click.argument("launch", default="all")
@click.option("--tokens", default="1,4,8,16", show_default=True, metavar="S,S,...", help="Token rows of the step.")
@click.option("--out", type=Path, default="reports/bench", show_default=True, metavar="DIR", help="Where to write.")
@click.option("--keep", is_flag=True, help="Keep the other tables that DIR/bench.json has, of this device.")
@click.option("--tune", is_flag=True, help="Choose the knobs by measuring some; kept for this device.")
@click.option("--repeats", default=50, show_default=True, help="Repetitions that are timed.")
@click.option("--without", "left_out", default="", metavar="LIST", help=f"Leave out some of {', '.join(KINDS)}.")
@click.option("--compile-modes", default=",".join(MODES), show_default=True, metavar="LIST", help="Of torch.compile.")
@click.option("--gpu", default=0, show_default=True, help="Number of the GPU.")
@click.option("--nblocks", default=4, show_default=True, help="NB: earlier block outputs that the mix sees.")
@click.option("--gpus", type=int, metavar="N", help="k2a, m1a: over the first N GPUs of this host, a process each.")
@click.option("--ranks", type=int, help="Ranks: with --gpus as many (the default) or more; else K2a's on one GPU (1).")
@click.option("--geometry", help="Sizes: k3 (the default) or mini, a small model of the same structure.")
@click.option("--tp", type=int, help="Tensor parallel size of --geometry k3: 1, 2, 4 or 8.")
@click.option("--blocks", type=int, help="CTAs of a launch, of all its ranks together (256 of k3, 48 of mini).")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any other field of the key.")
@click.option("--lower", type=Path, metavar="DIR", help="Only lower the builds into DIR, for a GPU machine.")
@click.option("--units", default=132, show_default=True, help="--lower --tune: multiprocessors of that machine's GPU.")
@click.pass_context
def bench(
    ctx: click.Context,
    launch: str,
    out: Path,
    gpu: int,
    gpus: int | None,
    lower: Path | None,
    units: int,
    keep: bool,
    **described: Any,
) -> None:
    """Time LAUNCH (k1, m1a, k2a or all) on an NVIDIA GPU.

    Writes bench.json, bench.md and bench.png into DIR: our kernel in its fast and its exact build, torch eager, under a
    CUDA graph and compiled, a public kernel of a part where one is installed, and the floor that memory sets. Until the
    last table is measured, those before lie in DIR/bench.partial.json; of a run that was stopped, --keep keeps them.

    With --gpus the launch's ranks are spread over GPUs of this host: its fast build, NCCL and symmetric memory for the
    hand-off alone and with torch for all of the launch, and the floor that memory and the link set.

    A GPU machine without flydsl takes its builds from the folder that K3LAB_ARTEFACTS names: see --lower.
    """
    asked = {"launch": launch, "gpus": gpus, **described}
    expect(gpus is None or gpu == 0, "--gpu", "none beside --gpus, which takes the first ones", gpu)
    job = _over_gpus(asked) if gpus is not None else _on_one(asked, units)
    if lower is not None:
        click.echo(f"{job.lower(lower)} builds lowered into {lower}")
        return
    from k3lab.bench.clock import DeviceClock

    job.look()
    clock = DeviceClock(gpu)
    from k3lab.files import check_writable

    check_writable(out)
    from k3lab.bench.result import earlier, joined
    from k3lab.bench.write import save, save_part, shown

    older = earlier(out, clock.describe()) if keep else None

    def whole(result: Result) -> Result:
        return joined(result, older) if older else result

    with progress("bench", job.steps) as say:
        result = whole(job.run(clock, say, keep=lambda so_far: save_part(whole(so_far), out)))
    for path in save(result, out):
        click.echo(str(path))
    shown(result, PLAIN_WIDTH)
    if not result.fine:
        click.echo("bench: an output of our kernel is further from the oracle than twice the twin's error power.")
        ctx.exit(FAILED_BOUND)


def plan_of(described: Mapping[str, Any]) -> Plan:
    """What the command's options ask for, by name.

    Raises:
        BadInput: for options out of range.
    """
    launch = described["launch"]
    if launch != "all" and launch not in LAUNCHES:
        raise BadInput(f"launch: expected one of {', '.join(LAUNCHES)} or all, got {launch!r}.")
    left_out = tuple(name for name in described["left_out"].split(",") if name)
    for name in left_out:
        expect(name in KINDS, "--without", f"some of {', '.join(KINDS)}, with commas between", repr(name))
    modes = tuple(mode for mode in described["compile_modes"].split(",") if mode)
    for mode in modes:
        expect(mode in MODES, "--compile-modes", f"some of {', '.join(MODES)}, with commas between", repr(mode))
    sizes = {name: described[name] for name in ("geometry", "tp", "blocks") if described[name] is not None}
    fields = dict(options.parse_assignment(text) for text in described["assignments"])
    own = sorted(fields.keys() & {"tokens", "nblocks", "ranks"})
    expect(not own, "--set", "fields that no other option gives", ", ".join(own))
    ranks = 1 if described["ranks"] is None else described["ranks"]
    expect(ranks >= 1, "--ranks", "at least 1", ranks)
    from k3lab.bench.make import Plan

    return Plan(
        LAUNCHES if launch == "all" else (launch,),
        _tokens(described["tokens"]),
        options.take_geometry(sizes),
        described["nblocks"],
        ranks,
        fields,
        described["tune"],
        described["repeats"],
        tuple(dict.fromkeys(modes)),
        left_out,
    )


def _tokens(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    whole = bool(parts) and all(part.isdigit() and int(part) >= 1 for part in parts)
    expect(whole, "--tokens", "numbers from 1 on with commas between", repr(text))
    return tuple(int(part) for part in parts)


@dataclass(frozen=True)
class Job:
    """What the command does, on one GPU or over several: a look at the machine, its steps, and the rest."""

    look: Callable[[], object]
    steps: int
    run: Callable[..., Result]
    lower: Callable[[Path], int]


def _on_one(asked: Mapping[str, Any], units: int) -> Job:
    """All launches on one GPU."""
    plan = plan_of(asked)
    from k3lab.bench import make
    from k3lab.bench.subjects import subjects

    make.check(plan)
    steps = 1 + sum(1 + plan.tune + len(subjects(name, plan.without, plan.compile_modes)) for name, _ in plan.cases())
    return Job(lambda: None, steps, partial(make.run_bench, plan), lambda folder: _lower(plan, folder, units))


def _over_gpus(asked: Mapping[str, Any]) -> Job:
    """Launches whose ranks are spread over several GPUs."""
    given = plan_of({**asked, "ranks": asked["gpus"] if asked["ranks"] is None else asked["ranks"]})
    from k3lab.bench import ranks

    if asked["launch"] == "all":
        given = replace(given, launches=ranks.LAUNCHES)
    share = asked["tp"] is None and asked["geometry"] in (None, "k3")
    plan = ranks.Plan(given, asked["gpus"], share)
    plan.check()
    steps = 1 + 3 * len(given.cases())
    return Job(lambda: ranks.check_count(plan.gpus), steps, partial(ranks.run_bench, plan), plan.lower)


def _lower(plan: Plan, folder: Path, units: int) -> int:
    """Write the builds' modules; returns how many."""
    from k3lab.bench import tune
    from k3lab.bench.make import key_of
    from k3lab.launches import get

    expect(units >= 1, "--units", "at least 1", units)
    keys = [(get(name), key_of(plan, name, tokens)) for name, tokens in plan.cases()]
    return sum(1 for launch, key in keys for _ in tune.lower(folder, launch, key, plan.tune, units, plan.fields))
