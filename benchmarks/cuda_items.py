"""What the CUDA backend is held against the twin on, as plain data: launches by options, each an item of its own.

python -m benchmarks.cuda_items FOLDER     lowers every item into FOLDER (needs flydsl), for machines without it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

import k3lab
from k3lab.bench.tune import spread
from k3lab.cases.make import FILLS
from k3lab.geometry import Geometry
from k3lab.kernels.lowered import keep
from k3lab.launches import get
from k3lab.launches.key import LaunchKey

TOKENS = (1, 4, 8, 16)
FULL: Mapping[str, Any] = {"token_tile": 4}
"""Knobs that let a full-size launch fit a GPU: four token rows in shared memory at once."""
GPU_BLOCKS = 256
QUICK_GEOMETRY = replace(Geometry.k3(), blocks=132)
"""With the workgroups with which the fast build takes the least time on an H200 at S = 4."""
LIST = "items.json"
INPUTS = ("values", "seed", "null", "slots")
"""Options that no kernel depends on."""
DUMPED = ("whole", "stages", "fast", "one-rank", "gives-up")


def quick(launch: str, tokens: int = 4) -> dict[str, Any]:
    """The knobs with which it does; from 16 tokens on rows in two parts of K, and no weights ahead."""
    waits = launch != "k2a"
    knobs: dict[str, Any] = {"token_tile": tokens, "prefetch": 1, "gemv_all": True}
    knobs |= {"k_parts": 1 if tokens < 16 else 2, "ahead": 3 if tokens < 16 else 0} if waits else {"at_once": 4}
    return {**knobs, **(deals(QUICK_GEOMETRY, tokens=tokens, ranks=1, **knobs) if launch == "m1a" else {})}


def deals(geometry: Geometry, **options: Any) -> dict[str, Any]:
    """M1a's deals as the tuner sets them."""
    return spread(get("m1a").key(geometry, nblocks=4, **options))


@dataclass(frozen=True)
class Item:
    """One check.

    Attributes:
        kind: `whole` or `stages` (one launch against the twin), `fast` (the fast build's distance from the exact one),
            `epochs` and `fast-epochs` (many launches in a row), `one-rank` (one rank live, what the others send taken
            from the twin), `refused` (too large), `gives-up` (a bounded wait).
        geometry: its fields.
        stages: names of the stages to run; all, if empty.
        count: launches in a row.
    """

    name: str
    kind: str
    launch: str
    geometry: Mapping[str, Any]
    options: Mapping[str, Any]
    stages: tuple[str, ...] = ()
    restride: Any = None
    count: int = 1

    def case(self) -> k3lab.Case:
        made = k3lab.make_case(self.launch, geometry=Geometry(**self.geometry), **self.options)
        if not self.restride:
            return made
        from tests.kernels import k1_cases, m1a_cases

        how = m1a_cases.gaps if self.launch == "m1a" else k1_cases.RESTRIDES[self.restride]
        return replace(made, tensors={**made.tensors, **how(made.tensors)})

    def key(self) -> LaunchKey:
        """The build's key, without making its inputs."""
        fields = {name: value for name, value in self.options.items() if name not in INPUTS}
        sizes = {**FILLS[self.launch].defaults, **fields, "dumps": self.kind in DUMPED}
        return get(self.launch).key(Geometry(**self.geometry), **sizes)

    def built(self) -> frozenset[str] | None:
        return frozenset(self.stages) or None


@dataclass
class Maker:
    """Numbers items on."""

    items: list[Item] = field(default_factory=list)

    def add(self, name: str, kind: str, launch: str, geometry: Geometry, **options: Any) -> None:
        special = {key: options.pop(key) for key in ("stages", "restride", "count") if key in options}
        self.items.append(Item(name, kind, launch, asdict(geometry), options, **special))


def items() -> list[Item]:
    """Every item, quick ones first."""
    made = Maker()
    _mini(made)
    _full(made)
    _stages(made)
    _epochs(made)
    return made.items


def _mini(made: Maker) -> None:
    """All pairs of options at test size, as the simulator's tests have them."""
    from tests.cover import options_of, pairwise
    from tests.kernels import k1_cases, k2a_cases, m1a_cases

    covers = {"k1": k1_cases.FACTORS, "m1a": m1a_cases.FACTORS, "k2a": k2a_cases.QUICK}
    for launch, factors in covers.items():
        geometry = k2a_cases.TINY if launch == "k2a" else Geometry.mini()
        for labels in pairwise(factors):
            options = {"seed": 1, **options_of(factors, labels)}
            blocks = options.pop("blocks", geometry.blocks)
            made.add(f"{launch} {'-'.join(labels)}", "whole", launch, replace(geometry, blocks=blocks), **options)


