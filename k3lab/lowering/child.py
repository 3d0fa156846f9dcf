"""A process of its own for FlyDSL's compiler, which may abort: `python -m k3lab.lowering.child JOB INPUT OUTPUT`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from k3lab.errors import BackendUnavailable, BadInput, InternalFault, K3LabError

KNOWN = {kind.__name__: kind for kind in (BackendUnavailable, BadInput, InternalFault)}
TOLD = 400
"""Characters of the compiler's own words that an error repeats."""


def call(job: str, request: dict[str, Any]) -> tuple[bytes, str]:
    """Run a job in another process; its result, and what it wrote to stderr. Its errors are raised here.

    Raises:
        K3LabError: what the job raised.
        BadInput: when the compiler aborted on this input.
        InternalFault: when the process was killed or ended without a result.
    """
    with tempfile.TemporaryDirectory(prefix="k3lab-") as folder:
        source, result = Path(folder, "request.json"), Path(folder, "result")
        source.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", "k3lab.lowering.child", job, str(source), str(result)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=_environment()
        )
        failed = result.with_suffix(".json")
        if failed.exists():
            error = json.loads(failed.read_text(encoding="utf-8"))
            raise KNOWN.get(error["kind"], InternalFault)(error["text"])
        if done.returncode or not result.exists():
            raise ended(done.returncode, done.stderr)
        return result.read_bytes(), done.stderr


def ended(code: int, words: str) -> K3LabError:
    """What it means that the compiler's process ended with `code` and no result."""
    told = _last_words(words)
    if code >= 0:
        return InternalFault(f"FlyDSL's compiler ended with exit code {code} and no result{told}.")
    name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
    if -code in (signal.SIGABRT, signal.SIGSEGV, signal.SIGILL, signal.SIGTRAP, signal.SIGFPE, signal.SIGBUS):
        return BadInput(f"FlyDSL's compiler aborted on this kernel ({name}){told}.")
    return InternalFault(f"FlyDSL's compiler was killed ({name}){told}.")


def _last_words(words: str) -> str:
    """The compiler's fatal line if there is one, else its last."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    fatal = [line for line in lines if "LLVM ERROR" in line or line.startswith("error:")]
    chosen = (fatal or lines[-1:] or [""])[0]
    return f": {chosen[:TOLD].rstrip('.!')}" if chosen else ""


def _environment() -> dict[str, str]:
    """This process's environment, with the folders it imports from, so that both see the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def main(job: str, source: str, result: str) -> None:
    """Do a job; leave its result, or its error beside it."""
    from k3lab.lowering import capture, codegen

    request = json.loads(Path(source).read_text(encoding="utf-8"))
    try:
        match job:
            case "lower":
                launcher = capture.find_launcher(request["target"])
                made = capture.lower_text(launcher, *request["args"]).encode()
            case "codegen":
                codegen.bare_bindings()
                made = codegen.generate(**request)
            case _:
                raise InternalFault(f"compiler process: expected lower or codegen, got {job!r}.")
    except K3LabError as error:
        failed = {"kind": type(error).__name__, "text": str(error)}
        Path(result).with_suffix(".json").write_text(json.dumps(failed), encoding="utf-8")
    else:
        Path(result).write_bytes(made)


if __name__ == "__main__":
    main(*sys.argv[1:])
