"""The test kernels, and their lowered modules, made once."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from k3lab.lowering.ir import Module


class Lowered:
    """The modules of the test kernels by name, lowered at first use."""

    def __init__(self, kernels: ModuleType) -> None:
        self._kernels = kernels
        self._args = {
            "block_sum": (0, 0, 1000),
            "constants": (kernels.Args(0, 0, 5, 1.0), 3),
            "wait_well": (0, 0, 1),
            "wait_badly": (0, 0, 1),
            "publish_drained": (0, 0, 0, 1),
            "publish_undrained": (0, 0, 0, 1),
        }
        self._made: dict[str, Module] = {}

    def __getitem__(self, name: str) -> Module:
        from k3lab.lowering.capture import lower

        if name not in self._made:
            self._made[name] = lower(getattr(self._kernels, name), *self._args.get(name, (0, 0)))
        return self._made[name]


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    """tests/lowering/kernels.py, imported under a name of its own."""
    pytest.importorskip("flydsl", reason="flydsl lowers the kernels, and is not installed here")
    spec = spec_from_file_location("lowering_kernels", Path(__file__).with_name("kernels.py"))
    assert spec and spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def lowered(kernels: ModuleType) -> Lowered:
    return Lowered(kernels)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that only this test sees."""
    monkeypatch.setenv("K3LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
