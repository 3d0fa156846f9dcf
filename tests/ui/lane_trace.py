"""A trace by hand, without FlyDSL: half of a wave's lanes double their number and store it."""

from __future__ import annotations

import numpy as np

from k3lab.sim.record.trace import Trace
from tests.sim.test_micro_kit import GLOBAL, I32, Build, run


def half_wave() -> Trace:
    build = Build(GLOBAL)
    thread = build.thread()
    build.cond(build.icmp("slt", thread, build.constant(I32, 32)), ("half", ()), ("out", ()))
    build.at("half")
    build.store(build.add(thread, thread), build.params[0], thread)
    build.br("out")
    build.at("out")
    build.ret()
    trace = Trace()
    run(build.module(groups=1), np.zeros(64, np.int32), trace=trace)
    return trace
