"""Launches that span ranks, on the host: peer buffers, the table of their addresses, what their regions hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab.errors import InternalFault, expect
from k3lab.kernels.host import Buffers, values_of, words
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey
from k3lab.layout import ARMED_GROUP, PAIR_BYTES, VALUES_A_WORD, Placed, Region
from k3lab.words import SENTINEL, disarmed

U32 = NDArray[np.uint32]


@dataclass
class PeerBuffer:
    """A rank's peer buffer: two halves that launches take in turn, each with the regions of its largest build.

    Attributes:
        data: bytes that every rank can reach; launches change them in place.
        armed: whether words are handed over without tags, so that all of it must be armed before a launch uses it.
    """

    data: torch.Tensor
    armed: bool

    @classmethod
    def of(cls, launch: Launch, key: LaunchKey, most_tokens: int = 0) -> PeerBuffer:
        """One for builds like `key`'s of up to `most_tokens` tokens, ready for a first launch."""
        largest = replace(key, tokens=max(most_tokens, key.tokens))
        half = max((place.offset + place.nbytes for place in launch.peers(largest)), default=0)
        made = cls(torch.zeros(2, -(-half // 16) * 16, dtype=torch.uint8), key.sentinel)
        made.reset()
        return made

    @property
    def half_bytes(self) -> int:
        return self.data.shape[1]

    def reset(self) -> None:
        """What a first launch needs: zeros, or every word armed. Needed again after any wait was given up."""
        self.data.fill_(0xFF if self.armed else 0)


def half_of(epoch: int, uses: int, use: int) -> int:
    """Which half a launch takes: `use` of the `uses` that a step makes of the buffer."""
    return (epoch * uses + use) % 2


def join(ranks: Sequence[Buffers], peers: Sequence[PeerBuffer] | None = None, uses: int = 1, use: int = 0) -> None:
    """Let one launch on every rank reach all ranks' peer buffers: new ones, or those of an earlier launch.

    Raises:
        BadInput: for other ranks than the key's, a buffer too small, or a use that is none of the uses.
    """
    launch, key = ranks[0].launch, ranks[0].key
    peers = [PeerBuffer.of(launch, key) for _ in ranks] if peers is None else peers
    expect(len(ranks) == len(peers) == key.rank_count, "ranks", f"the key's {key.rank_count}", len(ranks))
    expect(0 <= use < uses, "use", f"one of {uses} uses", use)
    for rank, (buffers, peer) in enumerate(zip(ranks, peers, strict=True)):
        need = max((place.offset + place.nbytes for place in launch.peers(key)), default=0)
        expect(need <= peer.half_bytes, "peer buffer", f"at least {need} bytes a half", peer.half_bytes)
        buffers.numbers |= {"rank": rank, "half_bytes": peer.half_bytes, "uses": uses, "use": use}
        buffers.tensors["peers"] = torch.zeros(len(ranks), dtype=torch.int64)
        buffers.tensors["peer_buffer"] = peer.data


def exposed(ranks: Sequence[Buffers], live: Collection[int] | None = None) -> list[dict[str, torch.Tensor]]:
    """What a launch left on every rank, by name, the regions in peer buffers among it.

    Regions that were armed hold nothing any more, and are left out.

    Args:
        live: the ranks that ran; all, if None. Of any other there is only what lies in its peer buffer: what the live
            ones sent it, and what `fill_others` put there.

    Raises:
        InternalFault: naming the region, when a pair lacks this launch's tag, or a word is not armed again.
    """
    live = range(len(ranks)) if live is None else live
    found = [buffers.exposed() if rank in live else {} for rank, buffers in enumerate(ranks)]
    launch, key = ranks[0].launch, ranks[0].key
    for region in launch.regions:
        if region.scope == "system" and region.present(key) and region.name in ranks[0].written:
            if key.sentinel and region.armed:
                for rank in live:
                    _check_armed(ranks[rank], rank)
                continue
            held = [_values(ranks, rank, region) for rank in range(len(ranks))]
            if _owned(key):  # every rank's columns, for all of them
                held = [torch.cat(held, dim=-1)] * len(ranks)
            for values, value in zip(found, held, strict=True):
                values[region.name] = value
    return found


def fill(ranks: Sequence[Buffers], values: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Put what stages outside the build would have written, on every rank: regions in peer buffers, and all others.

    Args:
        values: by rank and name, as a kernel-order twin exposes them; what a stage gathers is sent to every rank.
    """
    for rank, (buffers, given) in enumerate(zip(ranks, values, strict=True)):
        buffers.fill(given)
        for name, region in _sent(buffers).items():
            if name in given:
                shape = region.pairs(buffers.key.sizes)
                gathered = words(region, torch.stack([other[name] for other in values]), shape)
                _put(buffers, region, gathered, _owned_words(buffers.key, rank, shape))


@dataclass(frozen=True)
class Sent:
    """Words that a rank which does not run would put into another's peer buffer.

    Attributes:
        place: of the region, in a half.
        source: whose part of the region it is.
        part: of the region's last dimension.
        words: int32 [..., part].
    """

    place: Placed
    source: int
    part: slice
    words: torch.Tensor

    def put(self, half: torch.Tensor, tag: int) -> None:
        """Into a half of a peer buffer, uint8 [half_bytes] on any device, with `tag` where the words carry one."""
        place = self.place
        held = half[place.offset : place.offset + place.nbytes].view(torch.int32)
        if place.itemsize == PAIR_BYTES:
            pairs = held.view(*place.shape, 2)[self.source, ..., self.part, :]
            pairs[..., 0].copy_(self.words)
            pairs[..., 1].fill_(tag)
            return
        ranks, tokens, count = place.shape
        groups = slice(self.part.start // ARMED_GROUP, self.part.stop // ARMED_GROUP)
        blocked = held.view(ranks, count // ARMED_GROUP, tokens, ARMED_GROUP)[self.source, groups]
        blocked.copy_(self.words.view(tokens, -1, ARMED_GROUP).transpose(0, 1))

    def to(self, device: str) -> Sent:
        """The same words on another device."""
        return replace(self, words=self.words.to(device))


def sent_by_others(
    launch: Launch, key: LaunchKey, live: Collection[int], values: Sequence[Mapping[str, torch.Tensor]]
) -> list[list[Sent]]:
    """By rank, what the ranks that do not run would send it in a launch.

    In a two-shot reduce that is their partials of the rank's own columns, and the sums of the columns they own.

    Args:
        live: the ranks that run.
        values: by rank and name, as a kernel-order twin exposes them.
    """
    regions = {region.name: region for region in launch.regions if region.scope == "system" and region.present(key)}
    others = [rank for rank in range(key.rank_count) if rank not in live]
    found: list[list[Sent]] = [[] for _ in range(key.rank_count)]
    for stage in launch.stages:
        for written in (name for name in stage.writes if name in regions and stage.gathers):
            place = next(place for place in launch.peers(key) if place.name == written)
            (name,) = stage.gathers
            made = _Words(key, regions[written], place)
            for rank, sent in enumerate(found):
                mine = _owned_words(key, rank, place.shape)
                sent += [made.of(values[other][name], other, mine) for other in others]
                if _owned(key):
                    (summed,) = (name for name in stage.writes if name not in regions)
                    owned = [(other, _owned_words(key, other, place.shape)) for other in others if other != rank]
                    sent += [made.of(values[other][summed], other, theirs) for other, theirs in owned]
    return found


@dataclass(frozen=True)
class _Words:
    """Makes what one rank sends of a region."""

    key: LaunchKey
    region: Region
    place: Placed

    def of(self, values: torch.Tensor, source: int, part: slice) -> Sent:
        held = words(self.region, values, self.place.shape[1:])[..., part]
        held = disarmed(held) if self.place.itemsize != PAIR_BYTES else held
        return Sent(self.place, source, part, torch.from_numpy(np.ascontiguousarray(held).view(np.int32).copy()))


def fill_others(ranks: Sequence[Buffers], live: Collection[int], values: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Put what the ranks that do not run would send into every rank's peer buffer, in the half of its launch.

    Args:
        live, values: as `sent_by_others` takes them.
    """
    for buffers, sent in zip(ranks, sent_by_others(ranks[0].launch, ranks[0].key, live, values), strict=True):
        for each in sent:
            each.put(buffers.tensors["peer_buffer"][_half_number(buffers)], buffers.tag)


def _sent(buffers: Buffers) -> dict[str, Region]:
    """By the name of a value that a stage of the build gathers from all ranks: the region that hands it over."""
    there = [region for region in buffers.launch.regions if region.scope == "system" and region.present(buffers.key)]
    regions = {region.name: region for region in there}
    return {
        name: regions[written]
        for stage in buffers.launch.stages
        if stage.name in buffers.stages
        for name in stage.gathers
        for written in stage.writes
        if written in regions
    }


def region_words(buffers: Buffers, name: str) -> tuple[U32, U32 | None]:
    """Words and tags of a region in a rank's peer buffer, in the half of its launch, in the region's declared shape.

    Armed words lie there as [source rank][group of 8][token][8], and have no tags.
    """
    place, held = _place(buffers, name), _half(buffers, name)
    if place.itemsize == PAIR_BYTES:
        pairs = held.view(np.uint32).reshape(*place.shape, 2)
        return pairs[..., 0], pairs[..., 1]
    return _unblocked(held.view(np.uint32), place.shape), None


def _unblocked(held: U32, shape: tuple[int, ...]) -> U32:
    """[ranks, S, words] view of words that lie in groups."""
    ranks, tokens, count = shape
    blocked = held.reshape(ranks, count // ARMED_GROUP, tokens, ARMED_GROUP)
    return blocked.transpose(0, 2, 1, 3).reshape(shape)


def _put(buffers: Buffers, region: Region, new: U32, mine: slice) -> None:
    """Words of a region's last dimension's part `mine` into this launch's half."""
    place, held = _place(buffers, region.name), _half(buffers, region.name)
    if place.itemsize == PAIR_BYTES:
        pairs = held.view(np.uint32).reshape(*place.shape, 2)
        pairs[..., mine, 0], pairs[..., mine, 1] = new[..., mine], buffers.tag
        return
    ranks, tokens, count = place.shape
    groups = slice(mine.start // ARMED_GROUP, mine.stop // ARMED_GROUP)
    blocked = held.view(np.uint32).reshape(ranks, count // ARMED_GROUP, tokens, ARMED_GROUP)
    grouped = disarmed(new).reshape(ranks, tokens, count // ARMED_GROUP, ARMED_GROUP).transpose(0, 2, 1, 3)
    blocked[:, groups] = grouped[:, groups]


def _values(ranks: Sequence[Buffers], rank: int, region: Region) -> torch.Tensor:
    """The values of a rank's region, or of its own columns; every pair must be this launch's."""
    buffers = ranks[rank]
    held, tags = region_words(buffers, region.name)
    assert tags is not None
    mine = _owned_words(buffers.key, rank, held.shape)
    stale = tags[..., mine] != buffers.tag
    if stale.any():
        index = [int(i) for i in np.unravel_index(stale.argmax(), stale.shape)]
        raise InternalFault(
            f"region {region.name} of rank {rank}: expected tag {buffers.tag} in every pair, got "
            f"{int(tags[..., mine][tuple(index)])} at {index} ({int(stale.sum())} pairs of {stale.size})."
        )
    own = np.ascontiguousarray(held[..., mine])
    return torch.from_numpy(values_of(region, own).reshape(*own.shape[:-1], own.shape[-1] * VALUES_A_WORD[region.word]))


def _owned(key: Any) -> bool:
    """Whether a rank is sent only the columns that it owns."""
    return bool(getattr(key, "two_shot", False))


def _owned_words(key: LaunchKey, rank: int, shape: tuple[int, ...]) -> slice:
    """The words of a region's last dimension that a rank is sent."""
    count = shape[-1] // key.rank_count
    return slice(rank * count, (rank + 1) * count) if _owned(key) else slice(0, shape[-1])


def _check_armed(buffers: Buffers, rank: int) -> None:
    """Whether a launch has armed all of its half again."""
    for place in buffers.launch.peers(buffers.key):
        held = region_words(buffers, place.name)[0]
        if (held != SENTINEL).any():
            index = np.unravel_index((held != SENTINEL).argmax(), held.shape)
            raise InternalFault(
                f"region {place.name} of rank {rank}: expected every word armed again, got {int(held[index]):#x} at "
                f"{[int(i) for i in index]} ({int((held != SENTINEL).sum())} words of {prod(held.shape)})."
            )


def _place(buffers: Buffers, name: str) -> Placed:
    return next(place for place in buffers.launch.peers(buffers.key) if place.name == name)


def _half(buffers: Buffers, name: str) -> NDArray[np.uint8]:
    """The bytes of a region in the half that the launch takes."""
    place = _place(buffers, name)
    held: NDArray[np.uint8] = buffers.tensors["peer_buffer"].numpy()[_half_number(buffers)]
    return held[place.offset : place.offset + place.nbytes]


def _half_number(buffers: Buffers) -> int:
    """Which half of its peer buffer the launch takes."""
    numbers = buffers.numbers
    return half_of(int(buffers.tensors["epoch"][0]), numbers["uses"], numbers["use"])
