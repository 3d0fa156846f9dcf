"""The same hand-off, and the same launch, by torch and NCCL or symmetric memory: what launches over GPUs stand beside.

NVLink's multicast is left off for all of them, as our kernels do without it too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from k3lab.backends.cuda.ranks.worker import Worker
from k3lab.bench.baselines import BASELINES
from k3lab.bench.baselines.seam import seam
from k3lab.bench.ranks_tasks import row
from k3lab.errors import BackendUnavailable
from k3lab.geometry import ROPE

UNROLLED = 10
"""Iterations in a CUDA graph."""
WARM = 5
NO_MULTICAST = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}
PART = "hand-off"

Iteration = Callable[[], Any]
Times = list[float] | str


@dataclass(frozen=True)
class Way:
    """One way to do the work.

    Attributes:
        name: of its row; `part` says of what part of a launch, if not of all.
        make: the iteration to time, made when it is called.
    """

    name: str
    make: Callable[[], Iteration]
    part: str = ""


def baselines(worker: Worker, count: int, without: tuple[str, ...] = ()) -> dict[str, tuple[str, str, Times]]:
    """By row: the part, how it was put, and seconds of each iteration, or why there are none here.

    Each has the sizes of the loaded job.

    Args:
        without: `parts`, `eager`, `graph`.
    """
    os.environ |= NO_MULTICAST
    found: dict[str, tuple[str, str, Times]] = {}
    for way in ways(worker):
        if way.part and "parts" in without:
            continue
        try:
            run = _warmed(worker, way)
            if "eager" not in without:
                found[way.name] = (way.part, "stream", row(worker, run, count, queued=bool(way.part))[0])
        except Exception as error:  # whatever a library may raise ends in this row alone
            found[way.name] = (way.part, "none", _why(error))
            continue
        if "graph" not in without:
            found[f"{way.name}, graph"] = (way.part, "graph", _graph(worker, run, count))
    return found


def _warmed(worker: Worker, way: Way) -> Iteration:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = way.make()
        for _ in range(WARM):
            run()
    worker.settle()
    return run


def _graph(worker: Worker, run: Iteration, count: int) -> Times:
    try:
        if worker.gpu is None:
            raise BackendUnavailable("a CUDA graph needs a GPU.")
        graph = torch.cuda.CUDAGraph()
        worker.fence()
        with torch.cuda.graph(graph):
            for _ in range(UNROLLED):
                run()
        graph.replay()
        torch.cuda.synchronize()
        return [seconds / UNROLLED for seconds in row(worker, graph.replay, count)[0]]
    except Exception as error:
        return _why(error)


def _why(error: Exception) -> str:
    return f"not measured: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def ways(worker: Worker) -> list[Way]:
    """What there is to time beside the loaded job's launch, whose first rank of this GPU's stands for all of them."""
    return (_reducing if worker.running.live[0].launch.name == "k2a" else _gathering)(worker)


def _world(worker: Worker) -> tuple[str, str]:
    """The library that joins the processes, and the name of the group of all of them."""
    import torch.distributed as dist

    library = "gloo" if worker.gpu is None else "nccl"
    if not dist.is_initialized():
        store = dist.PrefixStore("torch", worker.store)
        dist.init_process_group(library, store=store, rank=worker.setup.me, world_size=worker.setup.count)
    world = dist.group.WORLD
    assert world is not None
    return library.upper(), str(world.group_name)


def _given(worker: Worker) -> tuple[Any, dict[str, torch.Tensor]]:
    """The key, and copies of the rank's inputs as the baseline takes them, M1a's for a rank on its own.

    Its tokens whose cache entry is another rank's put theirs into a slot that none has: S rows in place of fewer.
    """
    held = worker.running.live[0]
    names = [decl.name for decl in held.launch.inputs if decl.name in held.tensors]
    key: Any = held.key
    given = {name: held.tensors[name].clone() for name in names}
    if held.launch.name == "m1a":
        key = replace(key, ranks=1, q_heads=0)
        slots, rows = given["slots"], given["kv_cache"].numel() // key.geometry.entry
        free = next(row for row in range(rows) if row not in slots.tolist())
        given["slots"] = slots.where(slots >= 0, free)
    return key, BASELINES[held.launch.name].prepare(key, given)


def _reducing(worker: Worker) -> list[Way]:
    """K2a: partial products, summed over the GPUs, then the seam."""
    import torch.distributed as dist

    library, group = _world(worker)
    key, t = _given(worker)
    shape, device = (key.tokens, key.geometry.hidden), t["core"].device

    def by_library(partial: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(partial)
        return partial

    def shared() -> torch.Tensor:
        """Memory that every GPU reaches."""
        import torch.distributed._symmetric_memory as symm_mem

        if worker.gpu is None:
            raise BackendUnavailable("symmetric memory needs GPUs.")
        buffer = symm_mem.empty(shape, dtype=torch.bfloat16, device=device)
        assert dist.group.WORLD is not None
        symm_mem.rendezvous(buffer, dist.group.WORLD)
        return buffer.zero_()

    def one_shot(buffer: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group)
        return made

    def alone(reduce: Callable[[torch.Tensor], torch.Tensor], buffer: torch.Tensor) -> Iteration:
        return lambda: reduce(buffer)

    def layer(reduce: Callable[[torch.Tensor], torch.Tensor], into: torch.Tensor | None = None) -> Iteration:
        def run() -> torch.Tensor:
            partial = F.linear(t["core"], t["w_o"]) if into is None else torch.mm(t["core"], t["w_o"].T, out=into)
            delta = reduce(partial)
            t["prefix"].copy_(delta) if key.reset else t["prefix"].add_(delta)
            return seam(key, t)

        return run

    zeros = torch.zeros(shape, dtype=torch.bfloat16, device=device)
    return [
        Way(f"part: {library} all-reduce", lambda: alone(by_library, zeros), PART),
        Way("part: symmetric memory one-shot all-reduce", lambda: alone(one_shot, shared()), PART),
        Way(f"torch and {library}", lambda: layer(by_library)),
        Way("torch and symmetric memory", lambda: layer(one_shot, shared())),
    ]


def _gathering(worker: Worker) -> list[Way]:
    """M1a: a rank's own query heads, then those of all of them."""
    import torch.distributed as dist

    library, _ = _world(worker)
    held = worker.running.live[0]
    geometry = held.key.geometry
    device = held.tensors["prefix"].device
    size = (held.key.tokens, geometry.heads, geometry.kv_lora + ROPE)
    heads = torch.zeros(size, dtype=torch.uint8, device=device)
    count = worker.setup.count
    every = torch.zeros(count * size[0], *size[1:], dtype=torch.uint8, device=device)  # [ranks x S, HEADS, ENTRY]

    def layer() -> Iteration:
        key, t = _given(worker)
        step = BASELINES["m1a"].step

        def run() -> torch.Tensor:
            (made,) = step(key, [t])
            dist.all_gather_into_tensor(every, made["q_out"])
            return every.view(count, *size).transpose(0, 1).flatten(1, 2)  # q_out [S, ranks x HEADS, ENTRY]

        return run

    def gather() -> Iteration:
        return lambda: dist.all_gather_into_tensor(every, heads)

    return [Way(f"part: {library} all-gather", gather, PART), Way(f"torch and {library}", layer)]
