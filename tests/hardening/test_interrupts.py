"""Ctrl-C in the middle of long work: one line, exit code 130, no file half-written, no process left."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.hardening.processes import PATIENCE, files, members, started

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
needs_flydsl = pytest.mark.skipif(find_spec("flydsl") is None, reason="needs flydsl to lower a kernel")

BEGUN = """
import os, signal, sys, threading, time
from pathlib import Path

name, everyone, mark = sys.argv[1], sys.argv[2] == "True", Path(sys.argv[3])

def runs():
    # The main thread's stack tells whether the named function does.
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None and frame.f_code.co_qualname != name:
        frame = frame.f_back
    return frame is not None

def watch():
    while True:
        if runs():
            time.sleep(0.03)  # what it starts gets going
            if runs():
                mark.touch()
                return os.killpg(0, signal.SIGINT) if everyone else os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.002)

threading.Thread(target=watch, daemon=True).start()
from k3lab.cli import cli
cli(sys.argv[4:], prog_name="k3lab")
"""
"""Runs a command that interrupts itself while a function of it is on the stack, and touches a file before."""


def interrupted(tmp_path: Path, function: str, *arguments: str, everyone: bool) -> tuple[int, str]:
    """Exit code and stderr of a command that gets SIGINT while `function` runs; nothing of it may be left.

    Args:
        everyone: the signal goes to all its processes, as a terminal sends it; else to k3lab's own alone.
    """
    mark, out, temporary = tmp_path / "begun", tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    environment = {"K3LAB_CACHE": str(tmp_path / "cache"), "TMPDIR": str(temporary)}
    process = started("-c", BEGUN, function, str(everyone), mark, *arguments, cwd=tmp_path, **environment)
    _, words = process.communicate(timeout=PATIENCE)
    assert mark.exists(), words
    limit = time.monotonic() + 10
    while members(process.pid) and time.monotonic() < limit:  # those that were killed take a moment to end
        time.sleep(0.05)
    assert members(process.pid) == {}
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")] and files(temporary) == []
    assert not out.exists() or files(out) == []
    return process.returncode, words


REPORT = ("report", "k1", "--geometry", "mini", "--out", "out")
RUN = ("run", "k1", "--backend", "sim", "--geometry", "mini", "--out", "out/run")
SELFTEST = ("selftest", "k1", "--out", "out")
COMPILE = ("compile", "k1", "--geometry", "mini", "--emit", "isa", "-o", "out/isa")
MOMENTS = {
    "a report that computes": ("make_report", REPORT),
    "a report that draws": ("png", (*REPORT, "--no-budget", "--no-spread")),
    "a kernel that is lowered": ("lower_text", RUN),
    "a kernel that is simulated": ("Engine.run", RUN),
    "a self-test": ("self_test", SELFTEST),
    "a compilation": ("call", COMPILE),
}


ALONE, TERMINAL = "k3lab alone", "from a terminal"
CHOSEN = {("a report that draws", ALONE), ("a compilation", TERMINAL)}
"""Those that a quick run has time for."""


def cases() -> list[object]:
    pairs = [(moment, who) for moment in MOMENTS for who in (ALONE, TERMINAL)]
    marks = {pair: () if pair in CHOSEN else (pytest.mark.slow,) for pair in pairs}
    return [pytest.param(*pair, marks=marks[pair], id=", ".join(pair)) for pair in pairs]


@needs_flydsl
@pytest.mark.parametrize(("moment", "who"), cases())
def test_an_interrupt_leaves_nothing(tmp_path: Path, moment: str, who: str):
    function, arguments = MOMENTS[moment]
    code, words = interrupted(tmp_path, function, *arguments, everyone=who == TERMINAL)
    assert code == 130, words
    # Off a terminal, progress is a line for the first step.
    assert [line for line in words.splitlines() if "(1 of " not in line] == ["k3lab: interrupted."]


def test_who_runs_several_kernels_stops_at_an_interrupt():
    """The simulator says where it stood, as a fault; one that a self-test or a bisection takes for a finding."""
    from k3lab.backends.sim import timed
    from k3lab.sim.faults import Finding, SimFault, Where

    def simulate(kind: str) -> Any:
        raise SimFault(Finding(kind, "after 4 blocks", Where(None)))

    with pytest.raises(KeyboardInterrupt, match="after 4 blocks") as caught:
        timed(lambda: simulate("interrupted"))
    assert isinstance(caught.value.__cause__, SimFault)
    with pytest.raises(SimFault):
        timed(lambda: simulate("deadlock"))
