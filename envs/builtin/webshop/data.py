"""Where the shops' files come from, and which of them make a shop.

Upstream's are on Google Drive, by the ids in its `setup.sh`; those of the small shop are also in Git: the
human instructions in upstream's repository, the other two in AgentGym's.
"""

from dataclasses import dataclass
from pathlib import Path

from envs.builtin.webshop.goals import GoalKind
from envs.requirements.data_sets import DataFile, DataSet

_GIT = "https://raw.githubusercontent.com"
_UPSTREAM = f"{_GIT}/princeton-nlp/WebShop/64fa2a5c15c7daa698b9ac93f5bb5437b634c9bd"
_AGENTGYM = f"{_GIT}/WooooDyy/AgentGym/3ef9235d23e68e7c2920c5422ad957dc8ced5c6c"
_DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="

HUMANS = "items_human_ins.json"
_HUMAN_FILE = DataFile(path=HUMANS, url=f"{_UPSTREAM}/baseline_models/data/{HUMANS}")
_LICENCE = "products of amazon.com with instructions by Princeton's crowd; research use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What a shop is made of."""

    data: DataSet
    items: str
    """File of products."""
    attributes: str
    """File of their attributes and synthetic instructions."""
    goals: GoalKind
    """Which instructions are its goals; the human ones are in `HUMANS`."""


def make_mini(folder: Path) -> None:
    """Write the files of `webshop-mini`."""
    from envs.builtin.webshop.mini.data import write

    write(folder)


WEBSHOP = DataSet(
    name="webshop",
    about=f"WebShop's subset of 1,000 products: {_LICENCE}",
    required_paths=("items_shuffle_1000.json", "items_ins_v2_1000.json", HUMANS),
    files=(
        DataFile(
            path="items_shuffle_1000.json",
            url=f"{_AGENTGYM}/agentenv-webshop/webshop/data/items_shuffle_1000.json",
        ),
        DataFile(
            path="items_ins_v2_1000.json",
            url=f"{_AGENTGYM}/agentenv-webshop/webshop/data/items_ins_v2_1000.json",
            bytes=147_099,
            sha256="f88a36314a397b53b3d9c3fa5878e5f7b26d35019a51ec83fbedeca61a948f6f",
        ),
        _HUMAN_FILE,
    ),
)
WEBSHOP_FULL = DataSet(
    name="webshop-full",
    about=f"WebShop's 1.18 million products: {_LICENCE}",
    required_paths=("items_shuffle.json", "items_ins_v2.json", HUMANS),
    files=(
        DataFile(path="items_shuffle.json", url=f"{_DRIVE}1A2whVgOO0euk5O13n2iYDM0bQRkkRduB"),
        DataFile(path="items_ins_v2.json", url=f"{_DRIVE}1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi"),
        _HUMAN_FILE,
    ),
)
WEBSHOP_MINI = DataSet(
    name="webshop-mini",
    about="a made-up shop of 1,000 products and as many goals, in WebShop's files; made here",
    required_paths=("items_shuffle_1000.json", "items_ins_v2_1000.json", HUMANS),
    make=make_mini,
)
DATA_SETS = (WEBSHOP, WEBSHOP_FULL, WEBSHOP_MINI)


def stock_of(data: DataSet, goals: GoalKind) -> Stock:
    """The shop of a data set with one kind of goals."""
    items, attributes, _ = data.required_paths
    return Stock(data=data, items=items, attributes=attributes, goals=goals)
