"""ALFWorld's data sets: upstream's games, which are downloaded, and the games that are generated here.

The files are those of `alfworld-download` in alfworld 0.4.2, without the image detector. Sizes are those that
GitHub lists; upstream publishes no checksums.
"""

from envs.builtin.alfworld.mini.make import MINI_DATA
from envs.requirements.data_sets import DataFile, DataSet

_RELEASES = "https://github.com/alfworld/alfworld/releases/download"

ROOT = "json_2.1.1"
"""The folder of the games in the data set, as in upstream's archives."""


def _archive(release_path: str, size: int) -> DataFile:
    return DataFile(
        path=release_path.partition("/")[2], url=f"{_RELEASES}/{release_path}", bytes=size, unpack=True
    )


DATA = DataSet(
    name="alfworld",
    about="ALFWorld's games (Shridhar et al. 2021, MIT): json_2.1.1, with json_2.1.2's games for TextWorld",
    required_paths=(f"{ROOT}/train", f"{ROOT}/valid_seen", f"{ROOT}/valid_unseen"),
    files=(
        _archive("0.2.2/json_2.1.1_json.zip", 72_018_818),  # traj_data.json
        _archive("0.2.2/json_2.1.1_pddl.zip", 34_881_784),  # initial_state.pddl
        _archive("0.4.0/json_2.1.2_tw-pddl.zip", 36_493_542),  # game.tw-pddl
    ),
)

DATA_SETS = (DATA, MINI_DATA)
