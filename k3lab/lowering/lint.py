"""Checks of the real compiler's assembly that no look at the IR can make: spills, deleted polls, drains, widths.

Every rule is a function of a `Kernel` and the `Rules` that yields findings; `lint` runs them all on a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from k3lab.lowering.assembly import Function, Instruction, functions
from k3lab.lowering.ir import Loc
from k3lab.lowering.loops import poll_loads, spins, stuck
from k3lab.lowering.resources import LDS_LIMIT, WAVE, Resources, read_resources

Line = tuple[str, int]
"""A source line: how its file's path ends (`mix/kernel.py`), and its number."""

STORES = ("global store", "atomic")
CONTRACTED = ("v_fma_", "v_fmac_", "v_mac_f", "v_mad_f", "v_pk_fma_", "v_fmaak_", "v_fmamk_", "v_mad_mix", "v_madmk")
STAMPS = ("s_memrealtime", "s_memtime")
SCALED_MFMA = "v_mfma_scale_"
SCALES = (4, 5)
"""Places of a scaled matrix instruction's scale operands."""


@dataclass(frozen=True)
class Rules:
    """What a kernel promises; a field of None or nothing leaves its rule out.

    Attributes:
        polls: loops that must spin on a load, at least; a deleted loop leaves nothing else to see.
        poll_lines: source lines of which each must hold the load of a spin (needs line tables, as all lines do).
        weight: a modifier of the weights' loads; `poll`: of a poll's load and of a scoped store.
        weight_loads: weight loads that must be issued before the first poll is waited for, at least.
        weight_polls: how the paths of the files end whose first poll the weights precede (any poll, if empty).
        pair_widths: bytes that a scoped store may have, flags aside.
        flag_lines: source lines of which each must hold a flag store; no other store is a flag then.
        flag_width: without `flag_lines`, scoped stores of so many bytes are the flags; 0 for no flags.
        timeline: whether stamps are wanted.
        dynamic_lds: bytes a launch adds, by kernel.
    """

    polls: int = 0
    poll_lines: frozenset[Line] = frozenset()
    weight: str | None = "nt"
    poll: str = "sc1"
    weight_loads: int = 0
    weight_polls: frozenset[str] = frozenset()
    pair_widths: frozenset[int] = frozenset({8})
    flag_lines: frozenset[Line] = frozenset()
    flag_width: int = 4
    timeline: bool = False
    dynamic_lds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A broken rule: where in the assembly, and in the source when the text has line tables."""

    rule: str
    kernel: str
    line: int
    text: str
    why: str
    loc: Loc | None = None

    def __str__(self) -> str:
        source = f" ({self.loc})" if self.loc else ""
        return f"{self.rule}: kernel {self.kernel}, line {self.line}{source}: {self.why}: {self.text}"


@dataclass(frozen=True)
class Kernel:
    """What a rule looks at."""

    function: Function
    resources: Resources

    @property
    def instructions(self) -> list[Instruction]:
        return self.function.instructions

    def finding(self, rule: str, at: Instruction, why: str) -> Finding:
        return Finding(rule, self.function.name, at.line, at.text, why, at.loc)

    def whole(self, rule: str, why: str) -> Finding:
        """A finding about no one instruction: it stands at the first."""
        return self.finding(rule, self.instructions[0], why)


DEFAULT_RULES = Rules()


def lint(text: str, rules: Rules = DEFAULT_RULES) -> list[Finding]:
    """The findings of all rules on an assembly text, in the text's order.

    Raises:
        BadInput: for text that is no kernel's assembly.
    """
    table = read_resources(text, rules.dynamic_lds)
    kernels = [Kernel(found, table[found.name]) for found in functions(text) if found.name in table]
    findings = [finding for kernel in kernels for rule in RULES for finding in rule(kernel, rules)]
    return sorted(findings, key=lambda finding: (finding.line, finding.rule))


def no_spill(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """No register is spilled and no private memory used."""
    found = kernel.resources
    if found.vgpr_spills or found.sgpr_spills or found.scratch:
        why = f"{found.vgpr_spills} vector and {found.sgpr_spills} scalar spills, {found.scratch} bytes of scratch"
        yield kernel.whole("no-spill", why)
    for at in kernel.instructions:
        if at.family == "scratch":
            yield kernel.finding("no-spill", at, "scratch memory")


def lds_limit(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """LDS, the launch's included, fits a workgroup."""
    wanted = kernel.resources.lds + kernel.resources.dynamic_lds
    if wanted > LDS_LIMIT:
        yield kernel.whole("lds-limit", f"{wanted} bytes of LDS, {LDS_LIMIT} at most")


