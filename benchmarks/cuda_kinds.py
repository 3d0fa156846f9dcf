"""The checks of `cuda_check`: what each kind of item does on the device, and what it finds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

import k3lab
from benchmarks.cuda_items import Item
from k3lab.backends.cuda import device
from k3lab.backends.session import filled
from k3lab.errors import BackendUnavailable
from k3lab.kernels import peers
from k3lab.kernels.health import GaveUp
from k3lab.kernels.host import Buffers
from k3lab.stats import ErrorStats

GAVE_UP_TICKS = 50_000_000
Found = dict[str, Any]


def differences(got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> list[str]:
    """A line for each tensor that differs: NaN equals NaN, -0.0 is not 0.0."""
    lines = []
    for name, value in got.items():
        other = wanted[name].to(value.dtype)
        differ = _bits(value) != _bits(other)
        if value.is_floating_point():
            differ &= ~(value.isnan() & other.isnan())
        if differ.any():
            index = tuple(differ.nonzero()[0].tolist())
            lines.append(f"{name}{list(index)}: {value[index]} not {other[index]} ({int(differ.sum())} elements)")
    return lines


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.int32) if value.dtype == torch.float32 else value


def made(item: Item, case: k3lab.Case) -> list[Buffers]:
    """All ranks' buffers, for epoch 1."""
    key, stages = item.key(), item.built()
    ranks = [Buffers.of(case.declaration, key, tensors, stages) for tensors in case.ranks]
    for buffers in ranks:
        buffers.numbers["wait_ticks"] = device.WAIT_TICKS
    if case.declaration.peers(key):
        peers.join(ranks)
    return ranks


def compared(item: Item) -> Found:
    """One launch against the twin, whole or some stages on the twin's values."""
    case = item.case()
    ranks, twin = made(item, case), k3lab.run(item.launch, case)
    if item.stages:
        peers.fill(ranks, [filled(case.declaration, ranks[0].stages, values) for values in twin.ranks])
    launcher = device.Launcher(ranks)
    seconds = _timed(launcher)
    back = launcher.fetch()
    for buffers in back:
        buffers.check_health()
    exposed = peers.exposed(back)
    lines = _against(exposed, twin)
    count = sum(value.numel() for values in exposed for value in values.values())
    return {"equal": not lines, "values": count, "differ": lines[:5], "ms": 1e3 * seconds, **_kernel(launcher)}


def distance(item: Item) -> Found:
    """The fast build beside the exact one, on the same inputs: by tensor, in ulps of its format."""
    case = item.case()
    twin = k3lab.run(item.launch, case)
    both: list[list[dict[str, torch.Tensor]]] = []
    for fast in (False, True):
        ranks = made(item, case)
        peers.fill(ranks, [filled(case.declaration, ranks[0].stages, values) for values in twin.ranks])
        launcher = device.Launcher(ranks, fast=fast)
        seconds = _timed(launcher)
        both.append(peers.exposed(launcher.fetch()))
    found: dict[str, Found] = {}
    for name, exact in both[0][0].items():
        if exact.is_floating_point():
            stats = ErrorStats(case.declaration.format_of(name, ranks[0].key)).update(exact, both[1][0][name])
            found[name] = {
                "format": stats.fmt,
                "values": stats.count,
                "differ": stats.count - stats.exact,
                "most_ulps": stats.max_ulp,
                "rms": stats.rms,
                "apart": stats.mismatched,
            }
    return {
        "equal": all(not row["apart"] for row in found.values()),
        "tensors": found,
        "ms": 1e3 * seconds,
        **_kernel(launcher),
    }


def one_rank(item: Item) -> Found:
    """Rank 0 alone, beside words that the twin says the others send."""
    case = item.case()
    ranks, twin = made(item, case), k3lab.run(item.launch, case)
    peers.fill_others(ranks, [0], twin.ranks)
    launcher = device.Launcher(ranks, live=[0])
    seconds = _timed(launcher)
    values = launcher.fetch()[0].exposed()
    lines = differences(values, twin.ranks[0])
    count = sum(value.numel() for value in values.values())
    return {"equal": not lines, "values": count, "differ": lines[:5], "ms": 1e3 * seconds, **_kernel(launcher)}


def _against(exposed: Sequence[Mapping[str, torch.Tensor]], twin: k3lab.Run) -> list[str]:
    """Where any rank differs from the twin."""
    return [
        f"rank {rank}: {line}" for rank, values in enumerate(exposed) for line in differences(values, twin.ranks[rank])
    ]


