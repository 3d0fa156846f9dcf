"""Takes the IR out of a FlyDSL launcher: traces it, runs every pass but the last, and runs nothing on a device."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from k3lab.errors import BackendUnavailable, BadInput, K3LabError
from k3lab.lowering.ir import Module
from k3lab.lowering.parse import parse

ARCH = "gfx950"
ENVIRONMENT = {"FLYDSL_GPU_ARCH": ARCH, "COMPILE_ONLY": "1", "FLYDSL_RUNTIME_ENABLE_CACHE": "0"}
"""What FlyDSL reads while a launcher is lowered: the target, no device, no cache."""
MISSING = "flydsl is not installed here; install it on Linux x86-64 with: pip install 'flydsl>=0.5.0,<0.6'."

_lock = threading.RLock()


def lower(launcher: Any, *args: Any) -> Module:
    """Lower what `launcher` (a `@flyc.jit` function) launches; `args` are placeholders, e.g. 0 for an address.

    FlyDSL's state and the environment are as before afterwards. One thread lowers at a time; FlyDSL calls of other
    threads go their own way, but read the same environment meanwhile.

    Raises:
        BackendUnavailable: when flydsl is not installed.
        BadInput: when FlyDSL cannot compile the launcher, it launches nothing, or a trace is going on already.
    """
    return parse(lower_text(launcher, *args))


def lower_text(launcher: Any, *args: Any) -> str:
    """The text of what `lower` returns, unparsed.

    Raises:
        BackendUnavailable: when flydsl is not installed.
        BadInput: when FlyDSL cannot compile the launcher, it launches nothing, or a trace is going on already.
    """
    with _lock, _environment(ENVIRONMENT):
        _check_flydsl(_name(launcher))
        with _intercepted():
            try:
                launcher(*args)
            except _Captured as captured:
                return captured.text
            except K3LabError:
                raise
            except Exception as error:
                raise BadInput(_explained(_name(launcher), error)) from error
    raise BadInput(f"launcher {_name(launcher)!r}: expected a @flyc.jit function, got one that compiles nothing.")


def lower_named(target: str, args: Sequence[Any] = (), *, in_subprocess: bool = True) -> Module:
    """Lower the launcher that `target` names, as `package.module:launcher`.

    Args:
        in_subprocess: so that a FlyDSL that aborts leaves this process alive; costs its import, some 3 s.

    Raises:
        BackendUnavailable: when flydsl is not installed.
        BadInput: when there is no such launcher, or FlyDSL cannot compile it.
        InternalFault: when FlyDSL's process ends without a result.
    """
    if not in_subprocess:
        return lower(find_launcher(target), *args)
    from k3lab.lowering.child import call

    text, _ = call("lower", {"target": target, "args": list(args)})
    return parse(text.decode())


def find_launcher(target: str) -> Any:
    """The object that `package.module:name` names; modules in the current folder count.

    Raises:
        BackendUnavailable: when the module needs flydsl and that is not installed.
        BadInput: when there is no such module or name, or importing it fails.
    """
    name, colon, path = target.partition(":")
    if not (colon and name and path):
        raise BadInput(f"launcher: expected package.module:launcher, got {target!r}.")
    with _lock, _environment(ENVIRONMENT), _current_folder():
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name == "flydsl":
                raise BackendUnavailable(MISSING) from None
            raise BadInput(f"launcher {target!r}: expected a module that imports, got {error}.") from error
        except Exception as error:
            raise BadInput(_explained(target, error)) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise BadInput(f"launcher {target!r}: expected a name of module {name!r}, got {part!r}, which it lacks.")
        found = getattr(found, part)
    return found


class _Captured(BaseException):
    """Ends a launcher's call once its IR is there; no Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, text: str) -> None:
        super().__init__("captured")
        self.text = text


@contextmanager
def _intercepted() -> Iterator[None]:
    """Stop this thread's FlyDSL compilations after tracing, before any cache is asked, and lower what was traced."""
    from flydsl.compiler import jit_function

    compiler = jit_function.MlirCompiler
    before = vars(compiler)["prepare"]
    owner = threading.get_ident()

    def prepare(cls: Any, module: Any, **options: Any) -> Any:
        prepared = before.__func__(cls, module, **options)
        if threading.get_ident() != owner:
            return prepared
        raise _Captured(_lowered(module, prepared[1].fragments[:-1], jit_function))

    compiler.prepare = classmethod(prepare)
    try:
        yield
    finally:
        compiler.prepare = before


def _lowered(module: Any, passes: Sequence[str], jit_function: Any) -> str:
    """Run `passes` on a copy of a traced module that has its source locations, and print it."""
    from flydsl._mlir import ir

    copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True, assume_verified=True))
    jit_function._run_pipeline(copy, list(passes), verifier=True, print_after_all=False)
    return copy.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _current_folder() -> Iterator[None]:
    """Let modules of the current folder be imported, as `python -m` does."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _check_flydsl(name: str) -> None:
    try:
        importlib.import_module("flydsl.compiler")
    except ImportError as error:
        raise BackendUnavailable(explained_import(error)) from None
    from flydsl._mlir import ir

    if ir.Context.current is not None:
        raise BadInput(f"launcher {name!r}: expected a call outside any FlyDSL trace, got one inside.")


def explained_import(error: ImportError) -> str:
    """Why flydsl cannot be used here, and what to do."""
    if (error.name or "").split(".")[0] == "flydsl":
        return MISSING
    return f"flydsl does not import here: {error}."


def _name(launcher: Any) -> str:
    named = getattr(launcher, "func", launcher)
    return getattr(named, "__name__", None) or type(launcher).__name__


def _explained(name: str, error: Exception) -> str:
    """FlyDSL's message, and the line of the caller's source it came up in."""
    message = f"{type(error).__name__}: {str(error).strip()}".rstrip(".:")
    return f"launcher {name!r}: FlyDSL does not compile it{_place(error)}: {message}."


def _place(error: Exception) -> str:
    """The innermost line of the traceback that is neither FlyDSL's nor k3lab's nor Python's own."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f" at {error.filename}:{error.lineno}"
    own = (*_folders(), "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _folders() -> list[str]:
    """Where FlyDSL, this package and Python's library lie."""
    compiler = getattr(sys.modules.get("flydsl"), "__path__", [])
    return [*compiler, str(Path(__file__).parent), str(Path(os.__file__).parent)]
