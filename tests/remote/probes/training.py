"""Training loops: optimizers, schedules, mixed precision, loading of data."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import aliquot.remote.torch as remote
from tests.remote.probes.probing import PROBES, Probe, close, probe


def _trains(make: Callable[[Any], torch.optim.Optimizer], tolerance: float = 1e-5) -> Probe:
    def run(device: torch.device) -> None:
        def losses(where: Any) -> torch.Tensor:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(where)
            inputs = torch.randn(16, 4).to(where)
            optimizer = make(model.parameters())

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
                loss.backward()
                return loss

            step: Any = optimizer.step
            return torch.tensor([step(closure).item() for _ in range(4)])

        torch.testing.assert_close(losses(device), losses("cpu"), rtol=tolerance, atol=tolerance)

    return run


PROBES.append(
    (
        "training",
        "SGD with momentum and weight decay",
        _trains(lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01)),
    )
)
PROBES.append(("training", "Adam and AdamW", _trains(lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True))))
PROBES.append(("training", "RMSprop, Adagrad", _trains(lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5))))
PROBES.append(("training", "LBFGS", _trains(lambda p: torch.optim.LBFGS(p, 0.1, max_iter=4), 1e-3)))
PROBES.append(("training", "a fused optimizer", _trains(lambda p: torch.optim.AdamW(p, 0.01, fused=True))))


@probe("training", "learning rate schedules")
def _(device: torch.device) -> None:
    model = nn.Linear(2, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(3):
        model(torch.ones(1, 2, device=device)).sum().backward()
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr()[0] < 1


@probe("training", "autocast casts by policy")
def _(device: torch.device) -> None:
    model = nn.Linear(4, 4).to(device)
    x = torch.randn(2, 4, device=device)
    with torch.autocast("aliquot", dtype=torch.bfloat16):
        y = model(x)
        assert y.dtype == torch.bfloat16
        assert (x @ x.t()).dtype == torch.bfloat16
        assert y.softmax(1).dtype == torch.float32
        loss = functional.mse_loss(y, x)
        assert loss.dtype == torch.float32
    loss.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32


@probe("training", "GradScaler")
def _(device: torch.device) -> None:
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("aliquot", init_scale=8.0)
    before = model.weight.tolist()
    with torch.autocast("aliquot", dtype=torch.float16):
        loss = model(torch.ones(2, 4, device=device)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert model.weight.tolist() != before


@probe("training", "averaged models (EMA)")
def _(device: torch.device) -> None:
    model = nn.Linear(2, 2).to(device)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    average.update_parameters(model)
    close(model.weight.cpu(), average.module.weight)


class _Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index * index))


@probe("training", "DataLoader with workers")
def _(device: torch.device) -> None:
    total = 0.0
    for batch in DataLoader(_Squares(), batch_size=4, num_workers=1):
        total += batch.to(device, non_blocking=True).sum().item()
    assert total == sum(index * index for index in range(8))


@probe("training", "DataLoader of a dataset on the device")
def _(device: torch.device) -> None:
    data = TensorDataset(torch.arange(8.0, device=device), torch.arange(8, device=device))
    assert sum(len(x) for x, _ in DataLoader(data, batch_size=3, shuffle=True)) == 8


@probe("training", "save and load a checkpoint, weights only")
def _(device: torch.device) -> None:
    model = nn.Linear(3, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = nn.Linear(3, 2).to(device)
    other.load_state_dict(loaded["model"])
    close(model.weight.cpu(), other.weight)
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(loaded["optimizer"])
    again.step()


@probe("training", "load with map_location to the device")
def _(device: torch.device) -> None:
    file = io.BytesIO()
    torch.save(torch.arange(3.0), file)
    file.seek(0)
    assert torch.load(file, weights_only=True, map_location=device).device == device


@probe("training", "deepcopy of a model, parameters shared by two layers")
def _(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.to(device)
    assert model[0].weight is model[1].weight
    copied = copy.deepcopy(model)
    assert copied[0].weight is copied[1].weight
    assert copied[0].weight is not model[0].weight


@probe("training", "a captured step")
def _(device: torch.device) -> None:
    x = torch.zeros(2, device=device)
    step = remote.capture(lambda: x.add_(1))
    for _ in range(5):
        step()
    assert x.tolist() == [5, 5]
