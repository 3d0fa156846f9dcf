"""Nothing that k3lab reads is executed or unpickled: held over the source itself, but for what is argued here."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import k3lab
from k3lab.analysis.timeline import exports
from tests.analysis.timeline.made import chain

PACKAGE = Path(k3lab.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "runpy", "code"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "execfile", "torch.load", "torch.save", "os.system", "os.popen"}
ARGUED = {
    # Source text made of value numbers and fixed words alone; what a file says (names, labels, attributes) reaches it
    # as objects in the namespace, or as the file name of the code. The test below holds that.
    ("sim/decode/program.py", "exec"),
}


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def forbidden(module: str) -> bool:
    return module.split(".")[0] in FORBIDDEN_MODULES


def offences(path: Path) -> Iterator[tuple[str, str]]:
    name = path.relative_to(PACKAGE).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((name, alias.name) for alias in node.names if forbidden(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and forbidden(node.module):
            yield name, node.module
        elif isinstance(node, ast.Call):
            words = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called(node) in FORBIDDEN_CALLS:
                yield name, called(node)
            if called(node) in ("np.load", "numpy.load") and words.get("allow_pickle") != "False":
                yield name, "np.load without allow_pickle=False"
            if words.get("shell", "False") != "False":
                yield name, f"{called(node)} in a shell"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nothing_is_unpickled_or_executed(path: Path):
    assert set(offences(path)) <= ARGUED


def test_the_search_finds_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.hardening.test_sources.PACKAGE", tmp_path)
    lines = (
        "import pickle",
        "from marshal import loads",
        "import yaml.constructor",
        "eval('1')",
        "torch.load('x')",
        "np.load('x')",
        "np.load('x', allow_pickle=True)",
        "subprocess.run('x', shell=True)",
        "__import__('os')",
    )
    for number, line in enumerate(lines):
        path = tmp_path / f"m{number}.py"
        path.write_text(line)
        assert list(offences(path)), line
    (tmp_path / "fine.py").write_text("np.load('x', allow_pickle=False)\nmodel.eval()\nsubprocess.run(['x'])\n")
    assert not list(offences(tmp_path / "fine.py"))


def test_what_is_argued_is_still_there():
    found = {offence for path in SOURCES for offence in offences(path)}
    assert found == ARGUED


def test_words_of_a_kernel_file_do_not_become_python():
    """A kernel with every name, label and attribute spelled like code: none of it is in what is compiled."""
    from k3lab.lowering.parse import parse
    from k3lab.sim.decode import program

    text = (Path(__file__).parent / "kernel.mlir").read_text(encoding="utf-8")
    evil = "__import__('os').abort()"
    for old, new in (('"constants"', f'"{evil}"'), ("%19", "%evil"), ("^bb1", "^evil_label")):
        assert old in text
        text = text.replace(old, new)
    text = text.replace("alignment = 4", f'note = "{evil}", alignment = 4')
    module = parse(text)
    (kernel,) = module.kernels.values()
    assert kernel.name == evil
    compiled: list[str] = []
    real = compile

    def noted(source: str, *rest: str) -> object:
        compiled.append(source)
        return real(source, *rest)

    program.__dict__["compile"] = noted
    try:
        program.decode(module, kernel.name)
    finally:
        del program.__dict__["compile"]
    assert compiled and not [source for source in compiled if "import" in source or "evil" in source]


@pytest.mark.parametrize("data", [exports.npz(chain())], ids=["timeline.npz"])
def test_arrays_are_written_without_objects(data: bytes):
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        assert {name: arrays[name].dtype.hasobject for name in arrays.files} == dict.fromkeys(arrays.files, False)
