"""Several writers at once, writers that are killed, and places that cannot be written: whole files or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3lab.analysis.make import make_report
from k3lab.cases import make_case
from k3lab.errors import BadInput
from k3lab.files import write_bytes, write_text, write_together
from tests.analysis.timeline.made import chain
from tests.hardening.processes import ROOT, files, started, wait_for
from tests.hardening.said import refused

NAMES = ("report.html", "report.json", "points.csv")
WRITERS = """
import sys
from pathlib import Path
from k3lab.files import write_together
me, folder, go = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
print("ready", flush=True)
while not go.exists():
    pass
for turn in range(150):
    write_together(folder, {name: f"{me} {turn} " * 20_000 for name in sys.argv[4:]})
"""
"""A process that writes a set of files over and over, each with its own name and the turn all through."""


def whole(text: str) -> str:
    """Who wrote a file, and in which turn: all of it says the same."""
    said = {" ".join(pair) for pair in zip(text.split()[::2], text.split()[1::2], strict=True)}
    (one,) = said
    return one


def test_two_writers_of_one_folder_leave_one_whole_set(tmp_path: Path):
    folder, go = tmp_path / "report", tmp_path / "go"
    writers = [started("-c", WRITERS, name, folder, go, *NAMES) for name in ("one", "two")]
    for writer in writers:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
    go.touch()
    seen = set()
    while any(writer.poll() is None for writer in writers):
        for name in NAMES:  # no reader ever sees half a file either
            if (folder / name).exists():
                seen.add(whole((folder / name).read_text()).split()[0])
    for writer in writers:
        assert writer.wait() == 0, writer.communicate()
        writer.communicate()
    assert files(folder) == sorted(NAMES)
    assert len({whole((folder / name).read_text()) for name in NAMES}) == 1 and seen == {"one", "two"}


def test_another_writer_waits_until_all_names_are_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the test above finds by chance, forced: the second writer comes between the first's two files."""
    between, done, replaced = threading.Event(), threading.Event(), Path.replace

    def slow(self: Path, target: Path) -> Path:
        made = replaced(self, target)
        if threading.current_thread() is first and not between.is_set():
            between.set()
            assert not done.wait(1.0)
        return made

    def write(who: str) -> None:
        write_together(tmp_path / "out", {"a": who, "b": who})
        if who == "second":
            done.set()

    first = threading.Thread(target=write, args=("first",))
    second = threading.Thread(target=write, args=("second",))
    monkeypatch.setattr(Path, "replace", slow)
    first.start()
    assert between.wait(10)
    second.start()
    first.join()
    second.join()
    assert [(tmp_path / "out" / name).read_text() for name in "ab"] == ["second"] * 2


