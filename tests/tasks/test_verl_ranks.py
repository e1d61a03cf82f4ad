"""Two FSDP ranks over gloo compute what one does."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.verl.cpu import PLUGIN_ENV
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.tasks.test_verl_loss import REWARDS, SEGMENTS, make_groups

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


@pytest.mark.heavy
def test_two_ranks_make_the_step_that_one_makes(tmp_path: Path) -> None:
    """14 rows of 8 conversations; segments of one conversation are on both ranks."""
    model = save_tiny_model(tmp_path / "model")
    groups = make_groups(model, SEGMENTS, REWARDS)
    pipeline = toy_pipeline(model, train__algorithm="dapo", train__mini_batches=1, train__lr=1e-3)
    request = tmp_path / "request"
    request.write_bytes(pickle.dumps((pipeline, model, groups)))
    outputs = {size: tmp_path / f"weights-of-{size}" for size in (1, 2)}
    arguments = [str(part) for size, out in outputs.items() for part in (size, out)]
    subprocess.run(
        [sys.executable, "-m", "tests.support.verl_ranks", str(request), *arguments],
        env=os.environ | PLUGIN_ENV | {"PYTHONPATH": str(ROOT)},
        check=True,
        timeout=200,
    )
    (metrics, weights), (metrics_of_two, weights_of_two) = (
        pickle.loads(out.read_bytes()) for out in outputs.values()
    )
    for name in ("grad_norm", "actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac"):
        assert metrics_of_two[name] == pytest.approx(metrics[name], rel=1e-5), name
    for name, value in weights.items():
        torch.testing.assert_close(weights_of_two[name], value, atol=2e-5, rtol=0, msg=name)
