"""Read and change YAML files by libyaml, which takes a seventh of the time of PyYAML's own parser."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml


def load_yaml(file: Path) -> Any:
    """The document of `file`."""
    return yaml.load(file.read_text(), Loader=yaml.CSafeLoader)


@contextmanager
def edit_yaml(file: Path) -> Iterator[Any]:
    """The document of `file`, which is written with its changes, without its comments."""
    document = load_yaml(file)
    yield document
    file.write_text(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False))
