"""A lowered kernel as CUDA C++: values as locals, blocks as labels, and what its operations say one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from k3lab.backends.cuda.fast.alignment import alignment
from k3lab.backends.cuda.fast.twice import THREAD
from k3lab.backends.cuda.fast.waits import Publishing, guarding, publishing
from k3lab.backends.cuda.handover import meetings
from k3lab.backends.cuda.memory import MEMORY, Reach, accesses, unbounded
from k3lab.backends.cuda.operations import SPELLED, Operands
from k3lab.backends.cuda.types import Untranslated, ctype
from k3lab.backends.cuda.uniform import ACROSS, Uniformity
from k3lab.backends.cuda.wave import WAVE, Lanes
from k3lab.errors import BadInput
from k3lab.lowering.ir import Block, Kernel, Module, Op
from k3lab.sim.decode.cfg import analyse
from k3lab.sim.decode.intrinsics import canonical
from k3lab.sim.decode.program import BARRIERS
from k3lab.sim.semantics import NO_EFFECT

RUNTIME = ("runtime.cuh", "approx.cuh", "products.cuh", "tensorcore.cuh", "memory.cuh")
"""The files of the run time after the target's primitives, in order."""
LDS_ALIGN = 16
MOST_WAVES = 15
"""A wave has a barrier of its own beside the workgroup's, of 16."""
LANES = 64
SLOT_BYTES = 4 * LANES
ROWS = {"rocdl.mfma.scale.f32.16x16x128.f8f6f4": 2560, "rocdl.mfma.f32.16x16x32.bf16": 2048}
"""Bytes that a wave exchanges an operation's operands through; 8 a lane do for any other."""
FAST_ROW = 1024
"""In the fast build: two sides of 8 bytes a lane, twice that where operands of products are exchanged."""


@dataclass(frozen=True)
class Source:
    """A translated kernel.

    Attributes:
        sizes: as macros, which the run time needs; `body` is the function.
        threads: of a workgroup.
        fast: whether it is the build with tensor cores and the GPU's own approximations, or the exact one.
        parameters: of the kernel, each passed in 8 bytes.
        shared: bytes of shared memory a workgroup takes: its LDS (`lds`) and what its waves exchange values through.
        aligned: places of the parameters that must be multiples of 16.
    """

    name: str
    sizes: str
    body: str
    threads: int
    parameters: int
    lds: int
    shared: int
    fast: bool = False
    aligned: tuple[int, ...] = ()

    def complete(self, primitives: str, entry: str, ranks: int = 1, defined: tuple[str, ...] = ()) -> str:
        """The whole text to compile, for launches of `ranks` ranks at once.

        Args:
            primitives: the file that has those of the target.
            entry: how the kernel's function is declared there.
            defined: further macros.
        """
        macros = [
            *defined,
            *(["K3_FAST"] if self.fast else []),
            f"K3_ARGS {ranks * self.parameters}",
            f"K3_KERNEL {entry}",
        ]
        heading = "".join(f"#define {macro}\n" for macro in macros)
        return "\n".join([heading, self.sizes, *map(runtime, (primitives, *RUNTIME)), self.body])


def translate(module: Module, fast: bool = False) -> Source:
    """The one kernel that `module` launches, in the exact build or in the fast one; kept with the module.

    Raises:
        BadInput: listing every operation that is not translated, with its line; or for another launch than one of a
            kernel on one-dimensional workgroups of whole waves.
    """
    kept = f"cuda, {'fast' if fast else 'exact'}"
    if kept not in module.decoded:
        module.decoded[kept] = _translated(module, fast)
    source: Source = module.decoded[kept]
    return source


def _translated(module: Module, fast: bool) -> Source:
    if len(module.launches) != 1:
        raise BadInput(f"translation: expected a module with one launch, got {len(module.launches)}.")
    launch = module.launches[0]
    threads, others = launch.block[0], (*launch.grid[1:], *launch.block[1:])
    if not isinstance(threads, int) or others != (1, 1, 1, 1):
        raise BadInput(f"translation: expected one-dimensional sizes, got grid {launch.grid}, block {launch.block}.")
    if threads % LANES or not 0 < threads <= MOST_WAVES * LANES:
        most = MOST_WAVES * LANES
        raise BadInput(f"translation: expected workgroups of whole waves, {most} threads at most, got {threads}.")
    return _Translation(module, canonical(module.kernels[launch.kernel]), threads, fast).source()


