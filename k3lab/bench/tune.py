"""Knobs chosen for a device by a small measured search; no result depends on a knob, only the time.

Every candidate needs a lowering of its own, which needs FlyDSL. A GPU machine without it searches what was lowered
elsewhere (`lower`), and lists what it could not try.

There is no knob for registers: a thread may have what one or two workgroups a multiprocessor leave it, so BLOCKS
chooses that too (64 registers where a multiprocessor holds two workgroups of 512 threads, 128 where it holds one).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from k3lab.backends import cuda
from k3lab.backends.cuda import compiler
from k3lab.bench.result import Tried, Tuning
from k3lab.errors import BackendUnavailable, BadInput, K3LabError
from k3lab.geometry import HELD_TASKS, KCH, LDS_BYTES, WAVES
from k3lab.kernels.lowered import keep, lowered, sources
from k3lab.launches import Launch, LaunchKey
from k3lab.lowering import store

Knobs = dict[str, Any]

UNITS = 132
"""Multiprocessors of an H200, which candidates are listed for where no GPU is at hand."""
DEFAULT_BLOCKS = 256
"""Of all ranks: those of MI355X, two workgroups on most multiprocessors of an H200."""
TILES = (4, 8, 16)
"""Token rows in shared memory at once. A tile with fewer than the tokens reads the weights again for each."""
ROWS_BYTES = 64 * 1024
"""Of shared memory that rows may take where a multiprocessor holds two workgroups (4 of K1's and M1a's, 16 of K2a's);
a tile of TILES[0] fits there in any case."""
LDS_OF_ROWS = LDS_BYTES - 16 * 1024
"""Of a CTA's LDS that rows may take; sums of waves lie beside."""
PREFETCH = (1, 2)
"""Rounds of weights in flight ahead: more than registers hold are spilled."""
AHEAD = (0, 3)
"""Further rounds of the first weights while the rows are on their way, in launches that wait for their rows."""
AT_ONCE = (1, HELD_TASKS)
"""Tasks multiplied at once, in the launch that does not."""
SHAPE = ("blocks", "token_tile", "gemv_all", "k_parts")
DEALS = ("qb0", "uk_ctas")
"""M1a's, which go with the shape."""
SEARCHED = ((*SHAPE, *DEALS), ("prefetch",), ("ahead",), ("at_once",), ("gate_local",))
"""Knobs that a search chooses together, one group after the other: first what fits a multiprocessor."""


def default_key(key: LaunchKey, named: Collection[str] = ()) -> LaunchKey:
    """`key` with the token tile and depth of prefetch that let it fit a GPU, where it has none, and M1a's deals.

    Args:
        named: fields that were asked for, which stay.
    """
    tile, depth = key.token_tile or min(_rows_of_half(key), key.tokens), key.prefetch or PREFETCH[0]
    deals = spread(key) if hasattr(key, DEALS[0]) else {}
    return replace(key, token_tile=tile, prefetch=depth, **{n: value for n, value in deals.items() if n not in named})


def candidates(key: LaunchKey, units: int = UNITS, named: Collection[str] = ()) -> list[Knobs]:
    """Every choice of knobs that a search may try on a GPU of `units` multiprocessors, the default's first.

    Args:
        named: fields that were asked for, which stay.
    """
    first = knobs_of(default_key(key, DEALS))
    searched = {*SHAPE, *DEALS, *_choices(key)} - {*named}
    stay = {name: value for name, value in first.items() if name not in searched}
    made = [{**shape, **_deals(key, shape), **rest, **stay} for shape in _shapes(key, units) for rest in _rest(key)]
    once = {_name(knobs): knobs for knobs in (first, *made)}
    return [first, *(knobs for knobs in list(once.values())[1:] if _valid(key, knobs))]


def _shapes(key: LaunchKey, units: int) -> list[Knobs]:
    """BLOCKS of a rank, token tile, who multiplies, and parts of K: of all ranks together 256 workgroups; one for GEMV
    on each multiprocessor and attention ones beside; or one on each that does both, whose rows may take all of its
    shared memory, and lie there in parts where they do not fit."""
    ranks, na, half = key.rank_count, key.geometry.na, _rows_of_half(key)
    blocks = (DEFAULT_BLOCKS // ranks, (units + ranks * na) // ranks)
    shapes = {(b, min(half, key.tokens), False, 1) for b in blocks}
    tiles = [tile for tile in TILES if tile >= half and (tile == half or tile < 2 * key.tokens)]
    shapes |= {(units // ranks, min(tile, key.tokens), True, _parts(key, tile)) for tile in tiles}
    return [dict(zip(SHAPE, shape, strict=True)) for shape in sorted(shapes) if shape[0] > na]


def _choices(key: LaunchKey) -> dict[str, Sequence[Any]]:
    """What each of the other knobs may be."""
    fewer = [depth for depth in PREFETCH if depth < _rounds(key)]
    choices: dict[str, Sequence[Any]] = {"prefetch": fewer or PREFETCH[:1]}
    choices |= {"ahead": AHEAD} if _waits(key) else {"at_once": AT_ONCE}
    return choices | ({"gate_local": (False, True)} if _has_gate(key) else {})


def _rest(key: LaunchKey) -> list[Knobs]:
    """Every choice of all of them."""
    choices = _choices(key)
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def knobs_of(key: LaunchKey) -> Knobs:
    """The knobs of a key: those that a search chooses, and any other that is not the default's."""
    usual = {"ahead": AHEAD[0], "at_once": AT_ONCE[0]}
    other = [name for name, value in usual.items() if getattr(key, name) != value]
    own = [name for name in dict.fromkeys((*SHAPE[1:], *DEALS, *_choices(key), *other)) if hasattr(key, name)]
    return {"blocks": key.geometry.blocks, **{name: getattr(key, name) for name in own}}


def _valid(key: LaunchKey, knobs: Knobs) -> bool:
    """Whether the rest of the key can stand beside the knobs: CTAs that it names may be past fewer BLOCKS."""
    try:
        with_knobs(key, knobs)
    except BadInput:
        return False
    return True


def with_knobs(key: LaunchKey, knobs: Mapping[str, Any]) -> LaunchKey:
    """`key` with other knobs.

    Raises:
        BadInput: for a knob out of range.
    """
    rest = {name: value for name, value in knobs.items() if name != "blocks"}
    return replace(key, geometry=replace(key.geometry, blocks=knobs["blocks"]), **rest)


def spread(key: LaunchKey) -> Knobs:
    """M1a's deals that put few tasks on a GPU's CTAs each: q_b from the first GEMV CTA that has a projection task less
    than those before it, W_UK's waves over all GEMV CTAs (its product takes many instructions where FP4 has none)."""
    return {"qb0": (getattr(key, "proj0", 0) + key.gemv_tasks) % key.gemv_ctas, "uk_ctas": key.gemv_ctas}


def _deals(key: LaunchKey, shape: Knobs) -> Knobs:
    """M1a's deals for a shape: each as the key has it, where that is not `spread`'s."""
    held = {name: getattr(key, name) for name in DEALS if hasattr(key, name)}
    if not held:
        return {}
    alone = {"k_parts": 1, "at_once": 1, **dict.fromkeys(held, 1)}  # of which there are keys for any BLOCKS
    there = spread(with_knobs(key, {**shape, **alone}))
    return {name: there[name] if value == spread(key)[name] else value for name, value in held.items()}


def _has_gate(key: LaunchKey) -> bool:
    return hasattr(key, "kda0")  # the launch whose declaration has the local gate as a knob


def _waits(key: LaunchKey) -> bool:
    return not hasattr(key, "shots")  # K2a's rows are an input


def _parts(key: LaunchKey, tile: int) -> int:
    """The fewest parts of K in which a tile's rows fit the LDS of a CTA."""
    rounds = _rounds(key)
    fitting = (parts for parts in range(1, rounds) if 2 * tile * -(-rounds // parts) * KCH * WAVES <= LDS_OF_ROWS)
    return next(fitting, rounds)


def _rounds(key: LaunchKey) -> int:
    """Rounds of the launch's longest product: chunks of K a wave."""
    return -(-(_width(key) // KCH) // WAVES)


def _width(key: LaunchKey) -> int:
    """Columns of the rows that the launch's longest product takes."""
    return key.geometry.proj if hasattr(key, "shots") else key.geometry.hidden


def _rows_of_half(key: LaunchKey) -> int:
    """The tile of two workgroups on a multiprocessor."""
    return max(tile for tile in TILES if tile == TILES[0] or 2 * tile * _width(key) <= ROWS_BYTES)


def search(listed: Iterable[Knobs], seconds: Callable[[Knobs], float]) -> Tuning:
    """The quickest knobs: first the shape, then each other knob, from the best so far.

    Args:
        listed: candidates, the default's first.
        seconds: measures one; what it raises as a K3LabError is noted, and that candidate passed over.

    Raises:
        BackendUnavailable: when none could be measured.
    """
    every = list(listed)
    best, tried = every[0], dict[str, Tried]()
    for free in SEARCHED:
        for knobs in every:
            fits = all(knobs[name] == best[name] for name in best if name not in free)
            if fits and _name(knobs) not in tried:
                tried[_name(knobs)] = _tried(knobs, seconds)
        known = [found for found in tried.values() if found.median is not None]
        if known:
            best = dict(min(known, key=lambda found: found.median or 0.0).knobs)
    if all(found.median is None for found in tried.values()):
        raise BackendUnavailable(f"tuning: expected one build that runs, got none: {next(iter(tried.values())).why}")
    return Tuning(best, tuple(tried.values()))


def _tried(knobs: Knobs, seconds: Callable[[Knobs], float]) -> Tried:
    try:
        return Tried(knobs, seconds(knobs))
    except K3LabError as error:
        return Tried(knobs, None, str(error))


def _name(knobs: Mapping[str, Any]) -> str:
    return json.dumps(dict(knobs), sort_keys=True)


def tuned(
    launch: Launch,
    key: LaunchKey,
    where: Mapping[str, Any],
    seconds: Callable[[LaunchKey], float],
    named: Collection[str] = (),
) -> Tuning:
    """A search's outcome, from the user's cache where this device, driver, toolchain and code have had one.

    Args:
        where: the device, as a clock describes it.
        seconds: measures a build.
        named: fields that were asked for, which stay.

    Raises:
        BackendUnavailable: when no candidate could be measured.
    """
    listed = candidates(key, where["units"], named)
    there = [knobs for knobs in listed if available(launch, with_knobs(key, knobs))]
    parts = [launch.name, json.dumps(key.to_dict(), sort_keys=True), json.dumps(there)]
    parts += [where["name"], where["driver"], where["versions"]["nvrtc"], sources(), translation()]
    fresh: list[Tuning] = []

    def measure() -> bytes:
        fresh.append(search(listed, lambda knobs: seconds(with_knobs(key, knobs))))
        return json.dumps(asdict(fresh[0])).encode()

    found = json.loads(store.cached("tune", parts, measure))
    return Tuning(found["knobs"], tuple(Tried(**tried) for tried in found["tried"]), not fresh)


def available(launch: Launch, key: LaunchKey) -> bool:
    """Whether the build's lowered module is to be had here: kept, cached, or made now."""
    try:
        lowered(launch, key)
    except K3LabError:
        return False
    return True


def translation() -> str:
    """The hash of what makes CUDA C++ of a lowered module, and binaries of that."""
    assert cuda.__file__
    root = Path(cuda.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".cuh", ".hpp"))
    texts = (part for path in files for part in (str(path.relative_to(root)), path.read_text(encoding="utf-8")))
    return store.digest(*texts, *compiler.FLAGS)


def lower(
    folder: Path, launch: Launch, key: LaunchKey, tune: bool, units: int = UNITS, named: Collection[str] = ()
) -> Iterator[Path]:
    """Write the modules that a GPU machine without FlyDSL needs: the default's, and with `tune` every candidate's.

    Args:
        named: fields that were asked for, which stay.

    Raises:
        BackendUnavailable: without flydsl.
        BadInput: when the folder cannot be written.
    """
    listed = candidates(key, units, named)
    for knobs in listed if tune else listed[:1]:
        yield keep(folder, launch, with_knobs(key, knobs))
