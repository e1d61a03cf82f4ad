"""docs/algorithms.md lists every algorithm and loss, each with its parameters and defaults, and no others."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import Field, create_model
from pydantic_core import PydanticUndefined

from agents.settings import Settings
from tasks.algorithms.algorithm import ActorCritic, Aggregation, OnlineAlgorithm
from tasks.algorithms.distillation import Distillation
from tasks.algorithms.losses import AnyLoss, PolicyLoss, Tokens
from tasks.algorithms.offline import OfflineAlgorithm
from tasks.algorithms.registry import ALGORITHMS, register_algorithm
from tasks.config.training import KlSettings
from tests.support.algorithms import parse_online

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
OFFLINE_PAGE = (Path(__file__).parents[2] / "docs" / "offline.md").read_text()
CLASSES = {name: ALGORITHMS.find(name) for name in ALGORITHMS}
OFFLINE = {name: found for name, found in CLASSES.items() if issubclass(found, OfflineAlgorithm)}
ONLINE = {name: found for name, found in CLASSES.items() if issubclass(found, OnlineAlgorithm)}
LOSSES: list[type[PolicyLoss]] = list(get_args(get_args(AnyLoss)[0]))


def table(heading: str, *, page: str = PAGE) -> list[list[str]]:
    """The cells of the first table under a heading, without its header."""
    section = re.search(rf"^##+ {heading}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert section is not None
    lines = [line for line in section[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_algorithm_has_its_line() -> None:
    rows = {code(row[0])[0]: row for row in table("Algorithms")}
    assert rows.keys() == ONLINE.keys()
    for name, (_, _, needs, differences, _) in rows.items():
        algorithm = ONLINE[name]
        assert (needs == "critic") == issubclass(algorithm, ActorCritic), name
        assert (needs == "greedy") == algorithm.needs_greedy, name
        assert (needs == "states") == algorithm.compares_states, name
        assert (needs == "Σπ²") == algorithm.needs_sum_pi_squared, name
        assert (needs == "teacher") == issubclass(algorithm, Distillation), name
        fields = algorithm.model_fields
        expected_changes = [
            *changes(fields["loss"].default),
            *([fields["aggregation"].default] if is_changed(algorithm, "aggregation") else []),
        ]
        assert re.sub(r"[`,]", "", differences).split() == expected_changes, name


def changes(loss: PolicyLoss) -> list[str]:
    """How an algorithm's loss differs from the default one."""
    if loss.name != "vanilla":
        return [loss.name]
    default = OnlineAlgorithm.model_fields["loss"].default
    return [text for name, value in loss if value != getattr(default, name) for text in (name, str(value))]


def is_changed(algorithm: type[OnlineAlgorithm], field: str) -> bool:
    return bool(algorithm.model_fields[field].default != OnlineAlgorithm.model_fields[field].default)


