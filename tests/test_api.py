"""The names `import k3lab` promises."""

from __future__ import annotations

import pytest

import k3lab


@pytest.mark.parametrize("name", k3lab.__all__)
def test_every_promised_name_is_there(name):
    assert getattr(k3lab, name) is not None
    assert name in dir(k3lab)


def test_cases_are_saved_and_loaded(tmp_path):
    case = k3lab.make_case("k1", geometry="mini")
    assert k3lab.load_case(k3lab.save_case(case, tmp_path / "case.safetensors")).hash == case.hash


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nosuch"):
        _ = k3lab.nosuch
