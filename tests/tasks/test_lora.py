"""`train.lora`: what verl's engine trains, hands to the sampler and saves, against peft and by hand."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from agents.settings import describe_invalid
from agents.types import SamplingParams
from envs.errors import ConfigError
from tasks.config.lora import LoraSettings
from tasks.config.pipelines import Pipeline
from tasks.verl.config import check_pipeline, verl_config
from tasks.verl.local_worker import start_actor
from tasks.verl.policies import ADAPTER, copy_policy
from tasks.verl.rows import fields_of
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.support.verl_update import policy_worker, rows_of_all, turns_of, update
from tests.tasks.test_verl_loss import REWARDS, SEGMENTS, Groups, exact, make_groups, next_tokens

torch = pytest.importorskip("torch")

RANK, ALPHA, TARGETS = 4, 12, ("q_proj", "self_attn.v_proj", "down_proj")
LORA = {"rank": RANK, "alpha": ALPHA, "targets": TARGETS}
MATRICES = 6
"""With an adapter, in two layers."""

Weights = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def groups(model: Path) -> Groups:
    return make_groups(model, SEGMENTS, REWARDS)


def pipeline(model: Path, **train: Any) -> Pipeline:
    options = {"lora": LORA, "mini_batches": 1, "lr": 0.02} | train
    return toy_pipeline(
        model, rollout__temperature=1.3, **{f"train__{name}": value for name, value in options.items()}
    )


def sent_weights(worker: Any) -> Weights:
    """What a sampler is given, with the call of `ActorRolloutRefWorker.update_weights`."""
    weights, adapter = worker.actor.engine.get_per_tensor_param(layered_summon=False, base_sync_done=True)
    assert adapter is None
    return {name: weight.clone() for name, weight in weights}


def load(folder: Path) -> Weights:
    from transformers import AutoModelForCausalLM

    state: Weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return state


def assert_equal(one: Weights, other: Weights) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.fixture(scope="module")
def trained(
    verl: ModuleType, model: Path, groups: Groups, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Path]]:
    """A worker after two updates, and its checkpoint after the first."""
    folder = tmp_path_factory.mktemp("checkpoint")
    with policy_worker(pipeline(model), model) as worker:
        assert_equal(sent_weights(worker), load(model))  # B is 0
        update(worker, pipeline(model), groups)
        worker.save_checkpoint(str(folder), global_step=1)
        update(worker, pipeline(model), groups)
        yield worker, folder


def test_only_the_adapters_are_trained(trained: tuple[Any, Path], model: Path) -> None:
    worker, _ = trained
    base = load(model)
    parameters = dict(worker.actor.engine.module.named_parameters())
    adapters = {name for name in parameters if "lora_" in name}
    assert len(adapters) == 2 * MATRICES
    assert {name for name, p in parameters.items() if p.requires_grad} == adapters
    assert len(worker.actor.engine.optimizer.state) == 2 * MATRICES
    for name, parameter in parameters.items():
        if name not in adapters:
            plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
            assert torch.equal(parameter.full_tensor(), base[plain])
        elif "lora_B" in name:
            assert parameter.full_tensor().any()


def test_what_is_saved_and_sent_is_what_peft_merges(
    trained: tuple[Any, Path], model: Path, groups: Groups, tmp_path: Path
) -> None:
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    worker, _ = trained
    worker.save_checkpoint(str(tmp_path), global_step=2)
    copy_policy(tmp_path / "huggingface", tmp_path / "policy")
    policy, base = load(tmp_path / "policy"), load(model)
    assert_equal(policy, sent_weights(worker))
    adapter = load_file(tmp_path / "policy" / ADAPTER / "adapter_model.safetensors")
    assert len(adapter) == 2 * MATRICES
    changed = set()
    for name in adapter:
        if "lora_A" in name:
            a, b = adapter[name], adapter[name.replace("lora_A", "lora_B")]
            assert (a.shape[0], b.shape[1]) == (RANK, RANK)
            plain = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            changed.add(plain)
            by_hand = base[plain].double() + ALPHA / RANK * b.double() @ a.double()
            torch.testing.assert_close(policy[plain].double(), by_hand, atol=1e-6, rtol=0)
            assert (policy[plain] - base[plain]).abs().max() > 0.01
    assert_equal(
        {n: w for n, w in policy.items() if n not in changed}, {n: base[n] for n in base if n not in changed}
    )
    peft_model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(model), tmp_path / "policy" / ADAPTER
    )
    assert_equal(peft_model.merge_and_unload().state_dict(), policy)
    assert sorted(path.name for path in (tmp_path / "policy").glob("*.safetensors")) == ["model.safetensors"]


def trainer_log_probs(worker: Any, groups: Groups, **options: Any) -> Any:
    """Of all sampled tokens, in order; at the temperature of `next_tokens`."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested

    data = fields_of(rows_of_all(groups))
    tu.assign_non_tensor(data, compute_loss=False, temperature=1.3, **options)
    output = response_from_nested(worker.compute_log_prob(data)["log_probs"], data["response_mask"])
    return output.values()[data["response_mask"].values() > 0]


def log_probs_of(model: Path, groups: Groups) -> Any:
    policy = exact(model)
    rows = [
        next_tokens(policy, context, ids).gather(1, torch.tensor(ids)[:, None])[:, 0]
        for group in groups
        for trajectory in group
        for context, turn in turns_of(trajectory)
        for ids in [turn.completion.token_ids]
    ]
    return torch.cat(rows).float().detach()


