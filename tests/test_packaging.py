"""pyproject.toml, constraints.txt and environment.yml agree; importing k3lab stays light; no file names a machine."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import k3lab

ROOT = Path(__file__).parents[1]
NEVER_PINNED = {"cuda", "aiter"}  # extras that need a GPU's own stack: no tested set pins them
IN_ENVIRONMENT = ("base", "notebooks", "test")
NAMED = {"jupyterlab", "torch", "flydsl", "numpy", "matplotlib", "ipywidgets"}


def read_pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def declared() -> dict[str, dict[str, Requirement]]:
    """Requirements of pyproject.toml by extra (`base`: none) and name."""
    project = read_pyproject()["project"]
    groups = {"base": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {canonicalize_name(req.name): req for req in map(Requirement, lines)} for extra, lines in groups.items()
    }


def read_pins(text: str) -> dict[str, Version]:
    """Pins of a constraints file; anything that is not one exact pin is an error."""
    pins: dict[str, Version] = {}
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        requirement = Requirement(line)
        (spec,) = requirement.specifier
        name = canonicalize_name(requirement.name)
        assert spec.operator == "==" and "*" not in spec.version, f"not an exact pin: {line}"
        assert not requirement.extras and not requirement.marker, f"not a plain pin: {line}"
        assert name not in pins, f"pinned twice: {name}"
        pins[name] = Version(spec.version)
    return pins


def pins() -> dict[str, Version]:
    return read_pins((ROOT / "constraints.txt").read_text())


def read_environment() -> tuple[dict[str, str], dict[str, Requirement], list[str]]:
    """environment.yml as conda entries (name -> version prefix), pip requirements by name, and pip's options."""
    conda: dict[str, str] = {}
    pip: dict[str, Requirement] = {}
    options: list[str] = []
    for entry in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]:
        if isinstance(entry, dict):
            for line in entry["pip"]:
                if line.startswith("-"):
                    options.append(line)
                else:
                    requirement = Requirement(line)
                    pip[canonicalize_name(requirement.name)] = requirement
        else:
            name, _, version = entry.partition("=")
            conda[canonicalize_name(name)] = version
    return conda, pip, options


def is_prefix(short: str, full: Version) -> bool:
    """Whether conda's `=short` admits `full`: the same leading numbers."""
    numbers = tuple(int(part) for part in short.split("."))
    return full.release[: len(numbers)] == numbers


class TestConstraints:
    def test_pin_every_dependency_within_its_bounds(self) -> None:
        pinned = pins()
        for extra, requirements in declared().items():
            if extra in NEVER_PINNED:
                continue
            for name, requirement in requirements.items():
                assert name in pinned, f"{name} ({extra}) is not in constraints.txt"
                assert pinned[name] in requirement.specifier, f"{requirement} ({extra}) excludes the pin {pinned[name]}"

    def test_every_dependency_has_a_lower_bound(self) -> None:
        for requirements in declared().values():
            for requirement in requirements.values():
                assert any(spec.operator == ">=" for spec in requirement.specifier), f"{requirement}: no lower bound"

    def test_pin_what_the_dependencies_need(self) -> None:
        """Walks the installed packages, so it says something only where the tested set is installed."""
        if sys.platform != "linux" or sys.version_info[:2] != (3, 11):
            pytest.skip("constraints.txt pins the packages of Linux, Python 3.11")
        pinned = pins()
        queue = [req for extra, reqs in declared().items() if extra not in NEVER_PINNED for req in reqs.values()]
        seen: set[str] = set()
        unpinned: set[str] = set()
        while queue:
            requirement = queue.pop()
            name = canonicalize_name(requirement.name)
            if str(requirement) in seen or re.match(r"(nvidia|cuda|triton|pytorch-triton)\b", name):
                continue  # what torch's GPU builds bring is pinned by torch itself
            seen.add(str(requirement))
            if name not in pinned:
                unpinned.add(name)
            try:
                needs = metadata.requires(name) or []
            except metadata.PackageNotFoundError:
                continue
            extras = requirement.extras or {""}
            for need in map(Requirement, needs):
                if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
                    queue.append(need)
        assert not unpinned, f"not in constraints.txt: {sorted(unpinned)}"

    @pytest.mark.parametrize("line", ["numpy>=2", "numpy==2.*", "numpy", "numpy==1\nNumPy==2", "numpy[x]==2"])
    def test_anything_but_one_exact_pin_is_refused(self, line: str) -> None:
        with pytest.raises((AssertionError, ValueError)):
            read_pins(line)


