"""`wingspan export`: a trained policy as a folder of its own, and on a model hub."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli.options import PipelineName, Workspace


def export(
    pipeline: PipelineName,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="New folder for the policy, in Hugging Face format.")
    ],
    policy: Annotated[
        Literal["final", "best", "start"],
        typer.Option(
            help="final: the result of the run; best: of the round with the best quick evaluation; "
            "start: what RL started from."
        ),
    ] = "final",
    adapter: Annotated[
        bool,
        typer.Option(
            "--adapter",
            help="Only the adapter of a policy that was trained with train.lora, in peft's format; otherwise "
            "it is merged into the whole model.",
        ),
    ] = False,
    workspace: Workspace = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="Also upload the folder to the model hub, with the token of HF_TOKEN.",
            show_default="not pushed",
        ),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
) -> None:
    """Copy a run's policy to a folder with a model card, and upload it to a model hub if asked."""
    from envs.errors import ConfigError
    from envs.files import read_path
    from flows.lineage.stages import default_workspace
    from tasks.tracking.export import export_policy
    from tasks.tracking.export import push as push_folder

    if private and push is None:
        raise ConfigError("--private is for --push, which is not given; give both, or neither")
    output, folder = read_path(output), read_path(workspace or default_workspace(pipeline))
    export_policy(folder, policy=policy, target=output, is_adapter=adapter)
    typer.echo(f"the {'adapter of the ' if adapter else ''}{policy} policy is in {output}")
    if push is not None:
        typer.echo(f"pushed: {push_folder(output, repository=push, is_private=private)}")