def parameters(settings: type[Settings], *, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each parameter, those of a block as `block.parameter`, with its default as the page writes it."""
    for name, field in settings.model_fields.items():
        if name == "name":
            continue
        block = next((t for t in (field.annotation, *get_args(field.annotation)) if is_block(t)), None)
        if block is None or field.default in (None, PydanticUndefined) or name == "loss":
            yield f"{prefix}{name}", default_of(field)
        if block is not None and name != "loss":
            yield from parameters(block, prefix=f"{name}.")


def is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def default_of(field: Any) -> str:
    if field.default in (None, PydanticUndefined):
        return "–"  # noqa: RUF001
    if isinstance(field.default, PolicyLoss):
        return field.default.name
    return str(field.default).lower()


def test_every_parameter_of_an_algorithm_has_its_line() -> None:
    rows = [(code(row[0])[0], row[1], row[2].strip("`")) for row in table("Parameters")]
    common = list(parameters(OnlineAlgorithm))
    assert [(name, default) for name, owner, default in rows if owner == "all"] == common
    own_parameters = {
        (algorithm, parameter, default)
        for algorithm in ONLINE
        for parameter, default in parameters(CLASSES[algorithm])
        if parameter.partition(".")[0] not in OnlineAlgorithm.model_fields
    }
    page_rows = {(algorithm, name, default) for name, owner, default in rows for algorithm in code(owner)}
    assert page_rows == own_parameters


def test_every_loss_has_its_line() -> None:
    rows = {code(row[0])[0]: row[2] for row in table("Losses")}
    assert list(rows) == [loss.model_fields["name"].default for loss in LOSSES]
    for loss in LOSSES:
        fields = {name: field.default for name, field in loss.model_fields.items() if name != "name"}
        page_rows = dict(re.findall(r"`(\w+)` ([\d.]+)", rows[loss.model_fields["name"].default]))
        assert {name: float(value) for name, value in page_rows.items()} == pytest.approx(fields)


def test_every_aggregation_and_key_of_kl_has_its_line() -> None:
    assert [code(row[0])[0] for row in table("Aggregation")] == list(get_args(Aggregation))
    rows = {code(row[0])[0]: code(row[1]) for row in table("KL to the reference")}
    assert rows.keys() == KlSettings.model_fields.keys()
    for key in ("place", "estimator"):
        assert set(get_args(KlSettings.model_fields[key].annotation)) <= set(rows[key])


def definitions(heading: str) -> dict[str, Any]:
    """What the Python blocks under a heading define."""
    section = PAGE.partition(f"\n## {heading}\n")[2]
    names: dict[str, Any] = {"__name__": "a_page"}
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(block, names)
    return names


def test_an_algorithm_with_its_own_loss_is_chosen_and_changed_by_its_block() -> None:
    torch = pytest.importorskip("torch")
    names = definitions("Your own")
    capped = names["Capped"]
    both: Any = Annotated[AnyLoss | capped, Field(discriminator="name")]
    with ALGORITHMS.scope():
        register_algorithm("both", create_model("Both", __base__=names["CappedGrpo"], loss=(both, capped())))
        for name in ("capped", "vanilla"):
            assert parse_online({"name": "both", "loss": name}).loss.name == name
        register_algorithm("capped_grpo", names["CappedGrpo"])
        loss = parse_online({"name": "capped_grpo", "loss": {"highest": 1.5}}).loss
        assert (
            parse_online("capped_grpo").loss == parse_online({"name": "capped_grpo", "loss": "capped"}).loss
        )
        with pytest.raises(ValueError, match=r"capped_grpo: loss\.name: Input should be 'capped'"):
            parse_online({"name": "capped_grpo", "loss": "vanilla"})
    log_probs = torch.tensor([[-1.0, -0.5, -2.0, 0.0]], requires_grad=True)
    tokens = Tokens(
        log_probs=log_probs,
        old_log_probs=torch.tensor([[-2.0, -0.7, -1.0, 0.0]]),
        advantages=torch.tensor([[2.0, 2.0, -1.0, 0.0]]),
        mask=torch.tensor([[True, True, True, False]]),
        conversation=torch.tensor([0]),
        conversation_tokens=torch.tensor([3]),
    )
    result = loss.per_token(tokens)
    assert result.losses[0, :3].tolist() == pytest.approx([-1.5 * 2, -math.exp(0.2) * 2, math.exp(-1)])
    assert result.clipped is not None
    assert result.clipped[0, :3].tolist() == [True, False, False]
    result.losses.sum().backward()
    assert log_probs.grad[0].tolist() == pytest.approx([0.0, -math.exp(0.2) * 2, math.exp(-1), 0.0])


def test_what_dynamic_sampling_is_refused_for_is_listed() -> None:
    [sentence] = re.findall(r"too: ([^.]*)\.", PAGE)
    assert set(code(sentence)) == {name for name in ONLINE if not ONLINE[name].skips_equal_groups}


def test_every_offline_algorithm_and_its_parameters_have_their_lines() -> None:
    assert {code(row[0])[0] for row in table("Algorithms", page=OFFLINE_PAGE)} == set(OFFLINE)
    own_parameters = {
        (algorithm, parameter, default)
        for algorithm in OFFLINE
        for parameter, default in parameters(CLASSES[algorithm])
        if parameter.partition(".")[0] not in OnlineAlgorithm.model_fields
    }
    rows = [(row[0].strip("`"), row[1], row[2].strip("`")) for row in table("Parameters", page=OFFLINE_PAGE)]
    page_rows = {
        (algorithm, name, default)
        for name, owner, default in rows
        for algorithm in (OFFLINE if owner == "all" else code(owner))
    }
    assert page_rows == own_parameters
