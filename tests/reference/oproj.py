"""K2a: o_proj, the all-reduce, the MLP's seam."""

from __future__ import annotations

import numpy as np

from k3lab import Case
from tests.reference.products import gemv
from tests.reference.seam import seam
from tests.reference.sums import from_first
from tests.reference.values import Trace, stored


def k2a(case: Case, model: str = "fused") -> list[Trace]:
    """Every rank's trace. The ranks' bf16 partials are summed in rank order from rank 0's value and rounded once;
    whoever sums them, every rank has the same delta, and the seam after it is replicated."""
    shared, traces = Trace(), []
    for rank in case.ranks:
        trace = Trace()
        product = gemv(stored(rank["core"]), stored(rank["w_o"]), model)
        trace.exposed["partial"] = trace.bf16("o.partial", product)
        traces.append(trace)
    partials = np.stack([trace.exposed["partial"] for trace in traces])
    delta = shared.bf16("reduce.delta", from_first(list(partials)))
    seam(case.key, case.ranks[0], delta, shared, name="x_out")
    for trace in traces:
        trace.exposed |= {**shared.exposed, "delta": delta, "AR": partials}
        trace.points |= shared.points
    return traces
