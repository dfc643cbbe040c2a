"""DistributedDataParallel with one rank over gloo on device 0, with a DistributedSampler, SyncBatchNorm's absence and a checkpoint."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = os.environ.get("MASTER_PORT", "29517")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1, self.relu, self.net2 = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo(rank, world_size, folder):
    setup(rank, world_size)
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    model = ToyModel().to(rank)
    ddp_model = DDP(model, device_ids=[rank])
    data = TensorDataset(torch.randn(40, 10), torch.randn(40, 5))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    loader = DataLoader(data, batch_size=10, sampler=sampler, pin_memory=True)
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(ddp_model(x.to(rank)), y.to(rank))
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(epoch, total.item() / world_size)
    with ddp_model.no_sync():
        loss_fn(ddp_model(x.to(rank)), y.to(rank)).backward()
    path = os.path.join(folder, "model.checkpoint")
    if rank == 0:
        torch.save(ddp_model.state_dict(), path)
    dist.barrier()
    map_location = {"cuda:%d" % 0: "cuda:%d" % rank}
    ddp_model.load_state_dict(torch.load(path, map_location=map_location, weights_only=True))
    gathered = [torch.zeros(2, device=f"cuda:{rank}") for _ in range(world_size)]
    dist.all_gather(gathered, torch.tensor([rank, 1.0], device=f"cuda:{rank}"))
    dist.broadcast(gathered[0], src=0)
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    print(gathered, objects)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(demo, args=(1, tempfile.mkdtemp()), nprocs=1, join=True)
