"""What is read of a model without its weights is what transformers reads, and no more is imported for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from agents.huggingface.files import PlainConfig, load_config, load_tokenizer
from envs.errors import ConfigError
from tests.support.tiny_model import save_small_base
from tests.support.toy import toy_tokenizer

TEXT = "1 oak sign by 3 oak sign using 6 oak planks, 1 stick <|end|>\n  Grüße"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_small_base(folder)
    return folder


def test_a_plain_tokenizer_is_the_one_that_transformers_chooses(base: Path) -> None:
    ours, theirs = load_tokenizer(base), transformers.AutoTokenizer.from_pretrained(base)
    assert type(ours) is type(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.chat_template == theirs.chat_template
    ids = ours(TEXT)["input_ids"]
    assert ids == theirs(TEXT)["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids)


def test_a_tokenizer_of_a_family_keeps_its_class(tmp_path: Path, base: Path) -> None:
    toy_tokenizer().save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_class": "Qwen2Tokenizer"}))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    chosen = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(load_tokenizer(tmp_path)) is type(chosen)
    assert type(chosen) is not type(load_tokenizer(base))


def test_a_config_says_what_transformers_reads(base: Path) -> None:
    ours, theirs = load_config(base), transformers.AutoConfig.from_pretrained(base)
    assert isinstance(ours, PlainConfig)
    for key, value in vars(ours).items():
        if key not in ("architectures", "transformers_version"):
            assert getattr(theirs, key, None) == value or key in ("dtype", "torch_dtype"), key
    assert ours.get_text_config().max_position_embeddings == theirs.get_text_config().max_position_embeddings


@pytest.mark.parametrize("key", ["rope_parameters", "max_position_embeddings", "tie_word_embeddings"])
def test_a_config_with_gaps_is_completed_by_transformers(tmp_path: Path, base: Path, key: str) -> None:
    values = json.loads((base / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in values.items() if k != key}))
    assert getattr(load_config(tmp_path), key) == getattr(transformers.LlamaConfig(), key)


@pytest.mark.heavy
def test_tokenizer_and_config_need_no_torch(base: Path) -> None:
    """Processes without a model stay small: torch and its compiler take seconds and 200 MB."""
    code = (
        "import sys; from agents.huggingface.files import load_config, load_tokenizer\n"
        f"load_tokenizer({str(base)!r})('a'); load_config({str(base)!r})\n"
        "print('torch' in sys.modules)\n"
        "import transformers.modeling_gguf_pytorch_utils as reader\n"
        "print(reader.__spec__ is not None)"
    )
    lines = subprocess.run([sys.executable, "-c", code], text=True, check=True, stdout=subprocess.PIPE).stdout
    assert lines.split() == ["False", "True"]


@pytest.mark.parametrize(
    ("file", "text"), [("tokenizer.json", '{"model": '), ("tokenizer_config.json", "no JSON")]
)
def test_a_damaged_tokenizer_is_named(tmp_path: Path, file: str, text: str) -> None:
    save_small_base(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=rf"loading the tokenizer of model '{tmp_path}' raised "):
        load_tokenizer(tmp_path)
