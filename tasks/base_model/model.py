"""The base model's tokenizer, architecture and start point.

A Llama of about a million parameters in Hugging Face format. Two choices make it learn to *read* in
an hour on one core. Every word that item names are made of is one token, so copying a name is
copying one to four tokens. And the weights start as a working induction circuit (Olsson et al. 2022,
"In-context learning and induction heads"): heads of layer 0 attend one, two and three tokens back,
heads of layer 1 find the position whose preceding tokens match the present ones and copy its token.
One more pair of heads fetches the number in front of a name, which is the yield of a recipe.
Training is free to change all of it.
"""

import math
from typing import TYPE_CHECKING

from envs.builtin.textcraft.invented import words

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.models.llama.modeling_llama import LlamaAttention

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_PHRASES = (
    "Crafting commands:|\ncraft|craft| craft| using| by|\n\nGoal:|Thought:|\nAction:| get|get|Got|Crafted| x|"
    "inventory| inventory|Inventory:|Could| not| find| a| valid| recipe| for| enough| items| to| execute|"
    "You| are| carrying| anything|Wrong| item| format"
)
_SPLIT = (
    r"Crafting commands:|\n\nGoal:|\ncraft|Thought:|\nAction:|Inventory:| ?[^\s,.:;\[\]()]+|\n|[,.:;\[\]()]| "
)
HEAD_DIM = 32
CONTEXT_LENGTH = 8192
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
    vocabulary = [f" {w}" for w in words()] + [f" {n}" for n in range(1, 129)] + _PHRASES.split("|")
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


