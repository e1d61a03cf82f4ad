"""The data sets of environments: what each holds, where it lies, which command brings it.

Two kinds: upstream's, which `wingspan data pull` downloads (`envs/requirements/downloads.py`), and those
that are made
here from code and what packages ship, when they are first needed. Owns no format: what is in a file is its
environment's affair.
"""

import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from envs.errors import ConfigError, MissingDependency
from envs.files import lock_file, write_atomically
from envs.plugins import Registry
from envs.requirements.detection import pip_install

ROOT_VARIABLE = "WINGSPAN_DATA"
RECEIPT = ".receipt.json"
"""In a data set's folder: what was downloaded (source, bytes, sha256 of each file), or what made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file that is downloaded."""

    path: str
    """Within the data set's folder."""
    url: str
    bytes: int | None = None
    """None where upstream does not tell."""
    sha256: str | None = None
    """None where upstream does not tell: that of the first download is then held against later ones."""
    unpack: bool = False
    """An archive (`.zip`, `.tar`, `.tar.gz`) whose contents go beside it, or one file in `.gz`; the
    packed file is deleted then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A named folder of files; as a `Requirement` (`envs/requirements/detection.py`) it is there, or has a
    command."""

    name: str
    about: str
    """One line: what it is, where it comes from, its licence."""
    required_paths: tuple[str, ...]
    """Paths within the folder without which it is not complete."""
    files: tuple[DataFile, ...] = ()
    make: Callable[[Path], None] | None = None
    """For what is made here: writes into an empty folder, the same bytes on every machine. It is made anew
    when the package that defines it, or one of `made_with`, has changed."""
    made_with: tuple[str, ...] = ()
    """Distributions whose versions decide what is made."""

    @property
    def folder(self) -> Path:
        """Where it lies: `$WINGSPAN_DATA/<name>`, else `data_sets/<name>` in the checkout."""
        return data_root() / self.name

    def find_remedy(self) -> str | None:
        """See `Requirement`; what can be made here is never missing."""
        if self.make is not None or all((self.folder / path).exists() for path in self.required_paths):
            return None
        return f"wingspan data pull {self.name}"

    def prepare(self) -> Path:
        """The folder, complete; what is made here is made now, once for all processes.

        Raises `MissingDependency`, naming the command, where it has to be downloaded first.
        """
        if self.make is not None:
            return self._prepare_made(self.make)
        command = self.find_remedy()
        if command is not None:
            lacks = next(path for path in self.required_paths if not (self.folder / path).exists())
            raise MissingDependency(
                f"data set {self.name!r}: there is no {self.folder / lacks}; run: {command}"
            )
        return self.folder

    def path(self, relative: str) -> Path:
        """One of its files; raises as `prepare` does, and where this file is not there."""
        path = self.prepare() / relative
        if not path.exists():
            verb = "pull" if self.make is None else "make"
            raise MissingDependency(
                f"data set {self.name!r}: there is no {path}; run: wingspan data {verb} {self.name}"
            )
        return path

    def make_again(self) -> Path:
        """Make it, whether or not it is there; raises `ConfigError` for one that is downloaded."""
        if self.make is None:
            raise ConfigError(
                f"data set {self.name!r} is a download; get it by: wingspan data pull {self.name}"
            )
        (self.folder / RECEIPT).unlink(missing_ok=True)
        return self.prepare()

    def _prepare_made(self, make: Callable[[Path], None]) -> Path:
        key = self._key(make)
        if _made_by(self.folder) == key:
            return self.folder
        data_root().mkdir(parents=True, exist_ok=True)
        with lock_file(data_root() / f".{self.name}.lock"):
            if _made_by(self.folder) == key:  # by another process, meanwhile
                return self.folder
            making = self.folder.with_name(f".{self.name}.making")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            make(making)
            lacks = [path for path in self.required_paths if not (making / path).exists()]
            if lacks:
                raise RuntimeError(f"{make.__module__} made no {', '.join(lacks)} for data set {self.name!r}")
            write_atomically(making / RECEIPT, json.dumps({"made_by": key}))
            if self.folder.exists():
                previous = self.folder.with_name(f".{self.name}.replaced")
                shutil.rmtree(previous, ignore_errors=True)
                self.folder.rename(previous)
                making.rename(self.folder)
                shutil.rmtree(previous)
            else:
                making.rename(self.folder)
        return self.folder

    def _key(self, make: Callable[[Path], None]) -> str:
        """Names what decides the bytes that are made: the files beside `make`, and versions."""
        digest = hashlib.sha256(self.name.encode())
        package = Path(inspect.getfile(make)).parent
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
        for name in self.made_with:
            try:
                digest.update(f"{name}=={version(name)}\0".encode())
            except PackageNotFoundError as error:
                raise MissingDependency(
                    f"data set {self.name!r} is made with {name}; {pip_install(name)}"
                ) from error
        return digest.hexdigest()


_BUILTIN = {
    "searchqa": "envs.builtin.searchqa.data",
    "searchqa-mini": "envs.builtin.searchqa.data",
    "wiki-18": "envs.builtin.searchqa.data",
    "wiki-18-e5": "envs.builtin.searchqa.data",
    "webarena-local": "envs.builtin.webarena_local.sites.data",
    "webshop": "envs.builtin.webshop.data",
    "webshop-full": "envs.builtin.webshop.data",
    "webshop-mini": "envs.builtin.webshop.data",
    "alfworld": "envs.builtin.alfworld.data",
    "alfworld-mini": "envs.builtin.alfworld.data",
}
"""Name → module with `DATA_SETS`, a tuple in which the data set is."""


def _load_builtin(name: str) -> DataSet:
    data_sets: tuple[DataSet, ...] = import_module(_BUILTIN[name]).DATA_SETS
    return next(data_set for data_set in data_sets if data_set.name == name)


def _validate(name: str, value: object) -> DataSet:
    if not isinstance(value, DataSet) or value.name != name:
        raise ConfigError(f"data set {name!r} is {value!r:.80}; name a DataSet of this name")
    return value


_DATA_SETS: Registry[DataSet] = Registry(
    "data set",
    {name: name for name in _BUILTIN},
    group="wingspan.data_sets",
    origin="wingspan data list",
    validate=_validate,
    load=_load_builtin,
)


def register_data_set(data_set: DataSet) -> None:
    """Make `data_set` known by its name in this process; entry points of the group `wingspan.data_sets` are
    known in every process. Raises `ConfigError` if another data set has this name."""
    _DATA_SETS.register(data_set.name, data_set)


def data_set_scope() -> AbstractContextManager[None]:
    """Forget on exit the data sets that were registered within; for tests."""
    return _DATA_SETS.scope()


def list_data_set_names() -> list[str]:
    """All data sets, whether or not they are here."""
    return list(_DATA_SETS)


def get_data_set(name: str) -> DataSet:
    """The data set called `name`; raises `ConfigError` if there is none."""
    return _DATA_SETS.find(name)


def data_root() -> Path:
    """The folder in which data sets lie, each in one of its own."""
    root = os.environ.get(ROOT_VARIABLE)
    return Path(root) if root else Path(__file__).parents[2] / "data_sets"


def read_receipt(folder: Path) -> dict[str, dict[str, object]]:
    """What was downloaded into `folder`, by path; nothing where nothing was."""
    try:
        found = json.loads((folder / RECEIPT).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{folder / RECEIPT} is no JSON ({error}); delete it and pull again") from error
    files = found.get("files", {})
    assert isinstance(files, dict)
    return files


def _made_by(folder: Path) -> str | None:
    try:
        found = json.loads((folder / RECEIPT).read_text()).get("made_by")
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, str) else None
