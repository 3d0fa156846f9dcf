"""The text of a stage's functions, as notebooks show it."""

from __future__ import annotations

import pytest

from k3lab.analysis.sources import function_text
from k3lab.errors import BadInput
from k3lab.launches import K1


def test_a_function_comes_with_its_decorators_and_nothing_else():
    text = function_text(K1, "recur", "run")
    assert text.startswith("@traced\ndef run(") and "\ndef " not in text.removeprefix("@traced\ndef run(")


def test_another_file_of_the_folder_is_named_before_a_colon():
    assert function_text(K1, "recur", "twin:kda_recur").startswith("def kda_recur(")


@pytest.mark.parametrize(
    ("place", "message"),
    [("no_such", "expected one of .*'run'.* in kernel.py, got 'no_such'"), ("nowhere:run", "got 'nowhere.py'")],
)
def test_what_is_not_there_is_named(place, message):
    with pytest.raises(BadInput, match=message):
        function_text(K1, "recur", place)


def test_a_function_elsewhere_is_named_by_its_module():
    text = function_text(K1, "recur", "k3lab.device.mailbox:poll")
    assert "def poll(" in text and text.startswith("@")
    with pytest.raises(BadInput, match=r"expected a file of k3lab, got 'nowhere.py'"):
        function_text(K1, "recur", "k3lab.device.nowhere:poll")
