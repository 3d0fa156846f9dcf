"""Every rule with a text that breaks it and one that does not, and the real compiler's text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3lab.lowering.isa import compile_isa
from k3lab.lowering.lint import DEFAULT_RULES, RULES, Line, Rules, lint

METADATA = """\
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .group_segment_fixed_size: {lds}
    .max_flat_workgroup_size: {threads}
    .name:           k
    .private_segment_fixed_size: {scratch}
    .sgpr_count:     16
    .sgpr_spill_count: 0
    .vgpr_count:     32
    .vgpr_spill_count: {spills}
...
	.end_amdgpu_metadata
"""


def assembly(body: str, lds: int = 0, threads: int = 256, scratch: int = 0, spills: int = 0) -> str:
    lines = [line if line.endswith(":") else f"\t{line}" for line in body.strip().splitlines()]
    text = "\n".join(["\t.type\tk,@function", "k:", *lines, "\ts_endpgm", ".Lfunc_end0:", ""])
    return text + METADATA.format(lds=lds, threads=threads, scratch=scratch, spills=spills)


def lines(*numbers: int) -> frozenset[Line]:
    return frozenset(("src/kernel.py", number) for number in numbers)


def found(text: str, rules: Rules = DEFAULT_RULES) -> list[str]:
    return [finding.rule for finding in lint(text, rules)]


POLL = """
.LBB0_1:
s_sleep 1
buffer_load_dword v1, off, s[4:7], 0 sc1
s_waitcnt vmcnt(0)
v_cmp_ne_u32_e32 vcc, s0, v1
s_cbranch_vccnz .LBB0_1
"""
DIVISION = """
v_div_scale_f32 v4, s[0:1], v2, v2, v1
v_rcp_f32_e32 v5, v4
v_fma_f32 v6, -v4, v5, 1.0
v_fmac_f32_e32 v5, v6, v5
v_div_scale_f32 v6, vcc, v1, v2, v1
v_mul_f32_e32 v7, v6, v5
v_fma_f32 v8, -v4, v7, v6
v_fmac_f32_e32 v7, v8, v5
v_fma_f32 v4, -v4, v7, v6
v_div_fmas_f32 v4, v4, v5, v7
v_div_fixup_f32 v3, v4, v2, v1
"""
FLAG = "buffer_store_dword v0, off, s[4:7], 0 offset:64 sc1"
PAIR = "buffer_store_dwordx2 v[2:3], v1, s[12:15], 0 offen sc1"
DRAINED = "s_waitcnt vmcnt(0)\ns_barrier"
NUMBERED = '.file\t1 "/src" "kernel.py"\n.loc\t1 7 2 prologue_end\n'

NUMBERED_POLLS = Rules(weight_polls=frozenset({"kernel.py"}), weight_loads=1)

BROKEN = {
    "no-spill": [
        (assembly("s_nop 0", scratch=16), Rules()),
        (assembly("s_nop 0", spills=2), Rules()),
        (assembly("scratch_store_dword off, v1, s33 offset:4"), Rules()),
    ],
    "lds-limit": [
        (assembly("s_nop 0", lds=163841), Rules()),
        (assembly("s_nop 0", lds=81920), Rules(dynamic_lds={"k": 81921})),
    ],
    "poll-reloads": [
        (assembly(".LBB0_1:\ns_sleep 1\ns_cbranch_vccnz .LBB0_1"), Rules()),
        (assembly(".LBB0_3:\ns_mov_b64 vcc, vcc\ns_cbranch_vccz .LBB0_3"), Rules()),
        (assembly(".LBB0_1:\nv_cmp_ne_u32_e32 vcc, s0, v1\ns_cbranch_vccnz .LBB0_1"), Rules()),
        (assembly(POLL.replace("load_dword v1", "load_dword v9")), Rules()),
        (
            assembly(".LBB0_1:\nds_read_b32 v9, v8\nv_cmp_ne_u32_e32 vcc, s0, v1\ns_cbranch_vccnz .LBB0_1"),
            Rules(),
        ),
        (assembly(POLL), Rules(polls=2)),
        (assembly(NUMBERED + POLL), Rules(poll_lines=lines(7, 8))),
    ],
    "weights-first": [
        (assembly(POLL + "global_load_dwordx4 v[4:7], v3, s[2:3] nt"), Rules()),
        (assembly("global_load_dwordx4 v[4:7], v3, s[2:3] nt" + POLL), Rules(weight_loads=2)),
        (assembly(NUMBERED + POLL + "global_load_dwordx4 v[4:7], v3, s[2:3] nt"), NUMBERED_POLLS),
        (assembly("global_load_dwordx4 v[4:7], v3, s[2:3] nt" + POLL), NUMBERED_POLLS),  # none in that file
    ],
    "pair-width": [
        (assembly("buffer_store_dwordx4 v[2:5], v1, s[12:15], 0 offen sc1"), Rules()),
        (assembly("global_store_short v1, v2, s[0:1] sc1"), Rules()),
        (assembly(f"{DRAINED}\n{NUMBERED}{PAIR}\n.loc\t1 8 2\n{FLAG}"), Rules(flag_lines=lines(7))),
    ],
    "no-fma": [
        (assembly("v_fma_f32 v1, v2, v3, v4"), Rules()),
        (assembly("v_fmac_f32_e32 v1, v2, v3"), Rules()),
        (assembly("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel_hi:[1,0,1]"), Rules()),
        (assembly("v_fma_f32 v1, v2, v3, v9" + DIVISION), Rules()),  # a numerator, not the division
    ],
    "scale-registers": [
        (
            assembly("v_mfma_scale_f32_16x16x128_f8f6f4 v[2:5], v[2:5], v[6:9], 0, s1, v1 op_sel_hi:[0,0,0] cbsz:4"),
            Rules(),
        ),
        (
            assembly("v_mfma_scale_f32_16x16x128_f8f6f4 v[2:5], v[2:5], v[6:9], 0, v1, 127 op_sel_hi:[0,0,0]"),
            Rules(),
        ),
    ],
    "flag-drained": [
        (assembly(f"{PAIR}\ns_barrier\n{FLAG}"), Rules()),
        (assembly(f"{PAIR}\ns_waitcnt lgkmcnt(0)\ns_barrier\n{FLAG}"), Rules()),
        (assembly(f"{PAIR}\ns_waitcnt vmcnt(0)\n{FLAG}"), Rules()),
        (assembly(f"s_waitcnt vmcnt(0)\n{PAIR}\ns_barrier\n{FLAG}"), Rules()),
        (assembly(f"s_waitcnt vmcnt(0)\ns_barrier\n{PAIR}\n{FLAG}"), Rules()),
        (assembly(f"{PAIR}\n{NUMBERED}global_atomic_add v1, v2, s[0:1]"), Rules(flag_lines=lines(7))),
        (assembly(f"{PAIR}\n{FLAG}", threads=64), Rules()),
        (assembly(f"{DRAINED}\n{NUMBERED}{PAIR}"), Rules(flag_lines=lines(7, 8))),
        (assembly(f"{DRAINED}\n{NUMBERED}{PAIR}"), Rules(flag_lines=frozenset({("other.py", 7)}))),
    ],
    "no-stamps": [(assembly("s_memrealtime s[0:1]"), Rules())],
}
SOUND = {
    "no-spill": [(assembly("s_nop 0"), Rules())],
    "lds-limit": [
        (assembly("s_nop 0", lds=163840), Rules()),
        (assembly("s_nop 0", lds=1), Rules(dynamic_lds={"k": 9})),
    ],
    "poll-reloads": [
        (assembly(POLL), Rules(polls=1)),
        (assembly(NUMBERED + POLL), Rules(poll_lines=lines(7))),
        (assembly(".LBB0_1:\ns_add_i32 s3, s3, -1\ns_cmp_lg_u32 s3, 0\ns_cbranch_scc1 .LBB0_1"), Rules()),
        (assembly(".LBB0_1:\ns_add_i32 s3, s3, -1\ns_cbranch_scc1 .LBB0_1"), Rules()),
        (
            assembly(
                ".LBB0_1:\ns_sleep 1\nbuffer_load_dwordx2 v[2:3], v4, s[4:7], 0 offen sc1\ns_waitcnt vmcnt(0)\n"
                "v_cmp_ne_u32_e64 s[0:1], v3, v9\ns_cmp_lg_u64 s[0:1], 0\ns_cbranch_scc1 .LBB0_1"
            ),
            Rules(polls=1),
        ),
        (
            assembly(
                ".LBB0_2:\nglobal_load_dword v3, v[4:5], off\nv_add_u32_e32 v2, 0x80, v2\n"
                "v_cmp_le_i32_e32 vcc, s8, v2\ns_or_b64 s[2:3], vcc, s[2:3]\nv_add_f32_e32 v1, v1, v3\n"
                "s_andn2_b64 exec, exec, s[2:3]\ns_cbranch_execnz .LBB0_2"
            ),
            Rules(),
        ),
    ],
    "weights-first": [
        (assembly("global_load_dwordx4 v[4:7], v3, s[2:3] nt" + POLL), Rules(weight_loads=1)),
        (assembly(POLL), Rules()),
        # Only the polls of a file that has the weights count.
        (assembly(POLL + NUMBERED + "global_load_dwordx4 v[4:7], v3, s[2:3] nt" + POLL), NUMBERED_POLLS),
        (assembly(POLL + "global_load_dwordx4 v[4:7], v3, s[2:3] nt"), Rules(weight=None)),
        # The first poll's load may be issued first; nothing waits on it before the weights are out.
        (
            assembly("buffer_load_dword v1, off, s[4:7], 0 sc1\nglobal_load_dwordx4 v[4:7], v3, s[2:3] nt" + POLL),
            Rules(),
        ),
    ],
    "pair-width": [
        (assembly(PAIR), Rules()),
        (assembly("global_store_dwordx4 v1, v[2:5], s[0:1]"), Rules()),
        (assembly("global_store_dwordx4 v1, v[2:5], s[0:1] sc1"), Rules(pair_widths=frozenset({8, 16}))),
    ],
    "no-fma": [
        (assembly(DIVISION), Rules()),
        (assembly("v_mad_u64_u32 v[0:1], s[0:1], v2, v3, v[4:5]\nv_mad_u32_u24 v1, v2, v3, v4"), Rules()),
        (assembly("v_mul_f32_e32 v1, v2, v3\nv_add_f32_e32 v1, v1, v4"), Rules()),
    ],
    "scale-registers": [
        (
            assembly("v_mfma_scale_f32_16x16x128_f8f6f4 v[2:5], v[2:5], v[6:9], 0, v1, v10 op_sel:[0,1,0] cbsz:4"),
            Rules(),
        ),
    ],
    "flag-drained": [
        (assembly(f"{PAIR}\ns_waitcnt vmcnt(0)\ns_barrier\ns_cbranch_execz .LBB0_5\n{FLAG}\n.LBB0_5:"), Rules()),
        (assembly(f"{PAIR}\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_barrier\n{FLAG}"), Rules()),
        (assembly(f"{PAIR}\ns_waitcnt vmcnt(0)\n{FLAG}", threads=64), Rules()),
        (assembly(f"{PAIR}\n{DRAINED}\n{NUMBERED}{PAIR}\n.loc\t1 9 2\n{PAIR}"), Rules(flag_lines=lines(7))),
        (assembly(f"{PAIR}\n{FLAG}"), Rules(flag_width=0, pair_widths=frozenset({4, 8}))),
    ],
    "no-stamps": [(assembly("s_memrealtime s[0:1]"), Rules(timeline=True)), (assembly("s_nop 0"), Rules())],
}


def cases(table: dict[str, list[tuple[str, Rules]]]) -> list[object]:
    return [
        pytest.param(rule, *case, id=f"{rule}-{number}")
        for rule, texts in table.items()
        for number, case in enumerate(texts)
    ]


def test_every_rule_has_both_kinds_of_text():
    names = {rule.__name__.replace("_", "-") for rule in RULES}
    assert set(BROKEN) == set(SOUND) == names


@pytest.mark.parametrize(("rule", "text", "rules"), cases(BROKEN))
def test_a_broken_rule_is_found(rule, text, rules):
    assert set(found(text, rules)) == {rule}


@pytest.mark.parametrize(("rule", "text", "rules"), cases(SOUND))
def test_a_sound_text_has_no_findings(rule, text, rules):
    assert found(text, rules) == []


def test_a_finding_says_where():
    text = assembly(NUMBERED + "s_memrealtime s[0:1]")
    (finding,) = lint(text)
    assert text.splitlines()[finding.line - 1].strip() == finding.text == "s_memrealtime s[0:1]"
    assert str(finding.loc) == "/src/kernel.py:7:2" and "kernel k, line 5 (/src/kernel.py:7:2)" in str(finding)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("block_sum", []),
        ("constants", []),
        ("wait_well", []),
        ("wait_badly", ["poll-reloads"]),
        ("publish_drained", []),
        ("publish_undrained", ["flag-drained"]),
        ("quotient", []),
        ("fused", ["no-fma"]),
        ("stamped", ["no-stamps"]),
    ],
)
def test_real_assembly(lowered, name, expected):
    isa = compile_isa(lowered[name], line_tables=True, in_subprocess=False)
    assert found(isa.text) == expected


def test_the_polls_of_real_assembly_are_counted(lowered):
    rules = Rules(polls=1, weight_loads=1)
    drained = compile_isa(lowered["publish_drained"], in_subprocess=False).text
    assert found(drained, rules) == []
    assert found(drained, replace(rules, polls=2)) == ["poll-reloads"]
    assert found(drained, replace(rules, weight_loads=2)) == ["weights-first"]
