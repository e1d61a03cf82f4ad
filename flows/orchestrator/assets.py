"""The outputs of stages as assets of Prefect.

A stage materializes its outputs when it writes them, not when its receipt comes from the cache, and Prefect
derives from the graph which outputs they were made of. Prefect Cloud has pages of assets; another
server keeps their events, `prefect.asset.materialization.succeeded` and `prefect.asset.referenced`.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from flows.lineage.stages import Receipt, Stage

if TYPE_CHECKING:
    from prefect.assets import Asset

MAX_KEY_CHARS = 512
"""Prefect's limit."""


def stage_assets(stage: Stage) -> "list[Asset]":
    """An asset for each output of `stage`, by its path on this machine."""
    from prefect.assets import Asset, AssetProperties

    paths = {asset_key(out): str(out) for out in stage.outs}
    return [
        Asset(key=key, properties=AssetProperties(name=path, description=f"Output of stage {stage.name}."))
        for key, path in paths.items()
        if len(key) <= MAX_KEY_CHARS
    ]


def describe_assets(stage: Stage, receipt: Receipt, *, assets: "list[Asset]") -> None:
    """Add to the `assets` of the task run under way the hashes of `receipt`, as in `dvc.lock`."""
    for path, md5 in receipt.outputs.items():
        for asset in assets:
            if asset.key == asset_key(stage.workspace / path):
                asset.add_metadata({"md5": md5, "path": path, "stage": stage.name})


def asset_key(path: Path) -> str:
    """The address of a file or folder; Prefect allows no blanks, quotes and brackets in it."""
    return "file://" + re.sub(r"[^\w./:+@=,~-]", "_", str(path.resolve()))
