"""What `dvc.lock` says of a stage: whether it has run on what is here now, and what it wrote.

Entries come from `dvc repro`, from `wingspan run` (`versioning.py`), and with Git from runs of others, whose
results `dvc pull` brings. They are read by DVC's YAML parser and compared as `dvc status` compares them.
Leaves out DVC itself, whose import takes seconds.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from flows.lineage.stages import LOCK_FILE, Receipt, Stage, lookup
from tasks.config.parameters import differing_values, flat
from tasks.config.pipelines import PIPELINES_FILE
from tasks.data.hashes import has_md5


def locked_receipt(stage: Stage, *, name: str) -> Receipt | None:
    """What `stage` of pipeline `name`, in the workspace that DVC tracks, wrote by its entry in `dvc.lock`.

    None unless the entry has the present command, dependencies and parameters. Files that DVC does not know,
    such as prompts of the user, are in no entry, so that a stage which reads one has no receipt here.
    """
    entry = _find_entry(stage, name=name)
    if entry is None or next(find_locked_changes(stage, name=name), None) is not None:
        return None
    outs = {Path(out["path"]): str(out.get("md5")) for out in entry.get("outs", [])}
    return Receipt(stage.name, {str(path.relative_to(stage.workspace)): md5 for path, md5 in outs.items()})


def find_locked_changes(stage: Stage, *, name: str) -> Iterator[str]:
    """How `stage` of pipeline `name` differs from its entry in `dvc.lock`: parameters by dotted key, files,
    folders. Nothing without an entry. What is cheap comes first; files are hashed as they are asked for."""
    entry = _find_entry(stage, name=name)
    if entry is None:
        return
    if entry.get("cmd") != stage.command:
        yield "its command in dvc.yaml"
    params = entry.get("params", {}).get(str(PIPELINES_FILE), {})
    for key, values in differing_values(params, _present_params(stage, name=name)).items():
        before, after = (dict(flat({key: value}, sep=".")) for value in values)
        for changed_key in list(differing_values(before, after)) or [key]:
            yield changed_key.removeprefix(f"pipelines.{name}.")
    deps = {dep["path"]: str(dep.get("md5")) for dep in entry.get("deps", [])}
    # An entry may have more than the stage: the warm-up's folder, of a pipeline without one.
    yield from (str(dep) for dep in stage.deps if str(dep) not in deps)
    yield from (path for path, md5 in deps.items() if not has_md5(Path(path), md5))


def _find_entry(stage: Stage, *, name: str) -> dict[str, Any] | None:
    """The entry of `stage` of pipeline `name` in `dvc.lock`, whatever it was made from; None without one."""
    if not LOCK_FILE.exists():
        return None
    entry: dict[str, Any] | None = _read(LOCK_FILE).get("stages", {}).get(f"{stage.name}@{name}")
    return entry


def _present_params(stage: Stage, *, name: str) -> dict[str, object]:
    """The parameters that `pipelines.yaml` gives, by their whole dotted key, as in an entry."""
    pipeline, params = _read(PIPELINES_FILE)["pipelines"][name], {}
    for key in stage.params:
        with suppress(KeyError, TypeError):  # it has its default
            params[".".join(filter(None, ("pipelines", name, key)))] = lookup(pipeline, key)
    return params


def _read(file: Path) -> Any:
    return _parse(file.read_text(encoding="utf-8"))


@lru_cache(maxsize=2)
def _parse(text: str) -> Any:
    """The parsed text; callers must not change it, because all get the same object."""
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(text)
