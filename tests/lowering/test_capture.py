"""From FlyDSL launchers to modules, and what happens when one does not compile."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from k3lab.errors import BackendUnavailable, BadInput
from k3lab.lowering import capture
from k3lab.lowering.capture import ENVIRONMENT, find_launcher, lower, lower_named

HERE = Path(__file__).parent


def test_a_loop_with_lds_and_a_barrier(lowered):
    module = lowered["block_sum"]
    kernel = module.kernels["block_sum"]
    names = [op.name for op in kernel.ops()]
    assert {"llvm.load", "llvm.fadd", "rocdl.s.barrier", "llvm.cond_br"} <= set(names)
    assert [kind.name for _, kind in kernel.params] == ["i64", "i64", "i32"]
    assert kernel.attrs["gpu.known_block_size"] == [128, 1, 1]
    (lds,) = module.globals.values()
    assert (lds.nbytes, lds.alignment, lds.space) == (512, 16, 3)
    (launch,) = module.launches
    assert (launch.grid, launch.block, launch.dynamic_lds) == ((2, 1, 1), (128, 1, 1), 0)
    assert launch.args == (("arg", 0), ("arg", 1), ("arg", 2))


def test_every_successor_passes_what_its_block_takes(lowered):
    for name in ("block_sum", "constants", "wait_well", "publish_drained"):
        for kernel in lowered[name].kernels.values():
            blocks = {block.label: block for block in kernel.blocks}
            for op in kernel.ops():
                for label, passed in op.successors:
                    assert len(passed) == len(blocks[label].args)


def test_locations_are_lines_of_the_kernel_and_its_helpers(lowered):
    source = (HERE / "kernels.py").read_text(encoding="utf-8").splitlines()
    kernel = lowered["block_sum"].kernels["block_sum"]
    lines = {op.name: source[op.loc.line - 1] for op in kernel.ops() if op.loc and Path(op.loc.file).parent == HERE}
    assert "gpu.barrier()" in lines["rocdl.s.barrier"]
    assert "fx.inttoptr" in lines["llvm.inttoptr"]  # the helper's line, not its caller's


def test_a_struct_of_arguments_a_host_sized_grid_and_exact_constants(lowered):
    module = lowered["constants"]
    (launch,) = module.launches
    assert launch.grid == (("arg", 4), 3, 1) and launch.dynamic_lds == 1024
    assert launch.args == tuple(("arg", place) for place in range(4))
    values = [op.attrs["value"] for op in module.kernels["constants"].ops() if op.name == "llvm.mlir.constant"]
    assert [1, -2, 3, -128] in values and [0.10009765625] * 8 in values and math.inf in values


def test_a_launcher_inside_a_function_is_found_and_lowering_repeats(kernels, lowered):
    again = lower(lambda: kernels.block_sum(0, 0, 7))
    assert again.text == lowered["block_sum"].text


@pytest.mark.parametrize("name", ["block_sum", "misspelt"])
def test_everything_is_as_before_afterwards(kernels, monkeypatch, name):
    from flydsl.compiler.jit_function import MlirCompiler

    monkeypatch.setenv("COMPILE_ONLY", "0")
    monkeypatch.delenv("FLYDSL_GPU_ARCH", raising=False)
    before = vars(MlirCompiler)["prepare"], {key: os.environ.get(key) for key in ENVIRONMENT}
    try:
        lower(getattr(kernels, name), 0, 0, *([1] if name == "block_sum" else []))
    except BadInput:
        assert name == "misspelt"
    assert (vars(MlirCompiler)["prepare"], {key: os.environ.get(key) for key in ENVIRONMENT}) == before


def test_an_error_in_a_kernel_names_its_line(kernels):
    with pytest.raises(BadInput, match=r"kernels\.py:\d+: NameError: name 'undefined_name' is not defined"):
        lower(kernels.misspelt, 0, 0)
    with pytest.raises(BadInput, match="missing a required argument: 'dst'"):
        lower(kernels.quotient, 0)


def test_what_launches_nothing_is_refused(kernels):
    with pytest.raises(BadInput, match="expected a @flyc.jit function"):
        lower(lambda: None)
    with pytest.raises(BadInput, match="expected a @flyc.jit function"):
        lower(lambda: lower(dict))
    with pytest.raises(BadInput, match="outside any FlyDSL trace"):
        lower(kernels.lowers_inside, 0)


def test_threads_take_turns(kernels, lowered):
    names = ["quotient", "fused", "stamped"] * 3
    with ThreadPoolExecutor(3) as pool:
        modules = list(pool.map(lambda name: lower(getattr(kernels, name), 0, 0), names))
    assert [module.text for module in modules] == [lowered[name].text for name in names]


def test_a_break_in_a_traced_loop_is_told_when_the_module_is_imported(kernels, tmp_path, monkeypatch):
    source = (
        "import flydsl.compiler as flyc\nfrom flydsl.expr.typing import Int32\n\n"
        "@flyc.jit\ndef launch(n: Int32):\n    for i in range(n):\n        if i == 3:\n            break\n"
    )
    (tmp_path / "has_a_break.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"'has_a_break:launch'.*SyntaxError.*break"):
        find_launcher("has_a_break:launch")


def test_a_named_launcher_is_lowered_in_another_process(kernels, lowered, monkeypatch):
    monkeypatch.chdir(HERE)
    module = lower_named("kernels:block_sum", [0, 0, 1000])
    assert module.text == lowered["block_sum"].text


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("block_sum", "expected package.module:launcher"),
        ("no_such_module:launch", "No module named 'no_such_module'"),
        ("math:launch", "expected a name of module 'math', got 'launch'"),
    ],
)
def test_a_target_that_names_nothing(target, why):
    with pytest.raises(BadInput, match=why):
        find_launcher(target)


def test_without_flydsl_one_sentence_says_how_to_get_it(monkeypatch):
    def absent(name, *_):
        raise ModuleNotFoundError(f"No module named {name!r}", name="flydsl")

    monkeypatch.setattr(capture.importlib, "import_module", absent)
    with pytest.raises(BackendUnavailable, match="pip install 'flydsl"):
        lower(lambda: None)
    with pytest.raises(BackendUnavailable, match="pip install 'flydsl"):
        find_launcher("kernels:block_sum")
