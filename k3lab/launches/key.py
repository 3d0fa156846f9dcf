"""What a build of a launch is made for: the fields that every launch's key has, and its knobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

from k3lab.errors import BadInput, expect
from k3lab.geometry import HELD_TASKS, Geometry


@dataclass(frozen=True)
class LaunchKey:
    """What a build of any launch is made for; a launch adds its own fields.

    Attributes:
        tokens: S, token rows of the step.
        nblocks: NB, earlier block outputs the AttnRes mix sees beside the running prefix.
        eps: epsilon of the AttnRes key norm; `out_eps` of the layer norm after the mix.
        token_tile: knob: token rows in LDS at once (0: as many as fit); no result depends on it.
        prefetch: knob: K rounds of weights in flight (0: all); no result depends on it.
        gemv_all: knob: the attention CTAs take GEMV tasks as well; no result depends on it. It and the next three are
            for GPUs whose multiprocessors hold one CTA; on gfx950 a K1 of 16 tokens with k_parts spills registers.
        k_parts: knob: parts of K that token rows lie in LDS by, one after the other, while a CTA holds all its tasks'
            sums; for the widest product alone, as the next two. No result depends on it.
        at_once: knob: tasks that a CTA multiplies at once; no result depends on it.
        ahead: knob: rounds of the first weights beyond those of `prefetch`, as far as there are any, asked for while
            the rows are on their way to LDS; no result depends on it.
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
    gemv_all: bool = False
    k_parts: int = 1
    at_once: int = 1
    ahead: int = 0

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
        expect(self.ahead >= 0, "ahead", "0 or more", self.ahead)
        tasks = -(-self.gemv_tasks // self.gemv_ctas)
        for name in ("k_parts", "at_once"):
            value = getattr(self, name)
            expect(value >= 1, name, "at least 1", value)
            one = f"1, as a CTA has {tasks} GEMV tasks (the sums of {HELD_TASKS} at most are held)"
            expect(value == 1 or tasks <= HELD_TASKS, name, one, value)

    @property
    def gemv_tasks(self) -> int:
        """Tasks of 16 weight rows of the launch's widest product; 0 without one."""
        return 0

    @property
    def holds_sums(self) -> bool:
        """Whether a CTA holds sums of several of its tasks, or of parts of K."""
        return self.k_parts > 1 or self.at_once > 1

    @property
    def gemv0(self) -> int:
        """The first CTA that takes GEMV tasks."""
        return 0 if self.gemv_all else self.geometry.na

    @property
    def gemv_ctas(self) -> int:
        """CTAs that take GEMV tasks."""
        return self.geometry.blocks - self.gemv0

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
