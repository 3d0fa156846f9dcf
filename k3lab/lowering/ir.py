"""A lowered kernel in memory: the LLVM-dialect module FlyDSL hands to its code generator, as plain data.

The text form is MLIR's generic one, an operation a line, with source locations; `k3lab.lowering.parse` reads it. No
FlyDSL is needed to hold, save or run one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Loc:
    """A place in the kernel's source."""

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Type:
    """A value's type.

    Attributes:
        kind: `int`, `float`, `ptr`, `vector`, `array`, `struct`, or `void`.
        bits: width of an int or float (`bf16` has 16, and `name` tells it from `f16`).
        name: `i32`, `f32`, `bf16`, `index`, ... for scalars.
        space: a pointer's address space (0 generic, 1 global, 3 LDS, 5 private, 8 buffer resource).
        count, element: of a vector or array; `elements`: of a struct.
    """

    kind: str
    bits: int = 0
    name: str = ""
    space: int = 0
    count: int = 0
    element: Type | None = None
    elements: tuple[Type, ...] = ()

    @property
    def scalar(self) -> Type:
        """A vector's element type, or the type itself."""
        return self.element if self.kind == "vector" and self.element else self

    @property
    def lanes(self) -> int:
        """Elements of a vector; 1 for anything else."""
        return self.count if self.kind == "vector" else 1

    @property
    def nbytes(self) -> int:
        """Bytes in memory (an i1 takes one)."""
        match self.kind:
            case "int" | "float":
                return -(-self.bits // 8)
            case "ptr":
                return 4 if self.space in (3, 5) else 8
            case "vector" | "array":
                assert self.element
                return self.count * self.element.nbytes
        raise ValueError(f"type {self} has no fixed size here")


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes:
        name: dialect and name, e.g. `llvm.fadd`.
        results, operands: SSA values by number.
        attrs: attributes by name: int, float, str, bool, list, or the raw text of what is none of these.
        successors: (block label, operands passed to it) of a terminator.
    """

    name: str
    results: tuple[int, ...]
    operands: tuple[int, ...]
    result_types: tuple[Type, ...]
    operand_types: tuple[Type, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    successors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    loc: Loc | None = None


@dataclass(frozen=True)
class Block:
    """A basic block; its arguments are (value, type)."""

    label: str
    args: tuple[tuple[int, Type], ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel function; the first block's arguments are its parameters."""

    name: str
    blocks: tuple[Block, ...]
    attrs: Mapping[str, Any]

    @property
    def params(self) -> tuple[tuple[int, Type], ...]:
        return self.blocks[0].args

    def ops(self) -> Iterator[Op]:
        """Every operation, block by block."""
        for block in self.blocks:
            yield from block.ops


@dataclass(frozen=True)
class Global:
    """An LDS global (or a constant): name, bytes, alignment, address space."""

    name: str
    nbytes: int
    alignment: int
    space: int
    value: Any = None


@dataclass(frozen=True)
class HostLaunch:
    """One `gpu.launch_func` of the host function.

    Attributes:
        grid, block: sizes in x, y, z: an int, or ("arg", i) for the host function's i-th argument.
        dynamic_lds: bytes of dynamic shared memory, in the same form.
        args: the kernel's arguments: ("arg", i), or ("const", value).
    """

    kernel: str
    grid: tuple[Any, Any, Any]
    block: tuple[Any, Any, Any]
    dynamic_lds: Any
    args: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Module:
    """Everything one launch needs: kernels, LDS globals, how the host launches them, and the text it came from.

    Attributes:
        decoded: what a simulator has made of each kernel, by name: kept here so that it lives as long as the module.
    """

    kernels: Mapping[str, Kernel]
    globals: Mapping[str, Global]
    launches: tuple[HostLaunch, ...]
    host_args: tuple[Type, ...]
    text: str
    decoded: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
