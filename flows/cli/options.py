"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

PipelineName = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="Name of a pipeline; `wingspan pipelines` lists them.")
]
EnvironmentName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an environment; `wingspan envs` lists them.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a parameter, e.g. --set train.lr=1e-3; can be repeated.",
    ),
]
Workspace = Annotated[
    Path | None, typer.Option(help="Folder that the run writes to.", show_default="runs/PIPELINE")
]
Host = Annotated[
    str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all addresses of this machine.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