def make_model(
    tokenizer: "PreTrainedTokenizerFast", *, layers: int, width: int, seed: int
) -> "LlamaForCausalLM":
    """A Llama with `width // 32` heads, its first two layers an induction circuit."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
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
    numbers = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("".join(f" {n}" for n in range(1, 129))))
    [using] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(" using"))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        _start_as_induction(model, numbers=numbers, using=using, generator=generator)
    return model


_LOOKBACK = (1, 2, 3)
_CONSTANT, _IDENTITY = 0, slice(1, 52)
_CODE = 20
"""Width of the compressed token identity that a look-back head passes on."""
_SLOTS = [slice(52 + _CODE * i, 52 + _CODE * (i + 1)) for i in range(len(_LOOKBACK))]
_NUMBER_SLOT = slice(112, 126)
_IS_USING, _IS_NUMBER = 126, 127
_LOGIT = 40.0
"""The logit of the position that a look-back head is to attend to."""
# A head's slowly rotating dimensions, where distance hardly matters.
SLOW = [*range(8, 16), *range(24, 32)]


def _start_as_induction(
    model: "LlamaForCausalLM", *, numbers: list[int], using: int, generator: "torch.Generator"
) -> None:
    """Lay the residual stream out and write the circuit into layers 0 and 1.

    Dimension 0 is a constant, 1..51 hold a token's identity; three slots of 20 receive the compressed
    identities of the tokens one, two and three back, a fourth that of the last number; the last two
    dimensions mark ` using` and the numbers.
    """
    import torch

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    embedding = model.model.embed_tokens.weight
    width = embedding.shape[1]
    constant = 0.5
    embedding[:, _IDENTITY] *= 1.5
    embedding[:, _IDENTITY.stop :] *= 0.1
    embedding[:, _CONSTANT] = constant
    embedding[using, _IS_USING] = embedding[numbers, _IS_NUMBER] = constant

    # The first layer's input norm turns the constant into constant / rms(embedding row).
    norm_constant = constant / float(embedding.square().mean().sqrt())
    identities = _IDENTITY.stop - _IDENTITY.start

    def compress(size: int) -> torch.Tensor:
        matrix = torch.zeros(size, width)
        matrix[:, _IDENTITY] = torch.linalg.qr(randn(identities, size))[0].T
        return matrix

    def head(index: int, size: int = HEAD_DIM) -> slice:
        return slice(index * HEAD_DIM, index * HEAD_DIM + size)

    def pass_on(index: int, code: torch.Tensor, slot: slice) -> None:
        lookback.v_proj.weight[head(index)] = 0
        lookback.v_proj.weight[head(index, len(code))] = code
        lookback.o_proj.weight[:, head(index)] = 0.005 * randn(width, HEAD_DIM)
        lookback.o_proj.weight[slot, head(index, len(code))] = 0.1 * torch.eye(len(code))

    lookback, match = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    token_code, number_code = compress(_CODE), compress(_NUMBER_SLOT.stop - _NUMBER_SLOT.start)
    for index, distance in enumerate(_LOOKBACK):
        _attend_back(lookback, head(index), distance=distance, norm_constant=norm_constant)
        pass_on(index, token_code, _SLOTS[index])
    _attend_last_number(lookback, head(3), norm_constant=norm_constant)
    pass_on(3, number_code, _NUMBER_SLOT)

    # A match head compares (this token, the ones before it) with (the ones before a key), and copies
    # the key's identity.
    def read(slot: slice) -> torch.Tensor:
        matrix = torch.zeros(slot.stop - slot.start, width)
        matrix[:, slot] = 1.3 * torch.eye(len(matrix))
        return matrix

    before = [read(slot) for slot in _SLOTS]
    mixes = [randn(len(SLOW), _CODE) / math.sqrt(_CODE) for _ in _SLOTS]
    basis = torch.linalg.qr(randn(identities, identities))[0]
    for index, sharpness in enumerate((2.4, 2.2, 2.0)):
        query, key, value = (torch.zeros(HEAD_DIM, width) for _ in range(3))
        for back in range(index + 1):
            query[SLOW] += sharpness * mixes[back] @ (token_code if back == 0 else before[back - 1])
            key[SLOW] += sharpness * mixes[back] @ before[back]
        part = basis[31:] if index == 1 else basis[:31]
        value[: len(part), _IDENTITY] = part
        match.q_proj.weight[head(index)] = query
        match.k_proj.weight[head(index)] = key
        match.v_proj.weight[head(index)] = value
        match.o_proj.weight[:, head(index)] = 0.6 * value.T

    # The last head finds the ` using` after the name that was just written, and fetches the number before it.
    query, key, value = (torch.zeros(HEAD_DIM, width) for _ in range(3))
    for mix, slot in zip(mixes, before, strict=True):
        query[SLOW] += 3.0 * mix @ slot
        key[SLOW] += 3.0 * mix @ slot
    direction = randn(len(SLOW))
    query[SLOW, _CONSTANT] += 2.4 * direction
    key[SLOW, _IS_USING] += 2.4 * direction
    value[: len(number_code)] = read(_NUMBER_SLOT)
    match.q_proj.weight[head(3)] = query
    match.k_proj.weight[head(3)] = key
    match.v_proj.weight[head(3)] = value
    match.o_proj.weight[:, head(3)] = 0
    match.o_proj.weight[:, head(3, len(number_code))] = 1.0 * number_code.T

    # What the circuit does not use starts with small weights: at full strength it masks the copied identity,
    # and an untrained model then repeats 1% of a repeated text instead of 75%.
    for attention in (lookback, match):
        attention.o_proj.weight[:, head(4).start :] *= 0.05
    for index, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.weight *= 0.03
        if index > 1:
            layer.self_attn.o_proj.weight *= 0.03


def _attend_back(attention: "LlamaAttention", rows: slice, *, distance: int, norm_constant: float) -> None:
    """Make the head at `rows` attend to `distance` tokens back, whatever the tokens are."""
    vectors = look_back(distance, logit=_LOGIT)
    for projection, vector in zip((attention.q_proj, attention.k_proj), vectors, strict=True):
        projection.weight[rows] *= 0.1
        projection.weight[rows, 0] = vector / norm_constant


def _attend_last_number(attention: "LlamaAttention", rows: slice, *, norm_constant: float) -> None:
    """Make the head at `rows` attend to the last number."""
    for projection, mark in ((attention.q_proj, _CONSTANT), (attention.k_proj, _IS_NUMBER)):
        projection.weight[rows] = 0
        projection.weight[rows, mark] = look_for_last(logit=_LOGIT) / norm_constant


def look_back(distance: int, *, logit: float) -> "tuple[torch.Tensor, torch.Tensor]":
    """A query and a key `[HEAD_DIM]` for all positions, whose product after RoPE is highest, `logit`, where
    the key is `distance` tokens back.

    RoPE rotates query and key apart by their distance, and the key is rotated ahead by `distance`. Only the
    five fastest pairs distinguish neighbours.
    """
    import torch

    pairs, half = 5, HEAD_DIM // 2
    angles = distance * _ROPE_THETA ** (-torch.arange(pairs) / half)
    scale = math.sqrt(logit / pairs * math.sqrt(HEAD_DIM))
    query, key = torch.zeros(HEAD_DIM), torch.zeros(HEAD_DIM)
    query[:pairs] = scale
    key[:pairs] = scale * torch.cos(angles)
    key[half : half + pairs] = scale * torch.sin(angles)
    return query, key


def look_for_last(*, logit: float) -> "torch.Tensor":
    """The query of all positions and key of marked ones `[HEAD_DIM]`, by which the last mark is found: RoPE's
    pairs with a period of some hundred tokens prefer near ones. `logit`: their product at no distance."""
    import torch

    vector = torch.zeros(HEAD_DIM)
    vector[3:5] = math.sqrt(logit / 2 * math.sqrt(HEAD_DIM))
    return vector
