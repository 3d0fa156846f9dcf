"""Reading the generic text: tricky spellings, and sentences about what cannot be read."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import pytest

from k3lab.errors import BadInput
from k3lab.lowering.attributes import parse_attribute, parse_attributes
from k3lab.lowering.floats import FORMATS, from_bits, parse_float
from k3lab.lowering.ir import Loc, Module, Op, Type
from k3lab.lowering.locations import Locations
from k3lab.lowering.parse import parse
from k3lab.lowering.types import parse_signature, parse_type

I32, F32 = Type("int", 32, "i32"), Type("float", 32, "f32")

FRAME = """\
#loc = loc("k.py":1:0)
"builtin.module"() ({{
  "gpu.module"() <{{sym_name = "kernels"}}> ({{
    "llvm.func"() <{{sym_name = "k"}}> ({{
{kernel}
    }}) {{gpu.kernel, gpu.known_block_size = array<i32: 64, 1, 1>}} : () -> () loc(#loc)
  }}) : () -> () loc(#loc)
  "llvm.func"() <{{sym_name = "launch"}}> ({{
{host}
  }}) : () -> () loc(#loc)
}}) {{gpu.container_module}} : () -> () loc(#loc)
#loc7 = loc(callsite(#loc at "main.py":9:4))
"""
KERNEL = '    ^bb0(%arg0: i32 loc("k.py":1:0)):\n      "llvm.return"() : () -> () loc(#loc)'
ARGS = '  ^bb0(%arg1: i32 loc("k.py":1:0), %arg2: i64 loc("k.py":1:0)):\n'
LAUNCH = (
    '    "gpu.launch_func"({operands}) <{{kernel = @kernels::@k, operandSegmentSizes = '
    "array<i32: 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, {dynamic}, 1, 0>}}> : ({types}) -> () loc(#loc)"
)


def module(kernel: str = KERNEL, host: str = '  "llvm.return"() : () -> () loc(#loc)') -> Module:
    return parse(FRAME.format(kernel=kernel, host=host))


def only(*lines: str) -> tuple[Op, ...]:
    """The operations of a kernel of one block."""
    return module("\n".join(f"      {line}" for line in lines)).kernels["k"].blocks[0].ops


def test_importing_the_package_imports_neither_flydsl_nor_torch():
    names = "capture, child, codegen, isa, lint, parse, store"
    code = f"import sys\nfrom k3lab.lowering import {names}\nassert not {{'flydsl', 'torch'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i1", Type("int", 1, "i1")),
        ("index", Type("int", 64, "index")),
        ("bf16", Type("float", 16, "bf16")),
        ("f8E4M3FN", Type("float", 8, "f8E4M3FN")),
        ("!llvm.ptr", Type("ptr", name="ptr")),
        ("!llvm.ptr<8>", Type("ptr", name="ptr", space=8)),
        ("ptr<3>", Type("ptr", name="ptr", space=3)),
        ("vector<8xbf16>", Type("vector", count=8, element=Type("float", 16, "bf16"))),
        ("vector<2x4xf32>", Type("vector", count=2, element=Type("vector", count=4, element=F32))),
        ("!llvm.vec<2 x ptr>", Type("vector", count=2, element=Type("ptr", name="ptr"))),
        ("!llvm.array<512 x i8>", Type("array", count=512, element=Type("int", 8, "i8"))),
        ("!llvm.struct<(i32, i32)>", Type("struct", elements=(I32, I32))),
        (
            "!llvm.struct<packed (i32, array<2 x f32>)>",
            Type("struct", elements=(I32, Type("array", count=2, element=F32))),
        ),
        ('!llvm.struct<"a (b", (f32)>', Type("struct", elements=(F32,))),
    ],
)
def test_types(text, expected):
    assert parse_type(text) == expected


def test_signatures():
    assert parse_signature("(i32, !llvm.struct<(i32, i32)>) -> f32") == (
        (I32, parse_type("!llvm.struct<(i32, i32)>")),
        (F32,),
    )
    assert parse_signature("() -> ()") == ((), ())
    assert parse_signature("(i32) -> (i32, f32)") == ((I32,), (I32, F32))


@pytest.mark.parametrize("text", ["!llvm.token", "complex<f32>", "vector<4xnothing>", "i32 -> i32"])
def test_a_type_that_no_value_has_is_named(text):
    with pytest.raises(BadInput, match="IR type: expected"):
        parse_type(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("-2147483648 : i32", -2147483648),
        ("4 : index", 4),
        ("0x10 : i32", 16),
        ("1.000000e-01 : f32", float.fromhex("0x1.99999ap-4")),
        ("-0.000000e+00 : f32", -0.0),
        ("0x7F800000 : f32", math.inf),
        ("0xFF80 : bf16", -math.inf),
        ("0x7FC00001 : f32", ("bits", 0x7FC00001)),
        ("1.000980e-01 : bf16", 0.10009765625),
        ('"a \\22b\\22 {<, \\0A"', 'a "b" {<, \n'),
        ("@__shared_alloc_0", "__shared_alloc_0"),
        ("@kernels::@red", "kernels::red"),
        ("array<i32: 1, -1, 0>", [1, -1, 0]),
        ("array<i32>", []),
        ("array<i1: true, false>", [True, False]),
        ('[1 : i32, "x", @y]', [1, "x", "y"]),
        ("{a, b = 2 : i8}", {"a": True, "b": 2}),
        ("dense<[1, -2]> : vector<2xi8>", [1, -2]),
        ("dense<0.000000e+00> : vector<4xf32>", [0.0] * 4),
        ("dense<[0x7F80, 1.000000e+00]> : vector<2xbf16>", [math.inf, 1.0]),
        ("dense<true> : vector<2xi1>", [True, True]),
        ("dense<[[1, 2], [3, 4]]> : vector<2x2xi32>", [1, 2, 3, 4]),
        ('dense<"0x0100FFFF"> : vector<2xi16>', [1, -1]),
        ("#llvm.constant_range<i32, 0, 128>", "#llvm.constant_range<i32, 0, 128>"),
        ("#llvm.fastmath<nnan, ninf>", "#llvm.fastmath<nnan, ninf>"),
        ("!llvm.func<void (i64, ptr)>", "!llvm.func<void (i64, ptr)>"),
        ("f32", "f32"),
    ],
)
def test_attribute_values(text, expected):
    value = parse_attribute(text)
    assert value == expected and type(value) is type(expected)
    assert repr(value) == repr(expected)  # tells -0.0 from 0.0


def test_commas_in_brackets_and_strings_do_not_split_attributes():
    text = 'asm_string = "v_add $0, $1 }>", range = #llvm.constant_range<i32, 0, 64>, "odd name" = 1 : i64, unit'
    assert parse_attributes(text) == {
        "asm_string": "v_add $0, $1 }>",
        "range": "#llvm.constant_range<i32, 0, 64>",
        "odd name": 1,
        "unit": True,
    }


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_every_16_bit_float_survives_its_decimal(name):
    for bits in range(1 << 16):
        value = from_bits(bits, FORMATS[name])
        if isinstance(value, float) and math.isfinite(value):
            assert parse_float(f"{value:.9e}", name) == value


def test_decimals_round_to_nearest_even_and_overflow_to_infinity():
    assert parse_float("1.00390625", "bf16") == 1.0  # halfway between 1 and 1 + 2^-7
    assert parse_float("1.01171875", "bf16") == 1.015625
    assert parse_float("1e39", "f32") == math.inf
    assert parse_float("-70000.0", "f16") == -math.inf
    assert parse_float("1e-45", "f32") == 2.0**-149


def test_locations_resolve_to_the_innermost_source():
    places = Locations()
    places.define('#loc1 = loc("helper.py":3:8)')
    places.define('#loc2 = loc("kernel.py":20:4 to :30)')
    places.define("#loc3 = loc(callsite(#loc1 at #loc2))")
    places.define('#loc4 = loc("-":12:20)')
    places.define("#loc5 = loc(unknown)")
    assert places.resolve("#loc3") == Loc("helper.py", 3, 8)
    assert places.resolve("callsite(callsite(#loc5 at #loc2) at #loc1)") == Loc("kernel.py", 20, 4)
    assert places.resolve('callsite("/env/site-packages/flydsl/expr/x.py":1:1 at #loc2)') == Loc("kernel.py", 20, 4)
    assert places.resolve('"name at (x"(#loc1)') == Loc("helper.py", 3, 8)
    assert places.resolve('fused<"tag">[#loc5, #loc2]') == Loc("kernel.py", 20, 4)
    assert places.resolve('fused["a at b.py":1:2, #loc2]') == Loc("a at b.py", 1, 2)
    assert places.resolve("#loc4") is None and places.resolve("#loc5") is None


def test_operations_have_numbers_types_and_places():
    three, added = only(
        '%0 = "llvm.mlir.constant"() <{value = 3 : i32}> : () -> i32 loc(#loc7)',
        '%1 = "llvm.add"(%0, %0) <{overflowFlags = 0 : i32}> {extra} : (i32, i32) -> i32 loc("b (c).py":4:5)',
    )
    assert three.attrs == {"value": 3} and three.loc == Loc("k.py", 1, 0)
    assert added.operands == (three.results[0],) * 2 and added.operand_types == (I32, I32)
    assert added.attrs == {"overflowFlags": 0, "extra": True} and added.loc == Loc("b (c).py", 4, 5)


def test_text_without_locations_is_read_too():
    asm, store = only(
        '%0 = "llvm.inline_asm"() <{asm_string = " loc(x)"}> : () -> !llvm.struct<(i32, i32)>',
        '"llvm.inline_asm"(%0) <{asm_string = "\\22 loc(x)"}> : (!llvm.struct<(i32, i32)>) -> ()',
    )
    assert asm.loc is None and asm.attrs["asm_string"] == " loc(x)" and asm.result_types[0].kind == "struct"
    assert store.loc is None and store.attrs["asm_string"] == '" loc(x)'


def test_branches_keep_their_own_operands_and_pass_the_others_on():
    kernel = """\
    ^bb0(%arg0: i1 loc("k.py":1:0), %arg1: i32 loc("k.py":1:0)):
      "llvm.cond_br"(%arg0, %arg1, %arg1, %arg1)[^bb1, ^bb2] <{operandSegmentSizes = array<i32: 1, 1, 2>}> : \
(i1, i32, i32, i32) -> () loc(#loc)
    ^bb1(%0: i32 loc("-":1:1)):  // 2 preds: ^bb0, ^bb2
      "llvm.switch"(%0, %0)[^bb3, ^bb1, ^bb3] <{case_operand_segments = array<i32: 1, 0>, \
case_values = dense<[-1, 7]> : vector<2xi32>, operandSegmentSizes = array<i32: 1, 0, 1>}> : (i32, i32) -> () loc(#loc)
    ^bb2(%1: i32 loc("-":1:1), %2: !llvm.struct<(i32, i32)> loc("-":1:1)):  // pred: ^bb0
      "llvm.br"(%1)[^bb1] : (i32) -> () loc(#loc)
    ^bb3:  // 2 preds: ^bb1, ^bb1
      "llvm.return"() : () -> () loc(#loc)"""
    entry, first, second, last = module(kernel).kernels["k"].blocks
    (condition, _), (value, kind), (passed, _) = entry.args[0], entry.args[1], second.args[0]
    assert entry.ops[0].operands == (condition,) and entry.ops[0].operand_types == (Type("int", 1, "i1"),)
    assert entry.ops[0].successors == (("^bb1", (value,)), ("^bb2", (value, value))) and kind == I32
    switch = first.ops[0]
    assert switch.operands == (first.args[0][0],) and switch.attrs["case_values"] == [-1, 7]
    assert switch.successors == (("^bb3", ()), ("^bb1", (first.args[0][0],)), ("^bb3", ()))
    assert second.ops[0].operands == () and second.ops[0].successors == (("^bb1", (passed,)),)
    assert last.label == "^bb3" and second.args[1][1].kind == "struct"


def test_the_host_function_is_followed_through_widths_and_constants():
    host = ARGS + "\n".join(
        [
            '    %0 = "llvm.mlir.constant"() <{value = 300 : i64}> : () -> i64 loc(#loc)',
            '    %1 = "llvm.sext"(%arg1) : (i32) -> i64 loc(#loc)',
            '    %2 = "llvm.trunc"(%0) <{overflowFlags = 0 : i32}> : (i64) -> i8 loc(#loc)',
            LAUNCH.format(
                operands="%1, %0, %0, %0, %0, %0, %2, %arg2", types=", ".join(["i64"] * 6 + ["i8", "i64"]), dynamic=1
            ),
        ]
    )
    made = module(host=host)
    (launch,) = made.launches
    assert launch.kernel == "k" and launch.grid == (("arg", 0), 300, 300) and launch.dynamic_lds == 44
    assert launch.args == (("arg", 1),) and [kind.name for kind in made.host_args] == ["i32", "i64"]


def test_a_computed_grid_is_refused_by_the_operation_that_computes_it():
    host = ARGS + "\n".join(
        [
            '    %0 = "llvm.mul"(%arg2, %arg2) : (i64, i64) -> i64 loc("host.py":7:4)',
            LAUNCH.format(operands="%0, " * 6 + "%arg2", types=", ".join(["i64"] * 7), dynamic=0),
        ]
    )
    with pytest.raises(BadInput, match=r"'launch'.*llvm\.mul \(host\.py:7:4\)"):
        module(host=host)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "expected an operation"),
        ('%0 = "llvm.add"(%a, %b) : (i32) -> i32 loc(#loc)', "expected 2 operand types, got 1"),
        ('%0 = "llvm.x"() <{a = 1 : token}> : () -> i32 loc(#loc)', "IR type"),
        ('%0 = "llvm.x"() <{a = 1 : i32> : () -> i32 loc(#loc)', "closing"),
        ('"llvm.br"()[^bb1, ^bb2] : () -> () loc(#loc)', "operand segments"),
        ('"scf.for"() ({', "fully lowered"),
    ],
)
def test_an_error_names_the_line(line, why):
    with pytest.raises(BadInput, match=rf"IR line 5: .*{why}"):
        only(line)


def test_what_is_no_module_is_refused():
    with pytest.raises(BadInput, match="expected a kernel"):
        parse("")
    with pytest.raises(BadInput, match="every region to close"):
        parse('"builtin.module"() ({')


def test_five_thousand_operations_parse_quickly():
    lines = ['%0 = "llvm.mlir.constant"() <{value = 3 : i32}> : () -> i32 loc(#loc)']
    add = '%{} = "llvm.add"(%{}, %0) <{{overflowFlags = {} : i32}}> : (i32, i32) -> i32 loc(#loc7)'
    lines += [add.format(place, place - 1, place % 97) for place in range(1, 5000)]
    start = time.perf_counter()
    assert len(only(*lines)) == 5000
    assert time.perf_counter() - start < 1.5  # 0.1 s on a quiet machine
