"""The base model's tokenizer, architecture and start point.

A Llama of about a million parameters in Hugging Face format. Two choices make it learn to *read* in
an hour on one core. Every word that item names are made of is one token, so copying a name is
copying one to four tokens. And the weights start as a working induction circuit (Olsson et al. 2022,
"In-context learning and induction heads"): heads of layer 0 attend one, two and three tokens back,
heads of layer 1 find the place whose preceding tokens match the present ones and copy what stands
there. Training is free to change all of it.
"""

import math
from typing import TYPE_CHECKING

from envs.textcraft_invented import words

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.models.llama.modeling_llama import LlamaAttention

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_FIXED = (
    "Crafting commands:|\ncraft|craft| craft| using|\n\nGoal:|Thought:|\nAction:| get|get|Got|Crafted| x|"
    "inventory| inventory|Inventory:|Could| not| find| a| valid| recipe| for| enough| items| to| execute|"
    "You| are| carrying| anything|Wrong| item| format"
)
_SPLIT = (
    r"Crafting commands:|\n\nGoal:|\ncraft|Thought:|\nAction:|Inventory:| ?[^\s,.:;\[\]()]+|\n|[,.:;\[\]()]| "
)
HEAD_DIM = 32
CONTEXT_LENGTH = 2048
_ROPE_THETA = 1e6


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """Byte-level BPE whose merges spell out the vocabulary's words; other text falls back to bytes."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary = [f" {w}" for w in words()] + [f" {n}" for n in range(1, 129)] + _FIXED.split("|")
    tokenizer.train_from_iterator(
        vocabulary * 50,
        trainers.BpeTrainer(
            vocab_size=4000,
            special_tokens=[PAD, END, USER, ASSISTANT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(*, vocab_size: int, layers: int, width: int, seed: int) -> "LlamaForCausalLM":
    """A Llama with `width // 32` heads, its first two layers an induction circuit."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // HEAD_DIM,
            num_key_value_heads=width // HEAD_DIM,
            intermediate_size=width * 11 // 4,
            max_position_embeddings=CONTEXT_LENGTH,
            rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
            tie_word_embeddings=True,
            rms_norm_eps=1e-6,
            initializer_range=0.08,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
            attn_implementation="sdpa",
        )
    )
    with torch.no_grad():
        _start_as_induction(model, generator=torch.Generator().manual_seed(seed))
    return model


_LOOKBACK = (1, 2, 3)
_CODE = 20
"""Width of the compressed token identity that a look-back head passes on."""


def _start_as_induction(model: "LlamaForCausalLM", *, generator: "torch.Generator") -> None:
    """Lay the residual stream out and write the circuit into layers 0 and 1.

    Dimension 0 is a constant, 1..63 hold a token's identity, and three slots of 20 from 64 up
    receive the compressed identities of the tokens one, two and three back.
    """
    import torch

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    identity = slice(1, 64)
    slots = [slice(64 + 21 * i, 64 + 21 * i + _CODE) for i in range(len(_LOOKBACK))]
    embedding = model.model.embed_tokens.weight
    width = embedding.shape[1]
    constant = 0.5
    embedding[:, identity] *= 1.4
    embedding[:, 64:] *= 0.1
    embedding[:, 0] = constant

    # The first layer's input norm makes of the constant: constant / rms(embedding row).
    normed = constant / float(embedding.square().mean().sqrt())
    compress = torch.zeros(_CODE, width)
    compress[:, identity] = torch.linalg.qr(randn(63, _CODE))[0].T
    lookback, match = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    for head, distance in enumerate(_LOOKBACK):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        _attend_back(lookback, rows, distance=distance, normed=normed)
        lookback.v_proj.weight[rows] = 0
        lookback.v_proj.weight[rows][:_CODE] = compress
        lookback.o_proj.weight[:, rows] = 0.005 * randn(width, HEAD_DIM)
        lookback.o_proj.weight[slots[head], head * HEAD_DIM : head * HEAD_DIM + _CODE] = 0.1 * torch.eye(
            _CODE
        )

    # A match head compares (this token, the ones before it) with (the ones before a key) on the
    # slowly rotating dimensions, where distance hardly matters, and copies the key's identity.
    slow = [*range(8, 16), *range(24, 32)]
    reads = [torch.zeros(_CODE, width) for _ in slots]
    for read, slot in zip(reads, slots, strict=True):
        read[:, slot] = 1.3 * torch.eye(_CODE)
    mixes = [randn(len(slow), _CODE) / math.sqrt(_CODE) for _ in slots]
    basis = torch.linalg.qr(randn(63, 63))[0]
    for head, sharpness in enumerate((2.4, 2.2, 2.0)):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        query, key, value = (torch.zeros(HEAD_DIM, width) for _ in range(3))
        for back in range(head + 1):
            query[slow] += sharpness * mixes[back] @ (compress if back == 0 else reads[back - 1])
            key[slow] += sharpness * mixes[back] @ reads[back]
        value[:31, identity] = basis[:31] if head != 1 else basis[32:63]
        match.q_proj.weight[rows] = query
        match.k_proj.weight[rows] = key
        match.v_proj.weight[rows] = value
        match.o_proj.weight[:, rows] = 0.3 * value.T

    # What the circuit does not use starts quiet, so that it does not drown the copied identity.
    lookback.o_proj.weight[:, len(_LOOKBACK) * HEAD_DIM :] *= 0.2
    for index, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.weight *= 0.3
        if index > 1:
            layer.self_attn.o_proj.weight *= 0.3


def _attend_back(
    attention: "LlamaAttention", rows: slice, *, distance: int, normed: float, logit: float = 40.0
) -> None:
    """Make the head at `rows` attend `distance` tokens back, whatever the tokens are.

    Query and key are constants; RoPE turns them apart by their distance, and the key is turned ahead
    by `distance`, so that their product peaks there. Only the five fastest pairs tell neighbours apart.
    """
    import torch

    pairs, half = 5, HEAD_DIM // 2
    angles = distance * _ROPE_THETA ** (-torch.arange(pairs) / half)
    scale = math.sqrt(logit / pairs * math.sqrt(HEAD_DIM)) / normed
    query, key = torch.zeros(HEAD_DIM), torch.zeros(HEAD_DIM)
    query[:pairs] = scale
    key[:pairs] = scale * torch.cos(angles)
    key[half : half + pairs] = scale * torch.sin(angles)
    for projection, vector in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[rows] *= 0.1
        projection.weight[rows, 0] = vector
