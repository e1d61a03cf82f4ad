"""Threads of an update: one that waits for the others soon sleeps; what they compute does not depend on which
of them is faster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.verl.process import environment_of
from tests.support.verl_toy import toy_pipeline


@pytest.mark.heavy
def test_threads_that_wait_soon_sleep() -> None:
    """By what torch's OpenMP prints of its settings; it waits for 300,000 rounds where nothing is set."""
    environment = {**os.environ, **environment_of(toy_pipeline(Path("model"))), "OMP_DISPLAY_ENV": "VERBOSE"}
    settings = subprocess.run(
        [sys.executable, "-c", "import torch"], env=environment, stderr=subprocess.PIPE, check=True, text=True
    ).stderr
    assert "GOMP_SPINCOUNT = '10000'" in settings


SHARED_ROW = """
import torch
from tasks.verl.cpu.engine import configure_torch

configure_torch(1)
generator = torch.Generator().manual_seed(0)
gradients = torch.randn(8400, 192, generator=generator)
rows = torch.arange(8400) // 400  # the labels of 21 groups; the threads share the eleventh
expected = torch.stack([sum(group, torch.zeros(192)) for group in gradients.split(400)])
for _ in range(20):
    hidden = torch.zeros(1, 21, 192, requires_grad=True)
    hidden[:, rows, :].backward(gradients[None])
    print(torch.equal(hidden.grad[0], expected))
"""


@pytest.mark.heavy
def test_threads_add_gradients_of_one_row_in_order() -> None:
    output = subprocess.run(
        [sys.executable, "-c", SHARED_ROW], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    assert output.split() == ["True"] * 20


SUBNORMAL = """
import torch
from tasks.verl.cpu.engine import configure_torch

configure_torch(1)
numbers = torch.full((8_000_000,), 1e-39)  # enough of them for every thread
print(torch.get_num_threads(), (numbers * 0.5).view(torch.int32).count_nonzero().item())
"""


@pytest.mark.heavy
def test_every_thread_computes_with_normal_numbers_alone() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    output = subprocess.run(
        [sys.executable, "-c", SUBNORMAL], env=environment, stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    assert output.split()[1] == "0"
