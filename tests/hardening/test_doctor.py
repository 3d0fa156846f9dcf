"""`k3lab doctor --json`: complete, of its schema, and without a word about who ran it."""

from __future__ import annotations

import getpass
import json
import os
import platform
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from k3lab.cli import cli
from k3lab.cli.doctor import HIDDEN, examine, hidden, schema


def told(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["doctor", "--json", *options])
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(facts, schema())
    return facts


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders under a home whose name must not be told."""
    home = tmp_path / "home" / "jane.doe"
    for name, folder in (("K3LAB_CACHE", "cache"), ("K3LAB_ARTEFACTS", "kernels"), ("ROCM_PATH", "my rocm/of secrets")):
        (home / folder).mkdir(parents=True)
        monkeypatch.setenv(name, str(home / folder))
    (home / "cache" / "kept").write_bytes(b"12345")
    monkeypatch.setenv("HOME", str(home))
    return home


def test_schemas_of_the_package_are_schemas():
    found = [path for path in resources.files("k3lab").rglob("*.schema.json")]  # type: ignore[attr-defined]
    assert len(found) >= 3
    for path in found:
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_what_a_bug_report_needs_is_there(private: Path):
    facts = told()
    assert facts["python"] == platform.python_version() and facts["cores"] == os.cpu_count()
    assert {"torch", "numpy", "flydsl", "safetensors", "jsonschema", "jinja2"} <= set(facts["packages"])
    cache, kernels = facts["caches"]
    assert (cache["files"], cache["bytes"], cache["writable"], cache["named_by"]) == (1, 5, True, "K3LAB_CACHE")
    assert kernels["files"] == 0 and kernels["named_by"] == "K3LAB_ARTEFACTS"
    assert {"K3LAB_CACHE", "K3LAB_ARTEFACTS", "ROCM_PATH"} <= set(facts["settings"])


def test_it_does_not_say_who_ran_it(private: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "node", lambda: "janes-laptop")
    text = json.dumps(told())
    secret = ["jane.doe", "janes-laptop", str(private), "secrets", os.fspath(Path(__file__).parents[2])]
    assert not [word for word in secret if word in text]
    assert f"/{getpass.getuser()}" not in text


def test_it_says_so_when_asked(private: Path):
    facts = told("--paths")
    assert facts["caches"][0]["folder"] == str(private / "cache")
    assert facts["settings"]["ROCM_PATH"] == str(private / "my rocm" / "of secrets")
    result = CliRunner().invoke(cli, ["doctor", "--paths"])
    assert result.exit_code == 2 and "--json beside it" in result.stderr


def test_a_cache_that_cannot_be_used_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("K3LAB_CACHE", str(tmp_path / "file" / "cache"))
    assert not told()["caches"][0]["writable"]


def test_no_home_leaves_out_the_cache(monkeypatch: pytest.MonkeyPatch):
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("K3LAB_CACHE", "XDG_CACHE_HOME", "K3LAB_ARTEFACTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert told()["caches"] == []


PARTS = st.text(st.characters(whitelist_categories=("L", "N")), min_size=1, max_size=9)


@given(
    st.lists(PARTS, min_size=2, max_size=5), st.sampled_from(("it lies at {}, as said", "{}", "'{}': none.", "({})"))
)
def test_an_absolute_path_is_hidden_wherever_it_stands(parts: list[str], sentence: str):
    for path in ("/" + "/".join(parts), "~/" + "/".join(parts), "C:\\" + "\\".join(parts)):
        assert hidden({"a": [sentence.format(path)]}) == {"a": [sentence.format(HIDDEN)]}


@pytest.mark.parametrize("text", ["llvm/bin/ld.lld", "IR/ISA", "ready, 3 / 4", "pip install 'k3lab[cuda]'", "sm_90"])
def test_what_is_no_path_stays(text: str):
    assert hidden(text) == text


def test_the_facts_themselves_fit_the_schema():
    for paths in (True, False):
        jsonschema.validate(examine(paths=paths), schema())
