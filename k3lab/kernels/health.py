"""Bounded waits, the host's side: the records that CTAs left when they gave up a wait, as a sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import InternalFault
from k3lab.geometry import TAG_SLOTS
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey
from k3lab.layout import armed_index
from k3lab.words import SENTINEL

HEALTH_WORDS = 8
CLOCK_BITS = 31  # of the time that a record holds
NAMED = 8  # records that an error spells out


@dataclass(frozen=True)
class GivenUp:
    """One CTA's first wait that took too long.

    Attributes:
        region: name of what it waited for, or its number in hexadecimal where no region has that number.
        pair: number of the pair that is stale; `index` is its place in the region's shape, where it has one.
        expected, seen: tags.
        cta, time: who, and the low 31 bits of the device's clock.
    """

    region: str
    pair: int
    index: tuple[int, ...] | None
    expected: int
    seen: int
    cta: int
    time: int

    def __str__(self) -> str:
        place = f"pair {list(self.index)} (number {self.pair})" if self.index is not None else f"pair {self.pair}"
        return (
            f"CTA {self.cta} gave up waiting for {place} of region {self.region} at clock {self.time}: "
            f"expected {tag_text(self.expected)}, saw {tag_text(self.seen)}"
        )


class GaveUp(InternalFault):
    """A bounded launch ended, but some CTA gave up a wait; `records` holds each CTA's, earliest first."""

    def __init__(self, records: Sequence[GivenUp]) -> None:
        self.records = tuple(records)
        more = len(records) - NAMED
        sentences = [f"{record}." for record in records[:NAMED]]
        super().__init__(" ".join([*sentences, *([f"{more} more CTAs gave up."] if more > 0 else [])]))


def tag_text(tag: int) -> str:
    """`tag 0x101 (epoch 1, slot 0)`; tag 0 is in memory that no launch has written, as is the sentinel."""
    if not tag:
        return "tag 0 (nothing yet)"
    if tag == SENTINEL:
        return "a word still armed"
    epoch, slot = divmod(tag - 1, TAG_SLOTS)
    return f"tag {tag:#x} (epoch {epoch}, slot {slot})"


def given_up(launch: Launch, key: LaunchKey, health: NDArray[np.int32]) -> list[GivenUp]:
    """The records in `health: [BLOCKS, 8]`, earliest first."""
    records = [_record(launch, key, [int(word) for word in row]) for row in health if row[0]]
    return in_time(records)


def in_time(records: list[GivenUp]) -> list[GivenUp]:
    """By time, on a clock that wraps: waits of one launch lie far closer together than its range."""
    if not records:
        return []
    first, half = records[0].time, 1 << (CLOCK_BITS - 1)
    return sorted(records, key=lambda record: ((record.time - first + half) % (2 * half), record.cta))


def _record(launch: Launch, key: LaunchKey, words: list[Any]) -> GivenUp:
    _, number, pair, expected, seen, cta, time, _ = words
    names = {crc32(region.name.encode()) & 0x7FFFFFFF: region for region in launch.regions}
    region = names.get(number)
    shape = region.pairs(key.sizes) if region else ()
    fits = region is not None and 0 <= pair < prod(shape)
    index: tuple[int, ...] | None = None
    if region is not None and fits:
        blocked = region.armed and key.sentinel
        index = armed_index(pair, shape) if blocked else tuple(int(i) for i in np.unravel_index(pair, shape))
    name = region.name if region else hex(number)
    return GivenUp(name, pair, index, expected & 0xFFFFFFFF, seen & 0xFFFFFFFF, cta, time)
