"""The lane stepper's view: one operation that a wave of the simulator ran, in its 64 lanes."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from k3lab.analysis.sources import ROOT
from k3lab.analysis.words import plural
from k3lab.errors import BadInput, expect
from k3lab.ui.html import CAPTION, LINES, TABLE, Html, heading, joined, note

if TYPE_CHECKING:
    from k3lab.sim.record.trace import Trace, TraceStep

ACROSS = 8
"""Lanes in a row of the table."""
AROUND = 2
"""Source lines shown before and after the step's own."""
ON, OFF = "background:#0072B2;color:#ffffff", "background:#E9ECEF;color:#6b6b6b;font-style:italic"


def values_of(step: TraceStep) -> dict[str, Any]:
    """What a step has to show, by name: its result first, then its operands; lane by lane."""
    result = {} if step.value is None else {"result": step.value}
    operands = zip(step.operands, step.operand_values, strict=True)
    return result | {f"operand {place}: %{ssa}": value for place, (ssa, value) in enumerate(operands)}


def lane_texts(value: Any) -> list[str]:
    """[64] texts of a value; vectors and structs as their parts."""
    if isinstance(value, tuple):
        return [f"({', '.join(parts)})" for parts in zip(*map(lane_texts, value), strict=True)]
    return [_text(lane) for lane in value]


def _text(lane: npt.NDArray[Any]) -> str:
    if lane.ndim:
        return f"[{', '.join(map(_text, lane))}]"
    return f"{float(lane):.6g}" if lane.dtype.kind == "f" else str(lane.item())


def mask_text(mask: npt.NDArray[np.bool_]) -> str:
    """The exec mask as hardware holds it, lane 0 in the lowest bit: `0x00000000ffffffff`."""
    return f"{sum(1 << lane for lane, on in enumerate(mask.tolist()) if on):#018x}"


def lane_view(trace: Trace, step: int = 0, shown: str = "") -> Html:
    """A step: its source line, its operation, its exec mask, and one value in all 64 lanes.

    Args:
        shown: which of `values_of` to show; the first where it is empty.

    Raises:
        BadInput: for a step that was not recorded, or a value it does not have.
    """
    expect(len(trace), "trace", "at least one recorded step", "an empty one", "choose another wave or source lines")
    expect(0 <= step < len(trace), "step", f"0 .. {len(trace) - 1}", step)
    held = trace.steps[step]
    values = values_of(held)
    expect(not shown or shown in values, "value", f"one of {list(values)}", repr(shown))
    name = shown or next(iter(values), "")
    active = int(held.mask.sum())
    wave = f"rank {trace.rank}, CTA {trace.group}, wave {trace.wave}"
    return joined(
        heading(f"step {step} of {len(trace)}", f"{wave}; block {held.block}, visit {held.visit} (simulated)"),
        source_lines(held),
        Markup("<pre style='margin:4px 0;white-space:pre-wrap;font-family:monospace'>{}</pre>").format(held.text),
        Markup("<div>exec mask <code>{}</code>: {} of 64 active</div>").format(
            mask_text(held.mask), plural(active, "lane")
        ),
        _lanes(name, values[name], held.mask) if name else note("It has neither a result nor operands."),
    )


def source_lines(step: TraceStep) -> Markup:
    """The source line of a step with its neighbours; its place alone where the file is not at hand."""
    if step.loc is None:
        return note("an unknown source line")
    path, name = source_file(step.loc.file)
    place = Markup("<div><code>{}:{}</code></div>").format(name, step.loc.line)
    if path is None:
        return place
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    first = max(step.loc.line - AROUND, 1)
    texts = [
        Markup("<b>▶ {:4} {}</b>").format(number, text)
        if number == step.loc.line
        else Markup("  {:4} {}").format(number, text)
        for number, text in enumerate(lines[first - 1 : step.loc.line + AROUND], first)
    ]
    return place + Markup("<pre style='margin:4px 0;line-height:1.3;font-family:monospace'>{}</pre>").format(
        Markup("\n").join(texts)
    )


def source_file(file: str) -> tuple[Path | None, str]:
    """Where a source file is (None: not at hand), and its name from the package on: `k3lab/stages/gemv/kernel.py`."""
    _, found, tail = file.rpartition("/k3lab/")
    name = f"k3lab/{tail}" if found else Path(file).name
    for path in (Path(file), ROOT / name):  # the file itself first: it may be another checkout's, changed
        if path.is_file():
            return path, name
    return None, name


def _lanes(name: str, value: Any, mask: npt.NDArray[np.bool_]) -> Markup:
    """8 x 8 lanes; inactive ones grey, in italics, and in brackets."""
    texts = lane_texts(value)
    rows = [
        Markup("<tr><th style='{};padding:0 6px;font-weight:normal'>{}</th>{}</tr>").format(
            LINES,
            first,
            Markup("").join(_lane(lane, texts[lane], bool(mask[lane])) for lane in range(first, first + ACROSS)),
        )
        for first in range(0, len(texts), ACROSS)
    ]
    says = f"{name}, by lane (the row's first lane on the left); grey in brackets: the lane is off, its value garbage"
    return Markup(
        "<table style='border-collapse:separate;border-spacing:2px;{}'><caption style='{}'>{}</caption>{}</table>"
    ).format(TABLE, CAPTION, says, Markup("").join(rows))


def _lane(lane: int, text: str, on: bool) -> Markup:
    style = f"{ON if on else OFF};{LINES};text-align:right;padding:1px 6px;font-family:monospace;min-width:4.5em"
    shown = text if on else f"[{text}]"
    return Markup("<td style='{}' title='lane {}{}'>{}</td>").format(style, lane, "" if on else ", off", shown)


# -- where to go -------------------------------------------------------------------------------------------------------


def run_to(trace: Trace, step: int, target: str) -> int:
    """The number of the next step after `step` that `target` names.

    Args:
        target: a source line (`52`, `kernel.py:52`), an SSA value (`%7`: the step that gives it), or a pattern of
            operation names (`llvm.f*`).

    Raises:
        BadInput: when no later step fits.
    """
    fits = _target(target.strip())
    found = next((later.number for later in trace.steps[step + 1 :] if fits(later)), None)
    if found is None:
        raise BadInput(f"run to: expected a source line, %value or operation after step {step}, got {target!r}.")
    return found


def _target(text: str) -> Callable[[TraceStep], bool]:
    file, _, line = text.rpartition(":")
    if line.isdecimal():
        return lambda step: step.loc is not None and step.loc.line == int(line) and step.loc.file.endswith(file)
    if text.startswith("%") and text[1:].isdecimal():
        return lambda step: step.result == int(text[1:])
    return lambda step: fnmatchcase(step.name, text)
