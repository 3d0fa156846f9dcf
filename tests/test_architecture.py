"""Imports point one way, modules stay short, and what must be light is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import k3lab

PACKAGE = Path(k3lab.__file__).parent
LAYERS = (
    ("errors",),
    ("geometry", "files"),
    ("formats", "layout", "lowering"),
    ("words", "stats", "hardware", "device"),
    ("rounding",),
    ("arith",),
    ("stages",),
    ("launches",),
    ("kernels", "cases"),
    ("sim",),
    ("backends",),
    ("analysis",),
    ("bench",),
    ("probes",),
    ("ui",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__")


def part_of(path: Path) -> str:
    """The layer's name: `formats` for formats/mx.py, `rounding` for rounding.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "k3lab" else [f"k3lab.{alias.name}" for alias in node.names]
            found |= set(names)
    return {name.split(".")[1] for name in found if name.startswith("k3lab.")} - {"__version__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_from_its_own_layer_and_those_below(path):
    mine = LEVEL[part_of(path)]
    assert {part: LEVEL[part] for part in imported_parts(path) if LEVEL[part] > mine} == {}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_module_stays_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize(
    "module", ["formats", "hardware.mfma", "hardware.approx", "words", "layout", "geometry", "errors"]
)
def test_numpy_only_parts_do_not_import_torch(module):
    code = f"import sys, k3lab.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_everything_imports_neither_flydsl_nor_aiter():
    parts = "k3lab.cli, k3lab.analysis.selftest, k3lab.backends.gfx950, k3lab.probes"
    code = f"import sys, {parts}; assert not {{'flydsl', 'aiter'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
