"""A packed row computes what separate sequences do: log-probs, and gradients of all parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs.errors import ConfigError
from tasks.verl.cpu.linear import use_onednn
from tasks.verl.cpu.packed_row import ATTENTION, PromptBlock, pack_row, packed_attention
from tests.support.examples import examples
from tests.support.tiny_model import save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def load(folder: Path, attention: str) -> Any:
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION, packed_attention)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)


def samples_with_shared_prompts() -> tuple[list[torch.Tensor], list[int]]:
    torch.manual_seed(1)
    prompts = [torch.randint(0, 250, (n,)) for n in (7, 12)]
    prompt_index = [0, 1, 0, 0, 1]
    lengths = [5, 9, 1, 30, 2]
    samples = [
        torch.cat([prompts[p], torch.randint(0, 250, (n,))])
        for p, n in zip(prompt_index, lengths, strict=True)
    ]
    return samples, [len(prompts[p]) for p in prompt_index]


def test_log_probs_and_gradients_are_those_of_separate_sequences(folder: Path) -> None:
    samples, prompt_lengths = samples_with_shared_prompts()
    masks = [(torch.rand(len(s)) < 0.6).long() for s in samples]
    for mask, length in zip(masks, prompt_lengths, strict=True):
        mask[length] = 1  # the first token after the prompt, whose logits lie at the shared prompt's end
    weights = [torch.rand(len(s)) for s in samples]

    reference = load(folder, "sdpa")
    reference_logits, loss = [], torch.zeros(())
    for sample, mask, weight in zip(samples, masks, weights, strict=True):
        log_probs = reference(sample[None]).logits[0].log_softmax(-1)
        label_log_probs = log_probs[:-1].gather(1, sample[1:, None])[:, 0] * mask[1:]
        loss = loss + (label_log_probs * weight[1:]).sum()
        reference_logits.append(torch.cat([label_log_probs, torch.zeros(1)]))
    loss.backward()

    model = load(folder, ATTENTION)
    row = pack_row(samples, prompt_lengths=prompt_lengths, masks=masks)
    assert row.input_ids.shape[1] == sum(map(len, samples)) - 2 * 7 - 12  # each prompt once
    logits = model(
        row.input_ids, position_ids=row.position_ids, logits_to_keep=row.logit_rows, blocks=row.blocks
    ).logits[0]
    values = logits.log_softmax(-1).gather(1, row.labels[:, None])[:, 0]
    actual = torch.zeros(sum(map(len, samples))).index_put((row.targets,), values)
    torch.testing.assert_close(actual, torch.cat(reference_logits), atol=1e-5, rtol=1e-5)

    # `weights` are laid out by token, log-probs one place earlier.
    flat = torch.cat([torch.cat([w[1:], torch.zeros(1)]) for w in weights])
    (actual * flat).sum().backward()
    for (name, a), (_, b) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=2e-5, rtol=1e-4, msg=name)


def test_sequences_without_responses_are_blocks_of_their_own(folder: Path) -> None:
    torch.manual_seed(2)
    samples = [torch.randint(0, 250, (n,)) for n in (4, 9)]
    masks = [torch.ones(len(s), dtype=torch.long) for s in samples]
    row = pack_row(samples, prompt_lengths=[4, 9], masks=masks)
    assert len(row.labels) == 3 + 8  # the first token of a sequence has no log-prob
    model, reference = load(folder, ATTENTION), load(folder, "sdpa")
    actual = model(
        row.input_ids, position_ids=row.position_ids, logits_to_keep=row.logit_rows, blocks=row.blocks
    ).logits[0]
    reference_logits = torch.cat([reference(s[None]).logits[0][:-1] for s in samples])
    torch.testing.assert_close(actual, reference_logits, atol=1e-5, rtol=1e-5)


def test_tokens_that_are_masked_get_no_gradient(folder: Path) -> None:
    sample = torch.arange(20)
    mask = torch.zeros(20, dtype=torch.long)
    mask[12:15] = 1
    row = pack_row([sample], prompt_lengths=[10], masks=[mask])
    assert row.labels.tolist() == [12, 13, 14]
    assert row.targets.tolist() == [11, 12, 13]
    assert row.logit_rows.tolist() == [11, 12, 13]


@pytest.mark.heavy
@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.lists(st.integers(0, 20), min_size=1, max_size=4)),
        min_size=1,
        max_size=3,
    )
)
@example([(70, [900, 3])])  # more than the kernel takes at once
def test_attention_and_its_gradients_are_those_of_a_mask(lengths: list[tuple[int, list[int]]]) -> None:
    torch.manual_seed(0)
    heads, kv_heads, dim, scale = 4, 2, 8, 0.3
    blocks, allowed_pairs = as_blocks(lengths)
    count = len(allowed_pairs)
    shapes = [(1, heads, count, dim), (1, kv_heads, count, dim), (1, kv_heads, count, dim)]
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    upstream = torch.randn(1, count, heads, dim)

    actual, _ = packed_attention(torch.nn.Module(), q, k, v, None, blocks=blocks, scaling=scale)
    gradients = torch.autograd.grad(actual, (q, k, v), upstream)

    q_64, k_64, v_64 = (x.detach().double().requires_grad_() for x in (q, k, v))
    share = heads // kv_heads
    scores = q_64 @ k_64.repeat_interleave(share, dim=1).transpose(2, 3) * scale
    weights = scores.masked_fill(~allowed_pairs, -torch.inf).softmax(-1)
    expected = (weights @ v_64.repeat_interleave(share, dim=1)).transpose(1, 2)
    expected_gradients = torch.autograd.grad(expected, (q_64, k_64, v_64), upstream.double())
    torch.testing.assert_close(actual.double(), expected, atol=2e-6, rtol=1e-5)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dim", [16, 20, 32])
def test_attention_has_the_same_bits_with_any_number_of_threads(dim: int) -> None:
    torch.manual_seed(0)
    blocks, allowed_pairs = as_blocks([(17, [33, 0, 40]), (1, [1])])
    count = len(allowed_pairs)
    q, k, v = (torch.randn(1, heads, count, dim, requires_grad=True) for heads in (6, 3, 3))
    upstream = torch.randn(1, count, 6, dim)
    results, threads = [], torch.get_num_threads()
    try:
        for number in (1, 2, 4):
            torch.set_num_threads(number)
            output, _ = packed_attention(torch.nn.Module(), q, k, v, None, blocks=blocks, scaling=0.3)
            results.append((output, *torch.autograd.grad(output, (q, k, v), upstream)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("bias", [False, True])
def test_products_by_onednn_are_those_of_a_linear_layer(bias: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(198, 1286, bias=bias)
    exact = torch.nn.Linear(198, 1286, bias=bias, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    use_onednn(torch.nn.Sequential(layer))
    inputs = torch.randn(2, 37, 198, requires_grad=True)
    inputs_64 = inputs.detach().double().requires_grad_()
    upstream = torch.randn(2, 37, 1286)
    output, expected = layer(inputs), exact(inputs_64)
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(output, (inputs, *layer.parameters()), upstream)
    expected_gradients = torch.autograd.grad(expected, (inputs_64, *exact.parameters()), upstream.double())
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-4, rtol=1e-5)


def as_blocks(lengths: list[tuple[int, list[int]]]) -> tuple[tuple[PromptBlock, ...], torch.Tensor]:
    """Blocks of (prompt, responses), and which of the row's tokens each of them may see, [T, T]."""
    blocks, allowed_pairs = [], []
    start = 0
    for prompt, responses in lengths:
        blocks.append(PromptBlock(start, prompt, tuple(responses)))
        allowed_pairs.append(
            torch.ones(prompt + sum(responses), prompt + sum(responses), dtype=torch.bool).tril()
        )
        first = prompt
        for response in responses:
            allowed_pairs[-1][first + response :, first : first + response] = False  # later responses
            first += response
        start += prompt + sum(responses)
    return tuple(blocks), torch.block_diag(*(x.int() for x in allowed_pairs)).bool()


def test_dropout_is_refused() -> None:
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(ConfigError, match=r"attention_dropout 0\.1"):
        packed_attention(
            torch.nn.Module(), x, x, x, None, blocks=(PromptBlock(0, 2, (0,)),), scaling=1.0, dropout=0.1
        )
