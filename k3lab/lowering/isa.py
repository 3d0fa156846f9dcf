"""gfx950 assembly and code objects of a lowered module, by FlyDSL's own code generator, with their resource table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3lab.errors import BadInput
from k3lab.lowering import codegen, store
from k3lab.lowering.child import call
from k3lab.lowering.ir import Module
from k3lab.lowering.parse import parse
from k3lab.lowering.resources import Resources, check_lds, read_resources


@dataclass(frozen=True)
class Isa:
    """A module's assembly, and what each of its kernels takes."""

    text: str
    resources: Mapping[str, Resources]


def compile_isa(module: Module | str, *, line_tables: bool = False, in_subprocess: bool = True) -> Isa:
    """The assembly of `module`; needs neither ROCm nor a linker.

    Args:
        module: as lowered, or its text.
        line_tables: name the source line of every instruction.
        in_subprocess: so that a compiler that aborts leaves this process alive; costs about 0.4 s.

    Raises:
        BackendUnavailable: when flydsl is not installed.
        BadInput: when the compiler refuses the module or aborts on it, or a kernel's LDS does not fit.
        InternalFault: when the compiler's process ends without a result.
    """
    made = parse(module) if isinstance(module, str) else module
    text, words = _generate(made, "isa", line_tables, in_subprocess)
    isa = read(text.decode(), made)
    _check_words(words)
    return isa


def compile_object(module: Module | str, *, in_subprocess: bool = True) -> bytes:
    """The code object (an ELF file) of `module`; needs `llvm/bin/ld.lld` in ROCm's folder.

    Raises:
        BackendUnavailable: when flydsl or the linker is missing.
        BadInput: as `compile_isa` does.
        InternalFault: when the compiler's process ends without a result.
    """
    codegen.find_linker()
    made = parse(module) if isinstance(module, str) else module
    compile_isa(made, in_subprocess=in_subprocess)
    data, words = _generate(made, "object", False, in_subprocess)
    _check_words(words)
    return data


def cached_isa(module: Module, *, line_tables: bool = False) -> Isa:
    """What `compile_isa` makes of `module`, kept in the cache by content.

    Raises:
        K3LabError: as `compile_isa` does.
    """
    parts = (codegen.version(), str(line_tables), module.text)
    text = store.cached("isa", parts, lambda: compile_isa(module, line_tables=line_tables).text.encode())
    return read(text.decode(), module)


def read(text: str, module: Module | None = None) -> Isa:
    """An assembly text with its resource table; `module` knows the dynamic LDS of its launches.

    Raises:
        BadInput: for text that is no kernel's assembly, and when a kernel's LDS does not fit.
    """
    dynamic: dict[str, int] = {}
    for launch in module.launches if module else ():
        if isinstance(launch.dynamic_lds, int):
            dynamic[launch.kernel] = max(launch.dynamic_lds, dynamic.get(launch.kernel, 0))
    resources = read_resources(text, dynamic)
    for row in resources.values():
        check_lds(row)
    return Isa(text, resources)


def _generate(module: Module, form: str, line_tables: bool, in_subprocess: bool) -> tuple[bytes, str]:
    """What the code generator made, and what it wrote to stderr."""
    request = {"text": module.text, "form": form, "line_tables": line_tables}
    if in_subprocess:
        return call("codegen", request)
    with codegen.native_stderr() as words:
        data = codegen.generate(module.text, form, line_tables)
    return data, words[0]


def _check_words(words: str) -> None:
    """Refuse a result that the compiler called wrong without failing, e.g. a function it has no code for.

    Raises:
        BadInput: repeating the compiler's errors.
    """
    errors = [line.partition("error:")[2].strip() for line in words.splitlines() if "error:" in line]
    if errors:
        raise BadInput(f"FlyDSL's compiler refuses this module: {'; '.join(dict.fromkeys(errors))}.")