def _full(made: Maker) -> None:
    for tokens in TOKENS:
        some: dict[str, Any] = {"tokens": tokens, **FULL}
        made.add(f"k1 full S{tokens}", "whole", "k1", Geometry.k3(), nblocks=4, qlen=min(tokens, 4), **some)
        made.add(f"m1a full S{tokens}", "whole", "m1a", Geometry.k3(), nblocks=4, ranks=1, **some)
        for ranks in (1, 2, 4):
            geometry = replace(Geometry.k3(max(ranks, 2)), blocks=GPU_BLOCKS // ranks)
            made.add(f"k2a full S{tokens} ranks {ranks}", "whole", "k2a", geometry, nblocks=4, ranks=ranks, **some)
    for launch, options in {"k1": {"qlen": 4}, "m1a": {"ranks": 1}, "k2a": {"ranks": 1}}.items():
        for tokens in (4, 16):
            some = {"nblocks": 4, "tokens": tokens, **options, **quick(launch, tokens)}
            made.add(f"{launch} full S{tokens}, as it is timed", "whole", launch, QUICK_GEOMETRY, **some)
    one = {"nblocks": 4, "ranks": 8, "tokens": 4, "shots": "one", **FULL}
    made.add("k2a full S4 ranks 8, one live", "one-rank", "k2a", Geometry.k3(), **one)
    made.add("m1a full S4 ranks 8, one live", "one-rank", "m1a", Geometry.k3(), nblocks=4, ranks=8, tokens=4, **FULL)
    made.add("k1 full S16, all rows at once", "refused", "k1", Geometry.k3(), nblocks=4, qlen=4, tokens=16)
    made.add(
        "k1 gate without slices", "gives-up", "k1", Geometry.mini(), tokens=4, qlen=2, bounded=True, stages=("gate",)
    )


def _stages(made: Maker) -> None:
    some: dict[str, Any] = {"tokens": 4, "nblocks": 4, **FULL}
    builds: Mapping[str, dict[str, Any]] = {"k1": {"qlen": 4}, "m1a": {"ranks": 1}, "k2a": {"ranks": 2}}
    for launch, options in builds.items():
        geometry = replace(Geometry.k3(), blocks=GPU_BLOCKS // options.get("ranks", 1))
        for stage in get(launch).stages:
            name = f"{launch} full S4, {stage.name} alone"
            made.add(name, "stages", launch, geometry, stages=(stage.name,), **some, **options)
            made.add(f"{name}, fast", "fast", launch, geometry, stages=(stage.name,), **some, **options)


def _epochs(made: Maker) -> None:
    for launch, options in {"k1": {"qlen": 2}, "m1a": {"ranks": 1}, "k2a": {"ranks": 2}}.items():
        name = f"{launch} mini S4, 10000 launches"
        made.add(name, "epochs", launch, Geometry.mini(), tokens=4, nblocks=2, count=10_000, **options)
        geometry = replace(Geometry.k3(), blocks=GPU_BLOCKS // options.get("ranks", 1))
        some = {"tokens": 4, "nblocks": 4, "count": 10_000}
        made.add(f"{launch} full S4, fast, 10000 launches", "fast-epochs", launch, geometry, **some, **FULL, **options)
        alone = {name: 1 if name == "ranks" else value for name, value in options.items()}
        name = f"{launch} full S4, fast, as it is timed, 10000 launches"
        made.add(name, "fast-epochs", launch, QUICK_GEOMETRY, **some, **quick(launch), **alone)


def load(folder: Path) -> list[Item]:
    """The items that were lowered into `folder`."""
    held = json.loads((folder / LIST).read_text(encoding="utf-8"))
    return [Item(**{**item, "stages": tuple(item["stages"])}) for item in held]


def lower(folder: Path, chosen: list[Item]) -> Iterator[Item]:
    """Write every item's module and the list of items into `folder`, item by item."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIST).write_text(json.dumps([asdict(item) for item in chosen], indent=1), encoding="utf-8")
    for item in chosen:
        keep(folder, get(item.launch), item.key(), item.built())
        yield item


def lower_selftest(folder: Path, size: str) -> Iterator[str]:
    """Write the modules that `k3lab selftest --backend cuda --geometry SIZE` needs."""
    from k3lab.analysis import selftest
    from k3lab.analysis.bisect import units

    for name, case, about in selftest.cases(list(selftest.CASES), "cuda", size):
        key = replace(case.key, dumps=True)
        for stages in (None, *(frozenset(unit) for unit in units(case))):
            keep(folder, case.declaration, key, stages)
        yield f"selftest {name}, {about}"


@click.command(help=__doc__)
@click.argument("folder", type=Path)
@click.option("--only", default="", help="Items whose name has that in it.")
@click.option("--selftest", "sizes", multiple=True, help="What the self-test needs at that geometry, too: mini or k3.")
def main(folder: Path, only: str, sizes: tuple[str, ...]) -> None:
    for item in lower(folder, [item for item in items() if only in item.name]):
        click.echo(item.name)
    for size in sizes:
        for said in lower_selftest(folder, size):
            click.echo(said)


if __name__ == "__main__":
    main()
