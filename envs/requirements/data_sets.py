"""The data sets of environments: their files, their folders, and the commands that fetch them.

`wingspan data pull` downloads upstream's data sets (`envs/requirements/downloads.py`); the others are made on
first use from code and from files that packages ship. The formats of the files belong to the environments.
"""

import hashlib
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NotRequired, TypedDict

from envs.errors import ConfigError, MissingDependency
from envs.files import lock_file, replaced_folder, write_atomically
from envs.requirements.detection import pip_install
from envs.requirements.plugins import Registry

ROOT_VARIABLE = "WINGSPAN_DATA"
RECEIPT = ".receipt.json"
"""The file in a data set's folder with source, bytes and sha256 of each downloaded file, and bytes and sha256
of the files that were unpacked from it; or the key of what made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file to download."""

    path: str
    """Relative to the data set's folder."""
    url: str
    bytes: int | None = None
    """None if upstream does not publish it."""
    sha256: str | None = None
    """None if upstream does not publish it; later downloads are then compared with the first."""
    unpack: bool = False
    """Unpack an archive (`.zip`, `.tar`, `.tar.gz`) or a single file in `.gz` next to it, then delete it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A named folder of files; a `Requirement` (`envs/requirements/detection.py`)."""

    name: str
    about: str
    """One line: contents, origin, licence."""
    required_paths: tuple[str, ...]
    """Paths in the folder that a complete data set has."""
    files: tuple[DataFile, ...] = ()
    make: Callable[[Path], None] | None = None
    """Writes the data set into an empty folder, the same bytes on every machine; None for a download. The
    data set is made again when the package that defines it, or one of `made_with`, changes."""
    made_with: tuple[str, ...] = ()
    """Distributions whose versions determine the contents."""

    @property
    def folder(self) -> Path:
        """`$WINGSPAN_DATA/<name>`, by default `data_sets/<name>` in the checkout."""
        return data_root() / self.name

    @property
    def is_here(self) -> bool:
        """Whether the folder is complete, so that `prepare` would make nothing. Raises as `prepare` does if a
        package that it is made with is missing."""
        if self.make is not None:
            return _read_key(self.folder) == self._key(self.make)
        return self._find_missing(self.folder) is None

    def find_remedy(self) -> str | None:
        if self.make is not None or self._find_missing(self.folder) is None:
            return None
        return f"wingspan data pull {self.name}"

    def prepare(self) -> Path:
        """Return the complete folder; a data set with `make` is made now, once for all processes.

        Raises `MissingDependency`, which names the command, if it has to be downloaded first.
        """
        if self.make is not None:
            return self._prepare_made(self.make)
        missing = self._find_missing(self.folder)
        if missing is not None:
            raise self._missing_file(self.folder / missing)
        return self.folder

    def path(self, relative: str) -> Path:
        """Return the path of one file; raises as `prepare` does, or if this file does not exist."""
        path = self.prepare() / relative
        if not path.exists():
            raise self._missing_file(path)
        return path

    def make_again(self) -> Path:
        """Make the data set even if it exists; raises `ConfigError` for a download."""
        if self.make is None:
            raise ConfigError(
                f"data set {self.name!r} is a download; get it by: wingspan data pull {self.name}"
            )
        (self.folder / RECEIPT).unlink(missing_ok=True)
        return self.prepare()

    def _find_missing(self, folder: Path) -> str | None:
        return next((path for path in self.required_paths if not (folder / path).exists()), None)

    def _missing_file(self, path: Path) -> MissingDependency:
        verb = "pull" if self.make is None else "make"
        return MissingDependency(
            f"data set {self.name!r}: there is no {path}; run: wingspan data {verb} {self.name}"
        )

    def _prepare_made(self, make: Callable[[Path], None]) -> Path:
        key = self._key(make)
        if _read_key(self.folder) == key:
            return self.folder
        data_root().mkdir(parents=True, exist_ok=True)
        with lock_file(data_root() / f".{self.name}.lock"):
            if _read_key(self.folder) == key:  # another process has made it
                return self.folder
            with replaced_folder(self.folder) as making:
                make(making)
                if (missing := self._find_missing(making)) is not None:
                    raise RuntimeError(f"{make.__module__} made no {missing} for data set {self.name!r}")
                write_atomically(making / RECEIPT, json.dumps({"made_by": key}))
        return self.folder

    def _key(self, make: Callable[[Path], None]) -> str:
        """Return a digest of what determines the contents: the files next to `make`'s, and versions."""
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
"""Name → module whose tuple `DATA_SETS` has the data set."""


def _validate(name: str, value: object) -> DataSet:
    if not isinstance(value, DataSet) or value.name != name:
        raise ConfigError(f"data set {name!r} is {value!r:.80}; name a DataSet of this name")
    return value


DATA_SETS: Registry[DataSet] = Registry(
    "data set",
    {name: name for name in _BUILTIN},
    group="wingspan.data_sets",
    origin="wingspan data list",
    validate=_validate,
    load=lambda name: next(d for d in import_module(_BUILTIN[name]).DATA_SETS if d.name == name),
)


def register_data_set(data_set: DataSet) -> None:
    """Make `data_set` known by its name in this process. Entry points of the group `wingspan.data_sets` are
    known in every process. Raises `ConfigError` if another data set has this name."""
    DATA_SETS.register(data_set.name, data_set)


def data_root() -> Path:
    """Return the folder that has a folder for each data set."""
    return Path(os.environ.get(ROOT_VARIABLE) or Path(__file__).parents[2] / "data_sets")


class FileFacts(TypedDict):
    """A file as it was downloaded or unpacked."""

    bytes: int
    sha256: str


class FileEntry(FileFacts):
    """A download in a receipt."""

    url: str
    unpacked: NotRequired[dict[str, FileFacts]]
    """The files that were in it, by path in the data set's folder."""


class Receipt(TypedDict, total=False):
    """What a data set's folder holds, and where it came from."""

    files: dict[str, FileEntry]
    """By path."""
    made_by: str


def read_receipt(folder: Path) -> Receipt:
    """Return the receipt in `folder` (`files` by path, or `made_by`); empty if there is none."""
    try:
        receipt: Receipt = json.loads((folder / RECEIPT).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{folder / RECEIPT} is no JSON ({error}); delete it and pull again") from error
    assert isinstance(receipt, dict)
    return receipt


def _read_key(folder: Path) -> str | None:
    try:
        return read_receipt(folder).get("made_by")
    except ConfigError:
        return None
