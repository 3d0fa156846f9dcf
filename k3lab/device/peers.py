"""Hand-offs between GPUs: regions in every rank's peer buffer, of tagged pairs or of words armed with a sentinel.

A peer buffer has two halves, and a launch takes half (epoch x uses + use) mod 2, so that launches that share it
alternate, across steps too. A rank one launch ahead of another then writes what that one does not read.
"""

from typing import Any

from k3lab.device.dsl import Int32, Int64, Opaque, Vector, located
from k3lab.device.mailbox import Pairs, put
from k3lab.device.memory import SYSTEM, buffer, load, load_words, store_words
from k3lab.device.wave import lane_value
from k3lab.layout import WORD_BYTES

SENTINEL, DISARMED = -1, 0x7FFFFFFF
"""`k3lab.words.SENTINEL` and `DISARMED` as Int32."""


class ArmedWords(Pairs):
    """Plain words in place of the pairs, each armed with the sentinel until this launch's has come."""

    def __init__(self, name: str, resource: Any, offset: Any, policy: int, tag: Any) -> None:
        super().__init__(name, resource, offset, policy)
        self.tag = tag

    def at(self, index: Any) -> Any:
        """The byte offset of a word."""
        return Int32(index) * WORD_BYTES + self.offset

    def read(self, index: Any, count: int) -> Any:
        """Neighbouring words as `poll` takes them: in place of a tag the launch's, or the sentinel if still armed."""
        words = load_words(self.resource, self.at(index), count, self.policy)
        tags = [(words[i] == SENTINEL).select(Int32(SENTINEL), self.tag) for i in range(count)]
        return Vector.from_elements([part for i in range(count) for part in (words[i], tags[i])], Int32)


class Peers(Opaque):
    """Every rank's peer buffer, and the half of them that this launch takes.

    Lane i of a wave holds the address of rank i mod ranks', so that all of them take two registers and no load when
    they are needed. To be made where all lanes are active.
    """

    def __init__(self, c: Any) -> None:
        address = load(Int64, c.args.peers, c.lane & (c.key.ranks - 1))
        words = Vector.from_elements([address], Int64).bitcast(Int32)
        self.low, self.high = words[0], words[1]
        self.epoch = load(Int32, c.args.epoch, 0)

    @located
    def peer_at(self, rank: Any) -> Any:
        """The address of a rank's peer buffer; all lanes must ask for the same one."""
        halves = [lane_value(self.low, rank), lane_value(self.high, rank)]
        return Vector.from_elements(halves, Int32).bitcast(Int64)[0]

    @located
    def region(self, c: Any, name: str, rank: Any) -> Pairs:
        """The region `name` in a rank's peer buffer; all lanes must ask for the same one."""
        half = (self.epoch * c.args.uses + c.args.use) & 1
        resource, offset = buffer(self.peer_at(rank)), half * c.args.half_bytes + c.places[name].offset
        if c.key.sentinel:
            return ArmedWords(name, resource, offset, SYSTEM, c.tag)
        return Pairs(name, resource, offset, SYSTEM)


@located
def disarmed(word: Any) -> Any:
    """A word as it is sent: the sentinel, a pair of NaNs, becomes another pair of NaNs."""
    return (word == SENTINEL).select(Int32(DISARMED), word)


@located
def send(c: Any, region: Pairs, index: Any, words: list[Any]) -> None:
    """Neighbouring words to number `index` on; none may be the sentinel (`disarmed`) where the region is armed."""
    if isinstance(region, ArmedWords):
        store_words(Vector.from_elements(words, Int32), region.resource, region.at(index), region.policy)
    else:
        for i, word in enumerate(words):
            put(c, region, index + i, word)


@located
def rearm(region: Pairs, index: Any, count: int) -> None:
    """Arm `count` neighbouring words again, all of which have been read."""
    store_words(Vector.filled(count, SENTINEL, Int32), region.resource, region.at(index), region.policy)
