"""The shops' data sets. `required_paths` of each: products, attributes with synthetic instructions, human
instructions.

Upstream's files are on Google Drive, under the ids in its `setup.sh`. Those of the small shop are in Git as
well: the human instructions in upstream's repository, the other two in AgentGym's.
"""

from pathlib import Path

from envs.requirements.data_sets import DataFile, DataSet

_GIT = "https://raw.githubusercontent.com"
_UPSTREAM = f"{_GIT}/princeton-nlp/WebShop/64fa2a5c15c7daa698b9ac93f5bb5437b634c9bd"
_AGENTGYM = f"{_GIT}/WooooDyy/AgentGym/3ef9235d23e68e7c2920c5422ad957dc8ced5c6c"
_DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="

HUMAN_PATH = "items_human_ins.json"
_HUMAN_FILE = DataFile(path=HUMAN_PATH, url=f"{_UPSTREAM}/baseline_models/data/{HUMAN_PATH}")
_LICENCE = "products of amazon.com with instructions by Princeton's crowd; research use"


def make_mini(folder: Path) -> None:
    """Write the files of `webshop-mini`."""
    from envs.builtin.webshop.mini.data import write

    write(folder)


WEBSHOP = DataSet(
    name="webshop",
    about=f"WebShop's subset of 1,000 products: {_LICENCE}",
    required_paths=("items_shuffle_1000.json", "items_ins_v2_1000.json", HUMAN_PATH),
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
    required_paths=("items_shuffle.json", "items_ins_v2.json", HUMAN_PATH),
    files=(
        DataFile(path="items_shuffle.json", url=f"{_DRIVE}1A2whVgOO0euk5O13n2iYDM0bQRkkRduB"),
        DataFile(path="items_ins_v2.json", url=f"{_DRIVE}1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi"),
        _HUMAN_FILE,
    ),
)
WEBSHOP_MINI = DataSet(
    name="webshop-mini",
    about="a made-up shop of 1,000 products and as many goals, in WebShop's files; made here",
    required_paths=("items_shuffle_1000.json", "items_ins_v2_1000.json", HUMAN_PATH),
    make=make_mini,
)
DATA_SETS = (WEBSHOP, WEBSHOP_FULL, WEBSHOP_MINI)
