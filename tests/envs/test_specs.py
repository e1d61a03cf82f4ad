"""What a spec must not say is refused with the environment's name, the value and the remedy."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from envs.errors import ConfigError
from envs.registry import Split, get_env, get_item
from envs.serve.app import EnvServer
from envs.serve.limits import ServerLimits
from envs.types import Item
from tests.support import own_env
from tests.support.toy import toy_item, toy_spec


def items(*numbers: int) -> list[Item]:
    return [toy_item(number) for number in numbers]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (None, "'toy': split(0) returned a NoneType, None; return a Split"),
        (Split(train=[], test=items(1)), "'toy': split(0) has no training items; return at least one"),
        (Split(train=items(1, 2), test=items(3, 2)), "'toy': split(0) has toy_2 for training and for test"),
        (Split(train=items(1, 2, 1), test=items(3)), "'toy': split(0) has toy_1 twice among the training"),
        (Split(train=items(1), test=items(3, 3)), "'toy': split(0) has toy_3 twice among the test items"),
        (Split(train=[Item("toy-a", "toy")], test=[]), "'toy': item 'toy-a' has no number; call it toy_0"),
        (Split(train=[Item("toy_0", "tay")], test=[]), "has toy_0 of env='tay'; give env='toy'"),
        (Split(train=["toy_0"], test=[]), "'toy': split(0) has a str, 'toy_0'; return items"),  # type: ignore[list-item]
        (Split(train=[Item("toy_0", "toy", metadata=None)], test=[]), "metadata of toy_0 is a NoneType"),  # type: ignore[arg-type]
    ],
)
def test_a_split_that_cannot_be_used_is_refused(split: Any, message: str) -> None:
    spec = toy_spec(split=lambda seed: split)
    with pytest.raises(ConfigError) as error:
        spec.make_split(0)
    assert message in str(error.value)
    with pytest.raises(ConfigError) as error:
        get_item(spec, 1)
    assert message in str(error.value)
    with pytest.raises(ConfigError) as error:
        EnvServer(spec, limits=ServerLimits())
    assert message in str(error.value)


def test_packages_that_are_one_text_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'toy': packages is a str, 'numpy'; give a tuple of names"):
        toy_spec(packages="numpy")


@pytest.mark.parametrize(("states", "missing"), [(False, "step"), (True, "step, state_key")])
def test_a_class_without_the_methods_of_an_environment_is_refused(states: bool, missing: str) -> None:
    class Stuck:
        async def reset(self, item: Item) -> str:
            return ""

    with pytest.raises(ConfigError, match=f"'toy': Stuck has no method {missing}; write it"):
        toy_spec(make=Stuck, has_states=states)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (3, "env 'toys:3' is a int; name an EnvSpec"),
        (toy_spec(), "env 'toys:3' calls itself 'toy'; give its EnvSpec this name"),
        (ZeroDivisionError("division by zero"), r"family's spec\('3'\) raised ZeroDivisionError"),
    ],
)
def test_a_family_that_makes_no_spec_is_refused(
    result: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spec(argument: str) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    family = SimpleNamespace(EXAMPLE="toys:1", SOURCE="toys", PACKAGES=(), spec=spec)
    monkeypatch.setattr("envs.registry.FAMILIES", {"toys": family})
    with pytest.raises(ConfigError, match=message):
        get_env("toys:3")


def test_a_users_environment_is_named_as_its_pipeline_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = own_env.split(0)
    monkeypatch.setattr(
        own_env,
        "SPEC",
        replace(own_env.SPEC, split=lambda seed: Split(train=shared.train, test=shared.train[:2])),
    )
    spec = get_env("tests.support.own_env:SPEC")
    with pytest.raises(ConfigError) as error:
        spec.make_split(5)
    name = "tests.support.own_env:SPEC"
    assert f"'{name}': split(5) has {name}_0 for training" in str(error.value)


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        (None, "'toy': the expert's solution of toy_4 is a NoneType, None; return a sequence of ExpertStep"),
        (["add 1"], "'toy': the expert's solution of toy_4 has a str, 'add 1'; return a sequence of"),
        ("add 1", "'toy': the expert's solution of toy_4 has a str, 'a'"),
    ],
)
def test_a_solution_without_turns_is_refused(solution: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        toy_spec(expert=lambda item: solution).solve(toy_item(4))
    assert message in str(error.value)
