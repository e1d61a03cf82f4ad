"""Games on disk as items: what `alfworld` and `alfworld-mini` have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.builtin.alfworld.games import Game, parse_task_folder, read_game
from envs.errors import check_index
from envs.types import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class GameItems:
    """The items of an environment: games by number."""

    env: str
    list_games: Callable[[], Sequence[str]]
    """`<folder>/<task>/<trial>` of every game, by number."""
    find_root: Callable[[], Path]
    """The folder of these folders."""
    parts: Mapping[str, str]
    """Folder → `part` in an item's metadata; the folder `train` is the training part."""
    remedy: str
    """The command that fetches or makes the games."""

    def make_item(self, index: int) -> Item:
        """The item `<env>_<index>`."""
        games = self.list_games()
        check_index(self.env, index, count=len(games))
        folder, task, _ = games[index].split("/")
        return Item(
            item_id=f"{self.env}_{index}",
            env=self.env,
            metadata={**parse_task_folder(task), "part": self.parts[folder]},
        )

    def make_all(self) -> list[Item]:
        """Every item, by number."""
        return [self.make_item(index) for index in range(len(self.list_games()))]

    def read(self, index: int) -> Game:
        """The game of an item; raises as `read_game` does."""
        self.make_item(index)
        return read_game(self.find_root() / self.list_games()[index], remedy=self.remedy)
