"""A toy launch: declared as the real ones are, its bodies taken from `toy_kernels`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from k3lab.geometry import Geometry
from k3lab.kernels.abi import arguments, stage_names
from k3lab.kernels.build import build
from k3lab.launches.declaration import Launch, Output, Stage, TensorDecl
from k3lab.launches.key import LaunchKey
from k3lab.launches.stamps import StampPoint
from k3lab.layout import Local, PlainRows, Region, place_locals
from k3lab.lowering.capture import lower
from k3lab.lowering.ir import Module
from k3lab.sim.engine import Engine
from k3lab.sim.launch import simulate
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options
from tests.device import toy_kernels as kernels

GEOMETRY = replace(Geometry.mini(), blocks=18)
LDS_BYTES = 32768
CHECKS = {"races": True, "global_races": True, "guards": True, "scopes": True}
SCHEDULES = ({}, {"schedule": "random", "seed": 5})
WAIT_TICKS = 5000


def _stage(name: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> Stage:
    return Stage(name, "tests.device", lambda arith, tensors, key: {}, reads, writes)


TOY = Launch(
    name="toy",
    published="toy",
    about="Primitives at work.",
    key_type=LaunchKey,
    inputs=(TensorDecl("src", "8192", "int32", "special", "words"),),
    stages=(_stage("make", ("src",), ("half", "full")), _stage("take", ("half", "full"), ("out",))),
    regions=(Region("A", "64 18", "fp32"), Region("DEALT", "S", "fp32"), Region("XRDY", "4", "flag")),
    rows=(PlainRows("X", "4 1024", "bf16", guard="XRDY"),),
    locals=(Local("half", "64", "bf16", "make", ("take",)), Local("full", "64", "fp32", "make", ("take",))),
    made=(Output("out", "16384", "int32", "words"),),
    outputs=("out",),
    end_tensors=("out",),
    stamp_points=tuple(map(StampPoint, ("start", "one", "two", "skipped", "last"))),
    check=lambda key, tensors: None,
)


def key_of(**fields: Any) -> LaunchKey:
    return LaunchKey(**{"geometry": GEOMETRY, "tokens": 1, "nblocks": 0, **fields})


@cache
def lowered(body: str, key: LaunchKey, stages: frozenset[str] | None = None) -> Module:
    launcher, placeholders = build(TOY, key, stages or stage_names(TOY), getattr(kernels, body), LDS_BYTES)
    return lower(launcher, placeholders)


class Toy:
    """Memory for launches of a body, used in place by each `run`."""

    def __init__(self, body: str, stages: frozenset[str] | None = None, **fields: Any) -> None:
        self.body, self.key, self.stages = body, key_of(**fields), stages
        self.places = {placed.name: placed for placed in TOY.scratch(self.key)}
        end = max(placed.offset + placed.nbytes for placed in self.places.values())
        blocks = GEOMETRY.blocks
        self.arrays: dict[str, Any] = {
            "src": np.random.default_rng(0).integers(-(2**31), 2**31, 8192).astype(np.int32),
            "out": np.zeros(16384, np.int32),
            "scratch": np.zeros(end, np.uint8),
            "epoch": np.array([1], np.int32),
            "slot": 3,
            "locals": np.zeros(64 * 6 + 64, np.uint8),
            "tl": np.full((blocks, len(TOY.stamps)), -1, np.int64),
            "health": np.zeros((blocks, 8), np.int32),
            "alarm": np.zeros(1, np.int32),
            "wait_ticks": WAIT_TICKS,
        }

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    @property
    def module(self) -> Module:
        return lowered(self.body, self.key, self.stages)

    def pairs(self, name: str) -> np.ndarray:
        """[pairs, 2] words of a region."""
        placed = self.places[name]
        return self["scratch"][placed.offset : placed.offset + placed.nbytes].view(np.int32).reshape(-1, 2)

    def local(self, name: str, dtype: Any) -> np.ndarray:
        placed = next(place for place in place_locals(TOY.locals, self.key.sizes) if place.name == name)
        return self["locals"][placed.offset : placed.offset + placed.nbytes].view(dtype)

    def run(self, **options: Any) -> Engine:
        table = arguments(TOY, self.key, self.stages or stage_names(TOY))
        scratch = next(place for place, argument in enumerate(table) if argument.name == "scratch")
        with np.errstate(all="ignore"):
            return simulate(
                self.module,
                *(self[argument.name] for argument in table),
                names={place: argument.name for place, argument in enumerate(table)},
                options=Options(**options),
                regions=self._regions(scratch),
            )

    def _regions(self, scratch: int) -> list[SharedRegion]:
        kinds: dict[str, Any] = {r.name: "flags" if r.word == "flag" else "pairs" for r in TOY.regions}
        guards = {plain.name: plain.guard for plain in TOY.rows}
        return [
            SharedRegion(p.name, scratch, p.offset, p.nbytes, kinds.get(p.name, "rows"), guards.get(p.name))
            for p in self.places.values()
        ]
