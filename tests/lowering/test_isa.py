"""Assembly, code objects and the resource table from the real compiler, and its ways to fail."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from k3lab.errors import BackendUnavailable, BadInput, InternalFault
from k3lab.lowering import child
from k3lab.lowering.isa import cached_isa, compile_isa, compile_object
from k3lab.lowering.resources import Resources, read_resources

ROW = Resources("k", 64, 0, 32, 0, 0, 0, 0, 256, {})


def test_the_resource_table_of_a_kernel(lowered):
    isa = compile_isa(lowered["block_sum"], in_subprocess=False)
    row = isa.resources["block_sum"]
    assert (row.lds, row.scratch, row.vgpr_spills, row.sgpr_spills, row.threads) == (512, 0, 0, 0, 128)
    assert 0 < row.vgpr <= 64 and row.waves_per_simd == 8
    assert row.mix["barrier"] == 1 and row.mix["global load"] == 1 and row.mix["global store"] == 1


def test_another_process_makes_the_same_text(lowered):
    module = lowered["constants"]
    isa = compile_isa(module.text)
    assert isa == compile_isa(module, in_subprocess=False)
    assert isa.resources["constants"].dynamic_lds == 1024


def test_line_tables_name_the_source_and_change_no_instruction(lowered):
    from k3lab.lowering.assembly import functions

    plain, traced = (
        functions(compile_isa(lowered["publish_drained"], line_tables=tables, in_subprocess=False).text)[0]
        for tables in (False, True)
    )
    assert [at.text for at in plain.instructions] == [at.text for at in traced.instructions]
    files = {Path(at.loc.file).name for at in traced.instructions if at.loc}
    assert files == {"kernels.py"} and not any(at.loc for at in plain.instructions)


def test_scaled_matrix_instructions_are_counted(lowered):
    row = compile_isa(lowered["publish_drained"], in_subprocess=False).resources["publish_drained"]
    assert row.mix["matrix"] == 1


@pytest.mark.parametrize(("vgpr", "waves"), [(1, 8), (64, 8), (65, 7), (96, 5), (128, 4), (129, 3), (256, 2), (512, 1)])
def test_waves_by_vector_registers(vgpr, waves):
    assert replace(ROW, vgpr=vgpr).waves_per_simd == waves


def test_waves_by_scalar_registers_and_blocks_by_lds():
    assert replace(ROW, sgpr=102).waves_per_simd == 7
    assert ROW.blocks_per_cu == 8
    assert replace(ROW, lds=65600).blocks_per_cu == 2
    assert replace(ROW, lds=65600, dynamic_lds=65600).blocks_per_cu == 1
    assert replace(ROW, threads=64).blocks_per_cu == 32
    assert replace(ROW, threads=1024, vgpr=129).blocks_per_cu == 0


def test_an_abort_of_the_compiler_is_a_sentence(lowered):
    module = lowered["four_bytes"]
    with pytest.raises(BadInput, match=r"aborted on this kernel \(SIGABRT\): LLVM ERROR: Do not know how to split"):
        compile_isa(module)


@pytest.mark.parametrize("in_subprocess", [True, False])
def test_a_function_without_code_is_refused_though_the_compiler_goes_on(lowered, in_subprocess, capfd):
    with pytest.raises(BadInput, match="no libcall available for ftanh"):
        compile_isa(lowered["without_code"], in_subprocess=in_subprocess)
    assert capfd.readouterr().err == ""


def test_what_needs_device_bitcode_says_so(lowered, monkeypatch, tmp_path):
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"bitcode.*does not exist"):
        compile_isa(lowered["without_bitcode"], in_subprocess=True)


def test_too_much_lds_is_refused(lowered):
    with pytest.raises(BadInput, match="'too_much_lds': expected at most 163840 bytes of LDS, got 200000"):
        compile_isa(lowered["too_much_lds"], in_subprocess=False)
    module = lowered["constants"]
    launch = replace(module.launches[0], dynamic_lds=170000)
    with pytest.raises(BadInput, match="got 170000, 170000 of them dynamic"):
        compile_isa(replace(module, launches=(launch,)), in_subprocess=False)


def test_text_that_is_no_assembly():
    with pytest.raises(BadInput, match="metadata of a kernel"):
        read_resources("k:\n\ts_endpgm\n")


def test_text_that_the_compiler_refuses(lowered):
    module = lowered["block_sum"]
    broken = replace(module, text=module.text.replace("llvm.fadd", "llvm.fbad"))
    with pytest.raises(BadInput, match="refuses this module: .*fbad"):
        compile_isa(broken, in_subprocess=False)


def test_a_missing_linker_is_named_with_a_way_to_get_it(lowered, monkeypatch, tmp_path):
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"linker .*llvm/bin/ld\.lld', got none; install ROCm"):
        compile_object(lowered["block_sum"])


def test_a_code_object_goes_through_the_linker(lowered, monkeypatch, tmp_path):
    linker = tmp_path / "llvm" / "bin" / "ld.lld"
    linker.parent.mkdir(parents=True)
    linker.write_text('#!/bin/sh\ncp "$2" "$4"\n', encoding="utf-8")  # ld.lld -shared X.o -o Y.hsaco
    linker.chmod(0o755)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert compile_object(lowered["block_sum"]).startswith(b"\x7fELF")


def test_assembly_is_cached_by_content(lowered, monkeypatch, own_cache):
    first = cached_isa(lowered["block_sum"])
    monkeypatch.setattr("k3lab.lowering.isa.compile_isa", None)  # may not be called again
    assert cached_isa(lowered["block_sum"]) == first
    assert len([path for path in own_cache.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (-signal.SIGSEGV, BadInput, "aborted on this kernel (SIGSEGV): last words."),
        (-signal.SIGKILL, InternalFault, "was killed (SIGKILL): last words."),
        (3, InternalFault, "ended with exit code 3 and no result: last words."),
    ],
)
def test_what_the_end_of_the_compilers_process_means(code, kind, words):
    error = child.ended(code, "first\nlast words.\n")
    assert type(error) is kind and str(error).endswith(words)