def _timed(launcher: device.Launcher) -> float:
    """Seconds of the one launch, by the device's own events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    launcher.launch()
    end.record()
    launcher.finish()
    return start.elapsed_time(end) / 1e3


def _median(launcher: device.Launcher, launches: int = 101) -> float:
    """The median of seconds of launches in a row, each between events of its own; caches hold what they hold."""
    times = []
    for _ in range(launches):
        launcher.advance()
        times.append(_timed(launcher))
    return median(times)


def _kernel(launcher: device.Launcher) -> Found:
    kernel = launcher.kernel
    return {
        "workgroups": launcher.blocks * len(launcher.live),
        "registers": kernel.registers,
        "local_bytes": kernel.spilled,
        "shared_bytes": kernel.source.shared,
        "lds_bytes": kernel.source.lds,
    }


def epochs(item: Item) -> Found:
    """Many launches in a row with the epoch counting on: after each, every output and every scratch word is looked at.

    Inputs that a launch changes are put back before each. The exact build's first launch is held against the twin.
    """
    case = item.case()
    ranks, twin = made(item, case), k3lab.run(item.launch, case)
    fast = item.kind == "fast-epochs"
    launcher = device.Launcher(ranks, fast=fast)
    given = [{name: tensor.clone() for name, tensor in held.tensors.items()} for held in launcher.ranks]
    keep = [_steady(held) for held in launcher.ranks]
    launcher.launch()
    lines = [] if fast else _against(peers.exposed(launcher.fetch()), twin)
    first = [
        {name: held.tensors[name].clone() for name in names} for held, names in zip(launcher.ranks, keep, strict=True)
    ]
    tags = [_tag_places(held) for held in launcher.ranks]
    begun, wrong, done = time.perf_counter(), torch.zeros((), dtype=torch.int64, device="cuda"), 1
    while done < item.count:
        for held, start in zip(launcher.ranks, given, strict=True):
            for name in case.tensors.keys() & held.tensors.keys():
                held.tensors[name].copy_(start[name])
        launcher.advance()
        launcher.launch()
        done += 1
        for held, wanted, places in zip(launcher.ranks, first, tags, strict=True):
            for name, value in wanted.items():
                wrong += (_bytes(held.tensors[name]) != _bytes(value)).sum()
            words = held.tensors["scratch"].view(torch.int32)
            expected = _bytes(given_scratch(held, wanted, places, done)).view(torch.int32)
            wrong += (words != expected).sum()
        if done % 100 == 0:
            torch.cuda.synchronize()
            print(json.dumps({"alive": item.name}), flush=True)
    count = int(wrong)
    seconds = time.perf_counter() - begun
    return {
        "equal": not lines and not count,
        "launches": done,
        "median_us": 1e6 * _median(launcher),
        "wrong_words": count,
        "differ": lines[:5],
        "seconds": seconds,
        **_kernel(launcher),
    }


def _steady(held: Buffers) -> list[str]:
    """Tensors that every launch leaves alike: outputs, and inputs changed in place."""
    apart = ("scratch", "epoch", "locals", "tl", "health", "alarm", "peers", "peer_buffer")
    return [name for name in held.tensors if name not in apart]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    size = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.as_strided((size,), (1,)).view(torch.uint8)


def _tag_places(held: Buffers) -> tuple[torch.Tensor, torch.Tensor]:
    """Scratch after the first launch as words, and where in it tags lie."""
    words = held.tensors["scratch"].view(torch.int32)
    places = torch.zeros_like(words, dtype=torch.bool)
    rows = {plain.name for plain in held.launch.rows}
    for place in held.places:
        if place.name not in rows:
            part = slice(place.offset // 4 + 1, (place.offset + place.nbytes) // 4, 2)
            places[part] = words[part] != 0
    return words.clone(), places


def given_scratch(held: Buffers, first: Mapping[str, torch.Tensor], kept: Any, epoch: int) -> torch.Tensor:
    """What scratch must hold after the launch of `epoch`: the first launch's words with this one's tags."""
    words, places = kept
    tag = (epoch % (1 << 22)) * 256 + 1
    return torch.where(places, torch.tensor(tag, dtype=torch.int32, device=words.device), words)


def refused(item: Item) -> Found:
    """A launch that does not fit must be refused with the numbers."""
    case = item.case()
    try:
        device.Launcher(made(item, case))
    except BackendUnavailable as refusal:
        return {"equal": True, "said": str(refusal)}
    return {"equal": False, "said": "it was launched"}


def gives_up(item: Item) -> Found:
    """A bounded wait for what never comes must end, and say what it waited for."""
    case = item.case()
    ranks = made(item, case)
    for buffers in ranks:
        buffers.numbers["wait_ticks"] = GAVE_UP_TICKS
    back = device.launched(ranks)
    try:
        back[0].check_health()
    except GaveUp as gave_up:
        return {"equal": True, "said": str(gave_up)[:400], "records": len(gave_up.records)}
    return {"equal": False, "said": "no wait was given up"}


KINDS: Mapping[str, Callable[[Item], Found]] = {
    "whole": compared,
    "stages": compared,
    "one-rank": one_rank,
    "fast": distance,
    "epochs": epochs,
    "fast-epochs": epochs,
    "refused": refused,
    "gives-up": gives_up,
}
