"""A kernel's arguments, read off the launch's declaration: one table for the kernel, the host and the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from k3lab.launches.declaration import Launch, TensorDecl
from k3lab.launches.key import LaunchKey

Kind = Literal["int32", "int64"]


@dataclass(frozen=True)
class Argument:
    """One argument of the launcher.

    Attributes:
        tensor: whose address, or element stride or `size` along `axis`, it is; empty for a number the caller gives.
    """

    name: str
    kind: Kind
    tensor: str = ""
    axis: int = -1
    size: bool = False


STEP = (
    Argument("scratch", "int64", "scratch"),
    Argument("epoch", "int64", "epoch"),
    Argument("slot", "int32"),
)
PEERS = (
    Argument("peers", "int64", "peers"),
    Argument("rank", "int32"),
    Argument("half_bytes", "int32"),
    Argument("uses", "int32"),
    Argument("use", "int32"),
)
"""The ranks' peer buffers: their addresses, this rank, bytes of a half, and which use of a step's uses this one is."""
LOCALS = Argument("locals", "int64", "locals")
TIMELINE = Argument("tl", "int64", "tl")
BOUNDED = (
    Argument("health", "int64", "health"),
    Argument("alarm", "int64", "alarm"),
    Argument("wait_ticks", "int32"),
)


def arguments(launch: Launch, key: LaunchKey, stages: frozenset[str]) -> tuple[Argument, ...]:
    """The launcher's arguments in order, for a build of `stages` (all: `stage_names`).

    Optional inputs are for other readers than a kernel.
    """
    found: list[Argument] = []
    for decl in (decl for decl in launch.inputs_for(key) if not decl.optional):
        found.append(Argument(decl.name, "int64", decl.name))
        found += [Argument(f"{decl.name}_{axis}", "int64", decl.name, axis) for axis in free_axes(decl)]
        found += [Argument(size, "int32", decl.name, axis, size=True) for axis, size in slot_sizes(decl)]
    found += [Argument(made.name, "int64", made.name) for made in launch.made]
    found += STEP
    if launch.peers(key):
        found += PEERS
    if key.dumps or stages != stage_names(launch):
        found.append(LOCALS)
    if key.timeline:
        found.append(TIMELINE)
    return (*found, *BOUNDED) if key.bounded else tuple(found)


def slot_sizes(decl: TensorDecl) -> list[tuple[int, str]]:
    """Axes by which a slot's number divides into indices, and the names of their sizes."""
    dims = decl.dims.split()
    return [(axis, dims[axis].removeprefix("*")) for axis in range(1, decl.slot_dims)]


def stage_names(launch: Launch) -> frozenset[str]:
    """Every stage of the launch."""
    return frozenset(stage.name for stage in launch.stages)


def free_axes(decl: TensorDecl) -> tuple[int, ...]:
    """Axes whose element strides a build cannot know."""
    dims = decl.dims.split()
    match decl.strides:
        case "free":
            return tuple(range(len(dims)))
        case "rows":
            return tuple(range(len(dims) - 1))
        case "slots":
            return (0,)
    # A contiguous tensor's stride is free where a size inside it is.
    return tuple(axis for axis in range(len(dims)) if any(dim[0] in "*>" for dim in dims[axis + 1 :]))
