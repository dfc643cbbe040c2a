"""DataLoaders as people use them: workers, pinning, collate functions, persistent workers, prefetch, samplers, generators, seeding."""

import random

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)


class Sequences(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, i):
        return {"tokens": torch.arange(i % 5 + 1), "label": i % 3, "noise": np.random.rand(2)}


def collate(batch):
    tokens = torch.nn.utils.rnn.pad_sequence([b["tokens"] for b in batch], batch_first=True)
    return {
        "tokens": tokens,
        "label": torch.tensor([b["label"] for b in batch]),
        "noise": torch.tensor(np.stack([b["noise"] for b in batch])),
    }


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(start, 20, step):
            yield torch.full((3,), float(i))


class DataPrefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.next = next(self.loader)
        except StopIteration:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = self.next.cuda(non_blocking=True)
            self.next = self.next.float().sub_(1.0)

    def __next__(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.next
        if batch is not None:
            batch.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


if __name__ == "__main__":
    device = torch.device("cuda:0")
    warm = torch.ones(1, device=device)  # the device is in use before workers start
    g = torch.Generator()
    g.manual_seed(0)
    loader = DataLoader(
        Sequences(),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
        collate_fn=collate,
        persistent_workers=True,
        prefetch_factor=2,
        worker_init_fn=seed_worker,
        generator=g,
        drop_last=True,
    )
    total = torch.zeros((), device=device)
    for epoch in range(2):
        for batch in loader:
            batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
            assert batch["tokens"].is_cuda and batch["noise"].dtype == torch.float64
            total += batch["label"].float().mean() + batch["tokens"].float().sum()
    print(total.item())
    fetch = DataPrefetcher(DataLoader(Stream(), batch_size=5, num_workers=2, pin_memory=True, pin_memory_device="cuda"))
    count = 0
    while (batch := next(fetch)) is not None:
        count += batch.shape[0]
    assert count == 20
    weighted = DataLoader(Sequences(), sampler=WeightedRandomSampler([1.0] * 30, 10), batch_size=5, collate_fn=collate)
    batched = DataLoader(
        Sequences(), batch_sampler=BatchSampler(RandomSampler(Sequences()), 6, False), collate_fn=collate
    )
    print(len(list(weighted)), len(list(batched)))
    spawned = DataLoader(Sequences(), batch_size=10, num_workers=1, collate_fn=collate, multiprocessing_context="spawn")
    print(sum(b["tokens"].cuda().sum().item() for b in spawned) + warm.item())
