"""How a CTA goes through its tasks of a product: one after the other, several at once, or part by part of K."""

from collections.abc import Callable, Sequence
from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context
from k3lab.device.dsl import Int32, Opaque, fx, traced
from k3lab.device.matrix import zero_tile
from k3lab.device.stamps import stamp
from k3lab.stages.gemv.product import Meanwhile, Product, gemv_loads, multiply

UNROLLED = 4
"""Tasks of a CTA that are unrolled, each with its weights issued ahead; a loop takes the others."""

Load = Callable[[int, int, Meanwhile | None], None]
"""Puts the rows of a tile, by its first token, into LDS: the part of K of that number; as `load_rows` does."""
Finish = Callable[[Any, int, Any], None]
"""Takes a task's number, the first token of the tile, and the wave's sums."""
Step = tuple[int, range]
"""A part of K, and which of the CTA's tasks are multiplied over it at once."""


class Deal(Opaque):
    """This CTA's tasks of `total`: numbers first, first + step, ..., `count` of them; some may lie past the last."""

    def __init__(self, first: Any, step: int, count: int, total: int) -> None:
        self.first, self.step, self.count, self.total = first, step, count, total

    def number(self, i: Any) -> Any:
        """The CTA's task number `i`."""
        return self.first + i * self.step

    def readable(self, i: Any) -> Any:
        """That task, or where there is none the last one, whose weights can be read."""
        return fx.min(self.number(i), Int32(self.total - 1))


def consecutive(c: Context, total: int) -> Deal:
    """ceil(total / GEMV CTAs) consecutive tasks a CTA."""
    count = -(-total // c.key.gemv_ctas)
    return Deal((c.cta - c.key.gemv0) * count, 1, count, total)


def round_robin(c: Context, total: int, shift: int = 0) -> Deal:
    """Task i on GEMV CTA (i + shift) mod their number."""
    ctas = c.key.gemv_ctas
    first = c.cta - c.key.gemv0 - shift % ctas
    return Deal((first < 0).select(first + ctas, first), ctas, -(-total // ctas), total)


def issue(c: Context, p: Product, deal: Deal) -> list[Any]:
    """The weights that are on their way before anything is waited for, a list a task: the first step's."""
    return _loads(c, p, deal, _steps(p, deal)[0])


def _steps(p: Product, deal: Deal) -> list[Step]:
    """What a CTA does with a tile of rows, in order."""
    several = [range(i, min(i + p.at_once, deal.count)) for i in range(0, deal.count, p.at_once)]
    return [(part, numbers) for part in range(p.parts) for numbers in several]


def _loads(c: Context, p: Product, deal: Deal, step: Step | None) -> list[Any]:
    """The first weights of a step's tasks; none without a step."""
    if step is None:
        return []
    part, numbers = step
    return [gemv_loads(c, p, deal.readable(i), p.rounds_of(part)[: p.depth]) for i in numbers]


def _further(c: Context, p: Product, deal: Deal, issued: list[Any]) -> Meanwhile | None:
    """What issues further rounds of the first weights, behind those in `issued`."""
    rounds = p.rounds_of(0)[p.depth : p.depth + p.ahead]

    def meanwhile() -> None:
        for i, loads in enumerate(issued):
            loads += gemv_loads(c, p, deal.readable(i), rounds)

    return meanwhile if rounds else None


@traced
def run_tasks(
    c: Context, p: Product, deal: Deal, issued: list[Any], load: Load, finish: Finish, points: Sequence[str] = ()
) -> None:
    """The CTA's tasks, on one tile of tokens after the other.

    A task's weights are issued before the sums of the one before it. `points` are stamped after the first tasks. Tasks
    past the last are passed over, but for those that other weights are issued behind (in a tile that another follows,
    and where sums are held): these are multiplied, and `finish` is to publish nothing.
    """
    for tile in range_constexpr(p.tiles):
        load(tile * p.tokens, 0, _further(c, p, deal, issued) if tile == 0 else None)
        if const_expr(p.parts > 1 or p.at_once > 1):
            issued = _run_held(c, p, deal, tile, issued, load, finish, points)
        else:
            issued = _run_tile(c, p, deal, tile, issued, finish, points)


@traced
def _run_held(
    c: Context, p: Product, deal: Deal, tile: int, issued: list[Any], load: Load, finish: Finish, points: Sequence[str]
) -> list[Any]:
    """The tasks on one tile, several at once, or their rows a part of K after the other: the sums of all are held."""
    first, sums, steps = tile * p.tokens, [zero_tile() for _ in range(deal.count)], _steps(p, deal)
    following = [*steps[1:], steps[0] if tile + 1 < p.tiles else None]
    for number in range_constexpr(len(steps)):
        part, numbers = steps[number]
        if const_expr(number > 0):
            gpu.barrier()  # in the midst of a part too, or compilers keep the fragments of rows for its next tasks
        if const_expr(part > 0 and numbers.start == 0):
            load(first, part, None)
        tasks, held = [deal.readable(i) for i in numbers], [sums[i] for i in numbers]
        sums[numbers.start : numbers.stop] = multiply(c, p, tasks, issued, part, held)
        issued = _loads(c, p, deal, following[number])
        if const_expr(part + 1 == p.parts):
            for i in range_constexpr(numbers.start, numbers.stop):
                _end(c, deal.number(i), first, sums[i], finish, points[i] if i < len(points) else "")
    return issued


@traced
def _run_tile(
    c: Context, p: Product, deal: Deal, tile: int, issued: list[Any], finish: Finish, points: Sequence[str]
) -> list[Any]:
    """The tasks on the tile of tokens in LDS; returns the weights issued for the next tile."""
    first, unrolled, more = tile * p.tokens, min(deal.count, UNROLLED), tile + 1 < p.tiles
    looped = deal.count > unrolled
    for i in range_constexpr(unrolled):
        following, point = i + 1 if i + 1 < unrolled else 0, points[i] if i < len(points) else ""
        if const_expr(following > 0 or (more and not looped)):
            acc = multiply(c, p, [deal.readable(i)], issued)[0]
            issued = [gemv_loads(c, p, deal.readable(following), range(p.depth))]
            _end(c, deal.number(i), first, acc, finish, point)
        else:
            _last(c, p, deal, i, first, issued, finish, point)
            issued = []
    if const_expr(looped):
        for i in range(unrolled, deal.count):
            if deal.number(i) < deal.total:
                task = deal.number(i)
                finish(task, first, multiply(c, p, [task], [gemv_loads(c, p, task, range(p.depth))])[0])
        issued = issue(c, p, deal) if more else []
    return issued


@traced
def _last(
    c: Context, p: Product, deal: Deal, i: int, first: int, issued: list[Any], finish: Finish, point: str
) -> None:
    """A task that no weights follow, unless it lies past the last."""
    task = deal.number(i)
    if task < deal.total:
        _end(c, task, first, multiply(c, p, [task], issued)[0], finish, point)


@traced
def _end(c: Context, task: Any, first: int, acc: Any, finish: Finish, point: str) -> None:
    finish(task, first, acc)
    if const_expr(point):
        stamp(c, point)
