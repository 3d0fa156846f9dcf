"""Reading JSON documents, and writing files whole or not at all, one or several together."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from k3lab.errors import BadInput, expect

try:
    import fcntl
except ImportError:  # Windows, which has no such lock
    fcntl = None  # type: ignore[assignment]

LARGEST = 1 << 28
"""Bytes of a text file that is read: 256 MiB, some ten times the largest that k3lab writes."""
TOLD = 200
"""Characters of a file's own words that an error repeats."""


def read_text(path: str | Path, what: str) -> tuple[str, str]:
    """The text of a JSON file, and what errors call it: `report 'old.json'`.

    Raises:
        BadInput: when there is no such file, or it cannot be read.
    """
    where = f"{what} {str(path)!r}"
    try:
        expect(Path(path).is_file(), where, "a readable JSON file", "none of that name")
        check_size(path, where)
        return Path(path).read_text(encoding="utf-8"), where
    except (OSError, ValueError) as error:
        raise BadInput(f"{where}: expected a readable JSON file, got {reason(error)}.") from None


def check_size(path: str | Path, where: str) -> None:
    """Refuse a text file too large to be one of k3lab's, before any of it is read.

    Raises:
        BadInput: when it has more than `LARGEST` bytes.
        OSError: when there is none.
    """
    size = Path(path).stat().st_size
    expect(size <= LARGEST, where, f"a file of at most {LARGEST >> 20} MiB", f"{size >> 20} MiB")


def parse_document(text: str, schema: dict[str, Any], what: str, version: int, where: str) -> Any:
    """A JSON document that fits its schema.

    Args:
        what: the kind of document (`report`); `where` is what errors call this one.

    Raises:
        BadInput: when the text is no JSON, of another version, or not what the schema asks for.
    """
    import jsonschema

    try:
        data = json.loads(text, parse_float=_finite, parse_constant=_finite)
        # Of the package's own schemas, which a test holds to be valid: checking one takes longer than using it.
        misfit = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(data))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: expected a {what} in JSON, got text that is none ({_line(str(error))}).") from None
    if misfit is not None:
        at = "/".join(str(part) for part in misfit.absolute_path) or "the top"
        found = f"a misfit at {_line(at)}: {_line(misfit.message)}"
        raise BadInput(f"{where}: expected a version {version} {what}, got {found}.")
    return data


def _finite(text: str) -> float:
    """A number of a JSON text, which knows no infinity and no NaN, though Python's reader does.

    Raises:
        ValueError: for those, and for what no double holds.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a number that is not finite: {text[:40]}")
    return value


def _line(text: str) -> str:
    """Words of a file in one short line."""
    return " ".join(text[:TOLD].split())


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
    with contextlib.ExitStack() as left:
        try:
            target, temporary = _filled(path, write, left)
            temporary.replace(target)
        except (OSError, ValueError) as error:
            raise BadInput(_unwritable(path, error)) from None
    return target


def write_together(folder: str | Path, contents: Mapping[str, str | bytes]) -> Path:
    """Write `contents`, by file name, into `folder`: all of them or none, and never beside another writer's.

    All are written to temporary files first, which are then renamed in a row, the mapping's order, while this process
    alone may do so in this folder. A process killed in that row, some microseconds, leaves whole files, old and new.

    Raises:
        BadInput: when the folder cannot be made or a file cannot be written; the files there are then as they were.
    """
    folder, path = Path(folder), Path(folder)
    with contextlib.ExitStack() as left:
        try:
            made = []
            for name, content in contents.items():
                path = folder / name
                data = content.encode() if isinstance(content, str) else content
                made.append(_filled(path, lambda temporary, data=data: temporary.write_bytes(data), left))  # type: ignore[misc]
            path = folder
            folder.mkdir(parents=True, exist_ok=True)
            with _sole_writer(folder):
                for target, temporary in made:
                    temporary.replace(target)
        except (OSError, ValueError) as error:
            raise BadInput(_unwritable(path, error)) from None
    return folder


def _filled(path: Path, write: Callable[[Path], object], left: contextlib.ExitStack) -> tuple[Path, Path]:
    """What `path` names, and a temporary file beside it that `write` has filled; `left` discards that at its end."""
    target = path.resolve() if path.is_symlink() else path  # a link stays a link to the new content
    target.parent.mkdir(parents=True, exist_ok=True)
    _check_replaceable(target)
    temporary = target.with_name(f".{target.name[:100]}.{uuid4().hex[:8]}.tmp")
    left.callback(_discard, temporary)
    write(temporary)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    return target, temporary


@contextlib.contextmanager
def _sole_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread is in here for the same folder; a killed one has left.

    Where the system or the file system knows no locks, nothing is waited for.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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


def _discard(temporary: Path) -> None:
    # An unusable path cannot be unlinked either; the error about it is on its way.
    with contextlib.suppress(OSError, ValueError):
        temporary.unlink(missing_ok=True)
