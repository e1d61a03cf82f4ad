"""verl's FSDP2 engine on a CPU: the same model, loss and optimizer, over packed rows.

verl's row packing needs flash-attention, and its padded batches take two to three times the work. This engine
uses `packed_row.py` instead, and computes logits only for the tokens in the loss.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import calculate_sum_pi_squared_from_logits, entropy_from_logits
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from envs.cores import count_cores
from tasks.verl.cpu.linear import use_onednn
from tasks.verl.cpu.packed_row import ATTENTION, PackedRow, pack_row, packed_attention
from tasks.verl.lora import patch_engine
from tasks.verl.muon import MuonWithAdamW, hidden_matrices

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

WHOLE_CONVERSATIONS = "whole_conversations"
"""Option of a batch: no micro-batch separates the rows of a conversation, even if it has more tokens."""

_split_by_workload: Callable[..., tuple[list[TensorDict], list[list[int]] | None]] = (
    transformer_impl.prepare_micro_batches
)


class OutputArguments(TypedDict):
    """What `prepare_model_outputs` needs of the inputs."""

    row: PackedRow
    temperature: torch.Tensor
    """[N], of each token whose logits are computed."""


def register() -> None:
    """Make this the engine of `strategy: fsdp2` on the platform `cpu`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    transformer_impl.prepare_micro_batches = split_by_prompt
    patch_engine()
    EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(CpuTrainingEngine)
    EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")(CpuValueEngine)


class CpuTrainingEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """Takes packed rows; returns the log-probs of the tokens in the loss, and zeros for all others."""

    def initialize(self) -> None:
        """Build model and optimizer, with this process's share of the machine's threads."""
        configure_torch(torch.distributed.get_world_size())
        super().initialize()

    def _build_module(self) -> "PreTrainedModel":
        module: PreTrainedModel = super()._build_module()
        use_onednn(module)
        return module

    def lr_scheduler_step(self) -> float:
        """Go on to the next step's learning rate; returns that of the step that ends. (verl's method returns
        the next one.)"""
        lr = float(self.lr_scheduler.get_last_lr()[0])
        self.lr_scheduler.step()
        return lr

    def _build_optimizer(self, module: "PreTrainedModel") -> torch.optim.Optimizer:
        config = self.optimizer_config
        matrix_lr = (config.override_optimizer_config or {}).get("matrix_lr")
        if matrix_lr is None:
            optimizer: torch.optim.Optimizer = super()._build_optimizer(module)
            return optimizer
        matrices, other_parameters = hidden_matrices(module)
        return MuonWithAdamW(
            matrices=matrices,
            others=other_parameters,
            lr=config.lr,
            matrix_lr=matrix_lr,
            betas=tuple(config.betas),
            weight_decay=config.weight_decay,
        )

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, object], OutputArguments]:
        """Pack the micro-batch into a row: the model's arguments, and those of `prepare_model_outputs`."""
        samples = micro_batch["input_ids"].unbind()
        lengths = [len(sample) for sample in samples]
        row = pack_row(
            samples,
            prompt_lengths=_prompt_lengths(micro_batch),
            masks=_full_masks(micro_batch["loss_mask"], lengths),
        )
        temperature = micro_batch["temperature"]
        if not isinstance(temperature, torch.Tensor):
            temperature = torch.full((len(samples),), float(temperature))
        # What the environment wrote was not sampled: it is predicted at temperature 1.
        is_observed = torch.cat(_observation_masks(micro_batch, lengths))[row.targets + 1]
        temperature = torch.where(is_observed, 1.0, temperature[row.sample_of])
        inputs: dict[str, object] = {
            "input_ids": row.input_ids,
            "attention_mask": None,
            "position_ids": row.position_ids,
            "logits_to_keep": row.logit_rows,
            "blocks": row.blocks,
        }
        return inputs, {"row": row, "temperature": temperature}

    def prepare_model_outputs(
        self,
        output: "ModelOutput",
        output_args: OutputArguments,
        micro_batch: TensorDict,
        logits_processor_func: object,
    ) -> dict[str, torch.Tensor]:
        """Log-probs (and entropy and Σπ², if asked for) as verl lays them out: nested, [B, L]."""
        row = output_args["row"]
        logits = output.logits[0]  # [N, V]
        temperature = output_args["temperature"]
        if not bool((temperature == 1.0).all()):
            logits = logits / temperature.unsqueeze(-1)
        log_probs = -torch.nn.functional.cross_entropy(logits, row.labels, reduction="none")
        outputs = {"log_probs": _lay_out(log_probs, row, micro_batch)}
        if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
            outputs["entropy"] = _lay_out(entropy_from_logits(logits), row, micro_batch)
        if tu.get_non_tensor_data(data=micro_batch, key="calculate_sum_pi_squared", default=False):
            squares = calculate_sum_pi_squared_from_logits(logits)
            outputs["sum_pi_squared"] = _lay_out(squares, row, micro_batch)
        return outputs