class TestEnvironment:
    def test_holds_every_dependency(self) -> None:
        conda, pip, _ = read_environment()
        wanted = {name for extra in IN_ENVIRONMENT for name in declared()[extra]}
        present = set(conda) | set(pip)
        assert not wanted - present, f"not in environment.yml: {sorted(wanted - present)}"
        assert not present - wanted - {"python", "pip"}, "in environment.yml, but not in pyproject.toml"
        assert not set(conda) & set(pip), "taken from conda and from pip"

    def test_names_the_packages_the_lab_is_built_on(self) -> None:
        conda, pip, _ = read_environment()
        assert set(conda) | set(pip) >= NAMED
        notes = [line for line in (ROOT / "environment.yml").read_text().splitlines() if line.startswith("#")]
        assert any('".[aiter]"' in line and "pip install" in line for line in notes), "AITER's optional step is missing"
        assert "amd-aiter" in declared()["aiter"]

    def test_versions_are_the_pinned_ones(self) -> None:
        conda, pip, _ = read_environment()
        pinned = pins()
        for name, version in conda.items():
            if name not in ("python", "pip"):
                assert is_prefix(version, pinned[name]), f"conda {name}={version}, but the pin is {pinned[name]}"
        for name, requirement in pip.items():
            assert str(requirement.specifier) == f"=={pinned[name]}", (
                f"pip {requirement}, but the pin is {pinned[name]}"
            )

    def test_markers_are_those_of_pyproject(self) -> None:
        _, pip, _ = read_environment()
        for extra in IN_ENVIRONMENT:
            for name, requirement in declared()[extra].items():
                marker = pip[name].marker if name in pip else None
                assert marker == requirement.marker, f"{name}: marker {marker}, in pyproject.toml {requirement.marker}"

    def test_pip_is_constrained_and_installs_k3lab(self) -> None:
        assert {"-c constraints.txt", "-e ."} <= set(read_environment()[2])

    def test_one_python_everywhere(self) -> None:
        project = read_pyproject()
        python = read_environment()[0]["python"]
        assert Version(python) in SpecifierSet(project["project"]["requires-python"])
        assert project["project"]["requires-python"] == f">={python}"
        assert project["tool"]["mypy"]["python_version"] == python
        assert project["tool"]["ruff"]["target-version"] == f"py{python.replace('.', '')}"

    def test_prefix_compares_numbers_not_letters(self) -> None:
        assert is_prefix("2.4", Version("2.4.6")) and is_prefix("2.4.6", Version("2.4.6"))
        assert not is_prefix("2.4", Version("2.40.1")) and not is_prefix("2.4.6.1", Version("2.4.6"))


