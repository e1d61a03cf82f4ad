"""What `bench/sampler.py` measures by default."""

from pathlib import Path

import pytest

from bench.sampler import measure, save_random_model
from tasks.config.capacity import read_model_size


async def test_a_load_is_played_until_ticks_of_the_cpu_time_count_little(tmp_path: Path) -> None:
    save_random_model(tmp_path)
    assert read_model_size(tmp_path) == read_model_size(Path("models/textcraft-base"))
    result = await measure(tmp_path, sampler="cpu", episodes=(1,), threads=1)
    [run] = result["runs"]
    cpu_s = run["plays"] * run["cpu_s"]
    assert cpu_s > 0.99  # a hundred ticks of 10 ms
    assert run["sampled_per_cpu_s"] == pytest.approx(run["plays"] * 6 * 20 / cpu_s)
    assert run["of_limit"] == pytest.approx(run["limit_cpu_s"] / run["cpu_s"])
