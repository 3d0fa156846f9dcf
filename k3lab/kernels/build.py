"""Builds a launch's FlyDSL launcher for a key, whole or for some of its stages."""

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr.typing import Int32, Int64

from k3lab.device.context import Context
from k3lab.device.stamps import start_stamps, write_stamps
from k3lab.geometry import THREADS
from k3lab.kernels.abi import arguments
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey
from k3lab.layout import place_locals

KINDS = {"int32": Int32, "int64": Int64}


def build(launch: Launch, key: LaunchKey, stages: frozenset[str], body: Any, lds_bytes: int) -> tuple[Any, Any]:
    """The `@flyc.jit` launcher, and the placeholder arguments it is lowered with.

    Args:
        body: traced function of the context: the roles.
        lds_bytes: LDS of its most demanding role.
    """
    table = arguments(launch, key, stages)
    named = {argument.name: KINDS[argument.kind] for argument in table}
    args_type = fx.struct(type("Args", (), {"__annotations__": named}))
    places = {placed.name: placed for placed in (*launch.scratch(key), *launch.peers(key))}
    locals_ = {placed.name: placed for placed in place_locals(launch.locals_for(key), key.sizes)}
    blocks = key.geometry.blocks

    @flyc.kernel(name=launch.published, known_block_size=[THREADS, 1, 1])
    def kernel(args: args_type):
        c = Context(key, args, places, locals_, launch.stamps, stages, lds_bytes)
        start_stamps(c)
        body(c)
        write_stamps(c)

    @flyc.jit
    def launcher(args: args_type):
        kernel(args).launch(grid=(blocks,), block=(THREADS,))

    return launcher, args_type(**dict.fromkeys(named, 0))