class TestPackage:
    def test_flydsl_is_asked_for_only_where_it_exists(self) -> None:
        marker = declared()["base"]["flydsl"].marker
        assert marker is not None
        assert marker.evaluate({"sys_platform": "linux", "platform_machine": "x86_64"})
        assert not marker.evaluate({"sys_platform": "linux", "platform_machine": "aarch64"})
        assert not marker.evaluate({"sys_platform": "darwin", "platform_machine": "x86_64"})

    def test_console_script_exists(self) -> None:
        module, _, function = read_pyproject()["project"]["scripts"]["k3lab"].partition(":")
        assert callable(getattr(importlib.import_module(module), function))

    def test_every_data_file_is_packaged(self) -> None:
        kept = {
            PurePosixPath(pattern).suffix for pattern in read_pyproject()["tool"]["setuptools"]["package-data"]["k3lab"]
        }
        left_out = [
            name for name in tracked() if name.startswith("k3lab/") and PurePosixPath(name).suffix not in kept | {".py"}
        ]
        assert not left_out, f"not in package-data: {left_out}"

    def test_installed_version_is_that_of_the_source(self) -> None:
        """Fails after a version bump until the package is installed anew, as every make target does."""
        assert metadata.version("k3lab") == k3lab.__version__


GPU_PACKAGES = ("flydsl", "aiter", "cuda", "cupy", "pynvml", "triton", "hip")
PROBE = """
import sys
import torch  # what torch brings by itself is not ours
before = set(sys.modules)
for module in sys.argv[1].split(","):
    __import__(module)
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(roots & set(sys.argv[2:])), "torch.cuda" if torch.cuda.is_initialized() else "")
"""


def gpu_packages_imported_by(*modules: str, watched: tuple[str, ...] = GPU_PACKAGES) -> list[str]:
    command = [sys.executable, "-c", PROBE, ",".join(modules), *watched]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


class TestImport:
    def test_brings_no_gpu_package(self) -> None:
        assert gpu_packages_imported_by("k3lab", "k3lab.launches", "k3lab.cli") == []

    def test_probe_sees_a_package(self) -> None:
        assert gpu_packages_imported_by("yaml", watched=("yaml", "flydsl")) == ["yaml"]


MACHINE_PATH = re.compile(r"(?<![\w.~$}/:-])/(?:home|Users|root|work|mnt|private)/[\w.-]+|\b[A-Z]:\\Users\\")


def tracked() -> list[str]:
    """Files in git, or about to be: names from the repository's root."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        [git, "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def machine_paths(text: str) -> list[str]:
    found = MACHINE_PATH.findall(text)
    return [*found, str(ROOT)] if len(ROOT.parts) > 2 and f"{ROOT}/" in text else found


class TestPaths:
    def test_no_file_names_a_path_of_a_machine(self) -> None:
        names = tracked()
        assert "pyproject.toml" in names
        found = {name: paths for name in names if (paths := machine_paths((ROOT / name).read_text(errors="replace")))}
        assert not found

    @pytest.mark.parametrize("parts", [("home", "ann", "k3"), ("root", ".cache"), ("work", "x"), ("Users", "ann")])
    def test_machine_paths_are_seen(self, parts: tuple[str, ...]) -> None:
        path = "/" + "/".join(parts)
        assert machine_paths(f"see {path}") and machine_paths(f'"{path}"')

    def test_other_paths_are_left_alone(self) -> None:
        assert not machine_paths("data/home/x ./home/x ~/home/x $HOME/home/x https://example.org/home/x /usr/bin/env")

    def test_this_checkout_is_seen(self) -> None:
        assert machine_paths(f"see {ROOT}/k3lab/cli.py")


MARKED = """
import pytest

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.gpu
def test_gpu(): pass

def test_plain(): pass
"""


def run_marked(folder: Path, *args: str) -> str:
    """Output of pytest on MARKED under this project's conftest.py and pyproject.toml."""
    for name in ("tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "test_marked.py").write_text(MARKED)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_skips_say_why(tmp_path: Path) -> None:
    import torch

    gpu = torch.cuda.is_available()
    output = run_marked(tmp_path, "test_marked.py")
    assert "runs in make full" in output
    assert ("needs a GPU: torch" in output) is not gpu
    assert f"{1 + gpu} passed, {2 - gpu} skipped" in output


def test_slow_tests_run_when_asked_for(tmp_path: Path) -> None:
    assert "1 passed in" in run_marked(tmp_path, "--slow", "test_marked.py::test_slow")
