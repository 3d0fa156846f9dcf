"""The one declaration of a launch that backends, cases, reports, notebooks and tests read.

A `Launch` lists its key, its input tensors, its stages in order (each with its twin and its rounding points), the
regions, plain rows and locals its stages hand values through, its outputs and its time stamp points. Nothing else in
k3lab lists stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from k3lab.errors import BadInput
from k3lab.geometry import Geometry
from k3lab.launches.key import LaunchKey
from k3lab.launches.stamps import StampPoint
from k3lab.layout import Local, Placed, PlainRows, Region, place_peers, place_scratch

if TYPE_CHECKING:
    import torch

    from k3lab.arith import Arith

Dtype = Literal["bf16", "fp32", "fp8_e4m3", "e2m1x2", "e8m0", "int32", "int64"]
"""Storage dtypes; fp8, pairs of E2M1 and E8M0 are held as bytes, in uint8."""
Fill = Literal["residual", "activation", "weight", "norm_weight", "special"]
Strides = Literal["contiguous", "rows", "slots", "free"]


@dataclass(frozen=True)
class TensorDecl:
    """An input tensor of a launch.

    Attributes:
        dims: shape as dimension names of the key; `*name` is a free size (at least 1), `>=NAME` a lower bound.
        fill: which part of a case's value distribution it draws from (see `k3lab.cases.values`).
        present: whether a key has this tensor at all.
        optional: a case may leave it out.
        per_rank: every rank has its own (shared by all ranks otherwise). Ranks that each run the launch by themselves,
            as K1's do, have a case each.
        raw: of (key, one rank's inputs), which elements pass through the launch as bits, so that NaN payloads count:
            a mask that broadcasts over the tensor; None for a tensor of which all NaN are alike.
        strides: `contiguous`; `rows` leaves all but the last dimension free; `slots` the first; `free` all.
    """

    name: str
    dims: str
    dtype: Dtype
    fill: Fill
    about: str
    present: Callable[[Any], bool] = lambda key: True
    optional: bool = False
    per_rank: bool = False
    raw: Callable[[Any, Mapping[str, Any]], torch.Tensor] | None = None
    strides: Strides = "contiguous"

    @property
    def slot_dims(self) -> int:
        """Leading dimensions that number slots: a launch writes some slots and leaves the others as they are."""
        return sum(dim.startswith("*") for dim in self.dims.split())


@dataclass(frozen=True)
class Point:
    """A rounding point: a named place where a value is narrowed to `fmt`; `dims` is its value's shape.

    As an *option* of a stage it does nothing until a probe swaps it: to a format, or to the alternative `fmt` names.
    `when` says for which keys values pass it.
    """

    name: str
    fmt: str
    dims: str
    about: str
    when: Callable[[Any], bool] = lambda key: True


@dataclass(frozen=True)
class Output:
    """A tensor a launch fills that is no input of it."""

    name: str
    dims: str
    dtype: Dtype
    about: str


Twin = Callable[["Arith", Any, Any], "dict[str, torch.Tensor]"]


@dataclass(frozen=True)
class Stage:
    """A step of a launch.

    Attributes:
        name: short name, unique in the launch.
        folder: the package that holds `twin.py` (and `kernel.py`).
        twin: plain function of (arith, tensors, key) that returns what it writes, by name.
        reads, writes: names of tensors, regions and locals; the twin sees nothing but `reads`.
        gathers: those of `reads` that come from every rank, stacked in rank order on a first axis.
        named: what the launch calls a value the twin writes, where that is another name.
    """

    name: str
    folder: str
    twin: Twin
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    points: tuple[Point, ...] = ()
    options: tuple[Point, ...] = ()
    gathers: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True)
class Launch:
    """A one-launch kernel, declared once.

    Attributes:
        published: the name its vLLM kernel is known by.
        made: outputs that are no inputs.
        outputs: tensors a caller gets back; `end_tensors` are those an error budget is drawn up for.
        stamp_points: its time stamp points, in the order a row of stamps holds them; `stamps` are their names.
        check: refuses inputs whose values (slots, counts) break the contract.
        tie_weights: (point, weight) where the value before the point is something times the weight by column; a
            case can then choose the weight so that two reduction orders round to different sides.
        in_bf16: tensors a key holds in bf16 that are declared narrower.
        variants: by name, key options of builds worth a report of their own beside the default's.
    """

    name: str
    published: str
    about: str
    key_type: type[LaunchKey]
    inputs: tuple[TensorDecl, ...]
    stages: tuple[Stage, ...]
    regions: tuple[Region, ...]
    rows: tuple[PlainRows, ...]
    locals: tuple[Local, ...]
    made: tuple[Output, ...]
    outputs: tuple[str, ...]
    end_tensors: tuple[str, ...]
    stamp_points: tuple[StampPoint, ...]
    check: Callable[[Any, Mapping[str, Any]], None]
    tie_weights: tuple[tuple[str, str], ...] = ()
    in_bf16: Callable[[Any], tuple[str, ...]] = lambda key: ()
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def stamps(self) -> tuple[str, ...]:
        """Names of the time stamp points."""
        return tuple(point.name for point in self.stamp_points)

    @property
    def points(self) -> dict[str, Point]:
        """Rounding points by full name (`k1.mix.x`), in the order values pass them."""
        return {f"{self.name}.{point.name}": point for stage in self.stages for point in stage.points}

    @property
    def options(self) -> dict[str, Point]:
        """Optional points by full name: identity until a probe swaps them."""
        return {f"{self.name}.{point.name}": point for stage in self.stages for point in stage.options}

    def points_for(self, key: LaunchKey) -> tuple[str, ...]:
        """Full names of the rounding points values pass in a build with `key`."""
        return tuple(name for name, point in self.points.items() if point.when(key))

    @property
    def exposed(self) -> tuple[str, ...]:
        """Every tensor a run exposes for comparison, in the order the stages write them."""
        flags = {region.name for region in self.regions if region.word == "flag"}
        names = [name for stage in self.stages for name in stage.writes if name not in flags]
        return tuple(dict.fromkeys(names))

    def format_of(self, name: str, key: LaunchKey) -> str:
        """The format the exposed tensor `name` is stored in: its ulp is the unit errors are counted in."""
        if name in self.in_bf16(key):
            return "bf16"
        for region in self.regions:
            if region.name == name:
                return {"fp32": "fp32", "fp8x4": "fp8_e4m3"}.get(region.word, "bf16")
        stored: dict[str, str] = {d.name: d.dtype for d in self.inputs}
        stored |= {d.name: d.dtype for d in self.made}
        stored |= {d.name: d.dtype for d in self.rows}
        stored |= {d.name: d.dtype for d in self.locals}
        return stored[name]

    def kind_of(self, name: str) -> str:
        """What the exposed tensor `name` is: output, region, local or plain rows."""
        if name in self.outputs:
            return "output"
        if name in {region.name for region in self.regions}:
            return "region"
        return "rows" if name in {plain.name for plain in self.rows} else "local"

    def about_of(self, name: str) -> str:
        """What the tensor, region or local `name` is, in a phrase; empty for one that is not declared."""
        abouts = {local.name: local.about for local in self.locals}
        abouts |= {region.name: region.about for region in self.regions}
        abouts |= {plain.name: plain.about for plain in self.rows}
        abouts |= {made.name: made.about for made in self.made}
        abouts |= {decl.name: decl.about for decl in self.inputs}
        return abouts.get(name, "")

    def stage(self, name: str) -> Stage:
        """The stage called `name` (with or without the launch's name before it).

        Raises:
            BadInput: listing the stages when there is none.
        """
        short = name.removeprefix(f"{self.name}.")
        for stage in self.stages:
            if stage.name == short:
                return stage
        raise BadInput(f"stage: expected one of {[s.name for s in self.stages]} of {self.name}, got {name!r}.")

    def key(self, geometry: Geometry, **options: Any) -> LaunchKey:
        """A validated key.

        Raises:
            BadInput: for an unknown option or a value out of range.
        """
        known = {option.name for option in fields(self.key_type)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise BadInput(f"{self.name} option: expected one of {sorted(known)}, got {', '.join(unknown)}.")
        return self.key_type(geometry=geometry, **options)

    def input(self, name: str) -> TensorDecl:
        """The declaration of the input `name`.

        Raises:
            KeyError: when there is none of that name.
        """
        for decl in self.inputs:
            if decl.name == name:
                return decl
        raise KeyError(name)

    def inputs_for(self, key: LaunchKey) -> tuple[TensorDecl, ...]:
        """The input tensors that a build with `key` takes."""
        return tuple(decl for decl in self.inputs if decl.present(key))

    def made_for(self, key: LaunchKey) -> tuple[Output, ...]:
        """Outputs that are no inputs, in the dtypes that a build with `key` stores."""
        wider = self.in_bf16(key)
        return tuple(replace(made, dtype="bf16") if made.name in wider else made for made in self.made)

    def locals_for(self, key: LaunchKey) -> tuple[Local, ...]:
        """Locals, in the dtypes that a build with `key` stores."""
        wider = self.in_bf16(key)
        return tuple(replace(local, dtype="bf16") if local.name in wider else local for local in self.locals)

    def scratch(self, key: LaunchKey) -> tuple[Placed, ...]:
        """Regions and plain rows of a build with their byte offsets."""
        return place_scratch(self.regions, self.rows, key.sizes)

    def peers(self, key: LaunchKey) -> tuple[Placed, ...]:
        """One half of a peer buffer: the regions that ranks hand values through; empty for a rank on its own."""
        regions = tuple(region for region in self.regions if region.present(key))
        return place_peers(regions, key.sizes, key.sentinel)
