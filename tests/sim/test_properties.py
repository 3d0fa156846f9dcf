"""Random kernels against an interpreter of one lane: straight-line arithmetic, then structured control flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3lab.lowering.ir import Module, Type
from tests.sim.test_micro_kit import F32, GLOBAL, I1, I32, I64, Build, by_lanes, run, spelled

THREADS, GROUPS = 128, 2
WORDS = 8  # 64-bit words of input for each thread

# -- straight lines ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """An operation as random programs use it: operand types, result type, attributes to draw from."""

    name: str
    takes: tuple[Type, ...]
    gives: Type
    attrs: tuple[dict[str, Any], ...] = ({},)


INTEGER_NAMES = ("add", "sub", "mul", "and", "or", "xor", "intr.smin", "intr.smax", "intr.umin", "intr.umax")
FORMS = (
    *(Form(f"llvm.{name}", (kind, kind), kind) for kind in (I32, I64) for name in INTEGER_NAMES),
    *(Form(f"llvm.{name}", (kind, kind), kind) for kind in (I32, I64) for name in ("sdiv", "srem", "udiv", "urem")),
    *(Form(f"llvm.{name}", (kind, kind), kind) for kind in (I32, I64) for name in ("shl", "lshr", "ashr")),
    *(Form("llvm.icmp", (kind, kind), I1, tuple({"predicate": p} for p in range(10))) for kind in (I1, I32, I64)),
    *(Form("llvm.select", (I1, kind, kind), kind) for kind in (I1, I32, I64, F32)),
    *(Form(f"llvm.{name}", (I1, I1), I1) for name in ("add", "and", "or", "xor")),
    *(Form("llvm.intr.ctpop", (kind,), kind) for kind in (I32, I64)),
    *(Form(f"llvm.{name}", (kind,), I64) for kind in (I1, I32) for name in ("sext", "zext")),
    Form("llvm.trunc", (I64,), I32),
    Form("llvm.trunc", (I32,), I1),
    *(Form(f"llvm.{name}", (F32, F32), F32) for name in ("fadd", "fsub", "fmul", "fdiv")),
    Form("llvm.fcmp", (F32, F32), I1, tuple({"predicate": p} for p in range(16))),
    *(Form(f"llvm.{name}", (kind,), F32) for kind in (I1, I32, I64) for name in ("sitofp", "uitofp")),
    Form("llvm.bitcast", (I32,), F32),
    Form("llvm.bitcast", (F32,), I32),
)
DIVISIONS = ("llvm.sdiv", "llvm.srem", "llvm.udiv", "llvm.urem")
SHIFTS = ("llvm.shl", "llvm.lshr", "llvm.ashr")


class Drawn:
    """A module that hypothesis prints as text."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def __repr__(self) -> str:
        return f"\n{spelled(self.module)}\n"


