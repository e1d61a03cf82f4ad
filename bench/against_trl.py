"""A GRPO step of Wingspan beside one of TRL's `GRPOTrainer`: the same model, prompts, tokens and machine.

    python -m venv /tmp/trl && /tmp/trl/bin/pip install trl
    python -m bench.against_trl --python /tmp/trl/bin/python

TRL runs in an environment of its own. Both train `models/textcraft-base` on the openings of TextCraft's
training goals: 16 prompts a step, eight samples of at most 80 tokens each, one turn an episode, one optimizer
step, no reference model. The reward is random, so that every group is informative and all its samples are
trained on; the learning rate is so small that the policy, and with it the number of tokens, stays the same.
TRL samples with transformers, and trains in the fastest of `--micro-batches`.

Prints one JSON object:

- `wingspan_s`, `trl_s`: median seconds of a step, after the first two, from sampling to the new weights
- `wingspan_tokens`, `trl_tokens`: sampled tokens of a step, all of which are trained on, means of these steps
- `ratio`: trl_s / wingspan_s
- `ratio_per_token`: the same of seconds per token

Fails if the numbers of tokens differ by more than a tenth.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from agents.rewards import reward
from envs.builtin.textcraft.world import make_problem
from envs.files import read_json_lines
from tasks.data.items import read_items

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "textcraft-base"
ITEMS, GROUP_SIZE, MAX_TOKENS, TEMPERATURE = 16, 8, 80, 1.0
LEARNING_RATE = 1e-7
WARM_UP_STEPS = 2
"""Steps that are not measured: threads start, memory is allocated."""

_TRL = """
import json, random, sys, time
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

settings = json.load(sys.stdin)

def random_reward(completions, **_):
    return [random.random() for _ in completions]

class Clock(TrainerCallback):
    ends = []

    def on_step_end(self, *arguments, **_):
        self.ends.append(time.perf_counter())

trainer = GRPOTrainer(
    callbacks=[Clock()],
    model=AutoModelForCausalLM.from_pretrained(settings["model"], dtype="float32"),
    processing_class=AutoTokenizer.from_pretrained(settings["model"]),
    reward_funcs=random_reward,
    train_dataset=Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": text}] for text in settings["prompts"]]}
    ),
    args=GRPOConfig(
        output_dir=settings["folder"], use_cpu=True, bf16=False, gradient_checkpointing=False, seed=0,
        max_steps=settings["steps"], learning_rate=settings["learning_rate"], lr_scheduler_type="constant",
        num_generations=settings["group_size"], max_completion_length=settings["max_tokens"],
        per_device_train_batch_size=settings["micro_batch"],
        gradient_accumulation_steps=settings["items"] * settings["group_size"] // settings["micro_batch"],
        temperature=settings["temperature"], beta=0.0, loss_type="grpo",
        logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
    ),
)
begin = time.perf_counter()
trainer.train()
samples = settings["items"] * settings["group_size"]
lengths = [
    line["completions/mean_length"]
    for line in trainer.state.log_history
    if "completions/mean_length" in line
]
seconds = [end - start for start, end in zip([begin, *Clock.ends], Clock.ends)]
steps = [[s, length * samples] for s, length in zip(seconds, lengths, strict=True)]
print("RESULT " + json.dumps(steps))
"""


@reward
def random_reward() -> float:
    """A number that no two samples of a group share."""
    return random.random()


Steps = list[tuple[float, float]]
"""Seconds and sampled tokens of each step."""


def run_wingspan(steps: int, folder: Path) -> tuple[Steps, list[str]]:
    """The steps of a run in `folder`, and the openings of its training items."""
    settings: dict[str, Any] = {
        "warmup": None,
        "data": {"parts": {"textcraft": {}}},
        "agent.reward": "bench.against_trl:random_reward",
        "rollout.items_per_step": ITEMS,
        "rollout.group_size": GROUP_SIZE,
        "rollout.temperature": TEMPERATURE,
        "rollout.final_temperature": TEMPERATURE,
        "rollout.max_tokens_per_turn": MAX_TOKENS,
        "horizon": {"type": "fixed", "max_turns": [1]},
        "train.lr": LEARNING_RATE,
        "train.mini_batches": 1,
        **{f"train.{name}": steps for name in ("steps", "steps_per_round", "save_every")},
        "evaluate": {"max_turns": 1, "samples_per_item": 1, "quick_items": 4},
    }
    options = [
        part for key, value in settings.items() for part in ("--set", f"{key}={format_setting(value)}")
    ]
    wingspan = Path(sys.executable).with_name("wingspan")
    command = [str(wingspan), "run", "textcraft-cpu", "--workspace", str(folder), *options]
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)
    rows = read_json_lines(folder / "train" / "metrics.jsonl")
    for row in rows:
        if row["trained"] != ITEMS * GROUP_SIZE:
            raise SystemExit(
                f"step {row['step']} trained on {row['trained']} of {ITEMS * GROUP_SIZE} episodes"
            )
    items = read_items(folder / "data" / "train.jsonl")
    openings = [make_problem(item.index, item.seed).opening for item in items]
    return [(row["seconds"], row["tokens"]) for row in rows], openings


def format_setting(value: object) -> str:
    """As `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def run_trl(python: Path, prompts: list[str], steps: int, *, micro_batch: int) -> Steps:
    """The steps of TRL's trainer, with `micro_batch` samples in one forward pass."""
    with TemporaryDirectory() as folder:
        settings = {
            "model": str(MODEL), "prompts": prompts, "folder": folder, "steps": steps, "items": ITEMS,
            "group_size": GROUP_SIZE, "max_tokens": MAX_TOKENS, "temperature": TEMPERATURE,
            "learning_rate": LEARNING_RATE, "micro_batch": micro_batch,
        }  # fmt: skip
        command = [str(python), "-c", _TRL]
        process = subprocess.run(
            command, input=json.dumps(settings), cwd=folder, check=True, text=True, stdout=subprocess.PIPE
        )
    [line] = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    return [(seconds, tokens) for seconds, tokens in json.loads(line.removeprefix("RESULT "))]


def summarize(steps: Steps) -> tuple[float, float]:
    """Median seconds and mean tokens of the measured steps."""
    measured_steps = steps[WARM_UP_STEPS:]
    return median(seconds for seconds, _ in measured_steps), fmean(tokens for _, tokens in measured_steps)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="of an environment with trl")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[32, 128], help="that TRL tries")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        wingspan_result, prompts = run_wingspan(arguments.steps, Path(folder) / "run")
    tries = {
        size: summarize(run_trl(arguments.python.absolute(), prompts, arguments.steps, micro_batch=size))
        for size in arguments.micro_batches
    }
    micro_batch, (trl_s, trl_tokens) = min(tries.items(), key=lambda entry: entry[1][0])
    wingspan_s, wingspan_tokens = summarize(wingspan_result)
    result = {
        "wingspan_s": round(wingspan_s, 3),
        "trl_s": round(trl_s, 3),
        "wingspan_tokens": round(wingspan_tokens),
        "trl_tokens": round(trl_tokens),
        "ratio": round(trl_s / wingspan_s, 2),
        "ratio_per_token": round(trl_s / trl_tokens * wingspan_tokens / wingspan_s, 2),
        "trl_micro_batch": micro_batch,
        "trl_s_by_micro_batch": {size: round(seconds, 3) for size, (seconds, _) in tries.items()},
    }
    print(json.dumps(result))
    if abs(wingspan_tokens / trl_tokens - 1) > 0.1:
        raise SystemExit("the numbers of tokens differ by more than a tenth")


if __name__ == "__main__":
    main()
