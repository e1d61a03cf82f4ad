"""Images, and a toy environment that shows them. No model library is imported, as in any environment."""

import io
import random
from dataclasses import replace
from typing import Any

import PIL.Image

from envs.types import Image, Item, Observation, StepResult
from tests.support.toy import ToyEnv


def make_image(width: int, height: int, *, color: tuple[int, int, int] = (200, 30, 30)) -> Image:
    """A PNG with a gradient, so that pixels in the wrong place show."""
    image = PIL.Image.new("RGB", (width, height), color)
    for x in range(width):
        for y in range(0, height, 3):
            image.putpixel((x, y), (x * 255 // width, y * 255 // height, color[2]))
    file = io.BytesIO()
    image.save(file, "PNG")
    return Image(file.getvalue(), "image/png")


SMALL, WIDE, TALL = make_image(28, 28), make_image(120, 40), make_image(30, 90)


class Gallery(ToyEnv):
    """The toy, with an image or two at every step: which, the seed says."""

    async def reset(self, item: Item) -> Any:
        self._rng = random.Random(item.seed)
        return Observation(await super().reset(item), self._some())

    async def step(self, action: str) -> StepResult:
        return replace(await super().step(action), images=self._some())

    def _some(self) -> tuple[Image, ...]:
        return tuple(self._rng.choices([SMALL, WIDE, TALL], k=self._rng.randint(0, 2)))
