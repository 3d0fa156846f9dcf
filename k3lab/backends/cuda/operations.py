"""What each operation that computes becomes: an expression over its operands' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from k3lab.backends.cuda.types import INTEGERS, LDS, Untranslated, constant, ctype
from k3lab.lowering.ir import Op, Type
from k3lab.lowering.types import parse_type
from k3lab.sim.semantics.pointers import DYNAMIC, allocated
from k3lab.sim.semantics.values import spelled

Spell = Callable[[Op, "Operands"], str]


@dataclass(frozen=True)
class Operands:
    """The names of an operation's operands; `known` are the integers among the kernel's constants, by value number."""

    names: tuple[str, ...]
    known: Mapping[int, int]

    def __getitem__(self, place: int) -> str:
        return self.names[place]


SPELLED: dict[str, Spell] = {}
"""By operation: its expression."""


def spells(*names: str) -> Callable[[Spell], Spell]:
    """Register what spells the operations `names`."""

    def register(spell: Spell) -> Spell:
        for name in names:
            assert name not in SPELLED, name
            SPELLED[name] = spell
        return spell

    return register


# -- constants and copies ----------------------------------------------------------------------------------------------


@spells("llvm.mlir.constant")
def _constant(op: Op, x: Operands) -> str:
    return constant(op.result_types[0], op.attrs["value"])


@spells("llvm.mlir.zero", "llvm.mlir.poison", "llvm.mlir.undef")
def _zero(op: Op, x: Operands) -> str:
    return f"{ctype(op.result_types[0])}()"


@spells("llvm.freeze", "llvm.intr.expect")
def _same(op: Op, x: Operands) -> str:
    return x[0]


# -- integers ----------------------------------------------------------------------------------------------------------

WRAPPING = {"llvm.add": "k3_add", "llvm.sub": "k3_sub", "llvm.mul": "k3_mul"}
DIVIDING = {"llvm.sdiv": "k3_sdiv", "llvm.srem": "k3_srem", "llvm.udiv": "k3_udiv", "llvm.urem": "k3_urem"}
SHIFTING = {"llvm.shl": "k3_shl", "llvm.ashr": "k3_ashr", "llvm.lshr": "k3_lshr"}
EXTREME = {"llvm.intr.smin": "k3_least", "llvm.intr.smax": "k3_most"}
CALLS = {**WRAPPING, **DIVIDING, **SHIFTING, **EXTREME}
BITWISE = {"llvm.and": "&", "llvm.or": "|", "llvm.xor": "^"}
COMPARED = ("==", "!=", "<", "<=", ">", ">=")
UNSIGNED = ("<", "<=", ">", ">=")


@spells(*CALLS)
def _integer(op: Op, x: Operands) -> str:
    kind = _scalar_integer(op)
    if kind.bits == 1:
        raise Untranslated("on i1")
    return f"{CALLS[op.name]}({x[0]}, {x[1]})"


@spells(*BITWISE)
def _bitwise(op: Op, x: Operands) -> str:
    return f"({ctype(_scalar_integer(op))})({x[0]} {BITWISE[op.name]} {x[1]})"


@spells("llvm.icmp")
def _icmp(op: Op, x: Operands) -> str:
    predicate, kind = op.attrs["predicate"], op.operand_types[0]
    if kind.kind not in ("int", "ptr") or (kind.bits == 1 and predicate > 1):
        raise Untranslated(f"predicate {predicate} of {spelled(kind)}")
    if predicate < 2 or (predicate < len(COMPARED) and kind.kind == "int"):
        return f"{x[0]} {COMPARED[predicate]} {x[1]}"
    if kind.kind == "ptr" or predicate < len(COMPARED):
        raise Untranslated(f"predicate {predicate} of {spelled(kind)}")
    unsigned = f"K3Unsigned<{ctype(kind)}>::type"
    return f"({unsigned}){x[0]} {UNSIGNED[predicate - len(COMPARED)]} ({unsigned}){x[1]}"


@spells("llvm.select")
def _select(op: Op, x: Operands) -> str:
    if op.operand_types[0].kind == "vector":
        raise Untranslated("by a vector of conditions")
    return f"{x[0]} ? {x[1]} : {x[2]}"


@spells("llvm.trunc", "llvm.sext")
def _resize(op: Op, x: Operands) -> str:
    target = _integer_type(op.result_types[0])
    if op.name == "llvm.trunc" and target.bits == 1:
        return f"({x[0]} & 1) != 0"
    if _integer_type(op.operand_types[0]).bits == 1:
        return f"({ctype(target)})({x[0]} ? -1 : 0)"
    return f"({ctype(target)}){x[0]}"


@spells("llvm.zext")
def _zext(op: Op, x: Operands) -> str:
    target = ctype(_integer_type(op.result_types[0]))
    if _integer_type(op.operand_types[0]).bits == 1:
        return f"({target}){x[0]}"
    return f"k3_zext<{target}>({x[0]})"


def _integer_type(kind: Type) -> Type:
    if kind.kind != "int" or kind.bits not in INTEGERS:
        raise Untranslated(f"on {spelled(kind)}")
    return kind


def _scalar_integer(op: Op) -> Type:
    return _integer_type(op.operand_types[0])


# -- floats ------------------------------------------------------------------------------------------------------------

ARITHMETIC = {"llvm.fadd": "+", "llvm.fsub": "-", "llvm.fmul": "*"}
MIN_MAX = {"llvm.intr.maximum": "k3_maximum", "llvm.intr.minimum": "k3_minimum"}
FUNCTIONS = {"rocdl.exp2": "k3_exp2", "rocdl.rsq": "k3_rsq"}
ORDERED = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<="}
UNORDERED = {9: "<=", 10: "<", 11: ">=", 12: ">"}
"""The predicates that a NaN meets: what each is the opposite of."""


@spells(*ARITHMETIC)
def _arithmetic(op: Op, x: Operands) -> str:
    _f32(op, "f64")
    return f"{x[0]} {ARITHMETIC[op.name]} {x[1]}"


@spells("llvm.fdiv")
def _fdiv(op: Op, x: Operands) -> str:
    _f32(op, "f64")
    return f"k3_quotient({x[0]}, {x[1]})"


@spells("llvm.fneg")
def _fneg(op: Op, x: Operands) -> str:
    _f32(op)
    return f"k3_f32(k3_cast<u32>({x[0]}) ^ 0x80000000u)"


@spells("llvm.intr.fabs")
def _fabs(op: Op, x: Operands) -> str:
    _f32(op)
    return f"k3_f32(k3_cast<u32>({x[0]}) & 0x7fffffffu)"


@spells(*MIN_MAX, *FUNCTIONS)
def _function(op: Op, x: Operands) -> str:
    _f32(op)
    return f"{(MIN_MAX | FUNCTIONS)[op.name]}({', '.join(x.names)})"


@spells("llvm.fcmp")
def _fcmp(op: Op, x: Operands) -> str:
    _f32(op, "f64")
    match op.attrs["predicate"]:
        case predicate if predicate in ORDERED:
            return f"{x[0]} {ORDERED[predicate]} {x[1]}"
        case predicate if predicate in UNORDERED:
            return f"!({x[0]} {UNORDERED[predicate]} {x[1]})"
        case 13:
            return f"{x[0]} != {x[1]}"
        case 6 | 8 as predicate:
            apart = f"({x[0]} < {x[1]} || {x[0]} > {x[1]})"
            return apart if predicate == 6 else f"!{apart}"
        case 7 | 14 as predicate:
            ordered = f"({x[0]} == {x[0]} && {x[1]} == {x[1]})"
            return ordered if predicate == 7 else f"!{ordered}"
        case predicate:
            return "true" if predicate else "false"


@spells("llvm.fptrunc")
def _fptrunc(op: Op, x: Operands) -> str:
    _between(op, "f32", "bf16")
    return f"k3_to_bf16({x[0]})"


@spells("llvm.fpext")
def _fpext(op: Op, x: Operands) -> str:
    _between(op, "bf16", "f32")
    return f"k3_bf16_value({x[0]})"


@spells("llvm.sitofp")
def _sitofp(op: Op, x: Operands) -> str:
    if op.result_types[0].name != "f32" or _scalar_integer(op).bits == 1:
        raise Untranslated(f"from {spelled(op.operand_types[0])} to {spelled(op.result_types[0])}")
    return f"(float){x[0]}"


@spells("rocdl.cvt.pk.fp8.f32")
def _pack_e4m3(op: Op, x: Operands) -> str:
    return f"k3_pack_e4m3({', '.join(x.names)}, {'true' if op.attrs['wordSel'] else 'false'})"


@spells("rocdl.cvt.scalef32.pk.fp4.bf16")
def _pack_e2m1(op: Op, x: Operands) -> str:
    return f"k3_pack_e2m1({', '.join(x.names)}, {int(op.attrs['dstSelIndex'])})"


def _f32(op: Op, *others: str) -> None:
    kind = op.operand_types[0]
    if kind.kind != "float" or kind.name not in ("f32", *others):
        raise Untranslated(f"on {spelled(kind)}")


def _between(op: Op, source: str, target: str) -> None:
    kinds = op.operand_types[0].scalar.name, op.result_types[0].scalar.name
    if kinds != (source, target):
        raise Untranslated(f"from {kinds[0]} to {kinds[1]}")


# -- vectors and structs -----------------------------------------------------------------------------------------------


@spells("llvm.extractelement")
def _extract(op: Op, x: Operands) -> str:
    return f"{x[0]}.v[{_place(op.operands[1], op.operand_types[0].count, x)}]"


@spells("llvm.insertelement")
def _insert(op: Op, x: Operands) -> str:
    count = op.result_types[0].count
    place = _place(op.operands[2], count, x)
    items = (x[1] if i == place else f"{x[0]}.v[{i}]" for i in range(count))
    return f"{ctype(op.result_types[0])}{{{{{', '.join(items)}}}}}"


@spells("llvm.shufflevector")
def _shuffle(op: Op, x: Operands) -> str:
    count = op.operand_types[0].count
    picked = (divmod(max(place, 0), count) for place in op.attrs["mask"])
    return f"{ctype(op.result_types[0])}{{{{{', '.join(f'{x[which]}.v[{place}]' for which, place in picked)}}}}}"


def _place(value: int, count: int, x: Operands) -> int:
    place = x.known.get(value)
    if place is None or not 0 <= place < count:
        raise Untranslated("at a place that is no constant")
    return place


@spells("llvm.extractvalue")
def _field(op: Op, x: Operands) -> str:
    if op.attrs["position"] not in ([0], [1]):
        raise Untranslated(f"of field {op.attrs['position']}")
    return f"{x[0]}.{'ab'[op.attrs['position'][0]]}"


@spells("llvm.bitcast")
def _bitcast(op: Op, x: Operands) -> str:
    source, target = ctype(op.operand_types[0]), ctype(op.result_types[0])
    return x[0] if source == target else f"k3_cast<{target}>({x[0]})"


# -- pointers ----------------------------------------------------------------------------------------------------------


@spells("llvm.getelementptr")
def _gep(op: Op, x: Operands) -> str:
    word = ctype(op.operand_types[0])
    element = op.attrs["elem_type"]
    kind = element if isinstance(element, Type) else parse_type(str(element))
    indices = op.attrs["rawConstantIndices"]
    if len(indices) != 1 or word not in ("u32", "u64"):
        raise Untranslated(f"of {spelled(op.operand_types[0])} by {len(indices)} indices")
    if indices[0] != DYNAMIC:
        return f"{x[0]} + ({word}){indices[0] * allocated(kind)}ll"
    return f"{x[0]} + ({word})(i64){x[1]} * {allocated(kind)}u"


@spells("llvm.inttoptr", "llvm.ptrtoint")
def _pointer(op: Op, x: Operands) -> str:
    source, target = ctype(op.operand_types[0]), ctype(op.result_types[0])
    if {source, target} != {"i64", "u64"}:
        raise Untranslated(f"from {spelled(op.operand_types[0])} to {spelled(op.result_types[0])}")
    return f"({target}){x[0]}"


@spells("rocdl.make.buffer.rsrc")
def _resource(op: Op, x: Operands) -> str:
    if op.operand_types[0].space == LDS:
        raise Untranslated("over LDS")
    return f"K3Buffer{{{x[0]}, (u32){x[2]}}}"
