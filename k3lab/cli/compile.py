"""`k3lab compile`: a FlyDSL launcher as IR, gfx950 assembly or code object, its resource table and lint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from k3lab.cli.program import FAILED_BOUND
from k3lab.errors import BackendUnavailable, BadInput, expect

if TYPE_CHECKING:
    from rich.table import Table

    from k3lab.lowering.isa import Isa
    from k3lab.lowering.resources import Resources
    from k3lab.lowering.store import Artefact

COLUMNS = ("kernel", "VGPR", "AGPR", "SGPR", "LDS", "scratch", "spills", "threads", "waves/SIMD", "blocks/CU")
PLAIN_WIDTH = 160


@click.command("compile")
@click.argument("target", required=False)
@click.option("--args", "host_args", metavar="N,N,...", default="", help="The launcher's arguments; 0 for an address.")
@click.option("--from-ir", type=Path, metavar="FILE", help="A lowered module in place of TARGET.")
@click.option("--emit", type=click.Choice(["ir", "isa", "object"]), help="Write that, to -o FILE or to stdout.")
@click.option("-o", "--out", type=Path, metavar="FILE", help="Where --emit writes.")
@click.option("--lint", "lint_it", is_flag=True, help="Check the assembly; findings end with exit code 1.")
@click.pass_context
def compile_(
    ctx: click.Context,
    target: str | None,
    host_args: str,
    from_ir: Path | None,
    emit: str | None,
    out: Path | None,
    lint_it: bool,
) -> None:
    """Compile TARGET, a FlyDSL launcher as package.module:launcher, for gfx950, and list what its kernels take.

    Nothing runs on a device: neither a GPU nor ROCm is needed, except a linker for --emit object.
    """
    expect(out is None or emit, "-o", "--emit beside it", "none")
    expect(emit != "object" or out, "--emit object", "-o FILE, as a code object is binary", "none")
    artefact = _artefact(target, host_args, from_ir)
    if emit and out is None:
        click.echo(_emitted(artefact, emit), nl=False)
        return
    from k3lab.lowering.isa import cached_isa

    if emit and out:
        click.echo(str(_write(artefact, emit, out)))
    isa = cached_isa(artefact.module, line_tables=lint_it)
    _print_tables(isa)
    if lint_it and _print_findings(isa, artefact):
        ctx.exit(FAILED_BOUND)


def _artefact(target: str | None, host_args: str, from_ir: Path | None) -> Artefact:
    """The lowered module: from a file, or from the launcher."""
    from k3lab.lowering import codegen, store

    expect((target is None) != (from_ir is None), "compile", "either TARGET or --from-ir FILE", "both or neither")
    if from_ir is not None:
        return store.load(from_ir)
    assert target is not None
    if ":" not in target:
        raise _unnamed(target)
    from k3lab.lowering.capture import lower_named

    about = {"target": target, "args": host_args, "flydsl": codegen.version()}
    return store.Artefact(lower_named(target, _numbers(host_args)), about)


def _unnamed(target: str) -> Exception:
    """What a TARGET without a colon gets: a launch has no kernel yet, and anything else is no launcher's name."""
    from k3lab.launches import LAUNCHES

    if target in LAUNCHES:
        return BackendUnavailable(
            f"compile: {target} has no kernel in this version; name a FlyDSL launcher as package.module:launcher."
        )
    return BadInput(f"compile: expected a FlyDSL launcher as package.module:launcher, got {target!r}.")


def _numbers(text: str) -> list[int | float]:
    return [_number(item.strip()) for item in text.split(",") if item.strip()]


def _number(item: str) -> int | float:
    for parsed in (lambda word: int(word, 0), float):
        try:
            return parsed(item)
        except ValueError:
            continue
    raise BadInput(f"--args: expected numbers with commas between, got {item!r}.")


def _emitted(artefact: Artefact, emit: str) -> str:
    from k3lab.lowering.isa import cached_isa

    return artefact.module.text if emit == "ir" else cached_isa(artefact.module).text


def _write(artefact: Artefact, emit: str, out: Path) -> Path:
    from k3lab.files import check_writable, write_bytes, write_text
    from k3lab.lowering import store
    from k3lab.lowering.isa import compile_object

    check_writable(out.parent)
    if emit == "ir":
        return store.save(artefact, out)
    if emit == "isa":
        return write_text(out, _emitted(artefact, emit))
    return write_bytes(out, compile_object(artefact.module))


def _print_findings(isa: Isa, artefact: Artefact) -> int:
    from k3lab.lowering.lint import Rules, lint

    findings = lint(isa.text, Rules(dynamic_lds={name: row.dynamic_lds for name, row in isa.resources.items()}))
    for finding in findings:
        click.echo(str(finding))
    click.echo(f"lint: {len(findings)} findings")
    return len(findings)


def _print_tables(isa: Isa) -> None:
    from rich.console import Console

    made = Console(highlight=False)
    console = made if made.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)
    console.print(_table("gfx950 resources", COLUMNS, [_row(row) for row in isa.resources.values()]))
    families = sorted({family for row in isa.resources.values() for family in row.mix})
    mixes = [[row.kernel, *(str(row.mix.get(family, 0)) for family in families)] for row in isa.resources.values()]
    console.print(_table("instructions by class", ("kernel", *families), mixes))


def _row(row: Resources) -> list[str]:
    lds = f"{row.lds} + {row.dynamic_lds}" if row.dynamic_lds else str(row.lds)
    figures: list[Any] = [row.vgpr, row.agpr, row.sgpr, lds, row.scratch, row.vgpr_spills + row.sgpr_spills]
    return [row.kernel, *map(str, [*figures, row.threads, row.waves_per_simd, row.blocks_per_cu])]


def _table(title: str, columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        made.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
