"""An update by FSDP ranks: `python -m tests.support.verl_ranks REQUEST SIZE OUT [SIZE OUT]...`.

For each pair, `SIZE` ranks update the policy on their shares of the rows, and the first of them writes verl's
metrics and the new weights to `OUT`. All are forks of one process: verl's import takes seconds.
"""

import pickle
import socket
import sys
from multiprocessing import get_context
from pathlib import Path


def run_ranks(request: Path, out: Path, *, size: int) -> None:
    """`request`: a pickled (pipeline, model, groups)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = get_context("fork")
    ranks = [context.Process(target=run_rank, args=(rank, size, port, request, out)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * size


def run_rank(rank: int, size: int, port: int, request: Path, out: Path) -> None:
    import torch
    from torch.distributed.tensor import DTensor
    from verl.utils import tensordict_utils as tu

    from tasks.verl.local_worker import join_process_group, start_actor
    from tests.support.verl_update import step_data

    pipeline, model, groups = pickle.loads(request.read_bytes())
    join_process_group(rank=rank, size=size, port=port)
    worker = start_actor(pipeline, model=model)
    data = step_data(pipeline, groups, ranks=size, rank=rank)
    metrics = tu.get(worker.update_actor(data), "metrics")
    weights: dict[str, torch.Tensor] = {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).clone()
        for name, value in worker.actor.engine.module.state_dict().items()
    }
    if rank == 0:
        out.write_bytes(pickle.dumps((metrics, weights)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import tests.support.verl_update  # noqa: F401

    for size, out in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        run_ranks(Path(sys.argv[1]), Path(out), size=int(size))