class CpuValueEngine(CpuTrainingEngine):
    """The critic's: returns the value before each token in the loss is sampled, and zeros for all others."""

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, object], OutputArguments]:
        """Compute the head for all tokens, because it is so small."""
        inputs, output_args = super().prepare_model_inputs(micro_batch)
        del inputs["logits_to_keep"]
        return inputs, output_args

    def prepare_model_outputs(
        self,
        output: "ModelOutput",
        output_args: OutputArguments,
        micro_batch: TensorDict,
        logits_processor_func: object,
    ) -> dict[str, torch.Tensor]:
        """Values as verl lays them out: nested, [B, L], a token's at the place of the token before it."""
        row = output_args["row"]
        return {"values": _lay_out(output.logits[0, row.logit_rows, 0], row, micro_batch)}


def split_by_prompt(
    data: TensorDict, dp_group: torch.distributed.ProcessGroup | None = None, **kwargs: object
) -> tuple[list[TensorDict], list[list[int]] | None]:
    """Micro-batches of at most `max_token_len_per_gpu` packed tokens, prompts kept together.

    verl balances micro-batches by length, which separates the samples of a prompt. Several ranks must agree
    on the number of micro-batches, so they use verl's split.
    """
    dynamic = tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True)
    if not dynamic or "prompts" not in data or torch.distributed.get_world_size(dp_group) > 1:
        return _split_by_workload(data=data, dp_group=dp_group, **kwargs)
    prompts = [p.numpy().tobytes() for p in data["prompts"].unbind()]
    prompt_lengths = _prompt_lengths(data)
    lengths = data["input_ids"].offsets().diff().tolist()
    limit = data["max_token_len_per_gpu"]
    units = [[i] for i in range(len(lengths))]  # rows that stay together
    if tu.get_non_tensor_data(data=data, key=WHOLE_CONVERSATIONS, default=False):
        by_conversation: dict[int, list[int]] = {}
        for i, conversation in enumerate(data["conversation"].tolist()):
            by_conversation.setdefault(conversation, []).append(i)
        units = list(by_conversation.values())
    parts: list[list[int]] = [[]]
    tokens, counted_prompts = 0, set[bytes]()
    for unit in sorted(units, key=lambda rows: (prompts[rows[0]], sum(lengths[i] for i in rows))):
        new_prompts = {prompts[i]: prompt_lengths[i] for i in unit}
        responses = sum(lengths[i] - prompt_lengths[i] for i in unit)
        cost = responses + sum(n for prompt, n in new_prompts.items() if prompt not in counted_prompts)
        if parts[-1] and tokens + cost > limit:
            parts.append([])
            tokens, counted_prompts, cost = 0, set(), responses + sum(new_prompts.values())
        parts[-1] += unit
        counted_prompts |= new_prompts.keys()
        tokens += cost
    return [tu.index_select_tensor_dict(data, part) for part in parts], parts


def configure_torch(processes: int) -> None:
    """Give each of `processes` on this machine its share of threads, and make equal inputs give equal bits.

    The first tokens of a group's responses are all predicted from the row of the prompt's last token
    (`packed_row.py`). By default, threads add their gradients to that row in the order in which they arrive.
    Numbers too small to be normal become 0: products of small attention weights and small gradients are such,
    and a processor takes a hundred times as long for each of them.
    """
    torch.set_flush_denormal(True)  # first: the threads that torch starts later inherit it
    torch.set_num_threads(threads_per_process(processes))
    torch.use_deterministic_algorithms(True)
    # This costs time, and finds bugs in torch's own operations alone.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def threads_per_process(processes: int) -> int:
    """Torch threads for each of `processes` that compute at the same time on this machine.

    `WINGSPAN_THREADS`, if set, limits the threads of each: on a shared machine, set it to 1.
    """
    share = max(1, count_cores() // processes)
    limit = os.environ.get("WINGSPAN_THREADS")
    return min(share, int(limit)) if limit else share


def _lay_out(values: torch.Tensor, row: PackedRow, micro_batch: TensorDict) -> torch.Tensor:
    """[N] → nested, [B, L]: the numbers of the row's labels in the samples of the micro-batch."""
    offsets = micro_batch["input_ids"].offsets()
    flat = values.new_zeros(int(offsets[-1])).index_put((row.targets,), values)
    return torch.nested.nested_tensor_from_jagged(flat, offsets)


def _prompt_lengths(data: TensorDict) -> list[int]:
    """Tokens of each sample that others may share; all of them in a batch without `prompts`."""
    lengths: list[int] = data["prompts" if "prompts" in data else "input_ids"].offsets().diff().tolist()
    return lengths


def _full_masks(masks: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    """Masks over whole samples; in RL, verl gives them for responses only."""
    return [torch.nn.functional.pad(m, (n - len(m), 0)) for m, n in zip(masks.unbind(), lengths, strict=True)]


def _observation_masks(data: TensorDict, lengths: list[int]) -> list[torch.Tensor]:
    """Masks over whole samples of the tokens in the loss that the policy has not sampled; without responses,
    none."""
    if "response_mask" not in data:
        return [torch.zeros(length, dtype=torch.bool) for length in lengths]
    in_loss, sampled_mask = (_full_masks(data[name], lengths) for name in ("loss_mask", "response_mask"))
    return [(a > b) for a, b in zip(in_loss, sampled_mask, strict=True)]
