"""What is said of a key that a block of settings does not have."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

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