def poll_reloads(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """Every spin loads what it compares, and none that the source has is missing."""
    spinning = []
    for loop in kernel.function.loops():
        if why := stuck(loop):
            yield kernel.finding("poll-reloads", loop[-1], why)
        elif spins(loop):
            spinning.append(loop)
    if len(spinning) < rules.polls:
        yield kernel.whole("poll-reloads", f"{len(spinning)} loops that spin on a load, {rules.polls} expected")
    loads = [at for loop in spinning for at in poll_loads(loop)]
    for line in _absent(rules.poll_lines, loads):
        yield kernel.whole("poll-reloads", f"no loop spins on the load of source line {line}")


def weights_first(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """Loads of weights are issued before the first poll is waited for.

    The compiler may issue the poll's load first; what matters is that nothing waits on it before the weights are out.
    """
    waits = _first_wait(kernel.instructions, rules)
    if rules.weight is None:
        return
    if waits is None:
        if rules.weight_polls and rules.weight_loads:
            yield kernel.whole("weights-first", f"no poll of {', '.join(sorted(rules.weight_polls))} to precede")
        return
    issued, weights = (
        sum(at.family == "global load" and rules.weight in at.modifiers for at in some)
        for some in (kernel.instructions[:waits], kernel.instructions)
    )
    wanted = rules.weight_loads or min(1, weights)
    if issued < wanted:
        why = f"{issued} loads with {rules.weight} are issued before the first poll is waited for, {wanted} expected"
        yield kernel.finding("weights-first", kernel.instructions[waits], why)


def pair_width(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """A scoped store moves one tagged pair: the compiler may merge two neighbours or split one."""
    for at in _scoped_stores(kernel, rules):
        if at.width not in rules.pair_widths and not _is_flag(at, rules):
            allowed = ", ".join(map(str, sorted(rules.pair_widths)))
            yield kernel.finding("pair-width", at, f"a scoped store of {at.width} bytes, not {allowed}")


def no_fma(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """Multiplications and additions stay apart; only a division's own sequence may fuse them."""
    inside = _in_division(kernel.instructions)
    for at in kernel.instructions:
        if at.opcode.startswith(CONTRACTED) and at.line not in inside:
            yield kernel.finding("no-fma", at, "a fused multiply-add outside a division")


def scale_registers(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """A scaled matrix instruction takes both scales from vector registers."""
    for at in kernel.instructions:
        if at.opcode.startswith(SCALED_MFMA):
            wrong = [at.operands[place] for place in SCALES if not at.operands[place].startswith("v")]
            if wrong:
                yield kernel.finding("scale-registers", at, f"scale operand {', '.join(wrong)} is no vector register")


def flag_drained(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """Before a flag store every wave has drained its stores, and then met the others at a barrier."""
    alone = kernel.resources.threads <= WAVE
    stores = [(place, at) for place, at in enumerate(kernel.instructions) if at.family in STORES]
    for line in _absent(rules.flag_lines, [at for _, at in stores]):
        yield kernel.whole("flag-drained", f"no store of source line {line}, which puts a flag")
    for place, at in stores:
        if _is_flag(at, rules):
            missing = _missing_before(kernel.instructions[:place], alone)
            if missing:
                yield kernel.finding("flag-drained", at, f"no {missing} before this flag store")


def no_stamps(kernel: Kernel, rules: Rules) -> Iterator[Finding]:
    """A kernel without a timeline reads no clock."""
    for at in kernel.instructions:
        if not rules.timeline and at.opcode.startswith(STAMPS):
            yield kernel.finding("no-stamps", at, "a clock is read though the timeline is off")


RULES = (
    no_spill,
    lds_limit,
    poll_reloads,
    weights_first,
    pair_width,
    no_fma,
    scale_registers,
    flag_drained,
    no_stamps,
)
"""Every rule, in the order of the documentation."""


def _first_wait(instructions: list[Instruction], rules: Rules) -> int | None:
    """The place of the first instruction that takes in what the first poll (of `weight_polls`) has loaded."""
    places = (place for place, at in enumerate(instructions) if _is_poll(at, rules))
    first = next(places, None)
    if first is None:
        return None
    loaded = instructions[first].writes
    after = range(first + 1, len(instructions))
    return next((place for place in after if instructions[place].reads & loaded), None)


def _is_poll(at: Instruction, rules: Rules) -> bool:
    here = not rules.weight_polls or any(_ends(at.loc, file) for file in rules.weight_polls)
    return here and at.family == "global load" and rules.poll in at.modifiers


def _ends(loc: Loc | None, file: str) -> bool:
    """Whether `loc` is in a file whose path ends so."""
    return loc is not None and f"/{loc.file}".endswith(f"/{file}")


def _is_at(at: Instruction, line: Line) -> bool:
    return at.loc is not None and at.loc.line == line[1] and _ends(at.loc, line[0])


def _absent(lines: frozenset[Line], instructions: list[Instruction]) -> list[str]:
    """Those of `lines` that no instruction comes from, as `file:line`."""
    return [f"{line[0]}:{line[1]}" for line in sorted(lines) if not any(_is_at(at, line) for at in instructions)]


def _scoped_stores(kernel: Kernel, rules: Rules) -> Iterator[Instruction]:
    return (at for at in kernel.instructions if at.family == "global store" and rules.poll in at.modifiers)


def _is_flag(at: Instruction, rules: Rules) -> bool:
    if rules.flag_lines:
        return any(_is_at(at, line) for line in rules.flag_lines)
    return at.family == "global store" and rules.poll in at.modifiers and at.width == rules.flag_width


def _missing_before(before: list[Instruction], alone: bool) -> str:
    """What a flag store lacks, looking back to the store before it: a barrier, or a drain ahead of that."""
    barrier = alone  # a single wave needs none, and the compiler drops it
    for at in reversed(before):
        if at.opcode == "s_barrier":
            barrier = True
        elif at.opcode == "s_waitcnt" and barrier and "vmcnt(0)" in at.text:
            return ""
        elif at.family in STORES:
            break
    return "s_waitcnt vmcnt(0)" if barrier else "barrier after a drain"


def _in_division(instructions: list[Instruction]) -> set[int]:
    """Lines of the instructions that a `v_div_fmas` is computed from, back to its `v_div_scale`."""
    needed: set[str] = set()
    inside: set[int] = set()
    for at in reversed(instructions):
        made = bool(at.writes & needed)
        needed -= at.writes
        if at.opcode.startswith("v_div_fmas"):
            needed |= at.reads - {"vcc"}
        elif made:
            inside.add(at.line)
            if not at.opcode.startswith("v_div_scale"):
                needed |= at.reads
    return inside
