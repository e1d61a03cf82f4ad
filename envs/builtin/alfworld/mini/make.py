"""Writes the games of `alfworld-mini` into a folder, in upstream's layout, in seconds."""

import json
from pathlib import Path

from envs.builtin.alfworld.games import GAME_FILE, TRAJECTORY_FILE
from envs.builtin.alfworld.mini.drafts import Draft, drafts
from envs.builtin.alfworld.mini.plans import fingerprint, plans
from envs.builtin.alfworld.upstream import PACKAGES, domain
from envs.errors import ConfigError
from envs.requirements.data_sets import DataSet


def make(folder: Path) -> None:
    """Write all games, the same bytes on every machine. Raises `ConfigError` if the plans are for other
    games."""
    for draft, plan in zip(drafts(), plans(), strict=True):
        if (plan.game, plan.problem) != (draft.folder, fingerprint(draft)):
            raise ConfigError(
                f"alfworld-mini: the plan of {plan.game} does not belong to {draft.folder}; install the "
                "pinned alfworld (constraints.txt), or run: python -m envs.builtin.alfworld.mini.plans"
            )
        game_folder = folder / draft.folder
        game_folder.mkdir(parents=True)
        (game_folder / TRAJECTORY_FILE).write_text(json.dumps(_trajectory(draft), indent=1))
        content = {
            "pddl_domain": domain(),
            "grammar": draft.grammar,
            "pddl_problem": draft.problem,
            "solvable": plan.plan is not None,
            "walkthrough": plan.plan,
        }
        (game_folder / GAME_FILE).write_text(json.dumps(content))


def _trajectory(draft: Draft) -> dict[str, object]:
    """Upstream's facts of a game, without images and robot actions."""
    task, layout = draft.task, draft.layout
    return {
        "images": [],
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": task.object,
            "parent_target": task.receptacle,
            "toggle_target": task.lamp,
        },
        "plan": {"high_pddl": [], "low_actions": []},
        "scene": {
            "floor_plan": f"FloorPlan{layout.room.number}",
            "object_poses": [{"objectName": entity.name} for entity in layout.objects],
            "object_toggles": [],
            "random_seed": draft.number,
            "scene_num": layout.room.number,
        },
        "source": "alfworld-mini: made from alfworld's floor plans, not one of ALFWorld's games",
        "task_id": draft.trial,
        "task_type": task.type,
        "turk_annotations": {"anns": [{"high_descs": [], "task_desc": draft.sentence}]},
    }


MINI_DATA = DataSet(
    name="alfworld-mini",
    about="210 games in ALFWorld's format, made from what the package alfworld ships (MIT)",
    required_paths=("train", "valid_seen", "valid_unseen"),
    make=make,
    made_with=PACKAGES[:1],
)