@st.composite
def straight_lines(draw: st.DrawFn) -> Drawn:
    """A kernel that computes random values from uniform, wave-uniform and per-lane ones, and stores them all."""
    build = Build(GLOBAL, GLOBAL, I32, I64, F32)
    source, target, *scalars = build.params
    thread = build.thread()
    place = _global_thread(build, thread)
    pool = {I1: [build.constant(I1, 1)], I32: [scalars[0], thread], I64: [scalars[1]], F32: [scalars[2]]}
    pool[I32].append(build.group())
    pool[I32].append(build.constant(I32, draw(st.integers(-(2**31), 2**31 - 1))))
    pool[F32].append(build.constant(F32, draw(st.sampled_from([0.0, -0.0, 1.5, float("inf"), 1e-40]))))
    for word, kind in enumerate((I32, I64, F32)):
        index = build.add(build.op("llvm.mul", place, build.constant(I32, WORDS), gives=I32), build.constant(I32, word))
        scaled = build.op("llvm.mul", index, build.constant(I32, 8 // kind.nbytes), gives=I32)
        pool[kind].append(build.load(kind, source, scaled))
    made = [_random_op(draw, build, pool) for _ in range(draw(st.integers(1, 25)))]
    for number, value in enumerate(made):
        slot = build.add(build.op("llvm.mul", place, build.constant(I32, 25), gives=I32), build.constant(I32, number))
        build.store(_as_word(build, value), target, slot)
    build.ret()
    return Drawn(build.module(groups=GROUPS, threads=THREADS))


def _global_thread(build: Build, thread: int) -> int:
    group = build.group()
    return build.add(thread, build.op("llvm.mul", group, build.constant(I32, THREADS), gives=I32))


def _random_op(draw: st.DrawFn, build: Build, pool: dict[Type, list[int]]) -> int:
    form = draw(st.sampled_from(FORMS))
    operands = [draw(st.sampled_from(pool[kind])) for kind in form.takes]
    if form.name in DIVISIONS:  # by a positive odd number
        half = build.op("llvm.lshr", operands[1], build.constant(form.gives, 1), gives=form.gives)
        operands[1] = build.op("llvm.or", half, build.constant(form.gives, 1), gives=form.gives)
    if form.name in SHIFTS:
        operands[1] = build.op(
            "llvm.and", operands[1], build.constant(form.gives, form.gives.bits - 1), gives=form.gives
        )
    if form.name == "llvm.bitcast" and form.takes[0] == F32:
        operands[0] = _without_nan(build, operands[0])
    value = build.op(form.name, *operands, gives=form.gives, **draw(st.sampled_from(form.attrs)))
    pool[form.gives].append(value)
    return value


def _without_nan(build: Build, value: int) -> int:
    """NaNs as 1.0: which of two payloads a sum takes is not defined."""
    nan = build.fcmp("uno", value, value)
    return build.op("llvm.select", nan, build.constant(F32, 1.0), value, gives=F32)


def _as_word(build: Build, value: int) -> int:
    """Any value as an i64 with the same information."""
    match build.types[value].name:
        case "i64":
            return value
        case "f32":
            value = build.op("llvm.bitcast", _without_nan(build, value), gives=I32)
    return build.op("llvm.zext", value, gives=I64)


def inputs(seed: int) -> np.ndarray:
    """Input words: random bits, and extremes among them."""
    rng = np.random.default_rng(seed)
    words = rng.integers(-(2**63), 2**63 - 1, (GROUPS * THREADS, WORDS))
    extremes = np.array([0, -1, 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 0x7F800000, 0x7FC00000, 0x80000000])
    return np.where(rng.random(words.shape) < 0.3, rng.choice(extremes, words.shape), words)


def check(module: Module, source: np.ndarray, size: int, scalars: tuple[Any, ...], **options: Any) -> None:
    """The engine's memory is what the lanes by themselves leave."""
    expected, got = (np.zeros((GROUPS * THREADS, size), np.int64) for _ in range(2))
    by_lanes(module, source.copy(), expected, *scalars)
    run(module, source.copy(), got, *scalars, **options)
    wrong = np.argwhere(got != expected)
    if len(wrong):
        lane, word = wrong[0]
        message = f"thread {lane} word {word}: expected {expected[lane, word]:#x}, got {got[lane, word]:#x}"
        raise AssertionError(f"{len(wrong)} words differ with {options}, first {message}")


@given(straight_lines(), st.integers(0, 99))
def test_straight_lines_compute_what_each_lane_computes(drawn, seed):
    check(drawn.module, inputs(seed), 25, (seed * 7919, seed << 40, np.float32(seed) / 3))


# -- control flow ------------------------------------------------------------------------------------------------------

VARIABLES = 3
OUT = 16  # words a thread may store to

Statement = tuple[Any, ...]


def statements(depth: int, in_loop: bool) -> st.SearchStrategy[list[Statement]]:
    variable, bit = st.integers(0, VARIABLES - 1), st.integers(0, 4)
    condition = st.tuples(st.sampled_from(["uniform", "group", "wave", "lane", "lane"]), variable, bit)
    simple = [
        st.tuples(st.just("set"), variable, st.sampled_from(["add", "sub", "xor", "mul"]), variable, st.integers(1, 9)),
        st.tuples(st.just("load"), variable, variable),
        st.tuples(st.just("store"), variable, variable),
        st.just(("check",)),
    ]
    if in_loop:
        simple += [st.tuples(st.just("break"), condition), st.tuples(st.just("continue"), condition)]
    if depth == 0:
        return st.lists(st.one_of(simple), max_size=3)
    inner, loop = statements(depth - 1, in_loop), statements(depth - 1, True)
    nested = [
        st.tuples(st.just("if"), condition, inner, inner),
        st.tuples(st.just("while"), condition, loop),
        st.tuples(st.just("switch"), condition, st.lists(inner, min_size=1, max_size=3)),
    ]
    return st.lists(st.one_of(*simple, *nested, *nested), min_size=1, max_size=3)


@dataclass
class Compiler:
    """Turns statements into blocks: what a construct assigns is passed on as block arguments, the rest is just used."""

    build: Build
    uniform: int
    thread: int
    source: int
    target: int
    slot: int
    labels: int = 0
    loops: list[tuple[str, str, list[int], int]] = field(default_factory=list)

    def label(self, name: str) -> str:
        self.labels += 1
        return f"{name}{self.labels}"

    def body(self, todo: list[Statement], state: list[int], together: bool) -> list[int]:
        """Compile statements; `together` says that whole waves get there."""
        for statement in todo:
            kind, *rest = statement
            state = getattr(self, f"_{kind}")(state, together, *rest)
            if kind in ("break", "continue"):
                together = together and _is_uniform(rest[0])
        return state

    def _set(self, state: list[int], together: bool, to: int, how: str, other: int, number: int) -> list[int]:
        constant = self.build.constant(I32, number)
        value = self.build.op(f"llvm.{how}", state[to], self.build.add(state[other], constant), gives=I32)
        return _with(state, to, value)

    def _load(self, state: list[int], together: bool, to: int, index: int) -> list[int]:
        return _with(state, to, self.build.load(I32, self.source, self._masked(state[index], 63)))

    def _store(self, state: list[int], together: bool, value: int, index: int) -> list[int]:
        place = self.build.add(self.slot, self._masked(state[index], 7))
        self.build.store(self.build.op("llvm.zext", state[value], gives=I64), self.target, place)
        return state

    def _check(self, state: list[int], together: bool) -> list[int]:
        """Where whole waves get to, count that all lanes are there."""
        if together:
            there = self.build.op("rocdl.ballot", self.build.constant(I1, 1), gives=I64)
            place = self.build.add(self.slot, self.build.constant(I32, OUT - 1))
            held = self.build.load(I64, self.target, place)
            three = self.build.op("llvm.mul", held, self.build.constant(I64, 3), gives=I64)
            self.build.store(self.build.op("llvm.sub", three, there, gives=I64), self.target, place)
        return state

    def _if(self, state: list[int], together: bool, condition: Any, then: Any, other: Any) -> list[int]:
        holds = self._condition(state, condition)
        yes, no, after = self.label("then"), self.label("else"), self.label("after")
        assigned = _assigned([*then, *other])
        self.build.cond(holds, (yes, ()), (no, ()))
        for label, part in ((yes, then), (no, other)):
            self.build.at(label)
            end = self.body(part, state, together and _is_uniform(condition))
            self.build.br(after, *(end[i] for i in assigned))
        return _put(state, assigned, self.build.at(after, *[I32] * len(assigned)))

    def _switch(self, state: list[int], together: bool, condition: Any, cases: Any) -> list[int]:
        value = self._masked(self._source(state, condition), 3)
        labels, after = [self.label("case") for _ in cases], self.label("after")
        assigned = _assigned([s for case in cases for s in case])
        self.build.switch(value, labels[0], {2 * i - 1: label for i, label in enumerate(labels[1:], 1)})
        for label, part in zip(labels, cases, strict=True):
            self.build.at(label)
            end = self.body(part, state, together and _is_uniform(condition))
            self.build.br(after, *(end[i] for i in assigned))
        return _put(state, assigned, self.build.at(after, *[I32] * len(assigned)))

    def _while(self, state: list[int], together: bool, condition: Any, todo: Any) -> list[int]:
        """A loop of 0 to 3 rounds, by the condition's source; breaks and continues leave it or go on early."""
        trips = self._masked(self._source(state, condition), 3)
        header, body, after = self.label("header"), self.label("body"), self.label("after")
        assigned = _assigned(todo)
        zero, one = self.build.constant(I32, 0), self.build.constant(I32, 1)
        self.build.br(header, zero, *(state[i] for i in assigned))
        count, *args = self.build.at(header, I32, *[I32] * len(assigned))
        state = _put(state, assigned, args)
        more = self.build.icmp("ult", count, trips)
        self.build.cond(more, (body, ()), (after, [state[i] for i in assigned]))
        self.build.at(body)
        following = self.build.add(count, one)
        self.loops.append((header, after, assigned, following))
        same = together and _is_uniform(condition) and not _may_part(todo)
        end = self.body(todo, state, same)
        self.loops.pop()
        self.build.br(header, following, *(end[i] for i in assigned))
        return _put(state, assigned, self.build.at(after, *[I32] * len(assigned)))

    def _break(self, state: list[int], together: bool, condition: Any) -> list[int]:
        _, after, assigned, _ = self.loops[-1]
        return self._leave(state, condition, (after, [state[i] for i in assigned]))

    def _continue(self, state: list[int], together: bool, condition: Any) -> list[int]:
        header, _, assigned, following = self.loops[-1]
        return self._leave(state, condition, (header, [following, *(state[i] for i in assigned)]))

    def _leave(self, state: list[int], condition: Any, way: tuple[str, list[int]]) -> list[int]:
        stay = self.label("stay")
        self.build.cond(self._condition(state, condition), way, (stay, ()))
        self.build.at(stay)
        return state

    def _condition(self, state: list[int], condition: Any) -> int:
        return self.build.op("llvm.trunc", self._source(state, condition), gives=I1)

    def _source(self, state: list[int], condition: Any) -> int:
        how, variable, bit = condition
        match how:
            case "uniform":
                value = self.uniform
            case "group":
                value = self.build.group()
            case "wave":
                bit, value = (
                    bit % 2 + 6,
                    self.build.op("llvm.and", self.thread, self.build.constant(I32, 64), gives=I32),
                )
            case _:
                value = state[variable]
        return self.build.op("llvm.lshr", value, self.build.constant(I32, bit), gives=I32)

    def _masked(self, value: int, mask: int) -> int:
        return self.build.op("llvm.and", value, self.build.constant(I32, mask), gives=I32)


def _is_uniform(condition: Any) -> bool:
    return condition[0] != "lane"


def _may_part(todo: list[Statement]) -> bool:
    """Whether lanes of a wave may leave or go on at different places of a loop with this body."""
    inner = [s for kind, *rest in todo for s in _inside(kind, rest) if kind != "while"]
    return any(kind in ("break", "continue") for kind, *_ in todo) or (bool(inner) and _may_part(inner))


def _inside(kind: str, rest: list[Any]) -> list[Statement]:
    match kind:
        case "if":
            return [*rest[1], *rest[2]]
        case "while":
            return list(rest[1])
        case "switch":
            return [s for case in rest[1] for s in case]
    return []


def _assigned(todo: list[Statement]) -> list[int]:
    found = set()
    for kind, *rest in todo:
        if kind in ("set", "load"):
            found.add(rest[0])
        found |= set(_assigned(_inside(kind, rest)))
    return sorted(found)


def _with(state: list[int], place: int, value: int) -> list[int]:
    return [*state[:place], value, *state[place + 1 :]]


def _put(state: list[int], places: list[int], values: Any) -> list[int]:
    for place, value in zip(places, values, strict=True):
        state = _with(state, place, value)
    return state


def compiled(program: list[Statement], order: Callable[[list[str]], list[str]] = list) -> Module:
    """The program as a kernel, its blocks printed in `order`."""
    build = Build(GLOBAL, GLOBAL, I32)
    source, target, uniform = build.params
    thread = build.thread()
    place = _global_thread(build, thread)
    slot = build.op("llvm.mul", place, build.constant(I32, OUT), gives=I32)
    compiler = Compiler(build, uniform, thread, source, target, slot)
    state = [build.op("llvm.mul", place, build.constant(I32, number), gives=I32) for number in (1, 3, 7)]
    state = compiler.body([*program, ("check",)], state, True)
    for number, value in enumerate(state):
        build.store(build.op("llvm.zext", value, gives=I64), target, build.add(slot, build.constant(I32, 8 + number)))
    build.ret()
    labels = [block.label for block in build.kernel().blocks][1:]
    return build.module(groups=GROUPS, threads=THREADS, order=["entry", *order(labels)])


@st.composite
def control_flow(draw: st.DrawFn) -> Drawn:
    """A random program, its blocks in a random order."""
    program = draw(statements(2, False))
    return Drawn(compiled(program, lambda labels: draw(st.permutations(labels))))


SCHEDULES = [
    {},
    {"schedule": "random", "seed": 5},
    {"schedule": "random", "seed": 6, "hold": frozenset({0})},
    {"schedule": "adversarial", "seed": 7, "memory": "relaxed"},
]


@given(control_flow(), st.integers(0, 31))
def test_control_flow_leaves_what_each_lane_leaves(drawn, uniform):
    for options in SCHEDULES:
        check(drawn.module, inputs(uniform), OUT, (uniform,), **options)


@pytest.mark.parametrize("wrong", ["value", "lane"])
def test_the_comparison_can_fail(wrong, monkeypatch):
    """A lane whose interpreter adds wrongly is noticed and named."""
    from tests.sim import test_micro_kit as kit

    monkeypatch.setitem(kit.UNSIGNED, "llvm.add", lambda a, b: a + b + (wrong == "value" or a == 77))
    module = compiled([("set", 0, "xor", 0, 1)])
    with pytest.raises((AssertionError, KeyError), match=r"differ|argument"):
        check(module, inputs(0), OUT, (0,))
