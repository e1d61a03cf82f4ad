"""One of several FSDP ranks: `python -m tests.support.verl_ranks RANK SIZE PORT REQUEST OUT`.

Updates the policy on its rows, and writes the gradient's norm and the new weights (`OUT`, rank 0).
"""

import pickle
import sys
from pathlib import Path
from typing import Any


def main(rank: int, size: int, port: int, request: Path, out: Path) -> None:
    """`request`: a pickled (pipeline, model, groups)."""
    import torch
    import verl  # noqa: F401  # loads the CPU's plugin
    from torch.distributed.tensor import DTensor
    from verl.utils import tensordict_utils as tu

    from tasks.verl.local_worker import join_process_group, start_actor
    from tests.support.verl_update import step_data

    pipeline, model, groups = pickle.loads(request.read_bytes())
    join_process_group(rank=rank, size=size, port=port)
    worker = start_actor(pipeline, model=model)
    data = step_data(pipeline, groups, ranks=size, rank=rank)
    metrics = tu.get(worker.update_actor(data), "metrics")
    weights: dict[str, Any] = {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).clone()
        for name, value in worker.actor.engine.module.state_dict().items()
    }
    if rank == 0:
        out.write_bytes(pickle.dumps((metrics["grad_norm"], weights)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    rank, size, port = map(int, sys.argv[1:4])
    request, out = map(Path, sys.argv[4:6])
    main(rank, size, port, request, out)
