"""A team of processes, one a GPU: started, asked, watched and ended by their owner, with none left behind."""

from __future__ import annotations

import shutil
import signal
import time
from multiprocessing import connection, get_context
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any

from k3lab.backends.cuda.ranks.board import PATIENCE, Board
from k3lab.backends.cuda.ranks.worker import Setup, Task, main
from k3lab.errors import BackendUnavailable, BadInput, InternalFault, K3LabError

IN_MEMORY = Path("/dev/shm")
LIMIT = 600.0
"""Seconds that a task may take."""
GRACE = 15.0
RAISED: dict[str, type[K3LabError]] = {"BadInput": BadInput, "BackendUnavailable": BackendUnavailable}


class Team:
    """Processes that hold the ranks of a launch, one for each of the first GPUs.

        with Team(2) as team:
            team.ask(Worker.load, path_of_first, path_of_second, each=True)
            team.ask(Worker.step)

    Attributes:
        folder: for files that the processes share; gone with the team.
        grace: seconds that the others get to say what they miss, once one has failed.
    """

    def __init__(self, count: int, engine: str = "gpu", patience: float = PATIENCE) -> None:
        """Start the processes.

        Args:
            engine: `gpu`, or `host`: this machine's processor, for tests.
            patience: seconds that a fence waits.
        """
        place = str(IN_MEMORY) if engine == "host" and IN_MEMORY.is_dir() else None
        self.grace = GRACE
        self.folder = Path(mkdtemp(prefix="k3lab-team-", dir=place))
        self.board = Board(self.folder / "board", [(gpu,) for gpu in range(count)])
        context = get_context("spawn")
        self.processes, self.wires = [], []
        for me in range(count):
            mine, theirs = context.Pipe()
            setup = Setup(me, count, engine, str(self.folder), patience)
            process = context.Process(target=main, args=(setup, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.wires.append(mine)

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def ask(self, task: Task, *args: Any, each: bool = False, limit: float = LIMIT) -> list[Any]:
        """Let every process do a task at the same time; returns what each gives.

        Args:
            task: a function of a module, which takes the worker first.
            args: its others; with `each`, one for each process.
            limit: seconds after which the team is ended.

        Raises:
            BadInput, BackendUnavailable: when every process that failed raised that.
            InternalFault: when one failed, ended, or took too long; the team has ended then.
        """
        self.begin(task, *args, each=each)
        return self.wait(limit)

    def begin(self, task: Task, *args: Any, each: bool = False) -> None:
        """Let every process start a task; `wait` has to follow."""
        for me, wire in enumerate(self.wires):
            wire.send((task, (args[me],) if each else args))

    def wait(self, limit: float = LIMIT) -> list[Any]:
        """Wait for the task that was begun; returns and raises as `ask`."""
        replies: dict[int, tuple[str, Any]] = {}
        until, failed = time.monotonic() + limit, False
        while len(replies) < len(self.wires) and time.monotonic() < until:
            for me in self._heard(replies, min(1.0, max(until - time.monotonic(), 0.0))):
                replies[me] = self._reply(me)
                if replies[me][0] != "done" and not failed:
                    failed, until = True, min(until, time.monotonic() + self.grace)
        for me in range(len(self.wires)):
            replies.setdefault(
                me, ("late", f"did not answer within {self.grace if failed else limit:.0f} s and was ended")
            )
        if any(how != "done" for how, _ in replies.values()):
            self.end()
            raise self._error(replies)
        return [replies[me][1] for me in range(len(self.wires))]

    def _heard(self, replies: dict[int, tuple[str, Any]], seconds: float) -> list[int]:
        """Processes that have replied or ended."""
        waiting = [me for me in range(len(self.wires)) if me not in replies]
        sources: dict[Any, int] = {self.wires[me]: me for me in waiting}
        sources |= {self.processes[me].sentinel: me for me in waiting}
        return sorted({sources[source] for source in connection.wait(list(sources), seconds)})

    def _reply(self, me: int) -> tuple[str, Any]:
        try:
            if self.wires[me].poll():
                how, what = self.wires[me].recv()
                return how, what
        except (EOFError, OSError):
            pass
        self.processes[me].join(5)
        self.board.say("gone", 1, me)
        return "ended", f"ended {_exit(self.processes[me].exitcode)}"

    def _error(self, replies: dict[int, tuple[str, Any]]) -> K3LabError:
        bad = {me: (how, str(what)) for me, (how, what) in sorted(replies.items()) if how != "done"}
        kinds = {how for how, _ in bad.values()}
        if len(kinds) == 1 and (raised := RAISED.get(next(iter(kinds)))):
            return raised(next(iter(bad.values()))[1])
        sentences = [f"GPU {me}: {said.rstrip('.')}." for me, (_, said) in bad.items()]
        return InternalFault(f"team of {len(self.wires)} processes: {' '.join(sentences)}")

    def kill(self, me: int) -> None:
        """End a process at once, as a crash would."""
        self.processes[me].kill()

    def end(self) -> None:
        """End every process and remove the team's files; to be called again does nothing."""
        for wire in self.wires:
            wire.close()
        for process in self.processes:  # whoever waits for a task ends by itself
            process.join(5 if process.is_alive() and not self._broken() else 0.1)
            if process.is_alive():
                process.kill()
                process.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _broken(self) -> bool:
        """Whether some process has failed already, so that others may wait for it for ever."""
        return any(process.exitcode not in (None, 0) for process in self.processes)

    @property
    def alive(self) -> list[int]:
        """Numbers of the processes that run."""
        return [int(process.pid or 0) for process in self.processes if process.is_alive()]


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code}"
