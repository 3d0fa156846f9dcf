"""What every refusal looks like: one sentence of k3lab's own, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from k3lab.errors import BadInput

Value = TypeVar("Value")


def is_sentence(error: BadInput, *names: str) -> bool:
    """Whether an error is one line that ends in a full stop and says every one of `names`."""
    text = str(error)
    return "\n" not in text and text.endswith(".") and all(name in text for name in names)


@contextmanager
def refused(*names: str) -> Iterator[None]:
    """Within it something must be refused, in one sentence that says `names`."""
    with pytest.raises(BadInput) as caught:
        yield
    assert is_sentence(caught.value, *names), str(caught.value)


def taken(call: Callable[[], Value], *names: str) -> Value | None:
    """What `call` gives; None where it refuses, in a sentence. Any other exception is the caller's failure."""
    try:
        return call()
    except BadInput as error:
        assert is_sentence(error, *names), str(error)
        return None