def test_a_timeline_is_saved_as_one_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old, new = chain(), chain(slow=500)
    old.save(tmp_path)
    kept = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    assert len(kept) >= 7 and {"timeline.html", "timeline.json", "timeline.npz"} <= set(kept)
    fail_at("timeline.html", monkeypatch)
    with refused("timeline.html", "no space left on the disk"):
        new.save(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == kept


def test_a_report_is_saved_as_one_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    case = make_case("k1", geometry="mini", tokens=1, qlen=1, nblocks=0, values="constant")
    report = make_report("k1", case, budget=False, spread=False)
    monkeypatch.setattr("k3lab.analysis.html.render", lambda report, *more: report.created)
    report.save(tmp_path)
    kept = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    fail_at("report.html", monkeypatch)
    with refused("report.html"):
        replace(report, created="2001-01-01T00:00:00+00:00").save(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == kept


def fail_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full from the file `name` on."""
    for method in ("write_bytes", "write_text"):
        write = getattr(Path, method)

        def full(self: Path, data: Any, write: Any = write, **how: Any) -> int:
            if name in self.name:
                raise OSError(28, os.strerror(28))
            return int(write(self, data, **how))

        monkeypatch.setattr(Path, method, full)


@pytest.mark.parametrize("failing", range(3))
def test_a_set_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int):
    write_together(tmp_path, dict.fromkeys(NAMES, "old"))
    written, write = [], Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        written.append(self)
        if len(written) == failing + 1:
            write(self, data[:1])
            raise OSError(28, os.strerror(28))
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with refused(NAMES[failing], "no space left on the disk"):
        write_together(tmp_path, dict.fromkeys(NAMES, "new"))
    monkeypatch.undo()
    assert files(tmp_path) == sorted(NAMES) and {(tmp_path / name).read_text() for name in NAMES} == {"old"}


def test_any_exception_of_a_writer_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for error in (KeyboardInterrupt(), ZeroDivisionError(), MemoryError()):

        def fail(handle: int, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr("k3lab.files.os.fsync", fail)
        for write in (lambda: write_text(tmp_path / "a", "x"), lambda: write_together(tmp_path, {"a": "x", "b": b"y"})):
            with pytest.raises(type(error)):
                write()
        assert files(tmp_path) == []


KILLED = """
import os, sys, signal, time
from pathlib import Path
from k3lab import files
folder, moment = Path(sys.argv[1]), sys.argv[2]
replace = Path.replace
def stop(*_):
    (folder.parent / "now").touch()
    time.sleep(600)
def once(self, target):
    replace(self, target)
    stop()
if moment == "filling":
    os.fsync = stop
elif moment == "renaming":
    Path.replace = once
files.write_together(folder, {name: "new " * 1000 for name in sys.argv[3:]})
"""


@pytest.mark.parametrize("moment", ["filling", "renaming"])
def test_a_killed_writer_leaves_whole_files_and_no_lock(tmp_path: Path, moment: str):
    folder = tmp_path / "out"
    write_together(folder, dict.fromkeys(NAMES, "old " * 1000))
    process = started("-c", KILLED, folder, moment, *NAMES)
    wait_for((tmp_path / "now").exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = [(folder / name).read_text() for name in NAMES]
    assert {text.split()[0] for text in kept} <= {"old", "new"} and all(text == text[:4] * 1000 for text in kept)
    assert moment == "renaming" or {text.split()[0] for text in kept} == {"old"}
    rest = set(files(folder)) - set(NAMES)
    assert rest and all(name.startswith(".") and name.endswith(".tmp") for name in rest)  # harmless, and named so
    write_together(folder, dict.fromkeys(NAMES, "newer"))  # the lock went with its holder
    assert {(folder / name).read_text() for name in NAMES} == {"newer"}


# Places that cannot be written.


def test_every_kind_of_place_that_is_none(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/k3lab", f"{tmp_path}/nul\0"):
        with refused("expected a place to write to"):
            write_together(folder, {"report.json": "x"})
    (tmp_path / "dir" / "report.json").mkdir(parents=True)
    with refused("a folder of that name"):
        write_together(tmp_path / "dir", {"points.csv": "x", "report.json": "x"})
    assert files(tmp_path) == ["file"]


WITHOUT_PRIVILEGE = """
import ctypes, os, sys
if os.getuid() == 0:
    # Root may write anywhere by its capabilities, CAP_DAC_OVERRIDE (1) and CAP_DAC_READ_SEARCH (2): here it has none.
    libc = ctypes.CDLL(None, use_errno=True)
    for number in (1, 2):
        libc.prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP: nor may its children
    given = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    if libc.capset(given, (ctypes.c_uint32 * 6)()):
        sys.exit(77)
from k3lab.cli import cli
cli(sys.argv[1:], prog_name="k3lab")
"""
NOT_HERE = 77


def unprivileged(cwd: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of k3lab that may not write what its user may not write."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", WITHOUT_PRIVILEGE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=300, check=False)
    if done.returncode == NOT_HERE:
        pytest.skip("needs a system on which root can lay down its privileges")
    return done


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder that its owner may not write."""
    made = tmp_path / "closed"
    made.mkdir()
    made.chmod(0o555)
    return made


def test_a_closed_folder_is_refused_before_anything_is_computed(closed: Path):
    arguments = ("report", "k1", "--geometry", "mini")
    done = unprivileged(closed, *arguments, HOME=str(closed), K3LAB_CACHE=str(closed / "cache"))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.splitlines()[-1].startswith("k3lab: output 'reports': expected a place to write to")
    assert files(closed) == []


def test_a_closed_cache_and_home_are_done_without(closed: Path):
    arguments = ("run", "k1", "--geometry", "mini", "--backend", "twin")
    done = unprivileged(closed, *arguments, HOME=str(closed), K3LAB_CACHE=str(closed / "cache"))
    assert done.returncode == 0, done.stderr
    assert files(closed) == []


def test_a_file_in_place_of_the_cache_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from k3lab.lowering.store import cached

    monkeypatch.setenv("K3LAB_CACHE", str(write_bytes(tmp_path / "file", b"")))
    assert cached("kind", ["key"], lambda: b"made") == b"made"
    with pytest.raises(BadInput):
        write_text(tmp_path / "file" / "x", "y")
