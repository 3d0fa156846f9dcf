"""A checkpoint's index, spoilt: refused in a sentence that names the folder, or read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3lab.cases.checkpoint import Checkpoint
from k3lab.cases.checkpoint.layer import PREFIX, TELLS
from k3lab.cases.checkpoint.reader import INDEX
from tests.hardening.damage import damaged, spoilt
from tests.hardening.said import taken

SHARD = "model-00001-of-00001.safetensors"
WHOLE = {
    "metadata": {"total_size": 100},
    "weight_map": {f"{PREFIX}{layer}.{tell}": SHARD for layer, tell in enumerate(TELLS.values())},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint-here")


def read(folder: Path, text: str | bytes) -> None:
    (folder / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    held = taken(lambda: Checkpoint(folder), "checkpoint-here")
    if held is not None:
        assert set(held.layers.values()) <= set(TELLS)
        for layer in (0, 1, 7):
            taken(lambda layer=layer: held.check_layer(layer, ("KDA",), "k1"), "checkpoint-here")  # type: ignore[misc]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_index_is_refused_or_read(folder: Path, data: st.DataObject):
    read(folder, data.draw(st.one_of(spoilt(WHOLE), damaged(json.dumps(WHOLE).encode()))))


@pytest.mark.parametrize(
    "name",
    [f"{PREFIX}{'9' * 5000}.{next(iter(TELLS.values()))}", f"{PREFIX}\u0661.x", f"{PREFIX}-1.x", "", "\n", "a\nb"],
    ids=range(6),
)
@pytest.mark.parametrize("file", [SHARD, "../up", "/etc/hostname", "a\0b", "..", "", "\n", "a" * 300])
def test_names_of_any_kind_are_refused_or_read(folder: Path, name: str, file: str):
    read(folder, json.dumps({"weight_map": {**WHOLE["weight_map"], name: file}}))


def test_an_index_nested_deeply_is_refused(folder: Path):
    read(folder, "[" * 200_000)
