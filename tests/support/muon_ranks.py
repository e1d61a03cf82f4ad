"""Muon's steps on two ranks, each of which is a new process: this file imports only what they need."""

from typing import Any


def step_on_two_ranks(rank: int, store: str) -> None:
    """`store`: a file that does not exist yet, by which the ranks find each other."""
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from tasks.verl.muon import MuonWithAdamW

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def optimizer(tensors: list[torch.Tensor]) -> MuonWithAdamW:
        return MuonWithAdamW(
            matrices=tensors[:3],
            others=tensors[3:],
            lr=3e-3,
            matrix_lr=0.01,
            betas=(0.8, 0.95),
            weight_decay=0.1,
        )

    torch.manual_seed(0)
    wholes = [torch.randn(shape) for shape in ((16, 8), (8, 24), (7, 7), (12, 5), (9,))]
    shards: list[Any] = [torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)])) for whole in wholes]
    whole_optimizer, shard_optimizer = optimizer(wholes), optimizer(shards)
    for _ in range(3):
        for whole, shard in zip(wholes, shards, strict=True):
            whole.grad = torch.randn_like(whole)
            shard.grad = distribute_tensor(whole.grad, mesh, [Shard(0)])
        whole_optimizer.step()
        shard_optimizer.step()
    for whole, shard in zip(wholes, shards, strict=True):
        torch.testing.assert_close(shard.full_tensor(), whole, rtol=1e-5, atol=1e-6)
    dist.destroy_process_group()