def test_the_reference_is_the_policy_without_adapters(
    trained: tuple[Any, Path], model: Path, groups: Groups, tmp_path: Path
) -> None:
    """As verl computes it for `train.kl`; the policy's own log-probs are those of the merged weights."""
    worker, _ = trained
    groups = groups[:1]
    reference = trainer_log_probs(worker, groups, no_lora_adapter=True)
    torch.testing.assert_close(reference, log_probs_of(model, groups), atol=1e-5, rtol=0)
    worker.save_checkpoint(str(tmp_path), global_step=2)
    own = trainer_log_probs(worker, groups)
    torch.testing.assert_close(own, log_probs_of(tmp_path / "huggingface", groups), atol=1e-5, rtol=0)
    assert (own - reference).abs().max() > 0.1
    trained_names = [n for n, p in worker.actor.engine.module.named_parameters() if p.requires_grad]
    assert len(trained_names) == 2 * MATRICES, "the reference has switched the adapters off and on again"


def test_the_sampler_has_the_trainers_log_probs(trained: tuple[Any, Path], model: Path) -> None:
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    from agents.samplers.cpu import CpuSampler
    from tasks.verl.sft import nest

    worker, _ = trained
    prompt = [11, 57, 103, 30, 21]
    sampler = CpuSampler(model, max_sequences=4, context_length=160, seed=0)
    try:
        params = SamplingParams(max_tokens=40, temperature=1.0)
        before = asyncio.run(sampler.sample(prompt, params=params, episode_id="e"))
        asyncio.run(sampler.load_weights(sent_weights(worker), policy_version=1))
        completion = asyncio.run(sampler.sample(prompt, params=params, episode_id="e"))
    finally:
        sampler.close()
    ids = [*prompt, *completion.token_ids]
    assert completion.policy_version == 1
    assert completion.token_ids != before.token_ids
    data = TensorDict(
        {
            "input_ids": nest([ids]),
            "position_ids": nest([[*range(len(ids))]]),
            "loss_mask": nest([[0] * len(prompt) + [1] * len(completion.token_ids)]),
        },
        batch_size=1,
    )
    tu.assign_non_tensor(data, compute_loss=False, temperature=1.0)
    own = worker.compute_log_prob(data)["log_probs"].values()[len(prompt) - 1 : -1]
    torch.testing.assert_close(torch.tensor(completion.logprobs), own, atol=1e-4, rtol=0)


def test_a_resumed_run_goes_on_with_the_same_bits(
    trained: tuple[Any, Path], model: Path, groups: Groups
) -> None:
    worker, folder = trained
    expected = sent_weights(worker)
    [file] = folder.glob("model_*.pt")
    assert len(torch.load(file, weights_only=False)) == 2 * MATRICES, "the base is not saved again"
    torch.manual_seed(1)  # another random state of the process
    resumed = start_actor(pipeline(model), model=model)
    for _ in range(2):
        update(resumed, pipeline(model), groups)
    assert_equal(sent_weights(resumed), expected)  # from the start: the adapters begin by the seed
    resumed.load_checkpoint(str(folder))
    update(resumed, pipeline(model), groups)
    assert_equal(sent_weights(resumed), expected)


def test_vllm_is_started_without_adapters(verl: ModuleType, model: Path, tmp_path: Path) -> None:
    """By the property of verl's server that its arguments for vLLM, its requests and its sleep go by."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    settings = toy_pipeline(model, train__lora=LORA, backend={"device": "cuda", "rollout": "vllm"})
    options = verl_config(settings, model=model, checkpoints=tmp_path).actor_rollout_ref.model
    assert verl.__file__
    source = Path(verl.__file__).parent / "workers/rollout/vllm_rollout/vllm_async_server.py"
    tree = ast.parse(source.read_text())  # vLLM, which it imports, is not installed here
    [function] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "lora_as_adapter"
    ]
    scope: dict[str, Any] = {}
    exec(compile(ast.Module([function], []), str(source), "exec"), scope)

    def has_adapters() -> bool:
        server = SimpleNamespace(model_config=omega_conf_to_dataclass(options))
        assert server.model_config.target_modules == list(TARGETS)
        answer: bool = scope["lora_as_adapter"].fget(server)
        return answer

    assert not has_adapters()
    OmegaConf.update(options, "lora.merge", False)
    assert has_adapters()


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 4, "dropout": 0.1}, "dropout"),
        ({"rank": 4, "targets": []}, "targets name no module"),
        ({"rank": 4, "targets": ["q_proj", "lm_head"]}, "'lm_head': embeddings and the head get no adapter"),
        ({"rank": 4, "targets": "q_proj"}, "'q_proj' are no list; give all-linear, or a list of names"),
    ],
)
def test_a_block_that_cannot_be_trained_is_refused(block: dict[str, Any], message: str) -> None:
    """The one line that a command prints has the reason."""
    with pytest.raises(ValidationError) as error:
        LoraSettings.model_validate(block)
    assert message in describe_invalid(error.value, LoraSettings)


def test_what_contradicts_the_model_or_the_optimizer_is_refused(model: Path) -> None:
    check_pipeline(pipeline(model))
    with pytest.raises(ConfigError, match=r"'q_prj': .* did you mean 'q_proj'\? it has: down_proj"):
        check_pipeline(pipeline(model, lora={"rank": 4, "targets": ["v_proj", "q_prj"]}))
    with pytest.raises(ConfigError, match="muon is for whole matrices"):
        check_pipeline(pipeline(model, optimizer={"name": "muon", "matrix_lr": 0.01}))
