"""What operations on memory and on its order become: statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from k3lab.backends.cuda.fast.alignment import Alignment
from k3lab.backends.cuda.types import GLOBAL, LDS, Untranslated, moved
from k3lab.lowering.ir import Op, Type
from k3lab.sim.checks.touch import drains
from k3lab.sim.semantics.values import spelled


@dataclass(frozen=True)
class Reach:
    """What is known of a kernel's memory.

    Attributes:
        system: whether any of its accesses reaches other GPUs.
        alignment: what is known of its addresses; nothing, if None.
        unbounded: buffers of 2^32 - 1 bytes, whose bound no offset passes.
    """

    system: bool
    alignment: Alignment | None = None
    unbounded: frozenset[int] = frozenset()

    def of(self, promised: int, *values: int) -> int:
        """Bytes that the address `values` add up to is a multiple of."""
        return promised if self.alignment is None else max(promised, self.alignment.of(*values))


State = Callable[[Op, tuple[str, ...], Reach], Iterator[str]]

POLICIES = (0, 2, 16, 17)
"""gfx950's cache policies that are translated: none, non-temporal, for other workgroups, for other GPUs."""
SCOPED_SIZES = (4, 8, 16)
IN_LDS, OF_DEVICE, OF_SYSTEM = 64, 16, 17
RELAXED, ACQUIRE, RELEASE = 2, 4, 5
ATOMICS = {0: "xchg", 1: "add", 3: "and", 5: "or", 6: "xor", 7: "max", 8: "min", 9: "max", 10: "min"}
"""By number as MLIR has them: those that are translated, 9 and 10 of unsigned numbers."""
UNSIGNED_ATOMICS = (9, 10)
NO_BOUND = (1 << 32) - 1
NEAR_SCOPES = ("wavefront", "singlethread")


def accesses(op: Op) -> bool:
    """Whether an operation is a buffer's load or store."""
    return op.name in ("rocdl.raw.ptr.buffer.load", "rocdl.raw.ptr.buffer.store")


def _load(op: Op, x: tuple[str, ...], reach: Reach) -> Iterator[str]:
    _plain(op)
    kind, align = moved(op.result_types[0]), reach.of(int(op.attrs.get("alignment", 1)), op.operands[0])
    yield f"v{op.results[0]} = k3_load{_space(op.operand_types[0])}<{kind}, {align}>({x[0]});"


def _store(op: Op, x: tuple[str, ...], reach: Reach) -> Iterator[str]:
    _plain(op)
    kind, align = moved(op.operand_types[0]), reach.of(int(op.attrs.get("alignment", 1)), op.operands[1])
    yield f"k3_store{_space(op.operand_types[1])}<{kind}, {align}>({x[0]}, {x[1]});"


def _buffer_load(op: Op, x: tuple[str, ...], reach: Reach) -> Iterator[str]:
    kind = op.result_types[0]
    how = f"{moved(kind)}, {_policy(op, kind)}{_buffer(op, op.operands[:3], kind, reach)}"
    yield f"v{op.results[0]} = k3_buffer_load<{how}>({', '.join(x[:3])});"


def _buffer_store(op: Op, x: tuple[str, ...], reach: Reach) -> Iterator[str]:
    kind = op.operand_types[0]
    how = f"{moved(kind)}, {_policy(op, kind)}{_buffer(op, op.operands[1:4], kind, reach)}"
    yield f"k3_buffer_store<{how}>({', '.join(x[:4])});"


def _atomic(op: Op, x: tuple[str, ...], reach: Reach) -> Iterator[str]:
    kind, number = op.operand_types[1], op.attrs["bin_op"]
    if kind.name != "i32" or number not in ATOMICS:
        raise Untranslated(f"number {number} on {spelled(kind)}")
    policy = IN_LDS if _space(op.operand_types[0]) else OF_DEVICE
    value = f"(u32){x[1]}" if number in UNSIGNED_ATOMICS else x[1]
    fence = "k3_fence_system(); " if op.attrs.get("ordering", RELAXED) > RELAXED else ""
    yield f"{fence}v{op.results[0]} = (int)k3_atomic_{ATOMICS[number]}<{policy}>((u64){x[0]}, {value}); {fence}".strip()


def _fence(op: Op, x: tuple[str, ...], reach: Reach) -> Iterator[str]:
    scope = str(op.attrs.get("syncscope") or "")
    if scope.removesuffix("-one-as") in NEAR_SCOPES:
        return
    wide = {"workgroup": "block", "agent": "device"}.get(scope.removesuffix("-one-as"), "system")
    yield f"k3_fence_{wide}();"


def _wait(op: Op, x: tuple[str, ...], reach: Reach) -> Iterator[str]:
    """Stores that have been waited for are there for whoever sees what is stored after."""
    if drains(int(op.attrs["bitfield"])):
        yield "k3_fence_system();" if reach.system else "k3_fence_device();"


def _sleep(op: Op, x: tuple[str, ...], reach: Reach) -> Iterator[str]:
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


def _buffer(op: Op, address: tuple[int, ...], kind: Type, reach: Reach) -> str:
    """What is known of a buffer's access: its alignment, and whether a bound must be looked at."""
    if reach.alignment is None:
        return ""
    grain = min(kind.nbytes, 4)
    return f", {reach.of(grain, *address)}, {'false' if address[0] in reach.unbounded else 'true'}"


def unbounded(ops: list[Op]) -> frozenset[int]:
    """The buffers, by value, that are made with 2^32 - 1 bytes."""
    known = {op.results[0]: op.attrs["value"] for op in ops if op.name == "llvm.mlir.constant"}
    made = (op for op in ops if op.name == "rocdl.make.buffer.rsrc")
    return frozenset(op.results[0] for op in made if (known.get(op.operands[2], 0) & NO_BOUND) == NO_BOUND)


def _policy(op: Op, kind: Type) -> int:
    policy = int(op.attrs["aux"])
    if policy not in POLICIES:
        raise Untranslated(f"cache policy {policy}")
    if policy in (OF_DEVICE, OF_SYSTEM) and kind.nbytes not in SCOPED_SIZES:
        raise Untranslated(f"{kind.nbytes} bytes with cache policy {policy}")
    return policy
