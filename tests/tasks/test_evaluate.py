"""The evaluation as it is run on a CPU: two policies, each in a process of its own."""

import asyncio
import json
import shutil
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean

import pytest

from envs.builtin.textcraft.env import TextCraftEnv
from envs.errors import ConfigError
from envs.registry import get_env
from tasks.config.pipelines import load_pipeline
from tasks.data.items import read_items, write_items
from tasks.data.trajectories import read_trajectories
from tasks.evaluation.outcomes import read_outcomes
from tasks.rollout.current_episode import EpisodeReader
from tasks.runs.progress import Progress
from tasks.stages.evaluate import evaluate
from tasks.stages.prepare import prepare
from tests.support.serving import listening


@pytest.mark.heavy
def test_every_episode_is_counted_as_it_ends(tmp_path: Path) -> None:
    settings = {"warmup": None, "rollout.max_tokens_per_turn": 4, "evaluate.max_turns": 1}
    pipeline = load_pipeline("textcraft-cpu", overrides={**settings, "evaluate.samples_per_item": 2})
    prepare(pipeline, tmp_path)
    file = tmp_path / "data" / "test.jsonl"
    write_items(file, read_items(file, data=pipeline.data)[:3])
    shutil.copytree(pipeline.model, tmp_path / "policy")
    calls: list[tuple[int, int]] = []
    episode_file = tmp_path / "episode.json"
    phases: list[tuple[str, int]] = []
    progress = Progress(
        on_episodes=lambda done, total: calls.append((done, total)),
        on_phase=lambda text: phases.append((text, len(calls))),
        episode_file=episode_file,
    )
    evaluate(pipeline, tmp_path, progress)
    assert phases == [("starting the samplers and the environments", 0)]
    # Three items by two policies, each twice sampled and once greedily.
    assert calls[-1] == (18, 18)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert {evaluation[policy]["sampled"]["episodes"] for policy in ("before", "after")} == {6}
    outcomes = read_outcomes(tmp_path / "evaluation_outcomes.json")
    items = [item.item_id for item in read_items(file)]
    episode = EpisodeReader(episode_file).read()  # what a terminal would still show
    assert episode is not None
    assert (episode.item in items, episode.turn, episode.max_turns) == (True, 1, 1)
    for policy in ("before", "after"):
        for mode, samples in (("sampled", 2), ("greedy", 1)):
            assert {item: len(row) for item, row in outcomes[policy][mode].items()} == dict.fromkeys(
                items, samples
            )
            rate = fmean(chain.from_iterable(outcomes[policy][mode].values()))
            assert rate == evaluation[policy][mode]["success"]
    kept = Counter(
        (*trajectory.labels.values(), trajectory.item.item_id)
        for trajectory in read_trajectories(tmp_path / "evaluation_trajectories.jsonl")
    )
    assert kept == {
        (policy, mode, item): 1 + (row[0] and not all(row))
        for policy, modes in outcomes.items()
        for mode, rows in modes.items()
        for item, row in rows.items()
    }


class CountedEnv(TextCraftEnv):
    """Counts the instances on a server."""

    num_live = 0
    most_live = 0

    def __init__(self) -> None:
        super().__init__()
        CountedEnv.num_live += 1
        CountedEnv.most_live = max(CountedEnv.most_live, CountedEnv.num_live)

    async def close(self) -> None:
        CountedEnv.num_live -= 1
        await super().close()


@pytest.mark.heavy
async def test_a_server_has_no_more_instances_than_the_run_may_have(tmp_path: Path) -> None:
    async with listening(replace(get_env("textcraft"), make=CountedEnv)) as url:
        settings = {"warmup": None, "rollout.max_tokens_per_turn": 4, "evaluate.max_turns": 1}
        settings |= {"rollout.max_live_envs": 4, "evaluate.samples_per_item": 4}
        servers = {"textcraft": {"urls": [url]}}
        pipeline = load_pipeline("textcraft-cpu", overrides={**settings, "servers": servers})
        prepare(pipeline, tmp_path)
        file = tmp_path / "data" / "test.jsonl"
        write_items(file, read_items(file, data=pipeline.data)[:3])
        shutil.copytree(pipeline.model, tmp_path / "policy")
        await asyncio.to_thread(evaluate, pipeline, tmp_path)
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert [evaluation[policy]["sampled"]["episodes"] for policy in ("before", "after")] == [12, 12]
    assert 0 < CountedEnv.most_live <= 4
    assert CountedEnv.num_live == 0


@pytest.mark.heavy
def test_what_a_process_raises_arrives_as_it_was(tmp_path: Path) -> None:
    pipeline = load_pipeline("textcraft-cpu", overrides={"warmup": None})
    prepare(pipeline, tmp_path)
    shutil.copytree(pipeline.model, tmp_path / "policy")
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(ConfigError, match=r"policy/model\.safetensors is damaged") as error_info:
        evaluate(pipeline, tmp_path)
    assert any("Traceback" in note for note in error_info.value.__notes__)
