"""The stage stepper's view: one stage, one token, one CTA, in the kernel, its twin and the float64 oracle."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from markupsafe import Markup

from k3lab.analysis.compare import alike, raw_elements
from k3lab.analysis.palette import FORMATS
from k3lab.analysis.walk import Walk
from k3lab.analysis.words import number, plural
from k3lab.errors import expect
from k3lab.ui.formulas import formula
from k3lab.ui.html import Html, code, heading, joined, note, swatch, table
from k3lab.ui.owners import Places, dims_of

SHOWN = 8
"""Elements of a tensor in a table."""


@dataclass(frozen=True)
class Element:
    """One element in all three runs.

    Attributes:
        index: its place in the tensor.
        equal: whether kernel and twin hold the same bits.
    """

    index: tuple[int, ...]
    twin: float
    kernel: float
    oracle: float
    equal: bool


@dataclass(frozen=True)
class Part:
    """What a stage writes of one tensor for a token, all of it or one CTA's share.

    Attributes:
        count: elements of it; `equal` how many of them are the twin's, bit for bit.
        elements: the first of them, from the one that was asked for.
        worst: the element whose kernel value is furthest from the oracle's; None where there are no elements.
    """

    name: str
    format: str
    count: int
    equal: int
    elements: list[Element]
    worst: Element | None


def stages_of(walk: Walk) -> list[str]:
    """Names of the stages, in order."""
    return [stage.name for stage in walk.launch.stages]


def written(walk: Walk, stage: str) -> list[str]:
    """What the stage writes that the runs expose."""
    return [name for name in walk.launch.stage(stage).writes if name in walk.kernel.values]


def ctas_of(walk: Walk, stage: str, token: int, rank: int = 0) -> list[int]:
    """The CTAs that write something of `token` in `stage`, in ascending order."""
    found: set[int] = set()
    for name in written(walk, stage):
        found |= set(Places(walk.case, name, walk.twin[name].shape, rank).writers(token))
    return sorted(found)


def part(walk: Walk, name: str, token: int, cta: int | None = None, first: int = 0, rank: int = 0) -> Part:
    """One tensor's elements of a token; with `cta`, only those that CTA writes.

    Args:
        first: how many elements to pass over before the shown ones.
    """
    kernel, twin, oracle = (run.ranks[rank][name] for run in (walk.kernel, walk.twin, walk.oracle))
    places = Places(walk.case, name, twin.shape, rank).mask(token, cta).nonzero()
    at = places.unbind(1)
    raw = raw_elements(walk.kernel, name, rank)
    same = alike(kernel[at], twin[at], None if raw is None else raw.expand(twin.shape)[at])
    error = (kernel[at].double() - oracle[at]).abs()

    def element(place: int) -> Element:
        index = tuple(places[place].tolist())
        return Element(index, float(twin[index]), float(kernel[index]), float(oracle[index]), bool(same[place]))

    count = len(places)
    shown = [element(place) for place in range(first, min(first + SHOWN, count))]
    worst = element(int(error.argmax())) if count else None
    return Part(name, walk.launch.format_of(name, walk.case.key), count, int(same.sum()), shown, worst)


def pages(walk: Walk, stage: str, token: int, cta: int | None = None, rank: int = 0) -> int:
    """How many tables of `SHOWN` elements the longest tensor of a view takes; at least 1."""
    shapes = {name: walk.twin[name].shape for name in written(walk, stage)}
    masks = (Places(walk.case, name, shape, rank).mask(token, cta) for name, shape in shapes.items())
    return max(1, *(-(-int(mask.sum()) // SHOWN) for mask in masks))


def stage_view(walk: Walk, stage: str, token: int = 0, cta: int | None = None, first: int = 0, rank: int = 0) -> Html:
    """A stage's mathematics and twin, and its values for one token: twin, kernel, oracle, difference.

    Args:
        cta: show only what this CTA writes; None: all.
        first: how many elements of each tensor to pass over.

    Raises:
        BadInput: for a stage, token or rank that the case does not have.
    """
    declared, key = walk.launch.stage(stage), walk.case.key
    expect(0 <= token < key.tokens, "token", f"0 .. {key.tokens - 1}", token)
    expect(0 <= rank < len(walk.kernel.ranks), "rank", f"0 .. {len(walk.kernel.ranks) - 1}", rank)
    who = "all CTAs" if cta is None else f"CTA {cta}"
    where = f"token {token}, {who}" + (f", rank {rank}" if len(walk.kernel.ranks) > 1 else "")
    tables = [_table(walk, part(walk, name, token, cta, first, rank)) for name in written(walk, stage)]
    return joined(
        heading(f"{walk.launch.name}.{stage}", f"{declared.about} ({where})"),
        Markup("<div style='margin:6px 0 6px 1em'>{}</div>").format(formula(declared)),
        *tables,
        code(inspect.getsource(declared.twin), "the twin's text"),
    )


def _table(walk: Walk, part: Part) -> Markup:
    kept = swatch(FORMATS[part.format], part.format)
    dims, about = dims_of(walk.launch, part.name), walk.launch.about_of(part.name)
    head = heading(part.name, Markup("[{}], {}: {}").format(dims, kept, about))
    if part.worst is None:
        return head + note("Nothing of this token is written here.")
    label = walk.backend
    says = (
        f"{part.equal} of {plural(part.count, 'element')} are the twin's, bit for bit. Furthest from the oracle: "
        f"{list(part.worst.index)}, by {number(abs(part.worst.kernel - part.worst.oracle))}."
    )
    if not part.elements:
        return head + note(f"All {part.count} elements have been passed over.")
    rows = [
        (
            list(one.index),
            f"{one.twin:.9g}",
            f"{one.kernel:.9g}",
            f"{one.oracle:.9g}",
            "same bits" if one.equal else number(one.kernel - one.twin),
            number(one.kernel - one.oracle),
        )
        for one in part.elements
    ]
    return head + table(
        ["index", "twin", f"kernel ({label})", "oracle", "kernel − twin", "kernel − oracle"], rows, says
    )
