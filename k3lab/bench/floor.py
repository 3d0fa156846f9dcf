"""The floor under a launch's time: the bytes that it must move, over the bandwidth that a copy reaches."""

from __future__ import annotations

import sys
from importlib import util
from math import prod
from pathlib import Path
from types import ModuleType

from k3lab import analysis
from k3lab.cases.case import Case

MODULE = "k3lab.analysis.timeline.formulas"


def bytes_to_move(case: Case) -> int:
    """Bytes that a launch on all ranks of the case loads and stores at least, each once.

    The timeline's formulas, and q_out of a rank on its own, which they count with no stage as two stages share it.
    """
    launch, key = case.declaration, case.key
    formulas = _formulas()
    counted = [formulas.expected_bytes(launch, key, tensors) for tensors in case.ranks]
    stored = {name for found in counted for _, name, _ in found}
    missing = [made for made in launch.made_for(key) if made.name not in stored]
    outputs = sum(prod(_sizes(made.dims, key.sizes)) * formulas.BYTES[made.dtype] for made in missing)
    return sum(sum(found.values()) for found in counted) + outputs * len(counted)


def seconds(moved: int, bandwidth: float) -> float:
    """The floor of `moved` bytes at `bandwidth` bytes a second."""
    return moved / bandwidth


def _sizes(dims: str, sizes: dict[str, int]) -> list[int]:
    return [int(dim) if dim.isdigit() else sizes[dim] for dim in dims.split()]


def _formulas() -> ModuleType:
    """The formulas by their file: the folder's `__init__` wants jsonschema, which a GPU machine may lack."""
    if MODULE not in sys.modules:
        assert analysis.__file__
        path = Path(analysis.__file__).parent / "timeline" / "formulas.py"
        spec = util.spec_from_file_location("k3lab_bench_formulas", path)
        assert spec and spec.loader
        made = util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made
    return sys.modules[MODULE]
