"""How a block of settings describes an unknown key and a boolean in the place of a number."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import Field, ValidationError

from agents.settings import Settings, describe_invalid


class Loss(Settings):
    clip_high: float = 0.2
    scale: float = 1.0


class Grpo(Settings):
    loss: Loss = Loss()
    clip_hi: float = 0.2


class Ppo(Settings):
    gamma: float = 1.0
    lam: float = 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": 1.0}, "gamma: unknown key; 'gamma' is a key of ppo"),
        ({"loss": {"gamma": 1.0}}, "loss.gamma: unknown key"),
        ({"loss": {"scal": 1.0}}, "loss.scal: unknown key; did you mean 'scale'?"),
        ({"clip_high": 1.0}, "clip_high: unknown key; did you mean 'clip_hi'? 'clip_high' is a key of loss"),
        ({"zzz": 1.0}, "zzz: unknown key"),
    ],
)
def test_the_hint_belongs_to_the_place_of_the_key(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error_info:
        Grpo.model_validate(values)
    assert describe_invalid(error_info.value, Grpo, others={"ppo": Ppo}) == message


class Mixed(Settings):
    for_: float = Field(default=1.0, alias="for")
    weights: dict[str, list[float]] = Field(default={})
    bounds: tuple[float, float] = (0.0, 1.0)
    share: int | None = None
    flag: bool | int = False
    loss: Loss = Loss()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"for": True}, "for: True is no number; give one"),
        ({"share": False}, "share: False is no number; give one"),
        ({"weights": {"a": [1.0], "b": [0.5, True]}}, "weights.b.1: True is no number; give one"),
        ({"bounds": (0.5, True)}, "bounds.1: True is no number; give one"),
        ({"loss": {"scale": True}}, "loss.scale: True is no number; give one"),
    ],
)
def test_a_boolean_is_no_number(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error_info:
        Mixed.model_validate(values)
    assert describe_invalid(error_info.value, Mixed) == message


def test_a_boolean_stays_where_it_is_allowed() -> None:
    settings = Mixed.model_validate({"flag": True, "share": None, "for": "1e-3", "loss": Loss()})
    assert settings.flag is True
    assert settings.for_ == 0.001
