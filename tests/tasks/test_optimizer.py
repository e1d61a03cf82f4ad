"""`train.optimizer`: the steps that verl's engine takes, against torch's own optimizers on whole tensors."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from envs.errors import ConfigError
from tasks.config.optimizer import OptimizerSettings
from tasks.config.pipelines import Pipeline
from tasks.verl.config import check_pipeline, verl_config
from tests.support.muon_ranks import step_on_two_ranks
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.support.verl_update import policy_worker

torch = pytest.importorskip("torch")

STEPS, LR, MATRIX_LR, CLIP, DECAY, BETAS = 6, 3e-3, 0.01, 0.5, 0.1, (0.8, 0.95)
BLOCK = {"weight_decay": DECAY, "betas": BETAS, "grad_clip": CLIP}


def pipeline(**optimizer: Any) -> Pipeline:
    return toy_pipeline(Path("m"), train__steps=STEPS, train__lr=LR, train__optimizer=optimizer)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@contextmanager
def engine_of(model: Path, **optimizer: Any) -> Iterator[Any]:
    with policy_worker(pipeline(**optimizer), model) as worker:
        yield worker.actor.engine


def give_gradients(engine: Any, copies: dict[str, Any], *, seed: int) -> None:
    """Random ones, to the engine's sharded parameters and to their whole copies."""
    torch.manual_seed(seed)
    for name, parameter in engine.module.named_parameters():
        gradient = torch.randn_like(copies[name])
        copies[name].grad = gradient.clone()
        parameter.grad = torch.distributed.tensor.distribute_tensor(
            gradient, parameter.device_mesh, parameter.placements
        )


def copies_of(engine: Any) -> dict[str, Any]:
    return {n: p.full_tensor().detach().clone() for n, p in engine.module.named_parameters()}


@pytest.mark.heavy
def test_adamw_takes_torchs_steps_at_the_rates_of_the_schedule(verl: ModuleType, model: Path) -> None:
    with engine_of(model, schedule="cosine", warmup_steps=2, min_lr_ratio=0.2, **BLOCK) as engine:
        copies = copies_of(engine)
        reference = torch.optim.AdamW(copies.values(), lr=LR, betas=BETAS, weight_decay=DECAY)
        rates = []
        for step in range(1, STEPS + 1):
            give_gradients(engine, copies, seed=step)
            if step == 2:
                for values in (copies.values(), engine.module.parameters()):
                    for value in values:
                        value.grad *= 1e-4  # too short to be clipped
            # cos² is the same cosine from 1 to 0, written otherwise
            share = (
                step / 2 if step < 2 else 0.2 + 0.8 * math.cos(math.pi / 2 * (step - 2) / (STEPS - 2)) ** 2
            )
            reference.param_groups[0]["lr"] = LR * share
            norm = torch.nn.utils.clip_grad_norm_(copies.values(), CLIP)
            reference.step()
            assert engine.optimizer_step() == pytest.approx(float(norm), rel=1e-5)
            rates.append(engine.lr_scheduler_step())
            assert rates[-1] == pytest.approx(LR * share)
            for name, whole in copies_of(engine).items():
                torch.testing.assert_close(whole, copies[name], rtol=1e-5, atol=1e-7)
        assert rates[0] == LR / 2
        assert rates[1] == LR
        assert rates[-1] == pytest.approx(0.2 * LR)


@pytest.mark.heavy
def test_muon_takes_the_hidden_matrices_and_adamw_the_rest(verl: ModuleType, model: Path) -> None:
    with engine_of(model, name="muon", matrix_lr=MATRIX_LR, **BLOCK) as engine:
        copies = copies_of(engine)
        other_params = {n: p for n, p in copies.items() if "proj" not in n}
        assert sorted({n.rpartition("layers.")[2].lstrip("01.") for n in other_params}) == [
            "input_layernorm.weight",
            "model.embed_tokens.weight",  # and, tied to it, the head
            "model.norm.weight",
            "post_attention_layernorm.weight",
        ]
        matrices = {n: p for n, p in copies.items() if n not in other_params}
        adamw = torch.optim.AdamW(other_params.values(), lr=LR, betas=BETAS, weight_decay=DECAY)
        muon = torch.optim.Muon(matrices.values(), lr=MATRIX_LR, weight_decay=DECAY)
        before = copies_of(engine)
        for step in range(1, 4):
            if step == 3:  # a resumed run goes on with the same state
                state = copy.deepcopy(engine.optimizer.state_dict())
                engine.optimizer.state.clear()
                engine.optimizer.load_state_dict(state)
            give_gradients(engine, copies, seed=step)
            torch.nn.utils.clip_grad_norm_(copies.values(), CLIP)
            adamw.step()
            muon.step()
            engine.optimizer_step()
            assert engine.lr_scheduler_step() == LR
        for name, whole in copies_of(engine).items():
            if name in other_params:
                torch.testing.assert_close(whole, copies[name], rtol=1e-5, atol=1e-7)
            else:  # torch's Muon computes in bf16
                change, reference = whole - before[name], copies[name] - before[name]
                assert float((change - reference).norm() / reference.norm()) < 0.02


def test_the_defaults_are_verls(verl: ModuleType) -> None:
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import FSDPOptimizerConfig

    optim = omega_conf_to_dataclass(
        verl_config(pipeline(), model="m", checkpoints=Path("c")).actor_rollout_ref.actor.optim
    )
    defaults = FSDPOptimizerConfig(lr=LR, total_training_steps=STEPS, min_lr_ratio=0.0)
    for name in (*vars(defaults),):
        actual, reference = getattr(optim, name), getattr(defaults, name)
        assert (tuple(actual) if name == "betas" else actual) == reference, name


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"name": "muon"}, "muon needs matrix_lr"),
        ({"matrix_lr": 0.02}, "matrix_lr is for name: muon"),
        ({"min_lr_ratio": 0.1}, "min_lr_ratio is for schedule: cosine"),
        ({"momentum": 0.9}, "momentum"),
    ],
)
def test_a_key_without_effect_is_refused(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OptimizerSettings.model_validate(block)


def test_what_contradicts_the_rest_of_the_pipeline_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps 7 is more than the 6 of train.steps 6"):
        check_pipeline(pipeline(warmup_steps=7))
    critic_first = toy_pipeline(
        Path("m"),
        train__algorithm={"name": "ppo", "critic": {"warmup_steps": 2}},
        train__steps=STEPS,
        train__optimizer={"warmup_steps": 5},
    )
    with pytest.raises(ConfigError, match=r"warmup_steps 5 is more than the 4 of train.steps 6"):
        check_pipeline(critic_first)
    on_gpus = toy_pipeline(
        Path("m"),
        train__optimizer={"name": "muon", "matrix_lr": 0.02},
        backend={"device": "cuda", "rollout": "vllm"},
    )
    with pytest.raises(ConfigError, match=r"muon is for backend.device cpu"):
        check_pipeline(on_gpus)


@pytest.mark.heavy
def test_a_step_does_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(step_on_two_ranks, args=(str(tmp_path / "store"),), nprocs=2)
