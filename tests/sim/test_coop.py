"""FlyDSL's own cooperative algorithms (`fx.coop`), each driven by a small kernel, against NumPy.

A case is a body of (rows of Int32 values, one a thread) that returns rows, and a reference of the same shape on arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3lab.lowering.ir import Module
from k3lab.sim.faults import SimFault
from k3lab.sim.launch import simulate
from k3lab.sim.options import Options

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

import flydsl.expr as fx
from flydsl.expr.typing import Int32, Vector

from k3lab.lowering.capture import lower
from tests.sim.kernels import at
from tests.sim.micro_kernels import micro

C = fx.coop
ADD, MAX, MIN, MUL = (getattr(fx.ReductionOp, name) for name in ("ADD", "MAX", "MIN", "MUL"))
Rows = list[Any]


@dataclass(frozen=True)
class Case:
    """A kernel of one block with `rows` inputs a thread, and what it must give."""

    body: Callable[..., Rows]
    reference: Callable[[np.ndarray], Rows]
    threads: int
    rows: int
    low: int
    high: int
    memory: bool  # whether the body also gets the addresses of its input and output

    def source(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).integers(self.low, self.high, (self.rows, self.threads)).astype(np.int32)


CASES: dict[str, Case] = {}


def case(
    name: str,
    reference: Callable[[np.ndarray], Rows],
    *,
    threads: int = 128,
    rows: int = 1,
    low: int = -50,
    high: int = 50,
    memory: bool = False,
) -> Callable[[Callable[..., Rows]], Callable[..., Rows]]:
    def register(body: Callable[..., Rows]) -> Callable[..., Rows]:
        assert name not in CASES
        CASES[name] = Case(body, reference, threads, rows, low, high, memory)
        return body

    return register


@cache
def lowered(name: str) -> Module:
    chosen = CASES[name]

    def body(src, dst):
        given = [
            Int32(fx.ptr_load(at(Int32, src) + (i * chosen.threads + fx.thread_idx.x))) for i in range(chosen.rows)
        ]
        memory = (src, dst) if chosen.memory else ()
        for i, row in enumerate(chosen.body(given, *memory)):
            fx.ptr_store(Int32(row), at(Int32, dst) + (i * chosen.threads + fx.thread_idx.x))

    return lower(micro(body, threads=chosen.threads), 0, 0)


# -- what the bodies and references share ------------------------------------------------------------------------------


def vector(items: Rows) -> Vector:
    return Vector.from_elements(items, Int32)


def items_of(*tiles: Any) -> Rows:
    """Rows of scalars and vectors, one item each."""
    rows = []
    for tile in tiles:
        rows += [tile[i] for i in range(len(tile))] if isinstance(tile, Vector | tuple) else [tile]
    return rows


def scratch(kind: Any) -> Any:
    return fx.SharedAllocator().allocate(kind).peek()


def scratch_of(primitive: Any) -> Any:
    return scratch(primitive.SharedStorage)


def groups(x: np.ndarray, width: int) -> np.ndarray:
    """[threads] as [groups, width]."""
    return x.reshape(-1, width)


def spread(x: np.ndarray, width: int) -> np.ndarray:
    return np.repeat(x, width)


def sequence(x: np.ndarray) -> np.ndarray:
    """Rows [items, threads] as the blocked sequence; thread t owns consecutive items."""
    return x.T.ravel()


def blocked(flat: np.ndarray, items: int) -> Rows:
    return list(flat.reshape(-1, items).T)


def striped(flat: np.ndarray, items: int, width: int) -> Rows:
    """By groups of `width` threads: item i of a thread lies i * width further on."""
    tiles = flat.reshape(-1, items, width)
    return [tiles[:, i].ravel() for i in range(items)]


def sorted_pairs(keys: np.ndarray, values: np.ndarray, *, descending: bool = False) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-keys if descending else keys, kind="stable")
    return keys[order], values[order]


# -- warps -------------------------------------------------------------------------------------------------------------


def _reduced(x: np.ndarray) -> Rows:
    (x,) = x
    whole, eights = groups(x, 64), groups(x, 8)
    rows = [spread(f(whole, axis=1), 64) for f in (np.sum, np.max, np.min)]
    rows += [spread(eights.sum(1), 8), spread(np.prod(eights % 3, axis=1), 8), spread(eights[:, :5].sum(1), 8)]
    return rows


@case("warp_reduce", _reduced)
def _(rows):
    x = rows[0]
    out = [C.warp_sum(x), C.warp_max(x), C.warp_min(x), C.warp_reduce(x, ADD, width=8)]
    positive = x - (x // 3) * 3
    return [*out, C.warp_reduce(positive, MUL, width=8), C.warp_reduce(x, ADD, width=8, valid_items=5)]


@case("WarpReduce", lambda x: [spread(f(groups(x[0], 16), axis=1), 16) for f in (np.sum, np.max, np.min, np.max)])
def _(rows):
    P = C.WarpReduce[Int32, 16]
    return [P.sum(rows[0]), P.max(rows[0]), P.min(rows[0]), P.reduce(rows[0], MAX)]


@case("universal.warp_reduce", lambda x: [spread(f(groups(x[0], 64), axis=1), 64) for f in (np.sum, np.max)])
def _(rows):
    return [C.universal.warp_sum(rows[0]), C.universal.warp_max(rows[0])]


def _scanned(x: np.ndarray) -> Rows:
    whole, eights = groups(x[0], 64), groups(x[0], 8)
    inclusive = np.cumsum(whole, axis=1)
    largest = np.maximum.accumulate(eights, axis=1)
    rows = [inclusive, inclusive - whole, inclusive - whole + 3, inclusive, inclusive - whole + 7, largest]
    rows += [inclusive, inclusive - whole, inclusive, inclusive - whole, whole.sum(1, keepdims=True) + whole * 0]
    rows += [eights[:, [2]] + eights * 0]
    return [row.ravel() for row in rows]


@case("warp_scan", _scanned)
def _(rows):
    x = rows[0]
    out = [C.warp_inclusive_scan(x, ADD), C.warp_exclusive_scan(x, ADD), C.warp_exclusive_scan(x, ADD, init=3)]
    out += [C.warp_inclusive_sum(x), C.warp_exclusive_sum(x, init=7), C.warp_inclusive_scan(x, MAX, width=8)]
    out += [*C.warp_scan(x, ADD), *C.warp_scan_with_aggregate(x, ADD), C.warp_broadcast(x, 2, width=8)]
    return out


@case("WarpScan", _scanned)
def _(rows):
    x, P, Q = rows[0], C.WarpScan[Int32], C.WarpScan[Int32, 8]
    out = [P.inclusive_scan(x, ADD), P.exclusive_scan(x, ADD), P.exclusive_scan(x, ADD, init=3), P.inclusive_sum(x)]
    out += [P.exclusive_sum(x, init=7), Q.inclusive_scan(x, MAX), *P.scan(x, ADD), *P.scan_with_aggregate(x, ADD)]
    return [*out, Q.broadcast(x, 2)]


def _segments(x: np.ndarray) -> Rows:
    """At the first lane of each segment of a wave its sum (a mark begins one), or maximum and sum (a mark ends one)."""
    heads, tails, sums = (np.zeros_like(x[0]) for _ in range(3))
    marked = x[0] % 4 == 0
    for first in range(0, len(x[0]), 64):
        wave, marks = x[0][first : first + 64], marked[first : first + 64]
        starts = [0, *(i for i in range(1, 64) if marks[i]), 64]
        for a, b in pairwise(starts):
            heads[first + a] = wave[a:b].sum()
        ends = [0, *(i + 1 for i in range(63) if marks[i]), 64]
        for a, b in pairwise(ends):
            tails[first + a], sums[first + a] = wave[a:b].max(), wave[a:b].sum()
    return [heads, heads, tails, sums]


def _flag(condition):
    return condition.select(Int32(1), Int32(0))


@case("warp_segmented_reduce", _segments)
def _(rows):
    x, lane = rows[0], fx.thread_idx.x & 63
    marked = _flag((x & 3) == 0)
    before = _flag((Int32(fx.gpu.shuffle_up(marked, 1, 64)) == 1) | (lane == 0))
    head = (marked == 1) | (lane == 0)
    sums = [C.warp_head_segmented_sum(x, marked), C.warp_head_segmented_reduce(x, marked, ADD)]
    tails = [C.warp_tail_segmented_reduce(x, marked, MAX), C.warp_tail_segmented_sum(x, marked)]
    return [head.select(y, Int32(0)) for y in sums] + [(before == 1).select(y, Int32(0)) for y in tails]


def _batched(x: np.ndarray) -> Rows:
    """Six totals: of 8 lanes, one a lane; of 4 lanes, two a lane, consecutive ones and every fourth; 0 for no total."""
    lane, group = np.arange(x.shape[1]) % 8, np.arange(x.shape[1]) // 4
    eights, fours = x.reshape(6, -1, 8).sum(2), x.reshape(6, -1, 4).sum(2)
    scalar = np.where(lane < 6, eights[np.minimum(lane, 5), group // 2], 0)
    blocked_, striped_ = ([2 * (lane % 4) + j for j in (0, 1)], [lane % 4 + 4 * j for j in (0, 1)])
    own = [np.where(batch < 6, fours[np.minimum(batch, 5), group], 0) for batch in (*blocked_, *striped_)]
    return [scalar, scalar, *own[:2], *own[:2], *own[2:], *own[2:], *own]


@case("warp_reduce_batched", _batched, rows=6)
def _(rows):
    x, lane = vector(rows), fx.thread_idx.x & 7
    P = C.WarpReduceBatched[Int32, 4, 6]
    ones = [C.warp_reduce_batched(x, ADD, width=8), C.warp_sum_batched(x, width=8)]
    by_two = [C.warp_reduce_batched_to_blocked(x, ADD, width=4), C.warp_sum_batched_to_blocked(x, width=4)]
    by_four = [C.warp_reduce_batched_to_striped(x, ADD, width=4), C.warp_sum_batched_to_striped(x, width=4)]
    two = [2 * (lane & 3) + j < 6 for j in (0, 1)]
    four = [(lane & 3) + 4 * j < 6 for j in (0, 1)]
    out = [(lane < 6).select(y, Int32(0)) for y in ones]
    for owned, tiles in (
        (two, [*by_two]),
        (four, by_four),
        (two, [P.sum_to_blocked(x)]),
        (four, [P.sum_to_striped(x)]),
    ):
        out += [owned[j].select(y[j], Int32(0)) for y in tiles for j in (0, 1)]
    return out


def _warp_exchanged(x: np.ndarray) -> Rows:
    tiles = sequence(x).reshape(-1, 16)
    return [*striped(tiles, 2, 8), *x, *striped(tiles[:, ::-1], 2, 8)]


@case("WarpExchange", _warp_exchanged, rows=2)
def _(rows):
    P, thread = C.WarpExchange[Int32, 8, 2], fx.thread_idx.x
    storage = scratch(fx.Array[P.SharedStorage, 16])[thread // 8]
    lined = P.blocked_to_striped(vector(rows), storage=storage)
    fx.barrier()
    back = P.striped_to_blocked(lined, storage=storage)
    fx.barrier()
    ranks = vector([15 - 2 * (thread % 8), 14 - 2 * (thread % 8)])
    return items_of(lined, back, P.scatter_to_striped(vector(rows), ranks, storage=storage))


@case("WarpExchange shuffle", lambda x: striped(sequence(x), 4, 4), rows=4)
def _(rows):
    P = C.WarpExchange[Int32, 4, 4, C.WarpExchangeAlgorithm.SHUFFLE]
    return items_of(P.blocked_to_striped(vector(rows)))


def _warp_sorted(x: np.ndarray) -> Rows:
    bitonic = np.sort(np.moveaxis(x.reshape(2, -1, 8), 0, 1).reshape(-1, 16), axis=1).reshape(-1, 2, 8)
    keys = x.T.reshape(-1, 16)
    order = np.argsort(keys, axis=1, kind="stable")
    merged = [np.take_along_axis(keys, order, 1), order]
    return [bitonic[:, i].ravel() for i in (0, 1)] + [m.reshape(-1, 2)[:, i] for m in merged for i in (0, 1)]


@case("warp sorts", _warp_sorted, rows=2, low=-9, high=9)
def _(rows):
    place = (fx.thread_idx.x & 7) * 2
    keys, values = C.warp_merge_sort(vector(rows), vector([place, place + 1]), width=8)
    return items_of(C.warp_bitonic_sort(vector(rows), width=8), keys, values)


@case("Warp sorts", lambda x: _warp_sorted(x)[:4], rows=2, low=-9, high=9)
def _(rows):
    return items_of(C.WarpBitonicSort[Int32, 8, 2].sort(vector(rows)), C.WarpMergeSort[Int32, 8, 2].sort(vector(rows)))


def view(address: Any, count: int) -> Any:
    """Consecutive words of global memory."""
    return fx.make_view(at(Int32, address), fx.make_layout(count, 1))


WARP_IO = ("DIRECT", "STRIPED", "VECTORIZE", "TRANSPOSE")


def _warp_loaded(policy: str) -> Callable[[np.ndarray], Rows]:
    def reference(x: np.ndarray) -> Rows:
        flat = x.ravel()
        return striped(flat, 2, 8) if policy == "STRIPED" else blocked(flat, 2)

    return reference


def _warp_io(policy: str, kind: str) -> Callable[..., Rows]:
    """Loads 16 words for every 8 lanes; or stores them, so that the output is the input."""

    def load(rows, src, dst):
        P = C.WarpLoad[Int32, 8, 2, getattr(C.WarpLoadAlgorithm, policy)]
        return items_of(P.load(view(src, 256), offset=fx.thread_idx.x // 8 * 16, storage=_warp_storage(P)))

    def store(rows, src, dst):
        P = C.WarpStore[Int32, 8, 2, getattr(C.WarpStoreAlgorithm, policy)]
        x = load(rows, src, dst)
        fx.barrier()
        P.store(view(dst, 256), vector(x), offset=fx.thread_idx.x // 8 * 16, storage=_warp_storage(P))
        return []

    return load if kind == "load" else store


def _warp_storage(P: Any) -> Any:
    return scratch(fx.Array[P.SharedStorage, 16])[fx.thread_idx.x // 8] if P.algorithm.name == "TRANSPOSE" else None


for _policy in WARP_IO:
    case(f"WarpLoad {_policy}", _warp_loaded(_policy), rows=2, memory=True)(_warp_io(_policy, "load"))
    if _policy != "TRANSPOSE":  # one allocator a kernel
        case(f"WarpStore {_policy}", lambda x: list(x), rows=2, memory=True)(_warp_io(_policy, "store"))


# -- blocks ------------------------------------------------------------------------------------------------------------


def _block_reduced(x: np.ndarray) -> Rows:
    return [np.full(x.shape[1], value) for value in (x.sum(), x.max(), x[0].sum(), x[0, :77].min())]


def _block_reduce(policy: Any, namespace: Any = C) -> Callable[..., Rows]:
    def body(rows):
        P = namespace.BlockReduce[Int32, 256, policy]
        storage, out = scratch_of(P), []
        for value, op in ((vector(rows), ADD), (vector(rows), MAX)):
            out.append(P(value, op, storage=storage))
            fx.barrier()
        out.append(P.sum(rows[0], storage=storage))
        fx.barrier()
        return [*out, P(rows[0], MIN, storage=storage, valid_items=77)]

    return body


def _block_scanned(x: np.ndarray) -> Rows:
    flat = sequence(x)
    inclusive = np.cumsum(flat)
    rows = [inclusive - flat + 5, inclusive, np.maximum.accumulate(flat)]
    total = np.full(x.shape[1], flat.sum())
    return [*(row for flat in rows for row in blocked(flat, 2)), *blocked(inclusive - flat, 2), total]


def _block_scan(policy: Any, namespace: Any = C) -> Callable[..., Rows]:
    def body(rows):
        P, x = namespace.BlockScan[Int32, 256, policy], vector(rows)
        storage = scratch_of(P)
        first = P.exclusive_sum(x, storage=storage, init=5)
        fx.barrier()
        second = P.inclusive_sum(x, storage=storage)
        fx.barrier()
        third = P.inclusive(x, MAX, storage=storage)
        fx.barrier()
        return items_of(first, second, third, *P.exclusive_with_aggregate(x, ADD, storage=storage))

    return body


for _policy in C.BlockReduceAlgorithm:
    case(f"BlockReduce {_policy.name}", _block_reduced, threads=256, rows=2)(_block_reduce(_policy))
for _policy in C.BlockScanAlgorithm:
    case(f"BlockScan {_policy.name}", _block_scanned, threads=256, rows=2)(_block_scan(_policy))
case("universal.BlockReduce", _block_reduced, threads=256, rows=2)(
    _block_reduce(C.BlockReduceAlgorithm.WARP_REDUCTIONS, C.universal)
)
case("universal.BlockScan", _block_scanned, threads=256, rows=2)(
    _block_scan(C.BlockScanAlgorithm.WARP_SCANS, C.universal)
)


def _block_exchanged(x: np.ndarray) -> Rows:
    flat = sequence(x)
    lined, by_warps = striped(flat, 2, 128), striped(flat, 2, 64)
    return [*lined, *x, *by_warps, *x, *blocked(flat[::-1], 2), *striped(flat[::-1], 2, 128)]


def _block_exchange(policy: Any) -> Callable[..., Rows]:
    def body(rows):
        P, x, thread = C.BlockExchange[Int32, 128, 2, policy], vector(rows), fx.thread_idx.x
        storage, ranks, out = scratch_of(P), vector([255 - 2 * thread, 254 - 2 * thread]), []
        for there, back in (
            ("blocked_to_striped", "striped_to_blocked"),
            ("blocked_to_warp_striped", "warp_striped_to_blocked"),
        ):
            for way, tile in ((there, x), (back, None)):
                out.append(getattr(P, way)(out[-1] if tile is None else tile, storage=storage))
                fx.barrier()
        out.append(P.scatter_to_blocked(x, ranks, storage=storage))
        fx.barrier()
        return items_of(*out, P.scatter_to_striped(x, ranks, storage=storage))

    return body


for _policy in C.BlockExchangeAlgorithm:
    case(f"BlockExchange {_policy.name}", _block_exchanged, rows=2)(_block_exchange(_policy))


def _guarded(x: np.ndarray) -> Rows:
    flat = sequence(x)[::-1].copy()
    flat[-1] = -1  # the first item goes nowhere
    return 2 * striped(flat, 2, 128)


@case("BlockExchange guarded", _guarded, rows=2)
def _(rows):
    P, x, thread = C.BlockExchange[Int32, 128, 2], vector(rows), fx.thread_idx.x
    storage, first = scratch_of(P), thread == 0
    guarded = vector([first.select(Int32(-1), 255 - 2 * thread), 254 - 2 * thread])
    ranks, flags = vector([255 - 2 * thread, 254 - 2 * thread]), vector([first.select(Int32(0), Int32(1)), Int32(1)])
    one = P.scatter_to_striped_guarded(x, guarded, storage=storage, default=-1)
    fx.barrier()
    return items_of(one, P.scatter_to_striped_flagged(x, ranks, flags, storage=storage, default=-1))


def _shuffled(x: np.ndarray) -> Rows:
    flat = sequence(x)
    up, down = np.append(-1, flat[:-1]), np.append(flat[1:], 128)
    ends = [np.full(128, flat[-1]), np.full(128, flat[0])]
    shifted = np.append(x[0][1:], -1)
    return [*blocked(up, 2), ends[0], *blocked(down, 2), ends[1], shifted, np.roll(x[0], -1)]


@case("BlockShuffle", _shuffled, rows=2)
def _(rows):
    P, x = C.BlockShuffle[Int32, 128], vector(rows)
    storage = scratch_of(P)
    up = P.up(x, storage=storage, predecessor=-1, return_suffix=True)
    fx.barrier()
    down = P.down(x, storage=storage, successor=128, return_prefix=True)
    fx.barrier()
    shifted = P.offset(rows[0], distance=1, storage=storage, fill=-1)
    fx.barrier()
    return items_of(*up, *down, shifted, P.rotate(rows[0], distance=1, storage=storage))


def _differences(x: np.ndarray) -> Rows:
    flat = sequence(x)
    left, right = flat - np.append(0, flat[:-1]), flat - np.append(flat[1:], 0)
    right[-1] = flat[-1]
    partial = np.where(np.arange(256) < 77, flat - np.append(1, flat[:-1]), flat)
    return [*blocked(left, 2), *blocked(right, 2), *blocked(partial, 2)]


@case("BlockAdjacentDifference", _differences, rows=2)
def _(rows):
    P, x = C.BlockAdjacentDifference[Int32, 128], vector(rows)
    storage = scratch_of(P)
    left = P.subtract_left(x, storage=storage)
    fx.barrier()
    right = P.subtract_right(x, storage=storage)
    fx.barrier()
    return items_of(left, right, P.subtract_left_partial_tile(x, 77, storage=storage, predecessor=1))


def _boundaries(x: np.ndarray) -> Rows:
    flat = sequence(x)
    changes = flat[1:] != flat[:-1]
    heads, tails = np.append(True, changes), np.append(changes, True)
    return [*blocked(heads, 2), *blocked(tails, 2), *blocked(heads, 2), *blocked(tails, 2)]


@case("BlockDiscontinuity", _boundaries, rows=2, low=0, high=3)
def _(rows):
    P, x = C.BlockDiscontinuity[Int32, 128], vector(rows)
    storage = scratch_of(P)
    both = P.flag_heads_and_tails(x, storage=storage)
    fx.barrier()
    heads = P.flag_heads(x, storage=storage)
    fx.barrier()
    return items_of(*both, heads, P.flag_tails(x, storage=storage))


def _histogram(policy: Any) -> Callable[..., Rows]:
    def body(rows):
        P = C.BlockHistogram[Int32, 128, 128, policy]
        storage = scratch_of(P)
        once = P(vector(rows), storage=storage)[fx.thread_idx.x]
        fx.barrier()
        P.init(storage=storage)
        P.composite(vector(rows), storage=storage)
        fx.barrier()
        P.composite(vector(rows), storage=storage)
        fx.barrier()
        return [once, storage.counts[fx.thread_idx.x]]

    return body


def _counted(x: np.ndarray) -> Rows:
    counts = np.bincount(x.ravel(), minlength=128)
    return [counts, 2 * counts]


for _policy in C.BlockHistogramAlgorithm:
    case(f"BlockHistogram {_policy.name}", _counted, rows=2, low=0, high=128)(_histogram(_policy))


def _block_load(policy: Any) -> Callable[..., Rows]:
    def body(rows, src, dst):
        P = C.BlockLoad[Int32, 128, 4, policy]
        storage = scratch_of(P) if "TRANSPOSE" in policy.name else None
        whole = P(view(src, 512), storage=storage)
        fx.barrier()
        return items_of(whole, P(view(src, 512), storage=storage, offset=2, valid_items=301, default=-1))

    return body


def _block_loaded(policy: Any) -> Callable[[np.ndarray], Rows]:
    def reference(x: np.ndarray) -> Rows:
        flat = x.ravel()
        part = np.where(np.arange(512) < 301, np.append(flat[2:], [0, 0]), -1)
        deal = (lambda y: striped(y, 4, 128)) if policy.name == "STRIPED" else (lambda y: blocked(y, 4))
        return [*deal(flat), *deal(part)]

    return reference


def _block_store(policy: Any) -> Callable[..., Rows]:
    def body(rows, src, dst):
        P = C.BlockStore[Int32, 128, 4, policy]
        storage = scratch_of(P) if "TRANSPOSE" in policy.name else None
        P(view(dst, 512), vector(rows), storage=storage)
        fx.barrier()
        P(view(dst + 2048, 512), vector(rows), storage=storage, offset=2, valid_items=301)
        return []

    return body


def _block_stored(policy: Any) -> Callable[[np.ndarray], Rows]:
    def reference(x: np.ndarray) -> Rows:
        flat = x.ravel() if policy.name == "STRIPED" else sequence(x)
        part = np.zeros(512, np.int64)
        part[2:303] = flat[:301]
        return [*flat.reshape(4, 128), *part.reshape(4, 128)]

    return reference


for _policy in C.BlockLoadAlgorithm:
    case(f"BlockLoad {_policy.name}", _block_loaded(_policy), rows=4, memory=True)(_block_load(_policy))
for _policy in C.BlockStoreAlgorithm:
    case(f"BlockStore {_policy.name}", _block_stored(_policy), rows=4, memory=True)(_block_store(_policy))


def _merge_sorted(x: np.ndarray) -> Rows:
    flat, place = sequence(x), np.arange(256)
    keys, values = sorted_pairs(flat, place)
    down_keys, _ = sorted_pairs(flat[:77], place[:77], descending=True)
    padded = np.append(down_keys, np.full(179, -99))
    return [*blocked(keys, 2), *blocked(values, 2), *blocked(padded, 2)]


@case("BlockMergeSort", _merge_sorted, rows=2, low=-9, high=9)
def _(rows):
    P, thread = C.BlockMergeSort[(Int32, Int32), 128, 2], fx.thread_idx.x
    storage, values = scratch_of(P), vector([2 * thread, 2 * thread + 1])
    both = P(vector(rows), values, storage=storage)
    fx.barrier()
    keys, _ = P.stable_sort(vector(rows), values, storage=storage, descending=True, valid_items=77, oob_default=-99)
    return items_of(*both, keys)


def _ranked(x: np.ndarray) -> Rows:
    flat = sequence(x) & 15
    ranks = np.empty(len(flat), np.int64)
    ranks[np.argsort(flat, kind="stable")] = np.arange(len(flat))
    return blocked(ranks, 2)


def _radix_rank(policy: Any) -> Callable[..., Rows]:
    def body(rows):
        P, E = C.BlockRadixRank.with_radix_bits(4)[Int32, 128, 2, policy], C.BlockExchange[Int32, 128, 2]
        if not policy.name.startswith("MATCH"):
            return items_of(P(vector(rows), storage=scratch_of(P), begin_bit=0, end_bit=4))
        storage, exchange = _both(P, E)
        keys = E.blocked_to_warp_striped(vector(rows), storage=exchange)
        ranks = P(keys, storage=storage, begin_bit=0, end_bit=4)
        fx.barrier()
        return items_of(E.warp_striped_to_blocked(ranks, storage=exchange))

    return body


def _both(*primitives: Any) -> Rows:
    allocator = fx.SharedAllocator()
    return [allocator.allocate(P.SharedStorage).peek() for P in primitives]


for _policy in C.BlockRadixRankAlgorithm:
    case(f"BlockRadixRank {_policy.name}", _ranked, rows=2, low=0, high=1 << 20)(_radix_rank(_policy))


def _radix_sorted(x: np.ndarray) -> Rows:
    flat, place = sequence(x), np.arange(256)
    keys, values = sorted_pairs(flat, place)
    down_keys, _ = sorted_pairs(flat, place, descending=True)
    return [*blocked(keys, 2), *blocked(values, 2), *striped(down_keys, 2, 128)]


def _radix_sort(policy: Any) -> Callable[..., Rows]:
    def body(rows):
        P, thread = C.BlockRadixSort[(Int32, Int32), 128, 2, policy], fx.thread_idx.x
        storage, values = scratch_of(P), vector([2 * thread, 2 * thread + 1])
        both = P(vector(rows), values, storage=storage)
        fx.barrier()
        keys, _ = P.sort_descending_blocked_to_striped(vector(rows), values, storage=storage)
        return items_of(*both, keys)

    return body


for _policy in C.BlockRadixSortAlgorithm:
    case(f"BlockRadixSort {_policy.name}", _radix_sorted, rows=2)(_radix_sort(_policy))


def _decoded(x: np.ndarray) -> Rows:
    values, lengths = x[0], x[1]
    runs = np.repeat(values, lengths)
    relative = np.concatenate([np.arange(n) for n in lengths])
    rows, total = [], np.full(128, len(runs))
    for flat, fill in ((runs, 0), (relative, -1)):
        padded = np.append(flat, np.full(512, fill))[:512]
        rows += blocked(padded, 4)
    return [*rows, total]


@case("BlockRunLengthDecode", _decoded, rows=2, low=0, high=4)
def _(rows):
    P = C.BlockRunLengthDecode[Int32, 128, 1]
    return items_of(*P(rows[0], rows[1], storage=scratch_of(P), decoded_items_per_thread=4))


def _largest(policy: Any) -> Callable[[np.ndarray], Rows]:
    def reference(x: np.ndarray) -> Rows:
        flat, out = sequence(x), np.zeros(256, np.int64)
        order = np.argsort(-flat, kind="stable")[:37]
        out[:37] = flat[order if policy.name == "MERGE" else np.sort(order)]
        return blocked(out, 2)

    return reference


def _top(policy: Any) -> Callable[..., Rows]:
    def body(rows):
        P = C.BlockTopK[Int32, 128, 2, policy]
        found, valid = P.max_keys(vector(rows), 37, storage=scratch_of(P))
        return [valid[i].select(found[i], Int32(0)) for i in (0, 1)]

    return body


for _policy in C.BlockTopKAlgorithm:
    case(f"BlockTopK {_policy.name}", _largest(_policy), rows=2, low=-(10**9), high=10**9)(_top(_policy))


# -- the tests ---------------------------------------------------------------------------------------------------------

OPTIONS = {"races": Options(races=True), "random": Options(schedule="random", seed=1)}
RACING = {f"BlockRadixRank {name}" for name in ("BASIC", "MEMOIZE")}
"""Those in which every thread stores the same value to one word of LDS."""
LONG = {"BlockHistogram SORT", "BlockMergeSort", "BlockRadixSort RADIX_DIGIT"}


def cases(how: str) -> list[Any]:
    names = sorted(CASES if how == "random" else set(CASES) - RACING)
    return [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in names]


def compare(name: str, options: Options) -> None:
    source = CASES[name].source(options.seed)
    expected = np.array(CASES[name].reference(source.astype(np.int64)), np.int64)
    out = np.zeros(expected.shape, np.int32)
    simulate(lowered(name), source, out, options=options)
    wrong = np.argwhere(out != expected)
    if len(wrong):
        row, thread = wrong[0]
        what = f"row {row} thread {thread}: expected {expected[row, thread]}, got {out[row, thread]}"
        raise AssertionError(f"{name}: {len(wrong)} of {out.size} differ, first {what}")


@pytest.mark.parametrize("name", cases("races"))
def test_in_order_and_without_races(name):
    compare(name, OPTIONS["races"])


@pytest.mark.parametrize("name", cases("random"))
def test_in_a_random_order(name):
    compare(name, OPTIONS["random"])


@pytest.mark.parametrize("name", sorted(RACING))
def test_threads_that_store_the_same_value_are_said_to_race(name):
    with pytest.raises(SimFault, match=r"race: store of 4 bytes of LDS.*test_coop.py"):
        compare(name, OPTIONS["races"])


def test_every_public_name_is_used():
    source = Path(__file__).read_text(encoding="utf-8")
    unused = {name for name in C.__all__ if f"C.{name}" not in source and not name.endswith("Algorithm")}
    assert unused == set(), unused
