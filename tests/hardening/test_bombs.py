"""Small files that ask for much: refused in a sentence, quickly, and without the memory they ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

KERNEL = (Path(__file__).parent / "kernel.mlir").read_text(encoding="utf-8")
ROOM = 1 << 30
"""Bytes a process may take beyond what it has once k3lab is imported. The bombs below ask for 4 GiB to 1 TiB."""
SECONDS = 120.0
"""For all of them together, which takes a few seconds on a quiet machine; the endless ones would take hours."""

READ = """
import resource, sys
from pathlib import Path
from k3lab.cases import load as case
from k3lab.analysis.report import Report
from k3lab.analysis.timeline import load as timeline
from k3lab.lowering.store import load as kernel
from k3lab.errors import BadInput
import jsonschema, safetensors.torch
import json
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + int(sys.argv[1]),) * 2)
for line in sys.stdin:
    kind, path = json.loads(line)
    reader = {"case": case, "report": Report.load, "timeline": timeline, "kernel": kernel}[kind]
    try:
        reader(path)
        said = "nothing"
    except BadInput as error:
        said = str(error)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([path, said]), flush=True)
"""


def sparse(path: Path, start: bytes, size: int = 1 << 40) -> None:
    """A file that claims `size` bytes and holds a few."""
    path.write_bytes(start)
    os.truncate(path, size)


def header(text: bytes, length: int | None = None) -> bytes:
    """The start of a safetensors file."""
    return (len(text) if length is None else length).to_bytes(8, "little") + text


def text_of(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text, encoding="utf-8") and None


def without(old: str, new: str) -> Callable[[Path], None]:
    assert old in KERNEL
    return text_of(KERNEL.replace(old, new))


TENSOR = {"x": {"dtype": "F32", "shape": [1 << 37], "data_offsets": [0, 1 << 39]}}
DEEP = 200_000
BOMBS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a header of 2^60 bytes": ("case", lambda path: path.write_bytes(header(b"{}", 1 << 60))),
    "a case of a tebibyte": ("case", lambda path: sparse(path, header(b'{"__metadata__":{"k3lab_case":"1"}}'))),
    "a tensor of half a tebibyte": ("case", lambda path: path.write_bytes(header(json.dumps(TENSOR).encode()))),
    "a report of a tebibyte": ("report", lambda path: sparse(path, b'{"version": 1,')),
    "a report nested deeply": ("report", text_of("[" * DEEP)),
    "a report nested deeply, whole": ("report", text_of("[" * DEEP + "]" * DEEP)),
    "a timeline nested deeply": ("timeline", text_of('{"a":' * DEEP + "0" + "}" * DEEP)),
    "a timeline of a tebibyte": ("timeline", lambda path: sparse(path, b"")),
    "a kernel of a tebibyte": ("kernel", lambda path: sparse(path, b"// k3lab-ir 1 ")),
    "a heading nested deeply": ("kernel", text_of("// k3lab-ir 1 " + "[" * DEEP + "\n" + KERNEL)),
    "a constant of 2^40 elements": ("kernel", without("vector<8xbf16>}", f"vector<{1 << 40}xbf16>}}")),
    "an operation of 10^12 results": ("kernel", without("%10 =", f"%10:{10**12} =")),
    "attributes nested deeply": ("kernel", without("value = 8 : i32", "value = " + "[" * DEEP + "]" * DEEP)),
    "types nested deeply": ("kernel", without("() -> i32 loc(#loc2)", f"() -> {'vector<1x' * DEEP}i32{'>' * DEEP}")),
    "a location that is its own": ("kernel", without("#loc5 = loc(", "#loc5 = loc(#loc5)\n#loc99 = loc(")),
}


def inserted_into_itself(path: Path) -> None:
    """Its host function takes a launch's size out of a struct that holds itself: no launch that can be followed."""
    extract = '    %77 = "llvm.extractvalue"(%78) <{position = array<i64: 0>}> : (!llvm.struct<(i64)>) -> i64\n'
    insert = (
        '    %78 = "llvm.insertvalue"(%78, %77) <{position = array<i64: 1>}> : (!llvm.struct<(i64)>, i64)'
        " -> !llvm.struct<(i64)>\n"
    )
    before, launch, after = KERNEL.partition('    "gpu.launch_func"(')
    first, comma, rest = after.partition(",")
    assert first.startswith("%") and comma
    path.write_text(before + insert + extract + launch + "%77" + comma + rest, encoding="utf-8")


BOMBS["a struct that holds itself"] = "kernel", inserted_into_itself


def read(requests: str, room: int = ROOM) -> str:
    """What a process with so much room prints, a line for each file it reads."""
    command = [sys.executable, "-c", READ, str(room)]
    done = subprocess.run(command, input=requests, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By bomb, what one process that reads them all says to it."""
    folder = tmp_path_factory.mktemp("bombs")
    paths = {what: folder / f"bomb-{number}" for number, what in enumerate(BOMBS)}
    for what, path in paths.items():
        BOMBS[what][1](path)
    requests = "\n".join(json.dumps([BOMBS[what][0], str(path)]) for what, path in paths.items())
    said = dict(json.loads(line) for line in read(requests).splitlines())
    return {what: said[str(path)] for what, path in paths.items()}


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_is_refused(answers: dict[str, str], what: str):
    sentence = answers[what]
    assert f"bomb-{list(BOMBS).index(what)}'" in sentence and sentence.endswith(".") and len(sentence) < 2000
    assert sentence.startswith(("case file '", "report '", "timeline '", "IR file '"))


def test_the_process_that_reads_has_no_more_room(tmp_path: Path):
    big = tmp_path / "big.mlir"
    big.write_text(KERNEL + "\n" + "// " + "x" * (1 << 20))
    assert json.loads(read(json.dumps(["kernel", str(big)])))[1] == "nothing"
    (said,) = read(json.dumps(["kernel", str(big)]), room=1 << 16).splitlines()
    assert "MemoryError" in said
