"""`k3lab chain`: a half-layer, one launch after the other on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from k3lab.cli import options
from k3lab.cli.program import FAILED_BOUND
from k3lab.cli.progress import progress
from k3lab.errors import expect

if TYPE_CHECKING:
    from rich.table import Table

    from k3lab.analysis.chain_run import ChainRun

KINDS = ("kda", "mla")
BACKENDS = ("twin", "oracle", "sim")


@click.command()
@click.option(
    "--kind",
    type=options.Choice(KINDS),
    required=True,
    help="kda: K1, K2a; mla: M1a, a decode attention in torch, K2a.",
)
@options.case_options
@click.option("--gather/--no-gather", default=None, help="MLA: whether the ranks gather their query heads (they do).")
@click.option("--sentinel", is_flag=True, default=None, help="Let K2a's ranks send words without tags.")
@click.option("--backend", type=options.Choice(BACKENDS), default="twin", show_default=True, help="Where to run.")
@options.run_options
@options.sim_options
@click.option("--dumps", is_flag=True, default=None, help="Let the kernels write their locals out too.")
@click.option(
    "--steps",
    type=int,
    default=1,
    show_default=True,
    help="Simulator: steps in a row on the same scratch and peer buffers, each on inputs of its own.",
)
@click.pass_context
def chain(
    ctx: click.Context,
    kind: str,
    backend: str,
    mfma: str | None,
    device: str | None,
    dumps: bool | None,
    steps: int,
    **described: Any,
) -> None:
    """Run a half-layer on every rank: an attention launch, then K2a on what it left.

    The end tensors are held against the float64 oracle's half-layer. In the simulator the launches share memory, and
    all they expose is held against the twins bit for bit; exit code 1 where anything differs.
    """
    expect(steps >= 1, "--steps", "at least 1", steps)
    expect(steps == 1 or backend == "sim", "--steps", "1 beside a backend that does not simulate", steps)
    model = options.mfma_model(mfma, backend)
    sim = options.simulation(backend, described)
    from k3lab.analysis.chain import ChainSession, run_chain
    from k3lab.cli import show

    console, fine = show.console(), True
    twins: dict[str, Any] = {"mfma": model, "device": device if backend != "sim" else None}
    session: ChainSession | None = None
    with progress(f"{kind} half-layer", steps * {"oracle": 2, "twin": 3, "sim": 4}[backend]) as step:
        for number in range(steps):
            step("inputs")
            case = options.make_chain(kind, described, number)
            step("float64 oracle")
            oracle = run_chain(kind, case, "oracle", device=twins["device"])
            run = twin = oracle
            if backend != "oracle":
                step("twins")
                run = twin = run_chain(kind, case, **twins)
            if backend == "sim":
                step("simulation")
                if session is None:
                    session = ChainSession(case, mfma=model, device=device, sim=sim, dumps=dumps)
                run = session.step(case)
            for line in _lines(run, twin, oracle):
                console.print(line, soft_wrap=isinstance(line, str))
            fine = fine and not run.differing(twin)
    if not fine:
        ctx.exit(FAILED_BOUND)


def _lines(run: ChainRun, twin: ChainRun, oracle: ChainRun) -> Iterator[str | Table]:
    """What ran, its end tensors, whether a kernel's are the twins', and how long each part took."""
    from k3lab.analysis.compare import label

    names = ", then ".join(f"{each.name} ({each.published})" for each in run.case.declaration.launches)
    epoch = f", epoch {run.last.provenance['build']['epoch']}" if run.backend == "sim" else ""
    yield f"{run.case.kind}: {names}; {label(run.last)}{epoch}; {run.case!r}"
    yield _table(run, twin, oracle)
    if run.backend == "sim":
        yield from _verdict(run, twin)
    took = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in run.timing.items())
    where = run.provenance["device"]
    if run.backend == "sim":
        yield f"wall time to simulate, measured on {where}, not a GPU's: {took}"
    else:
        yield f"wall time, measured on {where}, of this backend and not of a GPU kernel: {took}"


def _table(run: ChainRun, twin: ChainRun, oracle: ChainRun) -> Table:
    """The end tensors of both launches."""
    from k3lab.analysis.words import decibel, number, shape
    from k3lab.cli import show

    compared, judged = run.backend == "sim", run.backend != "oracle"
    titles = [*(["differ from twin"] if compared else []), *(["rms error", "SNR"] if judged else ["rms"])]
    made = show.table("launch", "tensor", "format", "shape", *titles, left=4)
    differences = run.differences(twin) if compared else {}
    for (launch, name), stats in run.errors(oracle).items():
        runs = run.runs[launch]
        held = [value for each in runs for _, value in each.distinct(name)]
        cells = [str(differences[launch, name].differ)] if compared else []
        if judged:
            figures = stats.figures()
            cells += [number(figures.rms), decibel(figures.snr_db)]
        else:
            cells.append(number(float(sum(v.double().square().mean() for v in held) / len(held)) ** 0.5))
        made.add_row(launch, name, runs[0].launch.format_of(name, runs[0].key), shape(held[0].shape, len(held)), *cells)
    if judged:
        made.caption = "errors against the oracle's half-layer: K2a's hold what the launches before it added up"
        made.caption_justify = "left"
    return made


def _verdict(run: ChainRun, twin: ChainRun) -> Iterator[str]:
    """Whether everything that both expose is equal; else what is not, and where first."""
    compared, differing = run.differences(twin), run.differing(twin)
    elements = sum(each.count for each in compared.values())
    if not differing:
        yield f"kernel = twin, bit for bit: {len(compared)} tensors of both launches, {elements} elements on all ranks"
        return
    yield f"kernel differs from twin in {len(differing)} of {len(compared)} tensors:"
    for (launch, name), each in differing.items():
        first = each.first or {}
        place = f"first on rank {first['rank']} at {first['index']}: got {first['got']}, the twin has {first['want']}"
        yield f"  {launch}.{name}: {each.differ} of {each.count} elements, {place}"