class _Translation:
    """One kernel on its way."""

    def __init__(self, module: Module, kernel: Kernel, threads: int, fast: bool) -> None:
        self.kernel, self.threads, self.fast = kernel, threads, fast
        self.lds, self.lds_bytes = _place_lds(module)
        self.graph = analyse(kernel.blocks, frozenset())
        self.uniform = Uniformity.of(self.graph)
        self.known = {
            op.results[0]: op.attrs["value"]
            for op in kernel.ops()
            if op.name == "llvm.mlir.constant" and isinstance(op.attrs["value"], int)
        }
        self.lanes = Lanes(self.graph, self.uniform, fast)
        self.meetings = meetings(self.graph, self.uniform, lambda op: op.name in BARRIERS or self.lanes.meets(op))
        system = any(op.attrs.get("aux") == 17 for op in kernel.ops() if accesses(op))
        known = alignment(self.graph, module) if fast else None
        self.reach = Reach(system, known, unbounded(list(kernel.ops())))
        self.fence = f"k3_fence_{'system' if system else 'device'}();"
        self.published = publishing(self.graph) if fast else Publishing()
        self.guarded = guarding(self.graph) if fast else frozenset[int]()
        self.missing: list[str] = []

    def source(self) -> Source:
        lines = list(self._function())
        if self.missing:
            wanted = "operations that are translated"
            raise BadInput(
                f"kernel {self.kernel.name}: expected {wanted}, got {len(self.missing)} others: "
                f"{'; '.join(self.missing)}."
            )
        row = max((ROWS.get(op.name, 0) for op in self.kernel.ops()), default=0) or 8 * LANES
        if self.fast:
            row = FAST_ROW if self.lanes.chains.all_turned else 2 * FAST_ROW
        wave_bytes = row + SLOT_BYTES * len(self.lanes.slots)
        shared = self.lds_bytes + self.threads // LANES * wave_bytes
        count = len(self.kernel.params)
        sizes = {"LDS": self.lds_bytes, "ROW": row, "WAVE_BYTES": wave_bytes, "SHARED": shared, "PARAMETERS": count}
        macros = "".join(f"#define K3_{name} {size}\n" for name, size in (sizes | {"THREADS": self.threads}).items())
        body = "\n".join(lines) + "\n"
        aligned = self.reach.alignment.assumed if self.reach.alignment else ()
        return Source(self.kernel.name, macros, body, self.threads, count, self.lds_bytes, shared, self.fast, aligned)

    def _function(self) -> Iterator[str]:
        yield "K3_KERNEL {"
        yield "  const int number = k3_number(launch), block = number % launch.blocks;"
        yield "  const u64* args = launch.args + number / launch.blocks * K3_PARAMETERS;"
        yield from self._declarations()
        if self.fast:
            yield "  u32 side = 0;"
        for place, (value, kind) in enumerate(self.kernel.params):
            spelled = self._typed(lambda kind=kind: ctype(kind), f"parameter {place}")
            yield f"  v{value} = ({spelled})args[{place}];"
        for number, block in enumerate(self.graph.blocks):
            yield from self._block(number, block)
        yield "}"

    def _declarations(self) -> Iterator[str]:
        """Locals first: a label may not be jumped to over a declaration."""
        by_type: dict[str, list[str]] = {}
        for block in self.graph.blocks:
            named = [(value, kind, f"argument of {block.label}") for value, kind in block.args]
            for op in block.ops:
                named += [(value, kind, _called(op)) for value, kind in zip(op.results, op.result_types, strict=True)]
            for value, kind, what in named:
                spelled = self._typed(lambda kind=kind: ctype(kind), what)
                names = [f"{which}{value}" for which in ("vlh" if value in self.lanes.twice.wanted else "v")]
                by_type.setdefault(self.lanes.sums(value) or spelled, []).extend(names)
        if self.lanes.chosen:
            by_type.setdefault("int", []).extend(f"s{value}" for value in sorted(self.lanes.chosen))
        for spelled, names in by_type.items():
            yield f"  {spelled} {', '.join(names)};"

    def _typed(self, make: object, what: str) -> str:
        try:
            return make()  # type: ignore[operator,no-any-return]
        except Untranslated as refusal:
            self._refuse(f"{what} ({refusal})")
            return "int"

    def _refuse(self, what: str) -> None:
        if what not in self.missing:
            self.missing.append(what)

    def _block(self, number: int, block: Block) -> Iterator[str]:
        yield f"L{number}:;"
        for value, _ in block.args:
            yield from self.lanes.published(value)
        if number in self.guarded:
            yield f"  {self.fence}"
        split = number in self.uniform.split
        for place, op in enumerate(block.ops):
            if (number, place) in self.meetings:
                yield "  k3_wave_sync();"
            try:
                for line in self._operation(op, split, (number, place)):
                    yield f"  {line}"
            except Untranslated as refusal:
                self._refuse(f"{op.name} ({refusal}) at {op.loc}")

    def _operation(self, op: Op, split: bool, at: tuple[int, int]) -> Iterator[str]:
        if self.lanes.twice.spared & set(op.results):
            yield from (self._made_for(which, op) for which in "lh")
            return
        names = tuple(f"v{value}" for value in op.operands)
        if op.name in BARRIERS:
            if split:
                raise Untranslated("where not all lanes of a wave are")
            yield f"k3_block_sync(); {self.fence if at in self.published.barriers else ''}".rstrip()
        elif op.successors or op.name in ("llvm.return", "llvm.unreachable"):
            yield from self._end(op, names)
        elif op.name in NO_EFFECT or at in self.published.drains:
            return
        elif op.name in MEMORY:
            if at in self.published.flags:
                yield self.fence
            yield from MEMORY[op.name](op, names, self.reach)
        else:
            yield f"v{op.results[0]} = {self._expression(op, names, split)};" if op.results else self._unknown(op)
        for value in op.results:
            yield from self.lanes.published(value)
            if value in self.lanes.twice.wanted:
                yield from (self._made_for(which, op) for which in "lh")

    def _made_for(self, which: str, op: Op) -> str:
        """An operation's result as another lane has it."""
        names = tuple(self.lanes.made_for(which, value) for value in op.operands)
        value = op.results[0]
        if op.name == THREAD:
            return f"{which}{value} = k3_thread_{'low' if which == 'l' else 'high'}();"
        if op.name in MEMORY:
            (line,) = MEMORY[op.name](op, names, self.reach)
            return which + line.removeprefix("v")
        return f"{which}{value} = {SPELLED[op.name](op, Operands(names, self.known))};"

    def _expression(self, op: Op, names: tuple[str, ...], split: bool) -> str:
        if op.name == "llvm.mlir.addressof":
            return f"{self.lds[str(op.attrs['global_name']).lstrip('@')]}u"
        if op.name == "rocdl.workgroup.id.x":
            return "block"
        if op.name in WAVE or op.name in ACROSS:
            return self.lanes.spelled(op, names, split)
        if op.name in SPELLED:
            return SPELLED[op.name](op, Operands(names, self.known))
        return self._unknown(op)

    def _unknown(self, op: Op) -> str:
        raise Untranslated(str(op.attrs["intrin"]) if op.name == "llvm.call_intrinsic" else "not known")

    def _end(self, op: Op, names: tuple[str, ...]) -> Iterator[str]:
        ways = [self._way(label, passed) for label, passed in op.successors]
        match op.name:
            case "llvm.br":
                yield ways[0]
            case "llvm.cond_br":
                yield f"if ({names[0]}) {{ {ways[0]} }} else {{ {ways[1]} }}"
            case "llvm.switch":
                for case, way in zip(op.attrs.get("case_values") or [], ways[1:], strict=True):
                    yield f"if ({names[0]} == {case}) {{ {way} }}"
                yield ways[0]
            case "llvm.return":
                yield "return;"
            case _:
                raise Untranslated("not known")

    def _way(self, label: str, passed: tuple[int, ...]) -> str:
        """The copies of a branch's arguments, all read before any is written, and the jump."""
        target = self.graph.places[label]
        args = [value for value, _ in self.graph.blocks[target].args]
        moves = [(arg, source) for arg, source in zip(args, passed, strict=True) if arg != source]
        named = [
            (self.lanes.made_for(which, arg), self.lanes.made_for(which, source))
            for arg, source in moves
            for which in ("vlh" if arg in self.lanes.twice.wanted else "v")
        ]
        overlap = {arg for arg, _ in named} & {source for _, source in named}
        first = "".join(f"auto t{source} = {source}; " for source in sorted(overlap))
        then = "".join(f"{arg} = {'t' if source in overlap else ''}{source}; " for arg, source in named)
        if chosen := [(arg, source) for arg, source in moves if arg in self.lanes.chosen]:
            first += "".join(f"int u{source} = {self.lanes.slot(source)}; " for source in {s for _, s in chosen})
            then += "".join(f"s{arg} = u{source}; " for arg, source in chosen)
        return f"{{ {first}{then}}} goto L{target};" if moves else f"goto L{target};"


def _called(op: Op) -> str:
    return f"{op.name} at {op.loc}"


def _place_lds(module: Module) -> tuple[dict[str, int], int]:
    """Offsets of the LDS globals, and where they end."""
    offsets: dict[str, int] = {}
    end = 0
    for variable in module.globals.values():
        if variable.space == 3:
            align = max(variable.alignment, LDS_ALIGN)
            offsets[variable.name] = start = -(-end // align) * align
            end = start + variable.nbytes
    return offsets, -(-end // LDS_ALIGN) * LDS_ALIGN


def runtime(name: str) -> str:
    """A file of the run time, as text."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
