"""What the lint asks of a launch's assembly, derived from its declaration and from where its stages publish rows."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from k3lab.geometry import KCH, WAVES
from k3lab.launches.declaration import Launch, Stage
from k3lab.launches.key import LaunchKey
from k3lab.layout import shape_of
from k3lab.lowering.lint import Line, Rules

PAIR_WIDTHS = frozenset({8, 16})
"""A pair is 8 bytes; the compiler merges the stores of two neighbours, each aligned half of which stays whole."""
PUBLISH = "publish_rows"
QUADS = 4
"""Weight loads of a lane in a round: the MFMAs of a K chunk."""
ROWS_FILE = "stages/gemv/rows.py"
"""Where every product's poll for its rows stands."""
WIDEST = "x"
"""The guarded rows that the knob k_parts is for."""


def rules_for(launch: Launch, key: LaunchKey, stages: frozenset[str] | None = None) -> Rules:
    """The rules for a build of `stages` (all, if None); they need an assembly with line tables."""
    built = [stage for stage in launch.stages if stages is None or stage.name in stages]
    weights = _weight_loads(launch, key, built)
    return Rules(
        polls=sum(len(_polled(launch, key, stage)) for stage in built),
        weight_loads=weights,
        weight_polls=frozenset({ROWS_FILE} if weights else ()),
        pair_widths=PAIR_WIDTHS,
        flag_lines=frozenset(line for stage in built if _guarded(launch, stage.writes) for line in publishes(stage)),
        flag_width=0,
        timeline=key.timeline or key.bounded,  # a bounded wait reads the clock too
    )


def publishes(stage: Stage) -> frozenset[Line]:
    """The lines of the stage's kernel that publish rows: the flag store carries the line of that call."""
    source = Path(_folder(stage), "kernel.py")
    if not source.is_file():
        return frozenset()
    return frozenset((_kernel_file(stage), number) for number in _calls(source, PUBLISH))


@cache
def _calls(source: Path, name: str) -> tuple[int, ...]:
    """Lines of a source file that call `name`."""
    calls = (node for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return tuple(call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == name)


def _polled(launch: Launch, key: LaunchKey, stage: Stage) -> set[str]:
    """Regions that the stage must poll: those it reads, flags of rows it reads, and its own that no other reads."""
    regions = {region.name for region in launch.regions if region.word != "flag" and region.present(key)}
    elsewhere = {name for other in launch.stages if other is not stage for name in other.reads}
    read = regions & {*stage.reads, *(name for name in stage.writes if name not in elsewhere)}
    return (read | _guarded(launch, stage.reads)) - _unused(key)


def _guarded(launch: Launch, names: tuple[str, ...]) -> set[str]:
    """The flags that guard those of `names` that are plain rows."""
    return {plain.guard for plain in launch.rows if plain.name in names}


def _unused(key: LaunchKey) -> set[str]:
    return {"WGT"} if getattr(key, "gate_local", False) else set()


def _weight_loads(launch: Launch, key: LaunchKey, built: list[Stage]) -> int:
    """A lane's loads of its first task's weights, in a build that multiplies guarded rows; 0 asks for some, if any."""
    read = {name for stage in built for name in stage.reads}
    widths = {plain.name: shape_of(plain.dims, key.sizes)[-1] for plain in launch.rows if plain.name in read}
    rounds = [-(-width // (KCH * WAVES * (key.k_parts if name == WIDEST else 1))) for name, width in widths.items()]
    first = min(rounds, default=0)
    return QUADS * min(key.prefetch or first, first)


def _kernel_file(stage: Stage) -> str:
    return f"{stage.folder.partition('.')[2].replace('.', '/')}/kernel.py"


def _folder(stage: Stage) -> str:
    spec = find_spec(stage.folder)
    return "" if spec is None or not spec.submodule_search_locations else spec.submodule_search_locations[0]
