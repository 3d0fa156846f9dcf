"""What operations on memory and on its order become: statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from k3lab.backends.cuda.types import GLOBAL, LDS, Untranslated, moved
from k3lab.lowering.ir import Op, Type
from k3lab.sim.checks.touch import drains
from k3lab.sim.semantics.values import spelled

State = Callable[[Op, tuple[str, ...], bool], Iterator[str]]

POLICIES = (0, 2, 16, 17)
"""gfx950's cache policies that are translated: none, non-temporal, for other workgroups, for other GPUs."""
SCOPED_SIZES = (4, 8, 16)
IN_LDS, OF_DEVICE, OF_SYSTEM = 64, 16, 17
RELAXED, ACQUIRE, RELEASE = 2, 4, 5
ATOMICS = {0: "xchg", 1: "add", 3: "and", 5: "or", 6: "xor", 7: "max", 8: "min", 9: "max", 10: "min"}
"""By number as MLIR has them: those that are translated, 9 and 10 of unsigned numbers."""
UNSIGNED_ATOMICS = (9, 10)
NEAR_SCOPES = ("wavefront", "singlethread")


def accesses(op: Op) -> bool:
    """Whether an operation is a buffer's load or store."""
    return op.name in ("rocdl.raw.ptr.buffer.load", "rocdl.raw.ptr.buffer.store")


def _load(op: Op, x: tuple[str, ...], system: bool) -> Iterator[str]:
    _plain(op)
    kind, align = moved(op.result_types[0]), int(op.attrs.get("alignment", 1))
    yield f"v{op.results[0]} = k3_load{_space(op.operand_types[0])}<{kind}, {align}>({x[0]});"


def _store(op: Op, x: tuple[str, ...], system: bool) -> Iterator[str]:
    _plain(op)
    kind, align = moved(op.operand_types[0]), int(op.attrs.get("alignment", 1))
    yield f"k3_store{_space(op.operand_types[1])}<{kind}, {align}>({x[0]}, {x[1]});"


def _buffer_load(op: Op, x: tuple[str, ...], system: bool) -> Iterator[str]:
    kind = op.result_types[0]
    yield f"v{op.results[0]} = k3_buffer_load<{moved(kind)}, {_policy(op, kind)}>({', '.join(x[:3])});"


def _buffer_store(op: Op, x: tuple[str, ...], system: bool) -> Iterator[str]:
    kind = op.operand_types[0]
    yield f"k3_buffer_store<{moved(kind)}, {_policy(op, kind)}>({', '.join(x[:4])});"


def _atomic(op: Op, x: tuple[str, ...], system: bool) -> Iterator[str]:
    kind, number = op.operand_types[1], op.attrs["bin_op"]
    if kind.name != "i32" or number not in ATOMICS:
        raise Untranslated(f"number {number} on {spelled(kind)}")
    policy = IN_LDS if _space(op.operand_types[0]) else OF_DEVICE
    value = f"(u32){x[1]}" if number in UNSIGNED_ATOMICS else x[1]
    fence = "k3_fence_system(); " if op.attrs.get("ordering", RELAXED) > RELAXED else ""
    yield f"{fence}v{op.results[0]} = (int)k3_atomic_{ATOMICS[number]}<{policy}>((u64){x[0]}, {value}); {fence}".strip()


def _fence(op: Op, x: tuple[str, ...], system: bool) -> Iterator[str]:
    scope = str(op.attrs.get("syncscope") or "")
    if scope.removesuffix("-one-as") in NEAR_SCOPES:
        return
    reach = {"workgroup": "block", "agent": "device"}.get(scope.removesuffix("-one-as"), "system")
    yield f"k3_fence_{reach}();"


def _wait(op: Op, x: tuple[str, ...], system: bool) -> Iterator[str]:
    """Stores that have been waited for are there for whoever sees what is stored after."""
    if drains(int(op.attrs["bitfield"])):
        yield "k3_fence_system();" if system else "k3_fence_device();"


def _sleep(op: Op, x: tuple[str, ...], system: bool) -> Iterator[str]:
    yield "k3_sleep();"


MEMORY: dict[str, State] = {
    "llvm.load": _load,
    "llvm.store": _store,
    "rocdl.raw.ptr.buffer.load": _buffer_load,
    "rocdl.raw.ptr.buffer.store": _buffer_store,
    "llvm.atomicrmw": _atomic,
    "llvm.fence": _fence,
    "rocdl.s.waitcnt": _wait,
    "rocdl.s.sleep": _sleep,
}


def _space(pointer: Type) -> str:
    if pointer.space not in (GLOBAL, LDS):
        raise Untranslated(f"through a {spelled(pointer)}")
    return "_lds" if pointer.space == LDS else ""


def _plain(op: Op) -> None:
    if op.attrs.get("ordering", 0) or op.attrs.get("volatile_"):
        raise Untranslated("atomic or volatile")


def _policy(op: Op, kind: Type) -> int:
    policy = int(op.attrs["aux"])
    if policy not in POLICIES:
        raise Untranslated(f"cache policy {policy}")
    if policy in (OF_DEVICE, OF_SYSTEM) and kind.nbytes not in SCOPED_SIZES:
        raise Untranslated(f"{kind.nbytes} bytes with cache policy {policy}")
    return policy
