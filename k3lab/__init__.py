"""k3lab: see what a fused decode kernel does to every bit that passes through it.

    import k3lab
    case = k3lab.make_case("k1", tokens=4, qlen=4, nblocks=4, values="outliers", seed=0)
    twin = k3lab.run("k1", case)
    oracle = k3lab.run("k1", case, backend="oracle")
    kernel = k3lab.run("k1", case, backend="sim")
    k3lab.compare(kernel, twin, oracle).save("reports/mine")

Names are loaded on first use, so that the NumPy-only parts can be imported without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Case": "k3lab.cases",
    "make_case": "k3lab.cases",
    "save_case": "k3lab.cases:save",
    "load_case": "k3lab.cases:load",
    "case_from_checkpoint": "k3lab.cases.checkpoint",
    "record": "k3lab.cases.recording",
    "replay": "k3lab.analysis.replay",
    "ChainCase": "k3lab.cases.chain",
    "make_chain": "k3lab.cases.chain",
    "ChainRun": "k3lab.analysis.chain_run",
    "ChainSession": "k3lab.analysis.chain",
    "run_chain": "k3lab.analysis.chain",
    "Geometry": "k3lab.geometry",
    "Run": "k3lab.backends",
    "Session": "k3lab.backends",
    "run": "k3lab.backends",
    "run_stage": "k3lab.backends",
    "bisect": "k3lab.analysis.bisect",
    "compare": "k3lab.analysis.compare",
    "error_budget": "k3lab.analysis.budget",
    "order_probe": "k3lab.analysis.orders",
    "make_report": "k3lab.analysis.make",
    "Report": "k3lab.analysis.report",
    "probe": "k3lab.probes",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, known_as = _HOMES[name].partition(":")
        return getattr(import_module(module), known_as or name)
    raise AttributeError(f"module 'k3lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
