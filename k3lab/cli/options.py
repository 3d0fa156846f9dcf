"""Options that several commands share, and the case they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from k3lab.errors import BadInput, expect

if TYPE_CHECKING:
    from k3lab.cases import Case
    from k3lab.cases.chain import ChainCase
    from k3lab.geometry import Geometry
    from k3lab.sim.options import Options

Command = TypeVar("Command", bound=Callable[..., Any])

# Named here too, so that --help imports nothing heavy; a test holds them against what there is.
BACKENDS = ("twin", "oracle", "sim", "gfx950", "cuda")
KERNELS = ("sim", "gfx950", "cuda")
SCHEDULES = ("default", "random", "adversarial")
MEMORIES = ("sequential", "relaxed")
DETECTORS = {"races": "races", "global": "global_races", "guards": "guards", "scopes": "scopes"}
"""Detectors of the simulator by their name here, with the option each sets."""
ORDERS = ("kernel", "torch")
MFMA_MODELS = ("fused", "sequential", "pairwise", "cdna3")
BUILDS = ("exact", "fast")
VALUES = ("normal", "outliers", "tiny", "huge", "ties", "constant", "adversarial", "specials")
SPECIALS = ("zeros", "subnormals", "infinities", "nans", "extremes")

MAKER = ("values", "seed", "geometry", "tp", "blocks", "null", "slots")
"""Case options that are no fields of a launch's key."""


class Choice(click.Choice):
    """One of a closed set, listed in --help; anything else ends in a sentence."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = param.opts[0] if param else "option"
        expect(value in self.choices, name, f"one of {', '.join(self.choices)}", repr(value))
        return str(value)


_SIZE_OPTIONS = (
    click.option("--tokens", type=int, help="S: token rows of the step."),
    click.option("--qlen", type=int, help="L: tokens of each request; tokens is a multiple of it."),
    click.option("--nblocks", type=int, help="NB: earlier block outputs that the mix sees."),
    click.option("--geometry", help="Sizes: k3 (the default) or mini, a small model of the same structure."),
    click.option("--tp", type=int, help="Tensor parallel size of --geometry k3: 1, 2, 4 or 8."),
    click.option("--blocks", type=int, help="CTAs of a launch (256 of k3, 48 of mini); no result depends on it."),
    click.option("--ranks", type=int, help="GPUs that share a layer (M1a, K2a): 1, 2, 4 or 8."),
    click.option("--no-delta", "delta", flag_value=False, default=None, help="Leave out the delta to the prefix."),
    click.option("--write-idx", type=int, help="Block the updated prefix is also written to."),
)
_INPUT_OPTIONS = (
    click.option(
        "--values",
        help=f"Distribution of the inputs: {', '.join(VALUES)} (outliers by default). specials:SET[:TENSOR] puts one"
        f" set ({', '.join(SPECIALS)}) into every float tensor, or into one.",
    ),
    click.option("--seed", type=int, help="Seed of the inputs (0)."),
    click.option("--null", help="Null state slots: mixed (the default) or none."),
    click.option("--slots", type=int, help="Number of state or cache slots."),
)
_SET = click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any other field of the key.")
_KEY_OPTIONS = (*_SIZE_OPTIONS, _SET)
_CASE_OPTIONS = (*_SIZE_OPTIONS, *_INPUT_OPTIONS, _SET)
_RUN_OPTIONS = (
    click.option(
        "--mfma",
        type=Choice(MFMA_MODELS),
        show_default="fused",
        help="Model of the matrix instruction's additions, in kernel order.",
    ),
    click.option("--device", help="Torch device: cpu (the default), cuda, cuda:1, ..."),
)
_SIM_OPTIONS = (
    click.option("--schedule", type=Choice(SCHEDULES), help="Simulator: which wave goes on; default is deterministic."),
    click.option("--sim-seed", type=int, help="Simulator: seed of the schedule and of the relaxed memory (0)."),
    click.option("--memory", type=Choice(MEMORIES), help="Simulator: sequential, or relaxed as hardware may be."),
    click.option(
        "--detectors",
        metavar="all|LIST",
        help=f"Simulator: look for faults too; {', '.join(DETECTORS)}, with commas between.",
    ),
)
_CUDA_OPTIONS = (
    click.option(
        "--live",
        metavar="LIST",
        help="cuda: ranks that run, with commas between, beside words of the others that the twin says they send"
        " (all, or where these do not fit, one a GPU).",
    ),
    click.option("--build", type=Choice(BUILDS), help="cuda: exact (the default), or fast, with tensor cores."),
    click.option("--gpus", type=int, help="cuda: GPUs of this host that the ranks are spread over (1)."),
)
_CASE_FILE = click.option("--case", "case_file", type=Path, metavar="FILE", help="Inputs from `k3lab case make`.")


def key_options(command: Command) -> Command:
    """Add the options that describe a launch's key, on which alone a kernel depends."""
    return _with(command, _KEY_OPTIONS)


