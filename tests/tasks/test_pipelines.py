"""Every file that ships and is parsed by somebody: it must parse, and agree with the others."""

import configparser
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import grimp
import pytest
from jinja2 import Environment
from jinja2.meta import find_referenced_templates

from envs.errors import ConfigError
from envs.registry import get_env
from flows.lineage.stages import declared_stages, default_workspace
from flows.run import STAGES
from tasks.config.pipelines import Pipeline, load_pipeline, parse_pipeline, pipeline_names, read_yaml

ROOT = Path(__file__).parents[2]
DOCUMENT = read_yaml(ROOT / "pipelines.yaml")
NAMES = pipeline_names(ROOT / "pipelines.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_every_pipeline_is_valid_and_its_stages_resolve(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    pipeline = load_pipeline(name)
    assert Pipeline.model_validate(pipeline.model_dump(mode="json")) == pipeline, (
        "what is recorded can be read"
    )
    for env in pipeline.data.envs:
        get_env(env)
    stages = declared_stages(name, pipeline=pipeline, workspace=default_workspace(name))
    stage_names = STAGES if pipeline.warmup else tuple(stage for stage in STAGES if stage != "warmup")
    assert tuple(stages) == stage_names
    for stage in stages.values():
        assert not any("$" in str(path) for path in (*stage.deps, *stage.outs))


@pytest.mark.parametrize("name", NAMES)
def test_no_number_of_any_pipeline_can_be_a_boolean(name: str) -> None:
    """Numbers are found in the file, not by the types of settings."""

    def places(value: object, *path: str) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from places(inner, *path, key)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield ".".join(path)

    block = DOCUMENT["pipelines"][name]
    for place in places(block):
        with pytest.raises(ConfigError, match=rf"{place.rpartition('.')[2]}: True is no number; give one"):
            parse_pipeline(deepcopy(block), overrides={place: True}, location=name)


def test_every_stage_declares_its_own_code_and_all_declared_code_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    name = NAMES[0]
    stages = declared_stages(name, pipeline=load_pipeline(name), workspace=default_workspace(name))
    for stage in stages.values():
        code = [dep for dep in stage.deps if dep.parts[0] in ("envs", "agents", "tasks", "flows")]
        assert Path("tasks/stages", f"{stage.name}.py") in code
        assert all(path.exists() for path in code)


def test_of_pages_and_records_the_report_depends_on_what_it_imports_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a change of `wingspan compare`, of its page or of what a run sends to MLflow makes no report
    stale."""
    monkeypatch.chdir(ROOT)
    graph = grimp.build_graph("tasks", cache_dir=None, exclude_type_checking_imports=True)
    modules = {Path(*m.split(".")) for m in graph.find_upstream_modules("tasks.stages.report")}
    pages = Path("tasks/reporting/templates")
    templates, found = {"report.html"}, set[str]()
    while templates - found:
        name = min(templates - found)
        found.add(name)
        tree = Environment(autoescape=True).parse((pages / name).read_text())
        templates |= {str(other) for other in find_referenced_templates(tree)}
    packages = [Path("tasks", name) for name in ("reporting", "tracking", "evaluation", "runs")]

    def of_packages(paths: Iterable[Path]) -> set[Path]:
        return {path for path in paths if any(path.is_relative_to(package) for package in packages)}

    name = NAMES[0]
    stages = declared_stages(name, pipeline=load_pipeline(name), workspace=default_workspace(name))
    files = {path.with_suffix(".py") for path in modules if not (ROOT / path).is_dir()}
    assert of_packages(stages["report"].deps) == of_packages(files) | {pages / name for name in found}


def test_a_stage_reads_only_what_an_earlier_one_or_nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name = NAMES[0]
    home = default_workspace(name)
    outputs: set[Path] = set()
    for stage in declared_stages(name, pipeline=load_pipeline(name), workspace=home).values():
        assert {dep for dep in stage.deps if dep.is_relative_to(home)} <= outputs
        outputs.update(stage.outs)


def test_dvc_knows_every_cpu_pipeline_and_no_other() -> None:
    on_cpu = {name for name in NAMES if DOCUMENT["pipelines"][name]["backend"]["device"] == "cpu"}
    declarations = read_yaml(ROOT / "dvc.yaml")["stages"]
    for stage in STAGES:
        assert set(declarations[stage]["foreach"]) == on_cpu
    config = configparser.ConfigParser()
    config.read(ROOT / ".dvc" / "config")
    assert config["core"]["analytics"] == "false"


def test_the_packages_are_this_checkout() -> None:
    code = "import envs, agents, tasks, flows\nfor m in (envs, agents, tasks, flows): print(m.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(line).resolve() for line in done.stdout.splitlines()]
    assert files == [ROOT / package / "__init__.py" for package in ("envs", "agents", "tasks", "flows")]


def test_a_name_is_a_block_whose_parameters_can_be_set() -> None:
    overrides = {
        "train.algorithm": "rloo",
        "train.algorithm.loss": "cispo",
        "train.algorithm.loss.clip_high": 3,
    }
    algorithm = load_pipeline("textcraft-cpu", overrides=overrides).train.online_algorithm
    assert (algorithm.name, algorithm.loss.name, algorithm.loss.model_dump()["clip_high"]) == (
        "rloo",
        "cispo",
        3,
    )


def test_every_gpu_pipeline_stands_beside_what_its_paper_reports() -> None:
    """With the model of its name, and with a score that is a number or is said not to be published."""
    page = (ROOT / "docs" / "gpus.md").read_text()
    section = page.split("## Pipelines, and what their papers report")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in section.splitlines() if row[:3] == "| `"
    ]
    on_gpus = {name for name in NAMES if DOCUMENT["pipelines"][name]["backend"]["device"] == "cuda"}
    assert sorted(row[0].strip("`") for row in rows) == sorted(on_gpus - {"textcraft-gpu"})
    for name, system, score, _ in rows:
        pipeline = DOCUMENT["pipelines"][name.strip("`")]
        assert system.split(",")[0] in pipeline["description"]
        model = f"qwen{name.strip('`').partition('qwen')[2]}-instruct"
        assert pipeline["model"].lower() == f"qwen/{model}"
        assert re.match(r"(reward )?\d+\.\d+|not published", score)


PUBLISHED = [
    # (name, items, samples, mini-batches, epochs, tokens a turn, horizon, context), of the systems' scripts
    ("textcraft-qwen2.5-7b", 32, 8, 4, 2, 512, [10, 20, 30], 512 + 10_240),
    ("babyai-qwen2.5-7b", 32, 4, 4, 2, 512, [6, 13, 20], 512 + 8192),
    ("sciworld-qwen2.5-7b", 16, 8, 2, 1, 200, [10, 20, 30], 1024 + 8192),
    ("searchqa-qwen2.5-7b", 32, 4, 4, 2, 512, [5, 8, 10], 1024 + 8192),
    ("webarena-qwen2.5-7b", 32, 4, 8, 2, 512, [8, 12, 15], 750 + 14_098),
    ("sciworld-agentfly-qwen2.5-7b", 64, 8, 1, 1, 256, [24], 16_384),
    ("webshop-qwen2.5-7b", 64, 8, 1, 1, 384, [15], 16_384),
    ("alfworld-agentfly-qwen2.5-3b", 64, 8, 1, 1, 256, [10], 8192),
    ("searchqa-agentfly-qwen2.5-7b", 256, 5, 1, 1, 378, [4], 16_384),
]


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published[0])
def test_the_settings_are_those_of_the_systems_scripts(published: tuple[Any, ...]) -> None:
    pipeline = load_pipeline(published[0])
    rollout, train = pipeline.rollout, pipeline.train
    assert published[1:] == (
        rollout.items_per_step,
        rollout.group_size,
        train.mini_batches,
        train.epochs,
        rollout.max_tokens_per_turn,
        pipeline.horizon.max_turns,
        rollout.context_length,
    )
