"""Where waves stand: what a deadlock, an interruption and a look at a stopped simulation say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from k3lab.sim.faults import Finding, SimFault, Where
from k3lab.sim.schedule.cohort import Cohort
from k3lab.sim.schedule.polls import awaited, shown

if TYPE_CHECKING:
    from k3lab.lowering.ir import Loc
    from k3lab.sim.engine import Engine

SHOWN = 8  # of a list's members

INTERRUPTED = "interrupted"
"""The kind of finding that Ctrl-C leaves."""


def deadlock(engine: Engine) -> SimFault:
    """What each wave waits for, where none can go on."""
    return SimFault(Finding("deadlock", f"no wave can go on: {'; '.join(_waiting(engine))}", Where(None)))


def interrupted(engine: Engine) -> SimFault:
    """What Ctrl-C ends with."""
    return SimFault(Finding(INTERRUPTED, describe(engine), Where(None)))


def describe(engine: Engine) -> str:
    """Where each wave of a simulation stands that has stopped, for whatever reason."""
    parts = [] if engine.running is None else [_standing(engine, engine.running, "run", "at")]
    ready = [cohort for cohorts in engine.ready.values() for cohort in cohorts]
    parts += [_standing(engine, cohort, "can go on", "at") for cohort in ready]
    parts += [_standing(engine, cohort, "are held back", "at") for cohort in engine.last]
    parts += _waiting(engine)
    parts += [f"finding kept: {finding}" for finding in engine.findings[:SHOWN]]
    return f"after {engine.steps} blocks: {'; '.join(parts) or 'all waves have ended'}"


def _waiting(engine: Engine) -> list[str]:
    parts = [_standing(engine, cohort, "wait", "at the barrier before") for cohort in engine.barred]
    parts += [_standing(engine, cohort, "wait for lanes of theirs that poll,", "at") for cohort in engine.held]
    polling = [*engine.polling, *engine.timed, *(cohort for _, cohort in engine.parked)]
    parts += [_standing(engine, cohort, "poll", "in vain at") + awaited(engine, cohort) for cohort in polling]
    return [*parts, *_unstarted(engine)]


def _unstarted(engine: Engine) -> list[str]:
    fleet = engine.fleet
    return [
        f"{_many(int(fleet.unstarted[device]), 'workgroup')}{_of_device(engine, device)} not started, as no more than "
        f"{fleet.resident} can be resident at once"
        for device in range(fleet.devices)
        if fleet.unstarted[device]
    ]


def _standing(engine: Engine, cohort: Cohort, verb: str, how: str) -> str:
    """`2 waves of workgroups 0, 1 poll in vain at kernel.py:7:3`, device by device."""
    fleet = engine.fleet
    slots, places = cohort.waves // fleet.waves_per_group, cohort.waves % fleet.waves_per_group
    parts = []
    for device in np.unique(fleet.device[slots]).tolist():
        mine = fleet.device[slots] == device
        groups = shown(np.unique(fleet.workgroup[slots[mine]]).tolist())
        count = int(mine.sum())
        one = "" if count > 1 else "s"
        words = verb.split(" ", 1)
        said = {"are": "are" if count > 1 else "is", "can": "can"}.get(words[0], words[0] + one)
        rest = f" {words[1]}" if len(words) > 1 else ""
        waves = f"{_many(count, 'wave')} of workgroup{'s' if ',' in groups else ''} {groups}"
        which = np.unique(places[mine]).tolist()
        only = "" if len(which) == fleet.running(device).waves else f" (wave{'s' * (len(which) > 1)} {shown(which)})"
        parts.append(f"{waves}{_of_device(engine, device)}{only} {said}{rest}")
    return f"{', '.join(parts)} {how} {_line(engine, cohort.block)}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _of_device(engine: Engine, device: int) -> str:
    """` of rank 1 in launch 2`, as far as there are several."""
    where = engine.fleet.where(None, engine.fleet.waves_of(device).start)
    rank = "" if where.rank is None else f" of rank {where.rank}"
    return rank + ("" if where.launch is None else f" in launch {where.launch}")


def _line(engine: Engine, block: int) -> Loc | str:
    return next((op.loc for op in engine.linked.codes[block].block.ops if op.loc), "an unknown line")
