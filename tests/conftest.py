"""Options, skips and limits that every test shares."""

from __future__ import annotations

import os
import sys
from functools import cache

import pytest

SLOW_REASON = "slow: runs in make full (or with --slow)"
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def share_cores() -> None:
    """Give each xdist worker its share of the cores, unless the caller has set OMP_NUM_THREADS."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1 or "OMP_NUM_THREADS" in os.environ:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores // workers)
    for name in THREAD_LIMITS:
        os.environ.setdefault(name, str(threads))
    if "torch" in sys.modules:  # it read the environment when it was imported
        sys.modules["torch"].set_num_threads(threads)


share_cores()


@cache
def gpu_missing() -> str:
    """Why no GPU can be used here; empty where one can."""
    import torch

    if torch.cuda.is_available():  # true for ROCm builds too
        return ""
    build = torch.version.cuda or torch.version.hip
    why = f"built for {build}, but it finds no device" if build else "built for the CPU only"
    return f"needs a GPU: torch {torch.__version__} is {why}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too, as 'make full' does")


def pytest_configure(config: pytest.Config) -> None:
    try:
        from hypothesis import settings
    except ImportError:
        return
    # The same examples on every run, as many as a quick run affords; --slow looks for new ones.
    settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True)
    settings.register_profile("slow", max_examples=1000, deadline=None)
    settings.load_profile("slow" if config.getoption("--slow") else "quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason=SLOW_REASON))
        if item.get_closest_marker("gpu") and gpu_missing():
            item.add_marker(pytest.mark.skip(reason=gpu_missing()))
