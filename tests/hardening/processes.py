"""k3lab in a process of its own, and what a process leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds to wait for what takes a few on a quiet machine."""


def started(*words: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """`python WORDS...`, leader of a session of its own as a command in a terminal is of its process group.

    It minds Ctrl-C, which a shell makes what it starts in the background ignore.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=env,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(happens: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait until `happens` is true; the process must not end before."""
    limit = time.monotonic() + PATIENCE
    while not happens():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def members(session: int) -> dict[int, str]:
    """Processes of a session that live, by id with their command lines."""
    found = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            facts = (place / "stat").read_text().rpartition(")")[2].split()
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if int(facts[3]) == session and facts[0] != "Z":
            found[int(place.name)] = command
    return found


def files(folder: Path) -> list[str]:
    """Names of the files under `folder`, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
