"""`k3lab compile`: a launch or a FlyDSL launcher as IR, gfx950 assembly or code object, its resource table and lint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from k3lab.cli import options
from k3lab.cli.program import FAILED_BOUND
from k3lab.errors import BadInput, expect

if TYPE_CHECKING:
    from rich.table import Table

    from k3lab.launches.declaration import Launch
    from k3lab.launches.key import LaunchKey
    from k3lab.lowering.isa import Isa
    from k3lab.lowering.lint import Rules
    from k3lab.lowering.resources import Resources
    from k3lab.lowering.store import Artefact

COLUMNS = ("kernel", "VGPR", "AGPR", "SGPR", "LDS", "scratch", "spills", "threads", "waves/SIMD", "blocks/CU")
PLAIN_WIDTH = 160
TABLE_TOKENS = (1, 4, 8, 16)
TABLE_QLEN = 4
FAMILIES = ("matrix", "vector", "scalar", "lds", "global load", "global store", "wait", "barrier")


@click.command("compile")
@click.argument("target", required=False)
@click.option("--args", "host_args", metavar="N,N,...", default="", help="The launcher's arguments; 0 for an address.")
@click.option("--from-ir", type=Path, metavar="FILE", help="A lowered module in place of TARGET.")
@click.option("--emit", type=click.Choice(["ir", "isa", "object"]), help="Write that, to -o FILE or to stdout.")
@click.option("-o", "--out", type=Path, metavar="FILE", help="Where --emit writes.")
@click.option("--lint", "lint_it", is_flag=True, help="Check the assembly; findings end with exit code 1.")
@click.option("--table", "over_tokens", is_flag=True, help="A launch's resources at S = 1, 4, 8, 16, as Markdown.")
@options.key_options
@click.pass_context
def compile_(
    ctx: click.Context,
    target: str | None,
    host_args: str,
    from_ir: Path | None,
    emit: str | None,
    out: Path | None,
    lint_it: bool,
    over_tokens: bool,
    **described: Any,
) -> None:
    """Compile TARGET for gfx950, and list what its kernels take.

    TARGET is a launch (k1, with the options that describe its key), or a FlyDSL launcher as package.module:launcher.
    Nothing runs on a device: neither a GPU nor ROCm is needed, except a linker for --emit object.
    """
    expect(out is None or emit, "-o", "--emit beside it", "none")
    expect(emit != "object" or out, "--emit object", "-o FILE, as a code object is binary", "none")
    expect((target is None) != (from_ir is None), "compile", "either TARGET or --from-ir FILE", "both or neither")
    if over_tokens:
        expect(not (emit or lint_it), "--table", "neither --emit nor --lint beside it", "one")
        click.echo("\n".join(resource_table(target, described)))
        return
    artefact, rules = _artefact(target, host_args, from_ir, described)
    if emit and out is None:
        click.echo(_emitted(artefact, emit), nl=False)
        return
    from k3lab.lowering.isa import cached_isa

    if emit and out:
        click.echo(str(_write(artefact, emit, out)))
    isa = cached_isa(artefact.module, line_tables=lint_it)
    _print_tables(isa)
    if lint_it and _print_findings(isa, rules):
        ctx.exit(FAILED_BOUND)


def _artefact(
    target: str | None, host_args: str, from_ir: Path | None, described: Mapping[str, Any]
) -> tuple[Artefact, Rules | None]:
    """The lowered module - from a file, a launch or a launcher - and a launch's rules."""
    from k3lab.launches import LAUNCHES
    from k3lab.lowering import codegen, store

    if target in LAUNCHES:
        expect(not host_args, "--args", f"none beside {target}, whose arguments are declared", host_args)
        return _launch_artefact(LAUNCHES[target], described)
    given = [name for name, value in described.items() if value not in (None, ())]
    expect(not given, "options of a key", f"a launch as TARGET ({', '.join(LAUNCHES)})", ", ".join(given))
    if from_ir is not None:
        return store.load(from_ir), None
    assert target is not None
    if ":" not in target:
        known = f"a launch ({', '.join(LAUNCHES)}) or a FlyDSL launcher as package.module:launcher"
        raise BadInput(f"compile: expected {known}, got {target!r}.")
    from k3lab.lowering.capture import lower_named

    about = {"target": target, "args": host_args, "flydsl": codegen.version()}
    return store.Artefact(lower_named(target, _numbers(host_args)), about), None


def _launch_artefact(launch: Launch, described: Mapping[str, Any]) -> tuple[Artefact, Rules]:
    from k3lab.kernels.lowered import lowered
    from k3lab.kernels.rules import rules_for
    from k3lab.lowering import codegen, store

    key = launch_key(launch, described)
    module = lowered(launch, key)
    about = {"target": launch.name, "key": json.dumps(key.to_dict()), "flydsl": codegen.version()}
    return store.Artefact(module, about), rules_for(launch, key)


def launch_key(launch: Launch, described: Mapping[str, Any]) -> LaunchKey:
    """The key that the options describe; where they say nothing, that of a case made without options.

    Raises:
        BadInput: for options that contradict each other or the launch.
    """
    from k3lab.cases.make import FILLS

    given = {name: value for name, value in described.items() if value not in (None, ())}
    assigned = dict(options.parse_assignment(text) for text in given.pop("assignments", ()))
    geometry = options.take_geometry(given)
    twice = sorted(given.keys() & assigned)
    expect(not twice, "--set", "fields that no other option gives", ", ".join(twice))
    return launch.key(geometry, **{**FILLS[launch.name].defaults, **given, **assigned})


def resource_table(target: str | None, described: Mapping[str, Any]) -> list[str]:
    """Lines of a Markdown table: what a launch's kernel takes at S = 1, 4, 8, 16.

    Raises:
        BadInput: for a target that is no launch, or the option that the table goes over.
    """
    from k3lab.launches import LAUNCHES

    expect(target in LAUNCHES, "--table", f"a launch ({', '.join(LAUNCHES)})", repr(target))
    expect(described.get("tokens") is None, "--table", "no --tokens beside it", described.get("tokens"))
    names = ("S", *COLUMNS[1:7], "waves/SIMD", "instructions", *FAMILIES)
    rows = [table_row(LAUNCHES[str(target)], described, tokens) for tokens in TABLE_TOKENS]
    return [_line(names), _line(["---:"] * len(names)), *map(_line, rows)]


def table_row(launch: Launch, described: Mapping[str, Any], tokens: int) -> list[str]:
    """A row of it; a request has 4 tokens where the options say nothing, or as many as there are."""
    from k3lab.kernels.lowered import lowered
    from k3lab.lowering.isa import cached_isa

    sized = {**described, "tokens": tokens}
    if hasattr(launch.key_type, "qlen") and sized.get("qlen") is None:
        sized["qlen"] = min(TABLE_QLEN, tokens)
    (row,) = cached_isa(lowered(launch, launch_key(launch, sized))).resources.values()
    figures = [*_row(row)[1:7], str(row.waves_per_simd), str(sum(row.mix.values()))]
    return [str(tokens), *figures, *(str(row.mix.get(family, 0)) for family in FAMILIES)]


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


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


def _print_findings(isa: Isa, rules: Rules | None) -> int:
    from k3lab.lowering.lint import Rules, lint

    dynamic = {name: row.dynamic_lds for name, row in isa.resources.items()}
    findings = lint(isa.text, rules or Rules(dynamic_lds=dynamic))
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
