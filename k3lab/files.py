"""Reading JSON documents, and writing files whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from k3lab.errors import BadInput, expect


def read_text(path: str | Path, what: str) -> tuple[str, str]:
    """The text of a JSON file, and what errors call it: `report 'old.json'`.

    Raises:
        BadInput: when there is no such file, or it cannot be read.
    """
    where = f"{what} {str(path)!r}"
    try:
        expect(Path(path).is_file(), where, "a readable JSON file", "none of that name")
        return Path(path).read_text(encoding="utf-8"), where
    except (OSError, ValueError) as error:
        raise BadInput(f"{where}: expected a readable JSON file, got {error}.") from None


def parse_document(text: str, schema: dict[str, Any], what: str, version: int, where: str) -> Any:
    """A JSON document that fits its schema.

    Args:
        what: the kind of document (`report`); `where` is what errors call this one.

    Raises:
        BadInput: when the text is no JSON, of another version, or not what the schema asks for.
    """
    import jsonschema

    try:
        data = json.loads(text)
        jsonschema.validate(data, schema)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{where}: expected a {what} in JSON, got text that is none ({error}).") from None
    except jsonschema.ValidationError as error:
        at = "/".join(str(part) for part in error.absolute_path) or "the top"
        found = f"a misfit at {at}: {error.message[:200]}"
        raise BadInput(f"{where}: expected a version {version} {what}, got {found}.") from None
    return data


def write_text(path: str | Path, text: str) -> Path:
    """Write `text` to `path`, whole or not at all; missing folders are made.

    Raises:
        BadInput: when the path cannot be written.
    """
    return write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write `data` to `path`, whole or not at all; missing folders are made.

    Raises:
        BadInput: when the path cannot be written.
    """
    return write_whole(path, lambda temporary: temporary.write_bytes(data))


def write_whole(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, then rename it into place; on any failure nothing is left.

    Raises:
        BadInput: when the folder cannot be made or the file cannot be written (no room, no permission, a folder there).
    """
    path = Path(path)
    temporary = None
    try:
        path = path.resolve() if path.is_symlink() else path  # a link stays a link to the new content
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(path)
        temporary = path.with_name(f".{path.name[:100]}.{uuid4().hex[:8]}.tmp")
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, ValueError) as error:
        raise BadInput(_unwritable(path, error)) from None
    finally:
        _discard(temporary)
    return path


def check_writable(folder: str | Path) -> None:
    """Make sure that files can be written to `folder`, which may not exist yet; leaves nothing behind.

    Raises:
        BadInput: when it, or the nearest folder above it that exists, cannot be written.
    """
    folder = Path(folder)
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except (OSError, ValueError) as error:
        raise BadInput(_unwritable(folder, error)) from None


def reason(error: Exception) -> str:
    """Why a file operation failed, in the system's words or plainer ones."""
    match getattr(error, "errno", None):
        case errno.ENOSPC | errno.EDQUOT:
            return "no space left on the disk"
        case errno.EISDIR:
            return "a folder of that name"
    return str(getattr(error, "strerror", None) or error)


def _unwritable(path: Path, error: Exception) -> str:
    return f"output {str(path)!r}: expected a place to write to, got {reason(error)}; name another path."


def _check_replaceable(path: Path) -> None:
    """Only a regular file may be replaced: renaming over a device or a pipe would destroy it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "something that is no regular file")


def _discard(temporary: Path | None) -> None:
    # An unusable path cannot be unlinked either; the error about it is on its way.
    with contextlib.suppress(OSError, ValueError):
        if temporary is not None and temporary.is_file():
            temporary.unlink()
