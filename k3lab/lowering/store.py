"""A lowered module in one file, and a cache of what is made from one.

The file is the module's text under one comment line of JSON: MLIR's own tools read it as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from k3lab.errors import BadInput
from k3lab.files import check_size, reason, write_bytes, write_text
from k3lab.lowering.ir import Module
from k3lab.lowering.parse import parse

HEADING = "// k3lab-ir 1 "
CACHE = "K3LAB_CACHE"
"""The environment variable that names another cache folder."""


@dataclass(frozen=True)
class Artefact:
    """A lowered module and what its maker said about it, e.g. the build key; JSON values only."""

    module: Module
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The hash of the module's text: equal for equal code from the same source lines."""
        return digest(self.module.text)


def digest(*parts: str) -> str:
    """SHA-256 over `parts`, told apart."""
    made = hashlib.sha256()
    for part in parts:
        data = part.encode()
        made.update(f"{len(data)}:".encode() + data)
    return made.hexdigest()


def save(artefact: Artefact, path: str | Path) -> Path:
    """Write an artefact, whole or not at all.

    Raises:
        BadInput: when the path cannot be written.
    """
    module = artefact.module
    heading = {
        "sha256": artefact.digest,
        "about": dict(artefact.about),
        "launches": [asdict(launch) for launch in module.launches],
        "host_args": [kind.name for kind in module.host_args],
    }
    return write_text(path, f"{HEADING}{json.dumps(heading)}\n{module.text}")


def load(path: str | Path) -> Artefact:
    """Read an artefact; a plain module's text will do too.

    Raises:
        BadInput: when the file cannot be read, was changed, or holds no module.
    """
    try:
        check_size(path, f"IR file {str(path)!r}")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"IR file {str(path)!r}: expected a readable text file, got {reason(error)}.") from None
    about: dict[str, Any] = {}
    if text.startswith(HEADING):
        first, _, text = text.partition("\n")
        about = _about(first, text, path)
    try:
        return Artefact(parse(text), about)
    except BadInput as error:
        raise BadInput(f"IR file {str(path)!r}: {error}") from None


def cache_dir() -> Path:
    """`$K3LAB_CACHE`, else `k3lab` in the user's cache folder by the XDG rules."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "k3lab"


def cached(kind: str, parts: Iterable[str], make: Callable[[], bytes]) -> bytes:
    """What `make` returns, kept under the hash of `parts`, which must say all that it depends on.

    A cache that cannot be read or written is done without, and what was changed in it is made again.
    """
    name = digest(*parts)
    try:
        path = cache_dir() / kind / name[:2] / name
    except RuntimeError:  # a user without a home
        return make()
    with suppress(OSError):
        seal, kept = path.read_bytes().partition(b"\n")[::2]
        if seal == _seal(kept):
            return kept
    made = make()
    with suppress(BadInput):
        write_bytes(path, _seal(made) + b"\n" + made)
    return made


def _seal(data: bytes) -> bytes:
    """The line that stands before what is cached: it finds damage, not malice."""
    return f"k3lab-cache 1 {hashlib.sha256(data).hexdigest()}".encode()


def _about(first: str, text: str, path: str | Path) -> dict[str, Any]:
    try:
        heading = json.loads(first.removeprefix(HEADING))
        expected, about = heading["sha256"], heading["about"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"IR file {str(path)!r}: expected a heading that k3lab wrote, got {first[:80]!r}.") from None
    if digest(text) != expected:
        raise BadInput(f"IR file {str(path)!r}: expected the text its checksum is of, got another; it was changed.")
    return about
