"""Loops of an assembly text: which spin on a load, and which can never end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from k3lab.lowering.assembly import Instruction

Loop = Sequence[Instruction]

LOADS = ("global load", "atomic", "lds", "scalar load", "scratch")
COMPARE = re.compile(r"v_cmpx?_|s_cmpk?_|s_bitcmp")
PASSIVE = re.compile(
    rf"{COMPARE.pattern}|v_mov_b|v_readfirstlane|s_(?:and|or|xor|andn1|andn2|orn2|mov|not|cmov|cselect)\w*_b(?:32|64)"
)
"""Instructions that only compare, or pass a value or a mask on: none of them makes a loop end by itself."""


def spins(loop: Loop) -> bool:
    """Whether the loop waits for memory to change: it compares what it loads, and stores nothing."""
    quiet = not any(at.family in ("global store", "barrier") for at in loop)
    return quiet and any(True for _ in poll_loads(loop))


def poll_loads(loop: Loop) -> Iterator[Instruction]:
    """The loads of memory whose value a comparison of the loop takes in, directly or through other instructions."""
    wanted = _compared(loop)
    for at in loop:
        if at.family in ("global load", "atomic", "scalar load") and at.writes & wanted:
            yield at


def stuck(loop: Loop) -> str:
    """Why the loop cannot end, or waits without looking; empty when neither is so."""
    loads = [at for at in loop if at.family in LOADS]
    if any(at.opcode == "s_sleep" for at in loop):
        if not loads:
            return "a loop that sleeps and loads nothing"
        if not any(at.writes & _compared(loop) for at in loads):
            return "a loop that sleeps and compares nothing that it loads"
    if any(at.opcode.startswith(("s_endpgm", "s_setpc", "s_swappc")) for at in loop):
        return ""
    changing = frozenset(name for at in loop if not PASSIVE.match(at.opcode) for name in at.writes)
    if not loads and not changing:
        return "a loop in which nothing is loaded and nothing changes"
    if not _compared(loop) & changing and not _leaves(loop, changing):
        return "a loop whose comparisons take in nothing that it loads or changes"
    return ""


def _leaves(loop: Loop, changing: frozenset[str]) -> bool:
    """Whether a scalar instruction other than a comparison sets the condition of a branch, as a count down does."""
    return any(at.opcode.startswith("s_") and at.writes & changing for at in loop)


def _compared(loop: Loop) -> frozenset[str]:
    """Registers that the loop's comparisons read, and those that these are computed from, back to loads."""
    wanted: set[str] = set()
    for _ in range(2):  # the second round goes on across the branch back
        for at in reversed(loop):
            if COMPARE.match(at.opcode) or (at.writes & wanted and at.family not in LOADS):
                wanted |= at.reads
    return frozenset(wanted)