def case_options(command: Command) -> Command:
    """Add the options that describe a case to make."""
    return _with(command, _CASE_OPTIONS)


def case_or_file(command: Command) -> Command:
    """Add the options that describe a case, and `--case FILE` in their place."""
    return _with(command, (_CASE_FILE, *_CASE_OPTIONS))


def run_options(command: Command) -> Command:
    """Add the options that say how a twin runs."""
    return _with(command, _RUN_OPTIONS)


def sim_options(command: Command) -> Command:
    """Add the options that say how to simulate."""
    return _with(command, _SIM_OPTIONS)


def cuda_options(command: Command) -> Command:
    """Add the options that say how to run on NVIDIA GPUs."""
    return _with(command, _CUDA_OPTIONS)


def cuda(backend: str, described: dict[str, Any]) -> dict[str, Any]:
    """Takes cuda's options out of `described`: those that were given.

    Raises:
        BadInput: for any beside another backend, or a list of ranks that is none.
    """
    taken = {name: described.pop(name) for name in ("live", "build", "gpus") if name in described}
    given: dict[str, Any] = {name: value for name, value in taken.items() if value is not None}
    flags = ", ".join(f"--{name}" for name in given)
    expect(not given or backend == "cuda", flags, "--backend cuda beside it", f"--backend {backend}")
    if "live" in given:
        words = given["live"].split(",")
        fine = all(word.strip().isdecimal() for word in words)
        expect(fine, "--live", "numbers of ranks with commas between, as in 0,1", repr(given["live"]))
        given["live"] = [int(word) for word in words]
    return given


def simulation(backend: str, described: dict[str, Any]) -> Options | None:
    """Takes the simulator's options out of `described`; None where there are none.

    Raises:
        BadInput: for any beside a backend that does not simulate, or an unknown detector.
    """
    names = ("schedule", "sim_seed", "memory", "detectors")
    taken = {name: described.pop(name) for name in names if name in described}
    given = {name: value for name, value in taken.items() if value is not None}
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
    expect(not given or backend == "sim", flags, "--backend sim beside it", f"--backend {backend}")
    if not given:
        return None
    from k3lab.sim.options import Options

    wanted: dict[str, Any] = dict.fromkeys(_detectors(given.pop("detectors", "")), True)
    if "sim_seed" in given:
        given["seed"] = given.pop("sim_seed")
    return Options(**given, **wanted)


