"""Which function computes which operation: a registry by name, and what a kernel uses that it lacks.

A *pure* operation is a function of its operands alone. A *wave* operation also gets the wave context: it crosses lanes
or needs the execution mask. Both are made once, at decode time, from the operation's types and attributes; what they
cannot do they refuse then, by raising `Unsupported`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from k3lab.errors import BackendUnavailable
from k3lab.lowering.ir import Kernel, Loc, Op

Compute = Callable[..., Any]
Make = Callable[[Op], Compute]

NO_EFFECT = frozenset(
    {
        "llvm.intr.assume",
        "llvm.intr.experimental.noalias.scope.decl",
        "llvm.intr.lifetime.end",
        "llvm.intr.lifetime.start",
        "rocdl.iglp.opt",
        "rocdl.s.nop",
        "rocdl.s.setprio",
        "rocdl.sched.barrier",
        "rocdl.sched.group.barrier",
        "rocdl.wave.barrier",
    }
)
"""Hints to the compiler or the scheduler: nothing to compute."""

HANDLED_BY_ENGINE = NO_EFFECT | frozenset(
    {
        "gpu.barrier",
        "llvm.alloca",
        "llvm.atomicrmw",
        "llvm.br",
        "llvm.cmpxchg",
        "llvm.cond_br",
        "llvm.fence",
        "llvm.load",
        "llvm.mlir.addressof",
        "llvm.return",
        "llvm.store",
        "llvm.switch",
        "llvm.unreachable",
        "rocdl.barrier",
        "rocdl.global.load.lds",
        "rocdl.load.to.lds",
        "rocdl.raw.ptr.buffer.load",
        "rocdl.raw.ptr.buffer.load.lds",
        "rocdl.raw.ptr.buffer.store",
        "rocdl.s.barrier",
        "rocdl.s.buffer.load",
        "rocdl.s.sleep",
        "rocdl.s.waitcnt",
    }
)
"""Operations on memory, control flow and time, which have no semantics here."""

ENGINE_PREFIXES = ("rocdl.raw.ptr.buffer.atomic.", "rocdl.sched.")
"""How the names of families of such operations start."""

ENGINE_INTRINSICS = (
    "llvm.amdgcn.s.memrealtime",
    "llvm.amdgcn.s.memtime",
    "llvm.amdgcn.raw.ptr.buffer.",
    "llvm.amdgcn.s.buffer.load",
)
"""How the names of the engine's own `llvm.call_intrinsic` intrinsics start."""

TYPE_SUFFIX = re.compile(r"\.(v\d+)?(bf16|[if]\d+)$")


class Unsupported(BackendUnavailable):
    """An operation, or a form of one, that has no semantics here."""


@dataclass(frozen=True)
class Semantics:
    """What one operation computes.

    Attributes:
        name: the operation's name, or an intrinsic's without its type suffixes.
        kind: `pure`: `make(op)` gives a function of the operands; `wave`: of the wave context and the operands.
        make: specialises the function on an operation's types and attributes.
    """

    name: str
    kind: Literal["pure", "wave"]
    make: Make


_REGISTRY: dict[str, Semantics] = {}


def pure(*names: str) -> Callable[[Make], Make]:
    """Register a maker of functions of the operands alone under `names`."""
    return _registering("pure", names)


def wave(*names: str) -> Callable[[Make], Make]:
    """Register a maker of functions of the wave context and the operands under `names`."""
    return _registering("wave", names)


def _registering(kind: Literal["pure", "wave"], names: tuple[str, ...]) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        for name in names:
            assert name not in _REGISTRY, name
            _REGISTRY[name] = Semantics(name, kind, make)
        return make

    return register


def lookup(name: str) -> Semantics | None:
    """The semantics of the operation of that name, or of the intrinsic (`llvm.amdgcn.rsq.f32`)."""
    return _REGISTRY.get(name) or _REGISTRY.get(_bare(name))


def find(op: Op) -> Semantics | None:
    """The semantics of `op`; an `llvm.call_intrinsic` is looked up by its intrinsic."""
    return lookup(str(op.attrs["intrin"])) if op.name == "llvm.call_intrinsic" else lookup(op.name)


def handled_by_engine(op: Op) -> bool:
    """Whether the engine itself runs `op`."""
    if op.name == "llvm.call_intrinsic":
        return str(op.attrs["intrin"]).startswith(ENGINE_INTRINSICS)
    return op.name in HANDLED_BY_ENGINE or op.name.startswith(ENGINE_PREFIXES)


def supported_names() -> list[str]:
    """Every operation and intrinsic with semantics here, sorted."""
    return sorted(_REGISTRY)


def unsupported(kernel: Kernel) -> list[tuple[str, Loc | None]]:
    """Every operation of `kernel` that nothing here can run: its name (and what of it is missing), and its place."""
    missing = []
    for op in kernel.ops():
        if not handled_by_engine(op) and (why := _missing(op)) is not None:
            missing.append((why, op.loc))
    return missing


def _missing(op: Op) -> str | None:
    semantics = find(op)
    if semantics is None:
        return f"{op.name} {op.attrs['intrin']}" if op.name == "llvm.call_intrinsic" else op.name
    try:
        semantics.make(op)
    except Unsupported as refusal:
        return f"{op.name} ({refusal})"
    return None


def _bare(name: str) -> str:
    while name.startswith("llvm.amdgcn.") and (suffix := TYPE_SUFFIX.search(name)):
        name = name[: suffix.start()]
    return name
