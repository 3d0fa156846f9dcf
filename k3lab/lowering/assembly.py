"""gfx950 assembly text as instructions, labels and loops: enough to count and to lint, not to execute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from k3lab.lowering.ir import Loc

BEGIN = re.compile(r"\s*\.type\s+(\S+),@function")
LABEL = re.compile(r"([\w.$]+):")
FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
PLACE = re.compile(r"\s*\.loc\s+(\d+) (\d+)(?: (\d+))?")
INSTRUCTION = re.compile(r"\s+([a-z]\w*)(?:\s+(.*))?$")
COMMENT = re.compile(r"\s*(?:;|//).*$")
REGISTER = re.compile(r"\b(?:([vsa])(\d+)|([vsa])\[(\d+):(\d+)\]|(vcc|exec|m0)(?:_lo|_hi)?)(?![\w\[])")
OPERAND = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
WIDTHS = {
    **{"byte": 1, "ubyte": 1, "sbyte": 1, "b8": 1, "u8": 1, "short": 2, "ushort": 2, "sshort": 2, "b16": 2, "u16": 2},
    **{"dword": 4, "b32": 4, "dwordx2": 8, "b64": 8, "dwordx3": 12, "b96": 12, "dwordx4": 16, "b128": 16},
}
"""Bytes a lane, by the word of an opcode that says so."""
FAMILIES = (
    ("matrix", re.compile(r"v_s?mfma")),
    ("scratch", re.compile(r"scratch_")),
    ("atomic", re.compile(r"(?:global|flat|buffer)_atomic")),
    ("global load", re.compile(r"(?:global|flat|buffer)_load")),
    ("global store", re.compile(r"(?:global|flat|buffer)_store")),
    ("cache", re.compile(r"buffer_(?:inv|wbl2|wbinvl1)|s_dcache|s_icache")),
    ("lds", re.compile(r"ds_")),
    ("scalar load", re.compile(r"s_(?:buffer_)?load")),
    ("wait", re.compile(r"s_waitcnt|s_nop|s_sleep")),
    ("barrier", re.compile(r"s_barrier")),
    ("branch", re.compile(r"s_c?branch|s_endpgm|s_setpc|s_swappc")),
    ("vector", re.compile(r"v_")),
    ("scalar", re.compile(r"s_")),
)
"""Classes of instructions, the first that fits."""
WRITES_NOTHING = re.compile(
    r"(?:global|flat|buffer|scratch)_store|ds_write|buffer_(?:inv|wbl2)|v_cmpx"
    r"|s_(?:cmp|bitcmp|c?branch|waitcnt|nop|sleep|setprio|sendmsg|endpgm|barrier|store|setreg|trap)"
)
WRITES_TWO = re.compile(r"v_(?:swap|permlane\d+_swap|div_scale|add_co|addc_co|sub_co|subb_co|mad_u64)")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        line: of the assembly text, from 1.
        operands: between the commas; `modifiers`: words after the last one, e.g. `nt`, `sc1`, `offset:16`.
        loc: the source line, when the text has line tables.
    """

    line: int
    opcode: str
    operands: tuple[str, ...]
    modifiers: tuple[str, ...]
    text: str
    loc: Loc | None = None

    @cached_property
    def family(self) -> str:
        """Its class, for counting."""
        return next((name for name, fits in FAMILIES if fits.match(self.opcode)), "other")

    @cached_property
    def width(self) -> int:
        """Bytes a lane that a load or store moves; 0 for anything else."""
        words = self.opcode.split("_")
        return next((size for word in reversed(words) if (size := WIDTHS.get(word))), 0)

    @cached_property
    def writes(self) -> frozenset[str]:
        """Registers it writes: its first operand, or its first two."""
        if WRITES_NOTHING.match(self.opcode) or "lds" in self.modifiers:
            return frozenset()
        count = 2 if WRITES_TWO.match(self.opcode) else 1
        return registers(" ".join(self.operands[:count]))

    @cached_property
    def reads(self) -> frozenset[str]:
        """Registers it reads."""
        if not self.writes or WRITES_TWO.match(self.opcode) or self.opcode.startswith(("v_fmac", "v_mac")):
            return registers(" ".join(self.operands))
        return registers(" ".join(self.operands[1:]))


@dataclass(frozen=True)
class Function:
    """A kernel's instructions, and the labels' places among them."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def loops(self) -> Iterator[tuple[Instruction, ...]]:
        """The instructions from a label to each branch back to it."""
        for place, found in enumerate(self.instructions):
            if found.opcode.startswith(("s_branch", "s_cbranch")) and found.operands:
                target = self.labels.get(found.operands[0], place + 1)
                if target <= place:
                    yield tuple(self.instructions[target : place + 1])


def functions(text: str) -> list[Function]:
    """The functions of an assembly text."""
    made: list[Function] = []
    files: dict[str, str] = {}
    declared: set[str] = set()
    current: Function | None = None
    place: Loc | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if found := BEGIN.match(line):
            declared.add(found[1])
        elif found := LABEL.match(line):
            if found[1] in declared:
                current, place = Function(found[1]), None
                made.append(current)
            elif found[1].startswith(".Lfunc_end"):
                current = None
            elif current:
                current.labels[found[1]] = len(current.instructions)
        elif found := FILE.match(line):
            files[found[1]] = f"{found[2]}/{found[3]}" if found[3] else found[2]
        elif found := PLACE.match(line):
            place = Loc(files.get(found[1], "?"), int(found[2]), int(found[3] or 0)) if found[2] != "0" else None
        elif current and (found := INSTRUCTION.match(COMMENT.sub("", line))):
            current.instructions.append(_instruction(number, found[1], found[2] or "", place))
    return made


def registers(text: str) -> frozenset[str]:
    """Every register that `text` names, ranges spread out."""
    found: set[str] = set()
    for match in REGISTER.finditer(text):
        if match[1]:
            found.add(match[1] + match[2])
        elif match[3]:
            found |= {f"{match[3]}{number}" for number in range(int(match[4]), int(match[5]) + 1)}
        else:
            found.add(match[6])
    return frozenset(found)


def _instruction(line: int, opcode: str, rest: str, loc: Loc | None) -> Instruction:
    operands = [part.strip() for part in OPERAND.findall(rest)]
    modifiers: list[str] = []
    if operands and " " in operands[-1] and not opcode.startswith("s_waitcnt"):
        operands[-1], *modifiers = operands[-1].split()
    text = f"{opcode} {rest}".strip()
    return Instruction(line, opcode, tuple(operands), tuple(modifiers), text, loc)
