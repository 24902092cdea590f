"""One list of dependencies: pyproject.toml, constraints.txt, environment.yml, the Makefile and CI agree."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, PYTEST = SETTINGS["project"], SETTINGS["tool"]["pytest"]["ini_options"]
# Triton takes a gigabyte, and its version is PyTorch's to choose: who has a GPU has it, others ask for it.
EXTRAS = {name: extra for name, extra in PROJECT["optional-dependencies"].items() if name != "triton"}
TARGETS = {"help", "setup", "demo", "lab", "test", "check", "notebooks", "site", "slides", "record", "figures", "clean"}


def direct() -> list[Requirement]:
    groups = [PROJECT["dependencies"], *EXTRAS.values()]
    return [Requirement(text) for group in groups for text in group]


def pins() -> Iterator[Requirement]:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield Requirement(line)


def makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def makefile_extras() -> list[str]:
    (line,) = re.findall(r"^EXTRAS\s*:=\s*(\S+)$", makefile(), re.MULTILINE)
    return sorted(line.split(","))


def conda() -> list[str | dict[str, list[str]]]:
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]


def test_constraints_are_exact_and_named_once() -> None:
    for pin in pins():
        (specifier,) = pin.specifier
        assert specifier.operator == "==" and "*" not in specifier.version, str(pin)
        assert Version(specifier.version).local is None, f"{pin} fits one build only"
    names = [canonicalize_name(pin.name) for pin in pins()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("requirement", direct(), ids=str)
def test_direct_dependency_has_a_lower_bound_and_a_pin_within_it(requirement: Requirement) -> None:
    assert [specifier.operator for specifier in requirement.specifier] == [">="]
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins()}
    assert versions[canonicalize_name(requirement.name)] in requirement.specifier


def test_what_is_not_python_is_packaged_too() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    package = ROOT / "dominotree_lite"
    there = [path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert sorted(data["dominotree_lite"]) == sorted(str(path.relative_to(package)) for path in there)


def test_conda_brings_only_python_and_pip() -> None:
    *from_conda, from_pip = conda()
    assert [re.split(r"[=<>]", str(name))[0] for name in from_conda] == ["python", "pip"]
    assert isinstance(from_pip, dict) and list(from_pip) == ["pip"]


def test_conda_and_the_makefile_install_the_same() -> None:
    from_pip = conda()[-1]
    assert isinstance(from_pip, dict)
    constraints, package = from_pip["pip"]
    assert constraints == "-c constraints.txt"
    (extras,) = re.findall(r"^-e \.\[(\S+)\]$", package)
    assert sorted(extras.split(",")) == makefile_extras() == sorted(EXTRAS)


def test_conda_brings_a_python_that_the_package_takes() -> None:
    python = next(str(name) for name in conda() if str(name).startswith("python="))
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert Version(python.removeprefix("python=")) >= Version(lowest)


def test_every_pip_install_takes_the_constraints_and_the_users_arguments() -> None:
    installs = [line for line in makefile().splitlines() if "pip install" in line and line.startswith("\t")]
    assert installs
    for line in installs:
        assert "-c constraints.txt" in line and "$(PIP_ARGS)" in line


def test_makefile_targets_set_themselves_up() -> None:
    rules = dict(re.findall(r"^([a-z]+):([^=#\n]*)(?:##.*)?$", makefile(), re.MULTILINE))
    assert set(rules) == TARGETS

    def needs_setup(target: str) -> bool:
        before = rules[target].split()
        return "setup" in before or any(needs_setup(name) for name in before if name in rules)

    assert "$(INSTALLED)" in rules["setup"]
    assert all(needs_setup(target) for target in TARGETS - {"help", "setup", "clean"})
    for target in TARGETS:
        assert re.search(rf"^{target}:.*## \S", makefile(), re.MULTILINE), f"make help does not show {target}"


def test_notebooks_are_stripped_the_same_way_everywhere() -> None:
    (options,) = re.findall(r"^STRIP\s*:=\s*(.+)$", makefile(), re.MULTILINE)
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    entries = {hook["id"]: hook["entry"] for hook in repo["hooks"]}
    assert entries["nbstripout"] == f"nbstripout {options}"
    assert "--keep-output" in options and "metadata.widgets" in options


def test_version_is_the_same_in_the_citation_and_the_changelog() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_ci_runs_what_the_makefile_has() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    (targets,) = re.findall(r"^make (.+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert targets.split() == ["check", "test", "notebooks"]


def test_ci_executes_a_notebook_in_one_target_only() -> None:
    """What `make test` leaves out is what `make notebooks` runs."""
    chosen = re.findall(r"-m pytest(.*)$", makefile(), re.MULTILINE)
    assert sorted(chosen) == [' -m "not notebook"', " -m notebook tests/notebooks"]
    assert "notebook:" in "".join(PYTEST["markers"])
