"""K1 with one CTA that sleeps before its slice: a planted slow producer."""

from typing import Any

from flydsl.expr import range_constexpr, rocdl

from k3lab.device.dsl import traced
from k3lab.stages.attnres.slice import kernel

SLOW = 5
NAPS, UNITS = 8, 127
"""s_sleep's units are 64 cycles."""

as_it_was = kernel.run


@traced
def run(c: Any, lds: Any, issued: Any) -> None:
    """`slice` as it is; on CTA SLOW after a sleep."""
    if c.cta == SLOW:
        for _ in range_constexpr(NAPS):
            rocdl.s_sleep(UNITS)
    as_it_was(c, lds, issued)
