"""What operations across a wave become: a shuffle where the lanes are in one warp, else an exchange through memory."""

from __future__ import annotations

from collections.abc import Iterator

from k3lab.backends.cuda.asked import BALLOT, asked
from k3lab.backends.cuda.fast.chains import PRODUCTS, Chains
from k3lab.backends.cuda.fast.twice import Twice, sources
from k3lab.backends.cuda.types import Untranslated
from k3lab.backends.cuda.uniform import CLOCK, Uniformity
from k3lab.lowering.ir import Op
from k3lab.sim.decode.cfg import Graph
from k3lab.sim.decode.intrinsics import CLOCK as CLOCK_INTRINSIC
from k3lab.sim.semantics.matrix import matrix_format

WAVE = frozenset({"rocdl.workitem.id.x", CLOCK})
"""Operations beside those across lanes that depend on which lanes are together."""
MEETING = frozenset({BALLOT, *PRODUCTS})
QUADS, ROTATE = 0x100, 0x120
COMMUTING = ("llvm.fadd", "llvm.intr.maximum", "llvm.intr.minimum")
ALL = 0xF


class Lanes:
    """Spells a kernel's wave operations.

    Where not all lanes of a wave are, they cannot meet. There `readlane` reads what was put down for it when the value
    was made, which must be where they all were. An argument of a block stands for one of several such values; which one
    it is, is handed on beside it.

    Attributes:
        slots: number of the place that a value is put down at, by value.
        chosen: arguments of blocks that stand for one of these.
        asked: ballots of which is only asked whether any lane voted.
        twice, chains: of the fast build, values made for two lanes, and sums that stay as tensor cores have them.
    """

    def __init__(self, graph: Graph, uniform: Uniformity, fast: bool = False) -> None:
        self.uniform, self.fast = uniform, fast
        self.asked = asked(graph)
        self.twice = Twice(graph, uniform)
        self.chains = Chains.of(graph, self.twice) if fast else Chains()
        self.halves = _repeated(graph) if fast else frozenset[int]()
        self.slots: dict[int, int] = {}
        self.chosen: set[int] = set()
        blocks = [graph.blocks[number] for number in sorted(uniform.split)]
        self._made_apart = {value for block in blocks for op in block.ops for value in op.results}
        args_apart = {value for block in blocks for value, _ in block.args}
        headers = {value for header in graph.loops for value, _ in graph.blocks[header].args}
        self._made_apart |= headers  # the place may hold the next round's value by the time that one is read
        passed = sources(graph)
        reads = (op.operands[0] for block in blocks for op in block.ops if op.name == "rocdl.readlane")
        todo = [value for value in reads if not uniform.shared(value)]
        while todo:
            value = todo.pop()
            if value in self.slots or value in self.chosen:
                continue
            if value in args_apart - headers:
                self.chosen.add(value)
                todo += passed[value]
            else:
                self.slots[value] = len(self.slots)

    def meets(self, op: Op) -> bool:
        """Whether all lanes of the wave meet in an operation."""
        if op.name in ("rocdl.readfirstlane", "rocdl.readlane"):
            return not self.uniform.shared(op.operands[0])
        if op.name == "rocdl.update.dpp":
            return bool(op.attrs["dppCtrl"] > ROTATE) and op.results[0] not in self.halves
        return op.name in MEETING or bool(self.slots.keys() & set(op.results))

    def slot(self, value: int) -> str:
        """The number of a value's place, as an expression."""
        if value in self.chosen:
            return f"s{value}"
        if value not in self.slots or value in self._made_apart:
            raise Untranslated("of a value made where not all lanes of a wave are")
        return str(self.slots[value])

    def published(self, value: int) -> Iterator[str]:
        """Puts a value down, right after it was made."""
        if value in self.slots:
            yield f"k3_publish({self.slots[value]}, v{value});"

    def spelled(self, op: Op, x: tuple[str, ...], split: bool) -> str:
        """The expression of a wave operation.

        Raises:
            Untranslated: for a form that is not known, or one where not all lanes of the wave are.
        """
        match op.name:
            case "rocdl.workitem.id.x":
                return "k3_thread()"
            case "llvm.call_intrinsic":
                if op.attrs["intrin"] != CLOCK_INTRINSIC:
                    raise Untranslated(str(op.attrs["intrin"]))
                return "k3_clock()" if split else f"k3_clock_of_wave({self._side(only=True)})"
            case "rocdl.readfirstlane" | "rocdl.readlane" if op.result_types[0].name != "i32":
                raise Untranslated("other than i32")
            case "rocdl.readfirstlane" | "rocdl.readlane" if self.uniform.shared(op.operands[0]):
                return x[0]
            case "rocdl.readlane" if split:
                return f"k3_published({self.slot(op.operands[0])}, {x[1]})"
        if split:
            raise Untranslated("where not all lanes of a wave are")
        return self._together(op, x)

    def _together(self, op: Op, x: tuple[str, ...]) -> str:
        match op.name:
            case "rocdl.readfirstlane":
                return f"k3_from({x[0]}, 0{self._side()})"
            case "rocdl.readlane":
                return f"k3_from({x[0]}, {x[1]}{self._side()})"
            case "rocdl.ballot" if op.results[0] in self.asked:
                return f"k3_wave_any({x[0]})"
            case "rocdl.ballot" if op.result_types[0].bits == 64:
                return f"k3_ballot({x[0]}{self._side()})"
            case "rocdl.permlane16.swap" | "rocdl.permlane32.swap":
                distance = op.name.split(".")[1].removeprefix("permlane")
                same = op.operands[0] == op.operands[1]
                return f"k3_swap_same<{distance}>({x[0]})" if same else f"k3_swap<{distance}>({x[0]}, {x[1]})"
            case "rocdl.update.dpp":
                return self._dpp(op, x)
            case "rocdl.mfma.f32.16x16x32.bf16":
                if op.attrs.get("cbsz", 0) or op.attrs.get("abid", 0) or not _unpermuted(op.attrs.get("blgp", 0)):
                    raise Untranslated("cbsz, abid or blgp")
                return self._product(op, "bf16", x, "")
            case "rocdl.mfma.scale.f32.16x16x128.f8f6f4":
                return self._scaled(op, x)
        raise Untranslated("not known")

    def _dpp(self, op: Op, x: tuple[str, ...]) -> str:
        control = op.attrs["dppCtrl"]
        if (op.attrs["rowMask"], op.attrs["bankMask"]) != (ALL, ALL):
            raise Untranslated("row or bank mask")
        if op.result_types[0].name not in ("i32", "f32"):
            raise Untranslated("other than i32 and f32")
        if control < QUADS:
            return f"k3_quad<{control:#x}>({x[1]})"
        if op.results[0] in self.halves:
            return f"k3_turn_half({x[1]})"
        if ROTATE < control < ROTATE + 16:
            return f"k3_turn<{control - ROTATE}>({x[1]}{self._side()})"
        raise Untranslated(f"control {control:#x}")

    def _scaled(self, op: Op, x: tuple[str, ...]) -> str:
        formats = {matrix_format(op.attrs["cbsz"]), matrix_format(op.attrs["blgp"])}
        if formats != {"fp4"} or op.operand_types[0].nbytes != 16 or op.operand_types[1].nbytes != 16:
            raise Untranslated(f"formats {sorted(formats)}")
        scales = (f"(u32){x[3 + i]} >> {8 * op.attrs[name]}" for i, name in enumerate(("opselA", "opselB")))
        return self._product(op, "e2m1", x, "".join(f", {scale}" for scale in scales))

    def _product(self, op: Op, kind: str, x: tuple[str, ...], more: str) -> str:
        if not self.fast:
            return f"k3_mfma_{kind}({x[0]}, {x[1]}, {x[2]}{more})"
        result, held = op.results[0], op.operands[2]
        shape = "turned" if result in self.chains.turned else "fragment"
        side = "" if shape == "turned" else self._side()
        if held in self.chains.fragments:
            sums = x[2]
        else:
            sums = f"K3{shape.capitalize()}()" if held in self.chains.zeros else f"k3_to_{shape}({x[2]}{side})"
        if shape == "turned":
            low, high = (self.made_for(which, op.operands[1]) for which in "lh")
            made = f"k3_turned_{kind}({x[0]}, {low}, {high}, {sums})"
        else:
            made = f"k3_step_{kind}({x[0]}, {x[1]}, {sums}{more}{side})"
        return made if result in self.chains.fragments else f"k3_from_{shape}({made}{side})"

    def made_for(self, which: str, value: int) -> str:
        """A value as lane & ~8 (`l`) or lane | 8 (`h`) has it."""
        return f"{which}{value}" if value in self.twice.wanted else f"v{value}"

    def sums(self, value: int) -> str:
        """The type of a sum that stays as tensor cores have it; empty for any other value."""
        if value not in self.chains.fragments:
            return ""
        return "K3Turned" if value in self.chains.turned else "K3Fragment"

    def _side(self, only: bool = False) -> str:
        """The argument that tells an exchange which side of the wave's row is next."""
        return "" if not self.fast else "side" if only else ", side"


def _repeated(graph: Graph) -> frozenset[int]:
    """Turns of a row by 4 of what was combined with itself turned by 8: it repeats after 8 lanes."""
    made = {op.results[0]: op for block in graph.blocks for op in block.ops if op.results}
    found = set()
    for op in made.values():
        if _turns(op) == 4 and (source := made.get(op.operands[1])) is not None and source.name in COMMUTING:
            one, other = (made.get(value) for value in source.operands)
            pairs = ((one, source.operands[1]), (other, source.operands[0]))
            if any(each is not None and _turns(each) == 8 and each.operands[1] == of for each, of in pairs):
                found.add(op.results[0])
    return frozenset(found)


def _turns(op: Op) -> int:
    """By how many lanes an operation turns a row; 0 for any other."""
    return int(op.attrs["dppCtrl"]) - ROTATE if op.name == "rocdl.update.dpp" and op.attrs["dppCtrl"] > ROTATE else 0


def _unpermuted(blgp: object) -> bool:
    return blgp == 0 or str(blgp).endswith(" none>")