def _detectors(text: str) -> list[str]:
    """`races,guards` or `all` as the options they set."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return list(DETECTORS.values())
    for word in words:
        expect(word in DETECTORS, "--detectors", f"all, or some of {', '.join(DETECTORS)}", repr(word))
    return [DETECTORS[word] for word in words]


def _with(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def make_case(
    launch: str, options: Mapping[str, Any], variant: Mapping[str, Any] | None = None, for_all: bool = False
) -> Case:
    """The case that `options` describe, or the one in `--case FILE`.

    Args:
        variant: key fields to take where `options` say nothing.
        for_all: key fields that this launch does not have are passed over, as other launches may have them.

    Raises:
        BadInput: for options that contradict each other or the launch.
    """
    from k3lab import cases, launches

    maker, given = _case_fields(options)
    path = options.get("case_file")
    declared = launches.get(launch)
    if path is not None:
        extra = sorted([*maker, *given])
        expect(not extra, "case options", "none beside --case (the file holds them)", ", ".join(extra))
        case = cases.load(path)
        expect(case.launch == launch, f"case file {str(path)!r}", f"inputs of {launch}", f"inputs of {case.launch}")
        return case
    key = {**(variant or {}), **given}
    known = {field.name for field in fields(declared.key_type)}
    anywhere = known.union(*({field.name for field in fields(each.key_type)} for each in launches.LAUNCHES.values()))
    unknown = sorted(set(key) - (anywhere if for_all else known))
    expect(not unknown, f"{launch} option", f"one of {sorted(known)}", ", ".join(unknown))
    if for_all:
        key = {name: value for name, value in key.items() if name in known}
    return cases.make_case(launch, geometry=take_geometry(maker), **maker, **key)


def make_chain(kind: str, options: Mapping[str, Any], step: int = 0) -> ChainCase:
    """The half-layer's case that `options` describe; each step has the seed after the last one's.

    Raises:
        BadInput: for options that contradict each other or the launches.
    """
    from k3lab.cases.chain import make_chain

    maker, given = _case_fields(options)
    maker["seed"] = maker.get("seed", 0) + step
    return make_chain(kind, geometry=take_geometry(maker), **maker, **given)


def _case_fields(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The case options that were given: those in `MAKER`, and fields of a launch's key, `--set` taken apart.

    Raises:
        BadInput: for a field that is given twice.
    """
    left_out = ("assignments", "case_file")
    given = {name: value for name, value in options.items() if value is not None and name not in left_out}
    assigned = dict(parse_assignment(text) for text in options["assignments"])
    maker = {name: given.pop(name) for name in MAKER if name in given}
    twice = sorted(given.keys() & assigned)
    expect(not twice, "--set", "fields that no other option gives", ", ".join(twice))
    return maker, {**given, **assigned}


def mfma_model(given: str | None, backend: str = "twin", order: str = "kernel") -> str:
    """The MFMA model of a run, in twin and simulator: the one `given`, else the default.

    Raises:
        BadInput: for one given where no matrix instruction is modelled.
    """
    plain = "--backend oracle" if backend == "oracle" else "--order torch" if order == "torch" else ""
    expect(not (given and plain), "--mfma", f"no MFMA model beside {plain}, which takes torch's own matmuls", given)
    return given or MFMA_MODELS[0]


def take_geometry(given: dict[str, Any]) -> Geometry:
    """The sizes that `--geometry`, `--tp` and `--blocks` name, which are taken out of `given`.

    Raises:
        BadInput: for an unknown name, or a number out of range.
    """
    from k3lab.geometry import Geometry

    made = Geometry.named(given.pop("geometry", "k3"), given.pop("tp", None))
    blocks = given.pop("blocks", None)
    return made if blocks is None else replace(made, blocks=blocks)


def parse_assignment(text: str) -> tuple[str, Any]:
    """`eps=1e-6` as a name and a number, truth value or word.

    Raises:
        BadInput: for text without a name and a value.
    """
    name, _, value = text.partition("=")
    expect(name and value and name not in MAKER, "--set", "NAME=VALUE with a field of the launch's key", repr(text))
    return name.replace("-", "_"), _parsed(value)


def _parsed(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value


def report_jobs(name: str, described: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """What `report NAME` writes: (folder, launch, the variant's key fields); for `all`, every launch and variant.

    A variant is left out where `described` gives a field that makes it one.

    Raises:
        BadInput: listing the launches when there is none of that name.
    """
    from k3lab.launches import LAUNCHES

    if name != "all" and name not in LAUNCHES:
        raise BadInput(f"launch: expected one of {', '.join(LAUNCHES)} or all, got {name!r}.")
    if name != "all":
        return [(name, name, {})]
    jobs: list[tuple[str, str, Mapping[str, Any]]] = []
    for launch in LAUNCHES.values():
        jobs.append((launch.name, launch.name, {}))
        free = {name: key for name, key in launch.variants.items() if all(described.get(part) is None for part in key)}
        jobs += [(f"{launch.name}-{variant}", launch.name, key) for variant, key in free.items()]
    return jobs
