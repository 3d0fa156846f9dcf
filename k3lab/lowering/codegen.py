"""FlyDSL's code generator: gfx950 assembly or a code object from a lowered module's text. Runs nothing on a device."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from k3lab.errors import BackendUnavailable, BadInput
from k3lab.lowering.capture import MISSING, explained_import

FORMS = {"isa": "isa", "object": "bin"}
"""What is generated, and the pass's word for it."""
LINE_TABLES = "ensure-debug-info-scope-on-llvm-func{emission-kind=LineTablesOnly}"
LINKER = Path("llvm", "bin", "ld.lld")
ROOTS = ("ROCM_PATH", "ROCM_ROOT", "ROCM_HOME")
"""Environment variables that may name ROCm's folder, in the order the compiler asks."""
DEFAULT_ROOT = "/opt/rocm"


def generate(text: str, form: str = "isa", line_tables: bool = False) -> bytes:
    """The assembly (UTF-8) or the code object of the module that `text` spells.

    Args:
        form: `isa` or `object`.
        line_tables: name the source line of every instruction (`.loc` lines in the assembly).

    Raises:
        BackendUnavailable: when flydsl is not installed, or an object is wanted and the linker is missing.
        BadInput: when the compiler refuses the text.
    """
    if form == "object":
        find_linker()
    try:
        from flydsl._mlir import ir
        from flydsl._mlir.dialects import gpu
        from flydsl._mlir.passmanager import PassManager
    except ImportError as error:
        raise BackendUnavailable(explained_import(error)) from None
    passes = [LINE_TABLES] if line_tables else []
    passes.append(f"gpu-module-to-binary{{format={FORMS[form]}}}")
    with ir.Context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
            PassManager.parse(f"builtin.module({','.join(passes)})").run(module.operation)
        except ir.MLIRError as error:
            raise BadInput(f"FlyDSL's compiler refuses this module: {_diagnosis(error)}.") from None
        objects = [_object(op, ir, gpu) for op in module.body.operations if op.operation.name == "gpu.binary"]
    if len(objects) != 1:
        raise BadInput(f"IR module: expected one gpu.module, got {len(objects)}.")
    return objects[0]


def find_linker() -> Path:
    """The linker that makes a code object of an object file.

    Raises:
        BackendUnavailable: when it is not where the compiler looks for it.
    """
    root = Path(next((os.environ[name] for name in ROOTS if os.environ.get(name)), DEFAULT_ROOT))
    linker = root / LINKER
    if not os.access(linker, os.X_OK):
        raise BackendUnavailable(
            f"code object: expected the linker {str(linker)!r}, got none; install ROCm, or lld 19 or newer, and set "
            "ROCM_PATH to a folder that has it (or a script that runs it) as llvm/bin/ld.lld."
        )
    return linker


def version() -> str:
    """The installed FlyDSL's version, found without importing it.

    Raises:
        BackendUnavailable: when flydsl is not installed.
    """
    try:
        return metadata.version("flydsl")
    except metadata.PackageNotFoundError:
        raise BackendUnavailable(MISSING) from None


def bare_bindings() -> None:
    """Let flydsl's MLIR bindings be imported without the rest of it, which imports torch: 0.3 s instead of 2 s.

    For a process that only generates code: flydsl itself cannot be imported there afterwards.
    """
    found = importlib.util.find_spec("flydsl")
    if found is None or found.submodule_search_locations is None:
        raise BackendUnavailable(MISSING)
    package = types.ModuleType("flydsl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["flydsl"] = package


@contextmanager
def native_stderr() -> Iterator[list[str]]:
    """Collect what native code writes to stderr meanwhile; the list has one item when it is over."""
    words: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield words
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            words.append(file.read().decode(errors="replace"))


def _object(op: Any, ir: Any, gpu: Any) -> bytes:
    return bytes(gpu.ObjectAttr(ir.ArrayAttr(op.attributes["objects"])[0]).object)


def _diagnosis(error: Any) -> str:
    """The compiler's messages in one line."""
    found = [diagnostic.message for diagnostic in getattr(error, "error_diagnostics", None) or []]
    return ("; ".join(dict.fromkeys(found)) or str(error).strip()).rstrip(".")
