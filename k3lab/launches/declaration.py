"""The one declaration of a launch that backends, cases, reports, notebooks and tests read.

A `Launch` lists its key, its input tensors, its stages in order (each with its twin and its rounding points), the
regions, plain rows and locals its stages hand values through, its outputs and its time stamp points. Nothing else in
k3lab lists stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from k3lab.errors import BadInput, expect
from k3lab.geometry import Geometry
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
class LaunchKey:
    """What a build of any launch is made for; a launch adds its own fields.

    Attributes:
        tokens: S, token rows of the step.
        nblocks: NB, earlier block outputs the AttnRes mix sees beside the running prefix.
        eps: epsilon of the AttnRes key norm; `out_eps` of the layer norm after the mix.
        token_tile: knob: token rows in LDS at once (0: as many as fit); no result depends on it.
        prefetch: knob: K rounds of weights in flight (0: all); no result depends on it.
    """

    geometry: Geometry
    tokens: int
    nblocks: int
    eps: float = 1e-5
    out_eps: float = 1e-5
    dumps: bool = False
    bounded: bool = False
    timeline: bool = False
    token_tile: int = 0
    prefetch: int = 0

    def __post_init__(self) -> None:
        for option in fields(self):
            _check_kind(option.name, str(option.type), getattr(self, option.name))
        self.fill()
        self.validate()

    def fill(self) -> None:
        """Put in what stands for a value that other fields give; all fields are of their declared kinds."""

    def validate(self) -> None:
        """Check what every launch asks of its key.

        Raises:
            BadInput: naming the field, what was expected and what came.
        """
        expect(self.tokens >= 1, "tokens", "at least 1", self.tokens)
        expect(0 <= self.nblocks <= 8, "nblocks", "0 .. 8", self.nblocks)
        for name in ("eps", "out_eps"):
            value = getattr(self, name)
            expect(0 < value < 1, name, "a number between 0 and 1", repr(value))
        expect(self.token_tile >= 0, "token_tile", "0 (as many as fit) or more", self.token_tile)
        expect(self.prefetch >= 0, "prefetch", "0 (all) or more", self.prefetch)

    @property
    def reset(self) -> bool:
        """Whether the prefix restarts at the delta."""
        return False

    @property
    def write_idx(self) -> int:
        """Block the updated prefix is also written to, or -1."""
        return -1

    @property
    def gate_local(self) -> bool:
        """Whether every attention CTA computes every token's gate itself, and WGT is not used."""
        return False

    @property
    def sentinel(self) -> bool:
        """Whether words that ranks hand each other carry no tags, in regions armed with a sentinel."""
        return False

    @property
    def rank_count(self) -> int:
        """Ranks a case of this key has tensors for."""
        return int(getattr(self, "ranks", 1))

    @property
    def sizes(self) -> dict[str, int]:
        """Dimension names that tensor, region and local shapes are written in."""
        g = self.geometry
        return {
            "S": self.tokens,
            "NB": self.nblocks,
            "NS": self.nblocks + 1,
            "HIDDEN": g.hidden,
            "NA": g.na,
            "HEADS": g.heads,
            "PROJ": g.proj,
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it, the geometry nested."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LaunchKey:
        """The key `to_dict` wrote.

        Raises:
            BadInput: when a field is missing, unknown or out of range.
        """
        try:
            expect(isinstance(data, Mapping), "launch key", f"the fields of {cls.__name__}", repr(data))
            geometry = Geometry(**data["geometry"])
            return cls(**{**data, "geometry": geometry})
        except (TypeError, KeyError) as error:
            raise BadInput(
                f"launch key: expected the fields of {cls.__name__}, got {dict(data)!r} ({error})."
            ) from None


def _check_kind(name: str, kind: str, value: object) -> None:
    """Whether an option's value is of the declared kind: whole or finite number, true or false, word, geometry."""
    if kind == "int":
        expect(type(value) is int, name, "a whole number", repr(value))
    elif kind == "bool":
        expect(type(value) is bool, name, "true or false", repr(value))
    elif kind == "float":
        expect(_is_finite(value), name, "a finite number", repr(value))
    elif kind == "str":
        expect(type(value) is str, name, "a word", repr(value))
    elif kind == "Geometry":
        expect(isinstance(value, Geometry), name, "a Geometry", repr(value))


def _is_finite(value: object) -> bool:
    try:
        return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # a whole number that no float holds
        return False


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
