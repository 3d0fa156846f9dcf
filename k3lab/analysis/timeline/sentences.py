"""What a timeline says in sentences: how long it is, what the critical path is made of, who is waited for."""

from __future__ import annotations

from collections.abc import Sequence

from k3lab.analysis.timeline.intervals import Timeline
from k3lab.analysis.timeline.path import Segment, by_stage, critical_path
from k3lab.analysis.timeline.stages import durations
from k3lab.analysis.timeline.views import step_text
from k3lab.analysis.timeline.waits import SPREAD, wait_matrix
from k3lab.analysis.words import listed, plural, share_text

NOBODY = "for no single producer"
NAMED = 4  # parts of the critical path that are named


def summary(timeline: Timeline) -> list[str]:
    """The answer in a few sentences."""
    length = float(timeline.us(timeline.end))
    clock = "on the simulator's modelled clock" if timeline.clock.kind == "modelled" else "as measured"
    found = [f"The launch takes {length:.2f} µs {clock}, from its first CTA's start to its last CTA's last point."]
    if timeline.waits is None:
        slow = max(durations(timeline), key=lambda row: row.longest)
        where = f"the time up to point {slow.point}, {slow.longest:.2f} µs on CTA {slow.slowest[1]}"
        return [*found, f"Its longest interval is {where}. Stamps alone do not say who waited for whom."]
    path = critical_path(timeline)
    work, hand = (sum(p.length for p in path if p.kind == kind) for kind in ("work", "hand-off"))
    count = sum(p.kind == "hand-off" for p in path)
    us = timeline.clock.us
    under_way = f"and {us(hand):.2f} µs under way in {plural(count, 'hand-off')}" if count else "and waits for no other"
    found.append(f"Its critical path spends {us(work):.2f} µs on {_ctas(path)} {under_way}.")
    parts = sorted(by_stage(path), key=lambda part: -part[-1])[:NAMED]
    parts_text = [
        f"{_part(kind, stage, region)} ({us(t):.2f} µs, {share_text(us(t) / length)})"
        for kind, stage, region, t in parts
    ]
    found.append(f"Most of it: {listed(parts_text)}.")
    rows = [row for row in wait_matrix(timeline) if row.producer]
    if rows:
        worst = max(rows, key=lambda row: row.total)
        assert worst.producer is not None
        named = worst.share >= SPREAD
        whom = f"{share_text(worst.share)} of it for {worst.producer.text(timeline.ranks)}" if named else NOBODY
        found.append(
            f"Most waiting: stage {worst.stage} for {worst.region}, {worst.total / worst.ctas:.2f} µs on the average "
            f"of {worst.ctas} CTAs, {whom}."
        )
    return found


def _ctas(path: Sequence[Segment]) -> str:
    count = len({(part.rank, part.cta) for part in path})
    return "one CTA" if count == 1 else f"{count} CTAs"


def _part(kind: str, stage: str, region: str) -> str:
    return f"hand-off of {region}" if kind == "hand-off" else f"{stage} at work" if stage else kind


def path_sentences(timeline: Timeline, path: Sequence[Segment]) -> list[tuple[str, str, str, str]]:
    """A row a step of the critical path: from, to (µs since the launch began), length, what."""
    us = timeline.us
    return [
        (f"{us(p.start):.3f}", f"{us(p.end):.3f}", f"{timeline.clock.us(p.length):.3f}", step_text(timeline, p))
        for p in path
    ]
