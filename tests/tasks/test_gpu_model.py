"""The attention and the log-probs in chunks that GPU pipelines ask verl for."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from envs.errors import ConfigError, MissingDependency
from tasks.verl.gpu.model import VARLEN_ATTENTION, gpu_model_options


def pretend_installed(folder: Path, flash_attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the metadata of a distribution flash-attn of that version findable."""
    info = folder / f"flash_attn-{flash_attention}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {flash_attention}\n")
    monkeypatch.syspath_prepend(folder)


def test_a_model_that_takes_images_needs_flash_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}}))
    with pytest.raises(MissingDependency, match="flash-attn only; uv pip install flash-attn"):
        gpu_model_options(str(tmp_path))
    pretend_installed(tmp_path / "old", "2.4.2", monkeypatch)  # too old for verl
    with pytest.raises(MissingDependency, match="flash-attn only"):
        gpu_model_options(str(tmp_path))
    pretend_installed(tmp_path, "2.8.3", monkeypatch)
    assert gpu_model_options(str(tmp_path))["override_config"] == {"attn_implementation": "flash_attention_2"}


@pytest.mark.slow
def test_verls_engine_computes_what_separate_sequences_do(tmp_path: Path) -> None:
    """As the composed configuration asks for it: the attention loads, packed sequences keep apart, and
    log-probs and entropy in chunks have the right gradients, with tied embeddings and without; so do those
    of adapters, and the values of a critic."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.gpu_engine", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    *cases, adapters, critic = reports
    assert [case["tied"] for case in cases] == [True, False]
    assert adapters["whole_weights"]
    assert adapters["log_probs"] < 1e-4
    assert adapters["gradients"] < 1e-4
    assert adapters["adapted"] == adapters["changed"] == 2 * 7
    assert adapters["trained"] == 2 * adapters["adapted"]
    assert critic["loaded_attention"] == critic["asked_attention"] == VARLEN_ATTENTION
    assert critic["values"] < 1e-4
    assert critic["gradients"] < 1e-4
    for case in cases:
        assert case["loaded_attention"] == case["asked_attention"] == VARLEN_ATTENTION
        assert case["log_probs"] < 1e-4
        assert case["entropy"] < 1e-4
        assert case["gradients"] < 1e-4


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["final_logit_softcapping", "logits_scaling", "lm_head_multiplier"])
def test_a_model_that_scales_its_logits_is_refused(verl: ModuleType, name: str) -> None:
    from transformers import Qwen2Config
    from verl.utils import fsdp_utils

    select_targets = fsdp_utils._select_fsdp2_wrap_targets
    try:
        from tasks.verl.gpu.plugin import check_logits

        check_logits(Qwen2Config())
        check_logits(Qwen2Config(**{name: 1.0}))
        with pytest.raises(ConfigError, match=f"leave out {name}, which is 8.0"):
            check_logits(Qwen2Config(**{name: 8.0}))
    finally:
        fsdp_utils._select_fsdp2_wrap_targets = select_targets
